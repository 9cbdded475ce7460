import contextlib
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from launcher.errors import PeerLostError, TrainingFailedError
from launcher.worker.exchange.algorithms.call import Call, Scratch
from launcher.worker.exchange.algorithms.two_shot import two_shot
from launcher.worker.exchange.transport.address import Address, listen, parse_address
from launcher.worker.exchange.transport.mesh import MeshOptions, open_mesh
from launcher.worker.exchange.transport.selection import BestPath, ShortestQueue
from tests.fakes import soon
from tests.worker.exchange.transport.meshes import (
    TIMEOUT_S,
    addresses_of,
    listening,
    open_meshes,
)

SIZES = (0, 1, 1000, 16 << 10, (16 << 10) + 1, 3_000_001)


def open_sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(str(descriptor.readlink()))
    return {each for each in found if each.startswith("socket:")}


def exchange_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("exchange")]


@pytest.mark.parametrize("n_paths", [1, 2])
def test_messages_of_all_sizes_arrive_in_any_order(n_paths: int) -> None:
    rng = np.random.default_rng(0)
    messages = [rng.integers(0, 255, size, np.uint8) for size in SIZES]
    buffers = [np.zeros_like(message) for message in messages]
    with open_meshes(2, n_paths) as (a, b):
        departures = [a.send(1, tag, message) for tag, message in enumerate(messages)]
        arrivals = [b.receive(0, tag, buffers[tag]) for tag in reversed(range(len(SIZES)))]
        for pending in [*arrivals, *departures]:
            pending.wait()
    for message, buffer in zip(messages, buffers, strict=True):
        assert (message == buffer).all()


@pytest.mark.parametrize("n_paths", [1, 2])
def test_all_ranks_sum_over_real_streams(n_paths: int) -> None:
    n, size = 3, 300_001
    vectors = [np.random.default_rng(rank).random(size, np.float32) for rank in range(n)]
    expected = (vectors[0] + vectors[1]) + vectors[2]
    with open_meshes(n, n_paths) as meshes, ThreadPoolExecutor(n) as pool:

        def work(rank: int) -> list[bytes]:
            scratch, total = Scratch(), np.empty(size, np.float32)
            totals = []
            for number in range(5):
                two_shot(Call(meshes[rank], number, scratch), vectors[rank], total)
                totals.append(total.tobytes())
            return totals

        for totals in pool.map(work, range(n)):
            assert totals == [expected.tobytes()] * 5


@pytest.mark.parametrize(
    "options", [MeshOptions(selector=BestPath()), MeshOptions(balancer=ShortestQueue())]
)
def test_other_selectors_and_balancers_deliver_too(options: MeshOptions) -> None:
    message, buffer = np.arange(1_000_000), np.zeros(1_000_000, np.int64)
    n_wanted = 1 if isinstance(options.selector, BestPath) else 2
    with open_meshes(2, 2, options) as (a, b):
        for tag in range(20):
            buffer[:] = 0
            arrival = b.receive(0, tag, buffer)
            a.send(1, tag, message).wait()
            arrival.wait()
            assert (message == buffer).all()
            used = [figures.sent_bytes > 0 for figures in a.figures()]
            if sum(used) == n_wanted:
                break  # of two paths, one may have got no processor while the other did it all
    assert sum(used) == n_wanted


def test_figures_count_what_went_over_each_path() -> None:
    with open_meshes(2, 2) as (a, b):
        arrival = b.receive(0, 1, bytearray(4 << 20))
        a.send(1, 1, bytes(4 << 20)).wait()
        arrival.wait()
        sent, received = a.figures(), b.figures()
    assert [f.path for f in sent] == [0, 1]
    assert sum(f.sent_bytes for f in sent) == sum(f.received_bytes for f in received) == 4 << 20
    assert all(f.up and f.rank == 1 and f.n_reconnects == 0 for f in sent)


def test_a_path_that_breaks_loses_nothing_and_comes_back() -> None:
    n_messages, size = 40, 1 << 20
    messages = [np.full(size, i, np.uint8) for i in range(n_messages)]
    buffers = [np.zeros(size, np.uint8) for _ in range(n_messages)]
    with open_meshes(2, 2) as (a, b):
        arrivals = [b.receive(0, i, buffer) for i, buffer in enumerate(buffers)]
        departures = [a.send(1, i, message) for i, message in enumerate(messages)]
        for breaker in (a, b):
            breaker.path_is_silent(1 - breaker.rank, 1)
        for pending in [*arrivals, *departures]:
            pending.wait()
        assert soon(lambda: a.figures()[1].up)
        assert a.figures()[1].n_reconnects >= 1
    assert all((buffer == i).all() for i, buffer in enumerate(buffers))


def test_messages_beyond_the_limit_wait_until_they_are_wanted() -> None:
    options = MeshOptions(max_early_bytes=1 << 20)
    with open_meshes(2, 1, options) as (a, b):
        departures = [a.send(1, i, np.full(1 << 19, i, np.uint8)) for i in range(40)]
        for i in range(40):
            buffer = np.zeros(1 << 19, np.uint8)
            b.receive(0, i, buffer).wait()
            assert (buffer == i).all()
        for departure in departures:
            departure.wait()


def test_messages_of_different_sizes_are_an_error_on_the_receiving_side() -> None:
    with open_meshes(2) as (a, b):
        a.send(1, 5, bytes(10)).wait()
        with pytest.raises(
            TrainingFailedError, match="rank 0 sent 10 bytes where 20 were expected"
        ):
            b.receive(0, 5, bytearray(20)).wait()


def test_nothing_is_left_behind() -> None:
    with open_meshes(2, 2):
        pass
    before = open_sockets()
    with open_meshes(3, 2) as meshes:
        meshes[0].send(1, 1, bytes(1000))
    assert soon(lambda: open_sockets() <= before)
    assert soon(lambda: exchange_threads() == [])


def test_closing_twice_does_no_harm() -> None:
    with open_meshes(2) as meshes:
        for mesh in meshes:
            mesh.close()


def test_what_was_sent_before_the_end_arrives() -> None:
    with open_meshes(2) as (a, b):
        a.send(1, 1, bytes(5 << 20))
        buffer = bytearray(5 << 20)
        closing = threading.Thread(target=a.close)
        arrival = b.receive(0, 1, buffer)
        closing.start()
        arrival.wait()
        closing.join()


def test_waiting_for_a_peer_that_has_ended_is_an_error() -> None:
    with open_meshes(2) as (a, b):
        arrival = b.receive(0, 1, bytearray(1))
        a.close()
        for waiting in (arrival, b.receive(0, 2, bytearray(1)), b.send(0, 2, bytes(100))):
            with pytest.raises(PeerLostError, match=r"rank 0 .* it has ended its part of the run"):
                waiting.wait()


def test_one_rank_alone_needs_nobody() -> None:
    with open_meshes(1) as (mesh,):
        assert mesh.figures() == ()
        with pytest.raises(ValueError, match="rank 0 is no peer of rank 0 among 1"):
            mesh.send(0, 1, b"")


def test_a_rank_that_never_comes_is_named() -> None:
    sockets = listening(2)
    addresses = addresses_of(sockets)
    sockets[0][0].close()
    with pytest.raises(PeerLostError, match=rf"rank 0 at {addresses[0][0]}: it did not answer"):
        open_mesh(1, addresses, secrets.token_bytes(32), timeout_s=0.5, listening=sockets[1])
    assert soon(lambda: exchange_threads() == [])


def test_ranks_that_do_not_share_the_secret_do_not_meet() -> None:
    sockets = listening(2)
    addresses = addresses_of(sockets)
    with ThreadPoolExecutor(2) as pool:
        opened = [
            pool.submit(
                open_mesh,
                rank,
                addresses,
                secrets.token_bytes(32),
                timeout_s=1.0,
                listening=sockets[rank],
            )
            for rank in range(2)
        ]
        for future in opened:
            with pytest.raises(PeerLostError, match="did not answer within 1 s"):
                future.result()


def test_a_rank_may_lack_a_path() -> None:
    sockets = listening(3, 2)
    addresses = addresses_of(sockets)
    sockets[2].pop().close()
    addresses[2][1] = ""
    secret = secrets.token_bytes(32)
    with ThreadPoolExecutor(3) as pool:
        opened = [
            pool.submit(open_mesh, r, addresses, secret, timeout_s=TIMEOUT_S, listening=sockets[r])
            for r in range(3)
        ]
        meshes = [future.result() for future in opened]
        paths = [(f.rank, f.path) for f in meshes[0].figures()]
        list(pool.map(lambda mesh: mesh.close(), meshes))
    assert paths == [(1, 0), (1, 1), (2, 0)]


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="a secret has 32 bytes, not 3"):
        open_mesh(0, [["127.0.0.1:0"]], b"abc")
    with pytest.raises(ValueError, match="rank 4 is not among 1 ranks"):
        open_mesh(4, [["127.0.0.1:0"]], b"a" * 32)
    with pytest.raises(ValueError, match="ranks 0 and 1 have no path in common"):
        open_mesh(0, [["127.0.0.1:0", ""], ["", "127.0.0.2:0"]], b"a" * 32)
    with pytest.raises(ValueError, match="chunk_bytes=7 is not in"):
        MeshOptions(chunk_bytes=7)


def test_addresses_are_read() -> None:
    assert parse_address("10.0.0.1:80") == Address("10.0.0.1", 80)
    assert parse_address("[fd00::1]:80") == Address("fd00::1", 80)
    assert str(Address("fd00::1", 80)) == "[fd00::1]:80"
    assert parse_address("") is None
    with pytest.raises(ValueError, match=r"'nowhere' is not an address like"):
        parse_address("nowhere")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TrainingFailedError, match=rf"cannot listen at 127.0.0.1:{port}: "):
            listen(Address("127.0.0.1", port))
