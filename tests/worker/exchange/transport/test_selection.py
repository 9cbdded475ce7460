from hypothesis import given
from hypothesis import strategies as st

from launcher.worker.exchange.transport.selection import (
    AllPaths,
    Balancer,
    BestPath,
    ByRate,
    PathLoad,
    ShortestQueue,
)

FAST = PathLoad(0, 0.001, 100e6, 0)
SLOW = PathLoad(1, 0.001, 10e6, 0)


@st.composite
def all_loads(draw: st.DrawFn) -> list[PathLoad]:
    return [
        PathLoad(
            path,
            draw(st.floats(0, 0.5)),
            draw(st.none() | st.floats(1e3, 1e10)),
            draw(st.integers(0, 1 << 30)),
        )
        for path in range(draw(st.integers(2, 4)))
    ]


@given(all_loads(), st.integers(1, 1 << 20), st.integers(0, 1 << 30))
def test_some_path_always_takes_the_chunk_in_the_end(
    loads: list[PathLoad], chunk_bytes: int, more_bytes: int
) -> None:
    for balancer in (ByRate(), ShortestQueue()):
        takers = takers_of(balancer, loads, chunk_bytes, chunk_bytes + more_bytes)
        settled = [PathLoad(x.path, x.rtt_s, x.rate_bytes_per_s, 0) for x in loads]
        assert takers or takers_of(balancer, settled, chunk_bytes, chunk_bytes + more_bytes)


def takers_of(balancer: Balancer, loads: list[PathLoad], chunk: int, waiting: int) -> list[int]:
    return [
        own.path
        for own in loads
        if balancer.takes(own, [other for other in loads if other is not own], chunk, waiting)
    ]


def test_a_slow_path_helps_while_much_is_waiting() -> None:
    assert ByRate().takes(SLOW, [FAST], 256_000, 10_000_000)
    assert ByRate().takes(FAST, [SLOW], 256_000, 10_000_000)


def test_a_slow_path_leaves_the_last_chunk_to_the_fast_one() -> None:
    assert not ByRate().takes(SLOW, [FAST], 256_000, 256_000)
    assert ByRate().takes(FAST, [SLOW], 256_000, 256_000)


def test_a_path_of_unknown_rate_is_tried_but_not_trusted_with_much() -> None:
    unknown = PathLoad(2, 0.001, None, 0)
    assert ByRate().takes(unknown, [FAST], 256_000, 256_000)
    assert not ByRate().takes(PathLoad(2, 0.001, None, 2 << 20), [FAST], 256_000, 256_000)


def test_the_shortest_queue_takes_the_chunk() -> None:
    busy = PathLoad(0, 0.001, 100e6, 500)
    assert not ShortestQueue().takes(busy, [SLOW], 100, 100)
    assert ShortestQueue().takes(SLOW, [busy], 100, 100)


def test_all_paths_or_the_best_one_are_selected() -> None:
    assert list(AllPaths().select([SLOW, FAST])) == [SLOW, FAST]
    assert list(BestPath().select([SLOW, FAST])) == [FAST]


def test_before_rates_are_known_the_nearest_path_is_best() -> None:
    far, near = PathLoad(0, 0.05, None, 0), PathLoad(1, 0.001, 1e6, 0)
    assert list(BestPath().select([far, near])) == [near]
