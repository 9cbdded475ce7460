"""The rate that a transfer tells, from streams of known pace."""

from collections.abc import Sequence

import pytest

from launcher.worker.transfer import Received, receive

MB = 1e6
CHUNK = 20_000


class PacedStream:
    """A stream that delivers at given rates, one after the other, on a clock of its own.

    Args:
        pace: (seconds, bytes per second) in order; it ends after the last.
        dies: whether it ends in an error.
    """

    def __init__(self, pace: Sequence[tuple[float, float]], *, dies: bool = False) -> None:
        self.now_s = 0.0
        self.gaps_s = [CHUNK / rate for s, rate in pace for _ in range(int(s * rate / CHUNK))]
        self.dies = dies

    def recv_into(self, buffer: bytearray) -> int:
        if not self.gaps_s:
            if self.dies:
                raise ConnectionResetError
            return 0
        self.now_s += self.gaps_s.pop(0)
        return CHUNK

    def clock(self) -> float:
        return self.now_s


def received(
    stream: PacedStream, rtt_s: float, *, max_bytes: int = 10**9, max_s: float = 1.0
) -> Received:
    return receive(stream, max_bytes=max_bytes, max_s=max_s, rtt_s=rtt_s, clock=stream.clock)


def test_a_near_path_is_left_as_soon_as_its_rate_is_steady() -> None:
    stream = PacedStream([(1.0, 100 * MB)])
    got = received(stream, 0.0005)
    assert got.bytes_per_s == pytest.approx(100 * MB, rel=0.02)
    assert got.n_bytes < 3 * MB


def slow_start(rtt_s: float, top: float) -> list[tuple[float, float]]:
    """Each round trip brings twice as much as the one before, until the path is full."""
    rates = [top / 2**k for k in range(8, 0, -1)]
    return [(rtt_s, rate) for rate in rates if rate * rtt_s >= CHUNK]


def test_slow_start_on_a_far_path_does_not_count() -> None:
    stream = PacedStream([*slow_start(0.05, 120 * MB), (1.0, 120 * MB)])
    got = received(stream, 0.05)
    assert got.bytes_per_s == pytest.approx(120 * MB, rel=0.05)
    assert stream.now_s < 0.75


def bursts(rtt_s: float, top: float) -> list[tuple[float, float]]:
    """Slow start as it is: what a round trip brings comes at full pace, then nothing comes."""
    parts = [1 / 2**k for k in range(8, 0, -1)]
    return [
        piece
        for part in parts
        if part * top * rtt_s >= 2 * CHUNK
        for piece in ((part * rtt_s, top), ((1 - part) * rtt_s, CHUNK / rtt_s))
    ]


@pytest.mark.parametrize("mbyte_per_s", [12, 25, 120])
def test_a_far_path_that_is_full_is_told_by_its_even_pace(mbyte_per_s: float) -> None:
    top, rtt_s = mbyte_per_s * MB, 0.05
    start = bursts(rtt_s, top)
    stream = PacedStream([*start, (1.0, top)])
    got = received(stream, rtt_s)
    assert got.bytes_per_s == pytest.approx(top, rel=0.1)
    filled_s = sum(seconds for seconds, _ in start)
    assert stream.now_s - filled_s < 2.2 * rtt_s


def test_a_far_path_that_is_not_full_is_not_taken_for_full() -> None:
    """A window that stays at 60 % of the path's pace: no quarters alike, but steady windows."""
    gusts = [piece for _ in range(20) for piece in ((0.03, 100 * MB), (0.02, 1 * MB))]
    got = received(PacedStream(gusts), 0.05)
    assert got.bytes_per_s == pytest.approx(60 * MB, rel=0.1)


def test_gusts_after_a_loss_count_with_the_lulls_between_them() -> None:
    gusts = [(0.05, rate * MB) for rate in (100, 27, 100, 71, 100, 50, 100, 40, 100)]
    got = received(PacedStream([*slow_start(0.05, 100 * MB), *gusts]), 0.05)
    mean = sum(rate for _, rate in gusts) / len(gusts)
    assert got.bytes_per_s == pytest.approx(mean, rel=0.2)


def test_on_a_path_that_is_shared_the_whole_time_counts() -> None:
    bursts = [(0.02, rate * MB) for _ in range(20) for rate in (100, 20)]
    stream = PacedStream(bursts)
    shared = receive(
        stream, max_bytes=10**9, max_s=0.5, rtt_s=0.0005, is_shared=True, clock=stream.clock
    )
    assert shared.bytes_per_s == pytest.approx(60 * MB, rel=0.1)


def test_a_pause_in_slow_start_is_not_its_end() -> None:
    start = [(0.05, rate * MB) for rate in (1, 2, 2, 4, 8, 16, 32, 64)]
    got = received(PacedStream([*start, (1.0, 100 * MB)]), 0.05)
    assert got.bytes_per_s == pytest.approx(100 * MB, rel=0.05)


def test_cut_off_by_the_bytes_while_it_grew_the_fastest_window_counts() -> None:
    growth = slow_start(0.05, 120 * MB)
    got = received(PacedStream([*growth, (1.0, 120 * MB)]), 0.05, max_bytes=5_000_000)
    assert got.n_bytes <= 5_000_000
    assert got.bytes_per_s == pytest.approx(growth[-1][1], rel=0.3)


def test_a_rate_that_never_settles_is_the_median_of_the_last_windows() -> None:
    swings = [(0.005, rate * MB) for _ in range(100) for rate in (40, 100)]
    got = received(PacedStream(swings), 0.0005, max_s=0.3)
    assert 40 * MB <= (got.bytes_per_s or 0.0) <= 100 * MB


@pytest.mark.parametrize("dies", [False, True])
def test_a_short_transfer_has_the_rate_of_its_second_half(dies: bool) -> None:
    got = received(PacedStream([(0.004, 10 * MB), (0.004, 50 * MB)], dies=dies), 0.05)
    assert got.bytes_per_s == pytest.approx(50 * MB, rel=0.3)


@pytest.mark.parametrize("pace", [[], [(0.001, 20 * MB)]])
def test_next_to_nothing_tells_no_rate(pace: list[tuple[float, float]]) -> None:
    assert received(PacedStream(pace), 0.05).bytes_per_s is None
