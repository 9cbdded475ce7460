"""Gathering: every rank gets every rank's rows."""

import numpy as np

from launcher.worker.exchange.algorithms.call import Call, Vector, wait_for

SIZES, ROWS = 0, 1  # phases


def gather(call: Call, rows: np.ndarray) -> list[np.ndarray]:
    """All ranks' rows, in rank order; each sends its own to every peer at once.

    Takes L + (n−1)·S/B, as numbers of rows travel together with the rows.

    Args:
        call: who takes part.
        rows: of shape (number of rows, …); the dtype and the other dimensions are equal on all
            ranks.
    """
    rows = np.ascontiguousarray(rows)
    sizes = np.zeros(call.world_size, np.int64)
    arrivals = {r: call.receive(r, SIZES, 0, sizes[r : r + 1]) for r in call.peers}
    own_size = np.array([len(rows)], np.int64)
    departures = [call.send(r, SIZES, 0, own_size) for r in call.peers]
    flat: Vector = rows.reshape(-1)
    if rows.size:
        departures += [call.send(r, ROWS, 0, flat) for r in call.peers]
    gathered = {call.rank: rows}
    pending = []
    for r, arrival in arrivals.items():
        arrival.wait()
        gathered[r] = np.empty((int(sizes[r]), *rows.shape[1:]), rows.dtype)
        if gathered[r].size:
            pending.append(call.receive(r, ROWS, 0, gathered[r].reshape(-1)))
    wait_for(pending)
    wait_for(departures)
    return [gathered[r] for r in range(call.world_size)]
