"""Ring sum: only neighbours talk, for large payloads where latency is small."""

import numpy as np

from launcher.worker.exchange.algorithms.call import Call, Vector, parts, wait_for
from launcher.worker.exchange.algorithms.mailbox import Pending


def ring(call: Call, vector: Vector, total: Vector) -> None:
    """Sums `vector` over ranks; parts go round once to be summed and once to be told.

    Takes 2·(n−1)·(L + S/(n·B)) (Patarasu and Yuan 2009). Rank r sends to rank r + 1 only. Part p
    is summed in the order p, p + 1, … of ranks. A segment goes on as soon as it is added.

    Args:
        call: who takes part.
        vector: one-dimensional, of equal size and dtype on all ranks.
        total: gets the sum; must not overlap `vector`.
    """
    n = call.world_size
    segments_by_part = [call.segments(part, vector.dtype) for part in parts(len(vector), n)]
    if n == 1:
        total[...] = vector
        return
    departures = _send_part(call, 0, segments_by_part[call.rank], vector)
    departures += _reduce(call, segments_by_part, vector, total)
    _tell(call, segments_by_part, total, departures)
    wait_for(departures)


def _reduce(
    call: Call, segments_by_part: list[list[slice]], vector: Vector, total: Vector
) -> list[Pending]:
    """Adds our own term to what comes from the left, step by step; then we hold part rank + 1."""
    n = call.world_size
    steps = []
    for step in range(n - 1):
        segments = segments_by_part[(call.rank - step - 1) % n]
        sums = [
            call.scratch.array((step, i), s.stop - s.start, vector.dtype)
            for i, s in enumerate(segments)
        ]
        steps.append((segments, sums, _receive(call, step, sums)))
    departures: list[Pending] = []
    for step, (segments, sums, arrivals) in enumerate(steps):
        for i, segment in enumerate(segments):
            arrivals[i].wait()
            # The last step's sum is the whole one, which begins the second round.
            np.add(sums[i], vector[segment], out=total[segment])
            departures.append(call.send(_right(call), step + 1, i, total[segment]))
    return departures


def _tell(
    call: Call, segments_by_part: list[list[slice]], total: Vector, departures: list[Pending]
) -> None:
    """Takes the whole sums from the left, and passes on those that the right one lacks."""
    n = call.world_size
    steps = []
    for step in range(n - 1):
        segments = segments_by_part[(call.rank - step) % n]
        arrivals = _receive(call, n - 1 + step, [total[segment] for segment in segments])
        steps.append((segments, arrivals))
    for step, (segments, arrivals) in enumerate(steps):
        for i, segment in enumerate(segments):
            arrivals[i].wait()
            if step < n - 2:
                departures.append(call.send(_right(call), n + step, i, total[segment]))


def _send_part(call: Call, phase: int, segments: list[slice], data: Vector) -> list[Pending]:
    return [call.send(_right(call), phase, i, data[segment]) for i, segment in enumerate(segments)]


def _receive(call: Call, phase: int, into: list[Vector]) -> list[Pending]:
    left = (call.rank - 1) % call.world_size
    return [call.receive(left, phase, i, segment) for i, segment in enumerate(into)]


def _right(call: Call) -> int:
    return (call.rank + 1) % call.world_size
