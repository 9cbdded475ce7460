"""Two-shot sum: two one-way latencies and as few bytes as a ring."""

from launcher.worker.exchange.algorithms.call import Call, Vector, add_in_order, parts, wait_for
from launcher.worker.exchange.algorithms.mailbox import Pending

TERMS, SUMS = 0, 1  # phases


def two_shot(call: Call, vector: Vector, total: Vector) -> None:
    """Sums `vector` over ranks; rank r gets everybody's part r, sums it and sends the sum to all.

    Takes 2·L + 2·(n−1)/n·S/B. Segments of sums leave while later ones are still coming in.

    Args:
        call: who takes part.
        vector: one-dimensional, of equal size and dtype on all ranks.
        total: gets the sum, added in the order of ranks; must not overlap `vector`.
    """
    dtype = vector.dtype
    segments_by_rank = [call.segments(part, dtype) for part in parts(len(vector), call.world_size)]
    own = segments_by_rank[call.rank]
    arrivals, terms = _receive_terms(call, own, vector)
    sums = [
        call.receive(r, SUMS, i, total[segment])
        for r in call.peers
        for i, segment in enumerate(segments_by_rank[r])
    ]
    departures = [
        call.send(r, TERMS, i, vector[segment])
        for r in call.peers
        for i, segment in enumerate(segments_by_rank[r])
    ]
    for i, segment in enumerate(own):
        wait_for(arrivals[i])
        add_in_order(terms[i], total[segment])
        departures += [call.send(r, SUMS, i, total[segment]) for r in call.peers]
    wait_for(sums)
    wait_for(departures)


def _receive_terms(
    call: Call, own: list[slice], vector: Vector
) -> tuple[list[list[Pending]], list[list[Vector]]]:
    """What is waited for, and all ranks' terms in their order, by segment of our own part."""
    arrivals, terms = [], []
    for i, segment in enumerate(own):
        size = segment.stop - segment.start
        by_rank = {r: call.scratch.array(("term", r, i), size, vector.dtype) for r in call.peers}
        arrivals.append([call.receive(r, TERMS, i, term) for r, term in by_rank.items()])
        by_rank[call.rank] = vector[segment]
        terms.append([by_rank[r] for r in range(call.world_size)])
    return arrivals, terms
