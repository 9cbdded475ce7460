from launcher.worker.exchange.transport.silence import Silence, SilentPath, SilentPeer

TICK_S = 0.25


def listen(silence: Silence, from_s: float, to_s: float, heard: list[tuple[int, int]]) -> list:
    """Tick from one time to another while some (rank, path) are heard; all verdicts."""
    verdicts = []
    for tick in range(round(from_s / TICK_S), round(to_s / TICK_S)):
        for rank, path in heard:
            silence.heard(rank, path, tick * TICK_S)
        verdicts += silence.judge(tick * TICK_S)
    return verdicts


def test_who_is_heard_is_not_judged() -> None:
    assert listen(Silence(4.0, 2.0), 0, 60, [(1, 0), (2, 0), (2, 1)]) == []


def test_a_silent_peer_is_found_within_the_limit() -> None:
    silence = Silence(4.0, 2.0)
    listen(silence, 0, 10, [(1, 0), (2, 0)])
    verdicts = listen(silence, 10, 14.5, [(2, 0)])
    assert verdicts == [SilentPeer(1, 4.25)]


def test_a_peer_is_judged_once() -> None:
    silence = Silence(4.0, 2.0)
    listen(silence, 0, 1, [(1, 0)])
    assert len(listen(silence, 1, 30, [])) == 1


def test_a_silent_path_is_told_from_a_silent_peer() -> None:
    silence = Silence(4.0, 2.0)
    listen(silence, 0, 10, [(1, 0), (1, 1)])
    assert listen(silence, 10, 20, [(1, 0)]) == [SilentPath(1, 1)]


def test_a_peer_silent_on_all_paths_is_no_matter_of_paths() -> None:
    silence = Silence(4.0, 2.0)
    listen(silence, 0, 10, [(1, 0), (1, 1)])
    assert listen(silence, 10, 20, []) == [SilentPeer(1, 4.25)]


def test_a_listener_that_stalled_does_not_blame_the_others() -> None:
    silence = Silence(4.0, 2.0)
    listen(silence, 0, 10, [(1, 0), (2, 0), (2, 1)])
    assert silence.judge(25.0) == []
    assert listen(silence, 25.25, 40, [(1, 0), (2, 0), (2, 1)]) == []


def test_after_a_stall_the_silent_are_still_found() -> None:
    silence = Silence(4.0, 2.0)
    listen(silence, 0, 10, [(1, 0)])
    silence.judge(25.0)
    assert [type(v) for v in listen(silence, 25.25, 30, [])] == [SilentPeer]


def test_a_path_that_came_back_is_given_time() -> None:
    silence = Silence(4.0, 2.0)
    listen(silence, 0, 10, [(1, 0), (1, 1)])
    listen(silence, 10, 20, [(1, 0)])
    silence.allow(1, 1, 23.0)
    assert listen(silence, 20, 24.5, [(1, 0)]) == []
    assert listen(silence, 24.5, 30, [(1, 0)]) == [SilentPath(1, 1)]


def test_a_peer_that_left_is_forgotten() -> None:
    silence = Silence(4.0, 2.0)
    listen(silence, 0, 10, [(1, 0)])
    silence.forget(1)
    assert listen(silence, 10, 30, []) == []
