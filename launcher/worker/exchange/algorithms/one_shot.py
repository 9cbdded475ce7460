"""One-shot sum: one one-way latency, for small payloads and far peers."""

from launcher.worker.exchange.algorithms.call import Call, Vector, add_in_order, wait_for


def one_shot(call: Call, vector: Vector, total: Vector) -> None:
    """Sums `vector` over ranks; each sends the whole of it to every peer at once.

    Takes L + (n−1)·S/B: the least latency there is, for (n−1)·S bytes sent per worker.

    Args:
        call: who takes part.
        vector: one-dimensional, of equal size and dtype on all ranks.
        total: gets the sum, added in the order of ranks; must not overlap `vector`.
    """
    dtype, size = vector.dtype, len(vector)
    terms = {r: call.scratch.array(("whole", r), size, dtype) for r in call.peers}
    terms[call.rank] = vector
    segments = call.segments(slice(0, size), dtype)
    arrivals = [
        [call.receive(r, 0, i, terms[r][segment]) for r in call.peers]
        for i, segment in enumerate(segments)
    ]
    departures = [
        call.send(r, 0, i, vector[segment])
        for i, segment in enumerate(segments)
        for r in call.peers
    ]
    for segment, arriving in zip(segments, arrivals, strict=True):
        wait_for(arriving)
        add_in_order([terms[r][segment] for r in range(call.world_size)], total[segment])
    wait_for(departures)
