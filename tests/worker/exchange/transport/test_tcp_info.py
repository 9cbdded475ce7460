import socket

from launcher.worker.exchange.transport.tcp_info import TcpInfo, Unanswered, tcp_info

TICK_S = 0.25


def verdicts(unanswered: Unanswered, from_s: float, to_s: float, *, acked: bool) -> list[float]:
    """When a connection is found dead that has packets under way all the time."""
    found = []
    for tick in range(int(from_s / TICK_S), int(to_s / TICK_S)):
        now_s = tick * TICK_S
        info = TcpInfo(5, 0.01 if acked else now_s - from_s + 0.01, 0.001)
        if unanswered.judge(info, now_s):
            found.append(now_s)
    return found


def test_the_kernel_tells_what_is_under_way() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as here,
        listener.accept()[0] as there,
    ):
        here.sendall(b"x" * 1000)
        assert there.recv(1000)
        info = tcp_info(here)
    assert info is not None
    assert info.n_unacked == 0
    assert info.since_ack_s < 5.0
    assert info.min_rtt_s is not None
    assert 0.0 < info.min_rtt_s < 1.0


def test_what_is_no_tcp_connection_has_no_state() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert tcp_info(here) is None


def test_packets_that_are_acknowledged_are_no_reason() -> None:
    assert verdicts(Unanswered(4.0), 0, 60, acked=True) == []


def test_packets_that_vanish_are_found_after_the_limit() -> None:
    unanswered = Unanswered(4.0)
    verdicts(unanswered, 0, 10, acked=True)
    assert verdicts(unanswered, 10, 20, acked=False)[0] == 14.0


def test_an_idle_connection_that_begins_to_send_is_not_dead() -> None:
    unanswered = Unanswered(4.0)
    for tick in range(100):
        assert not unanswered.judge(TcpInfo(0, tick * TICK_S, 0.001), tick * TICK_S)
    assert not unanswered.judge(TcpInfo(3, 25.0, 0.001), 25.0)


def test_a_checker_that_stalled_does_not_blame_the_connection() -> None:
    unanswered = Unanswered(4.0)
    verdicts(unanswered, 0, 10, acked=True)
    assert not unanswered.judge(TcpInfo(3, 20.0, 0.001), 30.0)
