"""Rules for choosing n that the recommender must beat, each from its source."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RingLink:
    """A worker's link as Jansen's model sees it: one-way latency and bandwidth."""

    latency_s: float
    bandwidth_bytes_per_s: float


def one_worker(counts: Sequence[int]) -> int:
    """Never distribute."""
    return min(counts)


def largest(counts: Sequence[int]) -> int:
    """Ray Train's elastic workers: as many as fit."""
    return max(counts)


def jansen_step_s(
    single_s: float, payload_bytes: float, links: Sequence[RingLink], threshold_bytes: float
) -> float:
    """Jansen 2020: T(n) = T1/n + 2(n-1)·max_i(L_i + min(G, th) / (n·BW_i)).

    Args:
        single_s: step time of one worker on the whole batch, T1.
        payload_bytes: size of the gradients, G.
        links: the ring's links, one per worker; their number is n.
        threshold_bytes: fusion threshold of the all-reduce, th.
    """
    n = len(links)
    if n == 1:
        return single_s
    fused = min(payload_bytes, threshold_bytes)
    slowest_s = max(x.latency_s + fused / (n * x.bandwidth_bytes_per_s) for x in links)
    return single_s / n + 2.0 * (n - 1) * slowest_s


# Horovod's default fusion threshold, which Jansen's model was fitted with.
FUSION_BYTES: Final = 64.0 * 1024**2


def jansen(
    single_s: float,
    payload_bytes: float,
    links_for: Callable[[int], Sequence[RingLink]],
    counts: Sequence[int],
) -> int:
    """The n with the least step time by Jansen's model, the smaller one of equals."""
    step_s = {n: jansen_step_s(single_s, payload_bytes, links_for(n), FUSION_BYTES) for n in counts}
    return min(counts, key=lambda n: (step_s[n], n))


def adaptdl(step_s_by_n: Mapping[int, float], efficiency: float = 0.5) -> int:
    """AdaptDL's rule on Ray: the largest n with speed-up / n of at least a half."""
    single_s = step_s_by_n[1]
    good = [n for n, s in step_s_by_n.items() if single_s / s / n >= efficiency]
    return max(good)
