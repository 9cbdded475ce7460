"""What a step's prior may be off by: features without a unit, each scaled by how far."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from policies.arrays import Floats
from policies.constants import CONSTANTS
from policies.cost_model import StepParts

# How far the prior may be off, as standard deviations of log(observed / prior).
# Measured c0 and c1 at that n: two profiled batch sizes, noise of minutes.
COMPUTE: Final = 0.04
OWN_COMPUTE: Final = 0.02
# c1 at another number of CPUs, per factor e; workers that share a node; a kind not profiled.
CPU_SCALING: Final = 0.2
SHARING: Final = 0.15
SMALLER_BATCH: Final = 0.15
ASSUMED_SPEED: Final = 0.35
# The exchange: 19 % at worst where the constants were fitted, more elsewhere. A part of its error
# is the same everywhere, the rest belongs to one of its parts at about one size of that part.
EXCHANGE: Final = 0.14
OWN_EXCHANGE: Final = 0.10
RING_LENGTH: Final = 0.08
LATENCY: Final = 0.18
TRANSFER: Final = 0.18
SOFTWARE: Final = 0.24
# What TCP's windows add depends on routers' queues and kernels' settings, which no probe tells.
WINDOWS: Final = 0.5
# The same of `direct`, whose constants come from loopback and not from steps over a network: 8 %
# in the median of 36 sums between hosts, 40 % at worst.
DIRECT_EXCHANGE: Final = 0.18
DIRECT_LATENCY: Final = 0.22
DIRECT_TRANSFER: Final = 0.22
DIRECT_SOFTWARE: Final = 0.34
# `decentralized` adds nothing but software to a step; its constant was timed in one process.
PEER_SOFTWARE: Final = 0.5
# Sizes: a part's time over that of the software of one hop, by powers of ten, and how far what
# is learned at one size reaches, in such powers.
SIZES: Final = (-1.0, 0.0, 1.0, 2.0, 3.0)
REACH: Final = 0.6
ASSUMED_LINKS: Final = 0.7
INFERRED_LINKS: Final = 0.15
DOUBTED_LINKS: Final = 0.7
# What holds for one plan alone (this n, these links) and tells nothing of another.
PLAN_COMPUTE: Final = 0.02
PLAN_EXCHANGE: Final = 0.12
# From run to run of the very same plan, on machines that others use too; the exchange waits for
# the slowest of several machines and adds to it.
NOISE: Final = 0.09
NOISE_EXCHANGE: Final = 0.06

N_COMPUTING: Final = 5
N_EXCHANGING: Final = 6 + 3 * len(SIZES)
# Computing, the exchange of each strategy that waits, and the software of the one that does not.
N_FEATURES: Final = N_COMPUTING + 2 * N_EXCHANGING + 1
# Those of one script alone: of its computing, and of each part of its exchange.
OWN_COMPUTING: Final = (1,)
OWN_EXCHANGING: Final = tuple(
    N_COMPUTING + which * N_EXCHANGING + i for which in (0, 1) for i in (2, 3, 4)
)
OWN: Final = OWN_COMPUTING + OWN_EXCHANGING


@dataclass(frozen=True, slots=True)
class Setting:
    """Plans of one script that are alike: n, way to exchange, times alike to half an octave."""

    script: str
    n_workers: int
    exchange: str
    half_octaves: tuple[int, ...]


def setting_of(script: str, parts: StepParts) -> Setting:
    """The setting of a step with these parts."""
    times_s = (parts.compute_s, parts.latency_s, parts.transfer_s)
    half_octaves = tuple(round(2.0 * math.log2(max(t, 1e-6))) for t in times_s)
    return Setting(script, parts.n_workers, parts.algorithm or parts.strategy, half_octaves)


def features(parts: StepParts, *, own: bool) -> Floats:
    """Features of log(observed / prior) that all plans share, shape `(N_FEATURES,)`.

    To first order, log(observed / prior) = Σ fraction of the step · log error of that part.
    So each feature is a part's fraction of the prior step (a number without a unit), times a
    dimensionless group (n, CPUs measured / held, workers per node), times how far that part
    of the prior may be off: by dimensional analysis (Buckingham 1914) nothing else can matter,
    and so what was learned holds for networks, models and machines that were not seen. Each
    strategy has features of its exchange for itself, so that runs of one say nothing of the
    other's.
    """
    total_s = max(parts.total_s, 1e-12)
    compute, log_ratio = parts.compute_s / total_s, math.log(parts.cpu_ratio)
    computing = [
        COMPUTE * compute,
        OWN_COMPUTE * compute * own,
        CPU_SCALING * compute * log_ratio,
        SHARING * compute * (1.0 - 1.0 / parts.sharing),
        SMALLER_BATCH * compute * (1.0 - 1.0 / parts.n_workers),
    ]
    nothing = [0.0] * N_EXCHANGING
    if parts.strategy == "decentralized":
        software = PEER_SOFTWARE * parts.software_s / total_s
        return np.array([*computing, *nothing, *nothing, software])
    exchanging = _exchange_features(parts, own=own)
    if parts.strategy == "direct":
        return np.array([*computing, *nothing, *exchanging, 0.0])
    return np.array([*computing, *exchanging, *nothing, 0.0])


def _exchange_features(parts: StepParts, *, own: bool) -> list[float]:
    """What all scripts share, the script's own (its payload, its number of tensors), sizes."""
    total_s = max(parts.total_s, 1e-12)
    exchange, direct = parts.exchange_s / total_s, parts.strategy == "direct"
    parts_s = (parts.latency_s, parts.transfer_s, parts.software_s)
    shared = [
        (DIRECT_EXCHANGE if direct else EXCHANGE) * exchange,
        RING_LENGTH * exchange * math.log2(parts.n_workers),
        *(OWN_EXCHANGE * own * part_s / total_s for part_s in parts_s),
        WINDOWS * parts.windows_s / total_s,
    ]
    sized = [
        ((DIRECT_LATENCY if direct else LATENCY) / total_s, parts.latency_s),
        ((DIRECT_TRANSFER if direct else TRANSFER) / total_s, parts.transfer_s),
        ((DIRECT_SOFTWARE if direct else SOFTWARE) / total_s, parts.software_s),
    ]
    return shared + [scale * part_s * at for scale, part_s in sized for at in _at_sizes(part_s)]


def _at_sizes(part_s: float) -> list[float]:
    """How much of a part's error belongs to each of `SIZES`, their squares one in sum.

    Gaussian basis functions, so that the errors at two sizes are the less alike the further apart
    these are (the weight-space view of a Gaussian process, Rasmussen and Williams 2006, ch. 2):
    far from what was measured the prior's own error stands.
    """
    size = math.log10(max(part_s, 1e-9) / CONSTANTS.hop_cpu_s)
    size = min(max(size, SIZES[0] - 1.0), SIZES[-1] + 1.0)
    at = [math.exp(-0.5 * ((size - center) / REACH) ** 2) for center in SIZES]
    length = math.hypot(*at)
    return [each / length for each in at]


def plan_std(parts: StepParts) -> float:
    """Deviation of what belongs to one setting alone; the floor of what others tell of it."""
    total_s = max(parts.total_s, 1e-12)
    compute, exchange = parts.compute_s / total_s, parts.exchange_s / total_s
    return math.hypot(PLAN_COMPUTE * compute, PLAN_EXCHANGE * exchange)


def noise_std(parts: StepParts) -> float:
    """Deviation from run to run of the very same plan, on machines that others use too."""
    exchange = parts.exchange_s / max(parts.total_s, 1e-12)
    return math.hypot(NOISE, NOISE_EXCHANGE * exchange)


def never_learned(parts: StepParts) -> float:
    """Variance that no experience narrows: of what was assumed or badly measured."""
    total_s = max(parts.total_s, 1e-12)
    exchange = parts.exchange_s / total_s
    speed = ASSUMED_SPEED * parts.compute_s / total_s if parts.assumed_speed else 0.0
    links = INFERRED_LINKS * exchange if parts.inferred_links else 0.0
    links = ASSUMED_LINKS * exchange if parts.assumed_links else links
    doubt = DOUBTED_LINKS * parts.doubt_s / total_s
    return speed**2 + links**2 + doubt**2
