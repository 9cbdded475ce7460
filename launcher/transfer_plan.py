"""In which order far transfers keep all nodes busy to the end.

Whoever starts what can start at each moment needs 9 or 10 rounds between 8 nodes of which each
sends to 7. List scheduling with random ties, the best of many tries, finds 7 or 8.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Final

from launcher.probe_routes import Route
from launcher.transfer_lanes import Lanes

_EFFORT: Final = 12_000  # routes, over all tries: 0.05 s
_ALIKE: Final = 1.1
MAX_ROUTES: Final = 250  # of 16 nodes


def planned_starts(took: Mapping[Route, float]) -> dict[Route, float]:
    """When each transfer would start in the best plan that was found.

    Args:
        took: how long each takes, above 0, in any unit. Those within 10 % of each other count as
            alike: they end together, so whoever goes next can be chosen among all.
    """
    took = {route: _ALIKE ** round(math.log(one, _ALIKE)) for route, one in took.items()}
    choice = random.Random(0)
    n_tries = _EFFORT // max(len(took), 50)
    plans = (_plan(took, choice) for _ in range(n_tries))
    return min(plans, key=lambda starts: max((starts[r] + took[r] for r in starts), default=0.0))


def _plan(took: Mapping[Route, float], choice: random.Random) -> dict[Route, float]:
    """List scheduling: those first whose nodes have most to do."""
    waiting = list(took)
    choice.shuffle(waiting)
    sends, receives = Counter[str](), Counter[str]()
    for route in waiting:
        sends[route.src] += took[route]  # type: ignore[assignment]
        receives[route.dst] += took[route]  # type: ignore[assignment]
    lanes, starts, now = Lanes(), dict[Route, float](), 0.0
    ends: list[tuple[float, int, Route]] = []
    while waiting:
        waiting.sort(key=lambda route: -max(sends[route.src], receives[route.dst]))
        for route in waiting:
            if lanes.admit(route, is_far=True):
                lanes.begin(route, is_far=True)
                starts[route] = now
                heapq.heappush(ends, (now + took[route], len(starts), route))
                sends[route.src] -= took[route]  # type: ignore[assignment]
                receives[route.dst] -= took[route]  # type: ignore[assignment]
        waiting = [route for route in waiting if route not in starts]
        now = ends[0][0]
        while ends and ends[0][0] <= now:
            lanes.end(heapq.heappop(ends)[2])
    return starts
