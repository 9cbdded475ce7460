"""The settings of the comparison: machines, links, data, methods."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from launcher.worker.exchange.decentralized.ako import Ako, n_partitions_for
from launcher.worker.exchange.decentralized.dlion import Dlion, DlionOptions
from launcher.worker.exchange.decentralized.gaia import Gaia, GaiaOptions
from launcher.worker.exchange.decentralized.hop import Hop, HopOptions, ring_neighbours
from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.rule import Rule
from scripts.micro_clouds.perceptron import Data, Perceptron, digits
from scripts.micro_clouds.simulation import Course, NewRule, Simulation
from scripts.micro_clouds.synchronous import Synchronous
from scripts.micro_clouds.world import Link, Ring, Wires, World, sites

QUOTAS = (0.5, 0.3, 0.4, 0.1, 0.2, 0.1)  # of a core
SITES = (2, 2, 2)
EXAMPLES_PER_CORE_S = 2000.0
SIMULATED_BYTES = 4.3e6  # of gradients, which the small model stands for
MBIT = 1e6 / 8
N_HIDDEN, GLOBAL_BATCH = 64, 96


@dataclass(frozen=True, slots=True)
class Method:
    """A way to train.

    Attributes:
        name: as shown.
        new_rule: makes a worker's rule.
        weighted: whether local batches follow speed.
        rates: learning rates to choose from.
        is_ring: whether messages go round a ring.
    """

    name: str
    new_rule: NewRule
    weighted: bool
    rates: tuple[float, ...]
    is_ring: bool = False


def world_of(hardness: str = "hard") -> World:
    """Six hosts at three sites; the links are as thin as the small model is smaller."""
    bytes_per_s = 4 * layout().size / SIMULATED_BYTES
    near = Link(0.00025, 1000 * MBIT * bytes_per_s)
    thin = {"hard": (10, 10, 10), "mixed": (50, 25, 10)}[hardness]
    ways_s = {"hard": (0.04, 0.04, 0.04), "mixed": (0.015, 0.025, 0.04)}[hardness]
    pairs = ((0, 1), (1, 2), (0, 2))
    far = {
        pair: Link(way_s, rate * MBIT * bytes_per_s)
        for pair, way_s, rate in zip(pairs, ways_s, thin, strict=True)
    }
    speeds = tuple(quota * EXAMPLES_PER_CORE_S for quota in QUOTAS)
    return World(speeds, sites(SITES, near, far))


def layout() -> Layout:
    """Of the model that is trained."""
    return Perceptron(64, N_HIDDEN, 0.1).layout


def methods() -> list[Method]:
    """All ways that are compared."""
    return [
        Method("ring-BSP", _synchronous, False, (0.2, 0.4, 0.8), is_ring=True),
        Method("direct", _synchronous, True, (0.2, 0.4, 0.8)),
        Method("Gaia 1 %", _gaia(0.01), False, (0.02, 0.05, 0.1)),
        Method("Gaia 10 %", _gaia(0.1), False, (0.02, 0.05, 0.1)),
        Method("Ako", _ako, False, (0.1, 0.2, 0.4)),
        Method("Hop", _hop, False, (0.2, 0.4, 0.8)),
        Method("decentralized", dlion(DlionOptions()), True, (0.4, 0.8, 1.6)),
    ]


def dlion(options: DlionOptions) -> NewRule:
    """The launcher's rule."""

    def new_rule(rank: int, peers: Sequence[int], is_new: bool) -> Rule:
        return Dlion(rank, peers, layout(), options, is_new=is_new)

    return new_rule


def _gaia(threshold: float) -> NewRule:
    def new_rule(rank: int, peers: Sequence[int], is_new: bool) -> Rule:
        del is_new
        return Gaia(rank, peers, layout(), GaiaOptions(threshold))

    return new_rule


def _ako(rank: int, peers: Sequence[int], is_new: bool) -> Rule:
    """As many partitions as the thinnest link asks for, at a step of a tenth of a second."""
    del is_new
    thinnest = min(link.bytes_per_s for link in world_of().links.values())
    n_partitions = n_partitions_for(layout().size, 1, int(0.1 * thinnest))
    return Ako(rank, peers, layout(), n_partitions)


def _hop(rank: int, peers: Sequence[int], is_new: bool) -> Rule:
    del is_new
    return Hop(rank, ring_neighbours(rank, len(peers) + 1), layout(), HopOptions())


def _synchronous(rank: int, peers: Sequence[int], is_new: bool) -> Rule:
    del is_new
    return Synchronous(rank, peers)


def shards_of(training: Data, n: int, rng: np.random.Generator, skewed: bool) -> list[Data]:
    """Each worker's data: all alike, or sorted by label for a half of them.

    Args:
        training: to share out.
        n: workers.
        rng: draws who gets what.
        skewed: whether each worker sees some labels more often than others.
    """
    order = rng.permutation(len(training.labels))
    if skewed:
        half = len(order) // 2
        by_label = order[:half][np.argsort(training.labels[order[:half]], kind="stable")]
        pairs = zip(np.array_split(by_label, n), np.array_split(order[half:], n), strict=True)
        parts = [np.concatenate(pair) for pair in pairs]
    else:
        parts = np.array_split(order, n)
    return [Data(training.images[part], training.labels[part]) for part in parts]


def train(
    method: Method,
    rate: float,
    world: World,
    *,
    seed: int,
    until_s: float,
    target: float | None = None,
    skewed: bool = False,
    look_every_s: float = 0.5,
) -> Course:
    """One run of a method."""
    rng = np.random.default_rng(seed)
    training, test = digits(rng)
    wires = Ring(world.links, world.n_workers) if method.is_ring else Wires(world.links)
    simulation = Simulation(
        world,
        wires,
        new_rule=method.new_rule,
        new_replica=lambda: Perceptron(64, N_HIDDEN, rate, seed=seed),
        shards=shards_of(training, world.n_workers, rng, skewed),
        test=test,
        global_batch=GLOBAL_BATCH,
        weighted=method.weighted,
        seed=seed,
    )
    return simulation.run(until_s, look_every_s, target)
