"""Peers that die, freeze, leave or never belonged here."""

import contextlib
import json
import os
import pickle
import re
import secrets
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.errors import PeerLostError, TrainingFailedError
from launcher.worker.exchange.transport import doorman, pulse
from launcher.worker.exchange.transport.handshake import (
    DATA,
    PULSE,
    TIMEOUT_S,
    Acceptance,
    Hello,
    introduce,
)
from launcher.worker.exchange.transport.mesh import open_mesh
from launcher.worker.exchange.transport.pulse import Listener, Target, ThreadTeller
from tests.fakes import soon
from tests.worker.exchange.transport.meshes import (
    addresses_of,
    listening,
    open_meshes,
    start_workers,
)

NOTICED_S = 5.0
STALL_S = 60.0  # for which a busy machine may hold everything up


def lost(answer: str) -> tuple[float, int, str]:
    """After how many seconds of waiting who was lost, and why."""
    waited_s, kind, rank, _, reason = json.loads(answer)
    assert kind == "PeerLostError"
    return waited_s, rank, reason


def companions_of(pid: int) -> set[int]:
    children: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            children += (task / "children").read_text().split()
    return {int(child) for child in children if is_companion(child)}


def is_companion(pid: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        return b"companion.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_a_killed_peer_is_noticed_at_once_by_all() -> None:
    with start_workers(3) as (workers, _):
        for rank in (0, 1):
            workers[rank].tell("receive 2 7" if rank == 0 else "receive 0 7")
        workers[2].signal(signal.SIGKILL)
        for rank in (0, 1):
            waited_s, who, reason = lost(workers[rank].answer())
            assert who == 2
            assert "no sign of life" not in reason  # which would take seconds
            assert waited_s < STALL_S


def test_a_stopped_peer_is_noticed_within_five_seconds_by_all() -> None:
    with start_workers(3) as (workers, _):
        for rank in (0, 2):
            workers[rank].tell("receive 1 7")
        workers[1].signal(signal.SIGSTOP)
        try:
            for rank in (0, 2):
                waited_s, who, reason = lost(workers[rank].answer())
                assert who == 1
                silent_s = re.search(r"no sign of life for ([\d.]+) s", reason)
                assert silent_s is not None, reason
                assert float(silent_s[1]) <= NOTICED_S  # as whoever listened counts it
                assert waited_s < STALL_S
        finally:
            workers[1].signal(signal.SIGCONT)


def test_a_peer_whose_python_is_busy_for_long_is_not_lost() -> None:
    with start_workers(2) as (workers, _):
        workers[0].tell("receive 1 7")
        workers[1].tell("hold 5.5")
        assert workers[1].answer() == "held"
        workers[1].tell("send 0 7")
        assert workers[1].answer() == "sent"
        assert workers[0].answer() == "received"
        workers[1].tell("receive 0 8")
        workers[0].tell("send 1 8")
        assert workers[1].answer() == "received"


def test_no_time_without_pythons_lock_counts_against_a_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, turns = [0.0], threading.Semaphore(0)
    monkeypatch.setattr(pulse, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    verdicts = Verdicts()
    listener = Listener(verdicts, turns.release)

    def hold_the_lock(rank: int) -> None:
        if rank == 1:
            now_s[0] += 10.0

    monkeypatch.setattr(listener, "heard_ranks", SimpleNamespace(add=hold_the_lock))
    ours, theirs = socket.socketpair()
    with theirs:
        listener.add(1, 0, ours)
        for _ in range(3):
            assert turns.acquire(timeout=STALL_S)
        listener.close()
    assert verdicts.silent == []


def test_an_orderly_end_is_no_loss_and_leaves_no_process() -> None:
    with start_workers(2) as (workers, _):
        found = [companions_of(w.process.pid) for w in workers]
        assert [len(each) for each in found] == [1, 1]
        for worker in workers:
            worker.tell("close")
        assert [worker.answer() for worker in workers] == ["closed", "closed"]
        for worker in workers:
            assert worker.process.wait(STALL_S) == 0
        assert not any(is_companion(str(pid)) for each in found for pid in each)


def test_a_companion_that_was_ended_is_started_again() -> None:
    with open_meshes(2) as (a, b):
        first = companions_of(os.getpid())
        assert len(first) == 2
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        assert soon(lambda: len(companions_of(os.getpid()) - first) == 2)
        arrival = b.receive(0, 1, bytearray(10))
        a.send(1, 1, bytes(10))
        arrival.wait()


def test_all_ranks_name_the_rank_that_one_of_them_has_lost() -> None:
    with open_meshes(4) as meshes:
        waiting = [mesh.receive((mesh.rank + 1) % 4, 1, bytearray(1)) for mesh in meshes]
        meshes[2].lost(PeerLostError(0, "10.0.0.1:7", "it gave no sign of life for 4.1 s"))
        for arrival in waiting:
            with pytest.raises(PeerLostError, match=r"rank 0 .*: it gave no sign of life for 4.1"):
                arrival.wait()


def test_strangers_are_refused_and_disturb_nobody() -> None:
    with open_meshes(2) as (a, b):
        address = a.addresses[0][0]
        strangers = [socket.create_connection((address.ip, address.port)) for _ in range(150)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 200)
        strangers[1].sendall(secrets.token_bytes(32))
        for tag in range(20):
            arrival = b.receive(0, tag, bytearray(10))
            a.send(1, tag, bytes(10))
            arrival.wait()
        strangers[0].settimeout(TIMEOUT_S + STALL_S)
        with contextlib.suppress(ConnectionResetError):
            assert strangers[0].recv(1) == b""
        for stranger in strangers:
            stranger.close()


def test_half_open_connections_are_bounded_and_end_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doorman, "TIMEOUT_S", 0.2)
    with open_meshes(1 + 1) as (a, _):
        address = a.addresses[0][0]
        with socket.create_connection((address.ip, address.port)) as stranger:
            stranger.settimeout(STALL_S)
            assert stranger.recv(1) == b""


def test_a_peer_that_talks_nonsense_is_lost() -> None:
    sockets, secret = listening(2), secrets.token_bytes(32)
    addresses = addresses_of(sockets)
    with ThreadPoolExecutor(1) as pool, sockets[1][0]:
        opening = pool.submit(open_mesh, 0, addresses, secret, listening=sockets[0])
        impostors = [socket.create_connection(sockets[0][0].getsockname()) for _ in range(2)]
        for kind, impostor in zip((DATA, PULSE), impostors, strict=True):
            introduce(impostor, secret, Hello(kind, 0, 1, 0))
        with opening.result() as mesh:
            arrival = mesh.receive(1, 1, bytearray(1))
            impostors[0].sendall(b"\0" * 40)
            with pytest.raises(PeerLostError, match=r"rank 1 .* a header with mark 0x0"):
                arrival.wait()
        for impostor in impostors:
            impostor.close()


def test_a_loss_survives_pickling() -> None:
    error = PeerLostError(3, "10.0.0.1:80", "it is gone")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, TrainingFailedError)
    assert (again.rank, again.address, again.reason) == (3, "10.0.0.1:80", "it is gone")
    assert str(again).startswith("Lost the worker of rank 3 at 10.0.0.1:80: it is gone.")


class Verdicts:
    """Remembers what a listener found."""

    def __init__(self) -> None:
        self.silent: list[tuple[int, str | int]] = []

    def peer_is_silent(self, rank: int, reason: str) -> None:
        self.silent.append((rank, reason))

    def path_is_silent(self, rank: int, path: int) -> None:
        self.silent.append((rank, path))


def test_where_there_is_no_companion_threads_tell_that_we_live() -> None:
    secret, (own,) = secrets.token_bytes(32), listening(1)[0]
    target = Target(0, 0, "127.0.0.1", *own.getsockname())
    teller = ThreadTeller(secret, 1, [target])
    listener = Listener(Verdicts(), teller.keep_up)
    door = doorman.Doorman(
        [own],
        lambda nonce: Acceptance(secret, 0, 2, 1, nonce),
        lambda hello, connection: listener.add(hello.source, hello.path, connection),
    )
    try:
        assert listener.wait_until_heard({1}, STALL_S) == set()
    finally:
        teller.close()
        door.close()
        listener.close()
