"""The mesh: messages between all ranks of a run, by rank and tag."""

import logging
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from launcher.errors import PeerLostError
from launcher.worker.exchange.transport.address import Address, listen, parse_address
from launcher.worker.exchange.transport.dialer import Dialer, Line
from launcher.worker.exchange.transport.doorman import Doorman
from launcher.worker.exchange.transport.figures import PathFigures
from launcher.worker.exchange.transport.frame import MAX_CHUNK_BYTES
from launcher.worker.exchange.transport.handshake import PULSE, SECRET_BYTES, Acceptance, Hello
from launcher.worker.exchange.transport.inbox import Arrival, Inbox
from launcher.worker.exchange.transport.outbox import SMALL_BYTES, Departure, Outbox
from launcher.worker.exchange.transport.peer import Peer
from launcher.worker.exchange.transport.pulse import Listener, Target, new_teller
from launcher.worker.exchange.transport.selection import AllPaths, Balancer, ByRate, PathSelector

CHUNK_BYTES = 256 << 10
MAX_EARLY_BYTES = 256 << 20
FURTHER_PATHS_S = 5.0
DRAIN_S = 5.0
GOODBYE_S = 1.0
SETTLING_S = 3.0  # a path that came back may be silent for so long

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeshOptions:
    """How a mesh works.

    Args:
        selector: says which of a pair's paths carry chunks.
        balancer: gives chunks out to these.
        chunk_bytes: size of a chunk.
        max_early_bytes: memory per peer for messages that nobody waits for yet; a peer that
            sends more has to wait.
    """

    selector: PathSelector = field(default_factory=AllPaths)
    balancer: Balancer = field(default_factory=ByRate)
    chunk_bytes: int = CHUNK_BYTES
    max_early_bytes: int = MAX_EARLY_BYTES

    def __post_init__(self) -> None:
        if not SMALL_BYTES <= self.chunk_bytes <= MAX_CHUNK_BYTES:
            raise ValueError(f"chunk_bytes={self.chunk_bytes} is not in 16 KiB … 1 MiB")


class Mesh:
    """Connections to all other ranks; `open_mesh` makes it.

    `send` and `receive` may be called from any thread. A message is named by its tag: every
    pair of ranks uses a tag once. Once a peer is lost, all that wait and all later calls raise
    `PeerLostError`, which names that peer.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Sequence[Address | None]],
        secret: bytes,
        listening: Sequence[socket.socket],
        options: MeshOptions,
    ) -> None:
        self.rank, self.world_size = rank, len(addresses)
        self.addresses, self._options = tuple(tuple(own) for own in addresses), options
        self._lock = threading.Lock()
        self._error: PeerLostError | None = None
        self._is_closed = False
        self._peers = {r: self._new_peer(r) for r in range(self.world_size) if r != rank}
        self._dialer = Dialer(secret, rank)
        self._lines = {
            (target.rank, target.path): self._new_line(target)
            for target in self._targets()
            if target.rank < rank
        }
        self._teller = new_teller(secret, rank, self._targets())
        self._listener = Listener(self, self._check)
        self._doorman = Doorman(
            listening,
            lambda nonce: Acceptance(secret, rank, self.world_size, self.n_paths, nonce),
            self._admit,
        )

    def send(self, to: int, tag: int, data: Any) -> Departure:
        """Send a message; returns at once.

        Args:
            to: the rank to send to.
            tag: names the message.
            data: bytes-like and contiguous; must not change before `wait()` of the result.
        """
        return self._peer(to).send(tag, _as_bytes(data))

    def receive(self, source: int, tag: int, into: Any) -> Arrival:
        """Wait for a message; returns at once.

        Args:
            source: the rank that sends it.
            tag: names the message.
            into: writable, bytes-like and contiguous, of the message's size; filled when
                `wait()` of the result returns.
        """
        return self._peer(source).post(tag, _as_bytes(into))

    @property
    def n_paths(self) -> int:
        """How many networks there are; a pair of ranks may share fewer."""
        return max(len(own) for own in self.addresses)

    def figures(self) -> tuple[PathFigures, ...]:
        """What went over every path to every peer."""
        return tuple(figures for peer in self._peers.values() for figures in peer.figures())

    def _peer(self, rank: int) -> Peer:
        try:
            return self._peers[rank]
        except KeyError:
            raise ValueError(
                f"rank {rank} is no peer of rank {self.rank} among {self.world_size}"
            ) from None

    def connect(self, timeout_s: float) -> None:
        """Wait until all peers are there.

        Raises:
            PeerLostError: one did not come, or was lost again.
        """
        deadline_s = time.monotonic() + timeout_s
        for line in self._lines.values():
            self._dialer.bring_up(line)
        for peer in self._peers.values():
            if not peer.wait_until_up(1, max(0.0, deadline_s - time.monotonic())):
                raise self._error or self._no_answer(peer, timeout_s)
        further_s = min(deadline_s, time.monotonic() + FURTHER_PATHS_S)
        for peer in self._peers.values():
            if not peer.wait_until_up(len(peer.paths), max(0.0, further_s - time.monotonic())):
                _log.warning("rank %d cannot be reached over all of its paths yet", peer.rank)
        left_s = max(0.0, deadline_s - time.monotonic())
        if silent := self._listener.wait_until_heard(set(self._peers), left_s):
            raise self._error or self._no_answer(self._peers[min(silent)], timeout_s)

    def _no_answer(self, peer: Peer, timeout_s: float) -> PeerLostError:
        line = self._lines.get((peer.rank, peer.paths[0]))
        why = f" ({line.last_failure})" if line is not None and not line.is_up() else ""
        return PeerLostError(
            peer.rank, self._address(peer.rank), f"it did not answer within {timeout_s:g} s{why}"
        )

    def lost(self, error: PeerLostError) -> None:
        """A peer is lost, and so is what the ranks do together."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        _log.info("%s", error)
        for peer in self._peers.values():
            peer.fail(lambda: PeerLostError(error.rank, error.address, error.reason))
        for peer in self._peers.values():
            peer.tell_loss(error.rank, error.reason)

    def peer_is_silent(self, rank: int, reason: str) -> None:
        """What the pulse found: a peer does not live any more."""
        if not self._peers[rank].has_left:
            self.lost(PeerLostError(rank, self._address(rank), reason))

    def path_is_silent(self, rank: int, path: int) -> None:
        """What the pulse found: a peer is heard over other paths only."""
        self._peers[rank].break_path(path, "no sign of life came over it")

    def _check(self) -> None:
        self._teller.keep_up()
        for peer in self._peers.values():
            peer.check()

    def path_is_down(self, rank: int, path: int) -> None:
        """A path broke while others go on: connect it again, if that is our part."""
        if (line := self._lines.get((rank, path))) is not None:
            self._dialer.bring_up(line)

    def close(self) -> None:
        """Send what is still to be sent, say good-bye, end all threads and connections."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        deadline_s = time.monotonic() + DRAIN_S
        for peer in self._peers.values():
            peer.drain(max(0.0, deadline_s - time.monotonic()))
        for peer in self._peers.values():
            peer.say_bye()
        self._dialer.close()
        deadline_s = time.monotonic() + GOODBYE_S
        for peer in self._peers.values():
            peer.close(deadline_s)
        self._doorman.close()
        self._listener.close()
        self._teller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _new_peer(self, rank: int) -> Peer:
        paths = self._common_paths(rank)
        if not paths:
            raise ValueError(f"ranks {self.rank} and {rank} have no path in common")
        options = self._options
        outbox = Outbox(
            acknowledged=len(paths) > 1,
            selector=options.selector,
            balancer=options.balancer,
            chunk_bytes=options.chunk_bytes,
        )
        inbox = Inbox(rank, options.max_early_bytes)
        return Peer(rank, paths, self._address, self, inbox=inbox, outbox=outbox)

    def _common_paths(self, rank: int) -> list[int]:
        pairs = zip(self.addresses[self.rank], self.addresses[rank], strict=False)
        return [path for path, (own, other) in enumerate(pairs) if own and other]

    def _new_line(self, target: Target) -> Line:
        peer, path = self._peers[target.rank], target.path
        return Line(
            target,
            lambda: peer.is_up(path),
            lambda connection, rtt_s: self._attach(peer, path, connection, rtt_s),
        )

    def _targets(self) -> list[Target]:
        own = self.addresses[self.rank]
        return [
            Target(peer.rank, path, own[path].ip, there.ip, there.port)  # type: ignore[union-attr]
            for peer in self._peers.values()
            for path in peer.paths
            if (there := self.addresses[peer.rank][path]) is not None
        ]

    def _admit(self, hello: Hello, connection: socket.socket) -> None:
        peer = self._peers[hello.source]
        if hello.path not in peer.paths:
            connection.close()
        elif hello.kind == PULSE:
            self._listener.add(hello.source, hello.path, connection)
        else:
            self._attach(peer, hello.path, connection, 0.0)

    def _attach(self, peer: Peer, path: int, connection: socket.socket, rtt_s: float) -> None:
        self._listener.allow(peer.rank, path, SETTLING_S)
        peer.attach(path, connection, rtt_s)

    def _address(self, rank: int) -> str:
        if not 0 <= rank < self.world_size:
            return "an unknown address"
        return next((str(a) for a in self.addresses[rank] if a is not None), "no address")


def open_mesh(
    rank: int,
    addresses: Sequence[Sequence[str]],
    secret: bytes,
    *,
    timeout_s: float = 60.0,
    listening: Sequence[socket.socket] = (),
    options: MeshOptions | None = None,
) -> Mesh:
    """Connect to all other ranks; blocks until all are there.

    Args:
        rank: our own.
        addresses: of each rank "ip:port" per path, "" where it lacks the path.
        secret: 32 random bytes that all ranks of the run, and nobody else, know.
        timeout_s: how long to wait for the others, in seconds.
        listening: our own listening sockets, if they are open already.
        options: how the mesh works.

    Raises:
        PeerLostError: a rank did not answer.
        TrainingFailedError: an own address cannot be listened at.
        ValueError: the arguments make no sense together.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 0 <= rank < len(addresses):
        raise ValueError(f"rank {rank} is not among {len(addresses)} ranks")
    parsed = [[parse_address(text) for text in own] for own in addresses]
    sockets = list(listening) or [listen(own) for own in parsed[rank] if own is not None]
    try:
        mesh = Mesh(rank, parsed, secret, sockets, options or MeshOptions())
    except BaseException:
        for listener in sockets:
            listener.close()
        raise
    try:
        mesh.connect(timeout_s)
    except BaseException as error:
        if isinstance(error, PeerLostError):
            mesh.lost(error)  # so that the others learn whose fault it is
        mesh.close()
        raise
    return mesh


def _as_bytes(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(bytearray())
