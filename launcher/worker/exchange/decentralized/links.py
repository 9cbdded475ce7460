"""The connections to all peers, which come and go one by one."""

import socket
import threading
import time
from collections.abc import Sequence

from launcher.worker.exchange.decentralized.link import Hearer, Link
from launcher.worker.exchange.decentralized.message import Message, Outgoing
from launcher.worker.exchange.transport.address import Address, listen, parse_address
from launcher.worker.exchange.transport.dialer import Dialer, Line
from launcher.worker.exchange.transport.doorman import Doorman
from launcher.worker.exchange.transport.handshake import DATA, Acceptance, Hello
from launcher.worker.exchange.transport.pulse import Target

DRAIN_S = 5.0
AGAIN_S = 0.5  # between two connections of one link, which may break at once


class Links:
    """Connections to all other ranks; the higher rank of a pair connects, again and again.

    Unlike `transport.mesh.Mesh`, of which every rank is a part until the end, the loss of a peer
    concerns nobody but those who hear of it.

    Args:
        rank: our own.
        addresses: of each rank, "ip:port" on each network, "" where it has none.
        secret: of the run, 32 bytes.
        size: of the model's vector.
        hearer: is told of all that happens, from the links' threads.
        generation: of the model, see `Message.packed`.
        listening: our own listening sockets, if they are open already.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[Sequence[str]],
        secret: bytes,
        size: int,
        hearer: Hearer,
        generation: int = 0,
        listening: Sequence[socket.socket] = (),
    ) -> None:
        self._rank, self._hearer = rank, hearer
        self._addresses = [[parse_address(text) for text in own] for own in addresses]
        self._is_closed = threading.Event()
        peers = [peer for peer in range(len(addresses)) if peer != rank]
        self._links = {peer: Link(peer, size, self, generation) for peer in peers}
        n_paths = max(len(own) for own in addresses)
        self._dialer = Dialer(secret, rank, AGAIN_S)
        self._lines = {peer: self._line(peer) for peer in peers if peer < rank}
        own = [address for address in self._addresses[rank] if address is not None]
        self._doorman = Doorman(
            list(listening) or [listen(address) for address in own],
            lambda nonce: Acceptance(secret, rank, len(addresses), n_paths, nonce),
            self._admit,
        )
        for line in self._lines.values():
            self._dialer.bring_up(line)

    def send(self, outgoing: Outgoing) -> None:
        """Sends a message; returns at once."""
        self._links[outgoing.to].send(outgoing.message)

    def send_to_all(self, message: Message) -> None:
        """Sends a message to all peers that are there; returns at once."""
        for link in self._links.values():
            link.send(message)

    def capacity_bytes(self, step_s: float | None) -> dict[int, int]:
        """What the link to each peer carries until the next step, see `Link.capacity_bytes`."""
        return {peer: link.capacity_bytes(step_s) for peer, link in self._links.items()}

    def rates_bytes_per_s(self) -> dict[int, float | None]:
        """What the link to each peer carries, as measured."""
        return {peer: link.rate_bytes_per_s for peer, link in self._links.items()}

    def sent_bytes(self) -> dict[int, int]:
        """What was sent to each peer."""
        return {peer: link.sent_bytes for peer, link in self._links.items()}

    def up(self) -> set[int]:
        """The peers that are there."""
        return {peer for peer, link in self._links.items() if link.is_up}

    def close(self) -> None:
        """Sends what is still to be sent, for a while, and ends all connections."""
        deadline_s = time.monotonic() + DRAIN_S
        for link in self._links.values():
            link.drain(max(0.0, deadline_s - time.monotonic()))
        self._is_closed.set()
        self._dialer.close()
        self._doorman.close()
        for link in self._links.values():
            link.close()

    def hear(self, source: int, message: Message) -> None:
        """What a link tells; nothing more when it is closed, as another model may be next."""
        if not self._is_closed.is_set():
            self._hearer.hear(source, message)

    def link_is_up(self, peer: int) -> None:
        """What a link tells."""
        if not self._is_closed.is_set():
            self._hearer.link_is_up(peer)

    def link_is_down(self, peer: int) -> None:
        """What a link tells; connects it again, if that is our part."""
        if self._is_closed.is_set():
            return
        self._hearer.link_is_down(peer)
        if (line := self._lines.get(peer)) is not None:
            self._dialer.bring_up(line)

    def _admit(self, hello: Hello, connection: socket.socket) -> None:
        if hello.kind == DATA and hello.source > self._rank:
            self._links[hello.source].attach(connection, 0.0)
        else:
            connection.close()

    def _line(self, peer: int) -> Line:
        link, (path, own, there) = self._links[peer], self._common_path(peer)
        target = Target(peer, path, own.ip, there.ip, there.port)
        return Line(target, lambda: link.is_up, link.attach)

    def _common_path(self, peer: int) -> tuple[int, Address, Address]:
        pairs = zip(self._addresses[self._rank], self._addresses[peer], strict=False)
        for path, (own, there) in enumerate(pairs):
            if own is not None and there is not None:
                return path, own, there
        raise ValueError(f"ranks {self._rank} and {peer} have no path in common")
