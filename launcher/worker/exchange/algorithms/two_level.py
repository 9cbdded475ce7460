"""Two-level sum: two-shot inside each site, one-shot between sites."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.worker.exchange.algorithms.call import Call, Vector, add_in_order, parts, wait_for
from launcher.worker.exchange.algorithms.mailbox import Pending

TERMS, SITE_SUMS, SUMS = 0, 1, 2  # phases


def two_level(call: Call, vector: Vector, total: Vector, *, sites: Sequence[Sequence[int]]) -> None:
    """Sums `vector` over ranks, sending as little as possible between sites.

    Each member of a site of m owns 1/m of the vector: it sums its part over the site, exchanges
    it with the owners of the same elements in the other sites, and tells its site the result.
    With s sites, latency l and bandwidth b inside and L, B between them (B of one site):
    2·l + 2·(m−1)/m·S/b + L + (s−1)·S/B. A site sends (s−1)·S to the others, shared by its
    members.

    Args:
        call: who takes part.
        vector: one-dimensional, of equal size and dtype on all ranks.
        total: gets the sum, added in the order of sites; must not overlap `vector`.
        sites: the ranks of each site, the same on all ranks; sizes may differ.

    Raises:
        ValueError: the sites do not hold every rank once.
    """
    if sorted(rank for site in sites for rank in site) != list(range(call.world_size)):
        raise ValueError(f"sites {sites} do not hold each of {call.world_size} ranks once")
    site = next(site for site in sites if call.rank in site)
    inside = _Inside(call, site, vector, total)
    between = _Between(call, sites, site, inside)
    departures = inside.send_terms()
    for i, segment in enumerate(inside.own):
        inside.add_terms(i, between.site_sum(segment))
        departures += between.send_ready(segment.stop)
    for i, segment in enumerate(inside.own):
        add_in_order(between.terms(segment), total[segment])
        departures += inside.send_sum(i)
    wait_for(inside.sums)
    wait_for(departures)


class _Inside:
    """The messages between members of our own site."""

    def __init__(self, call: Call, site: Sequence[int], vector: Vector, total: Vector) -> None:
        self.call, self.site, self.vector, self.total = call, site, vector, total
        own_parts = parts(len(vector), len(site))
        self.part = own_parts[site.index(call.rank)]
        self.segments = {
            rank: call.segments(part, vector.dtype)
            for rank, part in zip(site, own_parts, strict=True)
        }
        self.own = self.segments[call.rank]
        self.peers = [rank for rank in call.peers if rank in site]
        size = self.part.stop - self.part.start
        self._terms = {r: call.scratch.array(("in", r), size, vector.dtype) for r in self.peers}
        self._arrivals = [
            [call.receive(r, TERMS, i, self._local(self._terms[r], s)) for r in self.peers]
            for i, s in enumerate(self.own)
        ]
        self.sums = [
            call.receive(r, SUMS, i, total[s])
            for r in self.peers
            for i, s in enumerate(self.segments[r])
        ]

    def _local(self, array: Vector, segment: slice) -> Vector:
        """A segment of an array that holds our own part only."""
        return array[segment.start - self.part.start : segment.stop - self.part.start]

    def send_terms(self) -> list[Pending]:
        return [
            self.call.send(r, TERMS, i, self.vector[s])
            for r in self.peers
            for i, s in enumerate(self.segments[r])
        ]

    def add_terms(self, i: int, into: Vector) -> None:
        wait_for(self._arrivals[i])
        segment = self.own[i]
        terms = {r: self._local(self._terms[r], segment) for r in self.peers}
        terms[self.call.rank] = self.vector[segment]
        add_in_order([terms[r] for r in self.site], into)

    def send_sum(self, i: int) -> list[Pending]:
        return [self.call.send(r, SUMS, i, self.total[self.own[i]]) for r in self.peers]


@dataclass(slots=True)
class _Exchanged:
    """A piece that we share with the owner of the same elements in another site."""

    rank: int
    index: int
    elements: slice
    arrival: Pending


class _Between:
    """The messages between owners of the same elements in different sites."""

    def __init__(
        self, call: Call, sites: Sequence[Sequence[int]], site: Sequence[int], inside: _Inside
    ) -> None:
        self.call, self.part = call, inside.part
        dtype, size = inside.vector.dtype, self.part.stop - self.part.start
        self._sums = [
            call.scratch.array(("site", number), size, dtype) for number in range(len(sites))
        ]
        self._own_sum = self._sums[[tuple(s) for s in sites].index(tuple(site))]
        self._pieces: list[_Exchanged] = []
        for number, other in enumerate(sites):
            if other is not site:
                self._receive_from(other, self._sums[number], len(inside.vector))
        self._pieces.sort(key=lambda piece: (piece.elements.start, piece.rank))
        self._n_sent = self._n_come = 0

    def _receive_from(self, site: Sequence[int], into: Vector, size: int) -> None:
        for rank, part in zip(site, parts(size, len(site)), strict=True):
            shared = slice(max(part.start, self.part.start), min(part.stop, self.part.stop))
            if shared.start >= shared.stop:
                continue
            for i, elements in enumerate(self.call.segments(shared, into.dtype)):
                arrival = self.call.receive(rank, SITE_SUMS, i, self._local(into, elements))
                self._pieces.append(_Exchanged(rank, i, elements, arrival))

    def _local(self, array: Vector, elements: slice) -> Vector:
        return array[elements.start - self.part.start : elements.stop - self.part.start]

    def site_sum(self, segment: slice) -> Vector:
        """Where the sum over our own site goes."""
        return self._local(self._own_sum, segment)

    def send_ready(self, n_summed: int) -> list[Pending]:
        """Sends what lies before the element `n_summed` and was not sent yet."""
        departures = []
        while self._n_sent < len(self._pieces):
            piece = self._pieces[self._n_sent]
            if piece.elements.stop > n_summed:
                break
            data = self._local(self._own_sum, piece.elements)
            departures.append(self.call.send(piece.rank, SITE_SUMS, piece.index, data))
            self._n_sent += 1
        return departures

    def terms(self, segment: slice) -> list[Vector]:
        """All sites' sums of a segment, in their order; blocks until they have come."""
        while self._n_come < len(self._pieces):
            piece = self._pieces[self._n_come]
            if piece.elements.start >= segment.stop:
                break
            piece.arrival.wait()
            self._n_come += 1
        return [self._local(array, segment) for array in self._sums]
