"""The cells of the sweep, in an order of which every part is balanced.

Four passes hold a quarter of all cases each: every workload on every network, with batches and
hosts in turn. So a sweep that ends early has measured whole choices, of all workloads, on all
networks, in both ways to exchange gradients.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

BATCHES_BY_WORKLOAD = {
    "tiny_mlp": (128, 1024),
    "deep_mlp": (256, 2048),
    "wide_mlp": (128, 512),
    "small_cnn": (64, 512),
    "large_cnn": (32, 128),
    "lstm": (64, 256),
    "conv_lstm": (16, 64),
    "embedding": (256, 2048),
}
# By what is under way on them, the most first: TCP's windows shrink at once where a network has
# become smaller, and take many seconds to grow after they have met with losses.
NETWORKS = (
    (1000.0, 50.0),
    (1000.0, 10.0),
    (100.0, 50.0),
    (100.0, 10.0),
    (1000.0, 0.5),
    (100.0, 0.5),
)
# Two cores are left some room for the relay between the hosts.
EQUAL, UNEQUAL = (0.4, 0.4, 0.4, 0.4), (0.6, 0.5, 0.3, 0.3)
COUNTS = (2, 3, 4)
LARGE = ("wide_mlp", "large_cnn")  # whose gradients are worth `two_shot`
WAYS = (
    (1, "allreduce", ""),
    *((n, "allreduce", "") for n in COUNTS),
    *((n, "direct", "one_shot") for n in COUNTS),
    *((n, "direct", "two_shot") for n in COUNTS),
)
PASSES = 4
AGAIN_EVERY, RUNS = 8, 3  # every eighth cell is measured three times


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured; `cpus` are the hosts' cores, in rank order."""

    workload: str
    batch: int
    n: int
    strategy: str
    algorithm: str
    cpus: str
    rtt_ms: float
    rate_mbit: float
    run: int = 0


Way = tuple[int, str, str]


def group_of(cell: Cell) -> Way:
    """What one group of processes can measure."""
    return cell.n, cell.strategy, cell.algorithm


def all_cells() -> Iterator[Cell]:
    """Every cell, those of one group of processes in a row, and of these those of one network.

    Some are measured again: by the same processes when these have measured all else of a pass,
    and by others in the next pass.
    """
    for number, way in itertools.product(range(PASSES + 1), WAYS):
        cells = cells_of(way, number)
        yield from cells
        yield from (replace(cell, run=1) for cell in _again(cells, number, way))
        if number > 0:
            before = cells_of(way, number - 1)
            yield from (replace(cell, run=2) for cell in _again(before, number - 1, way))


def cells_of(way: Way, number: int) -> list[Cell]:
    """The cells of one group of processes in one pass, for the first time."""
    n, strategy, algorithm = way
    if n == 1:
        return list(_alone(number))
    if number >= PASSES:
        return []
    found = []
    for place, (rate, rtt) in enumerate(NETWORKS):
        for at, (workload, batches) in enumerate(BATCHES_BY_WORKLOAD.items()):
            if algorithm == "two_shot" and workload not in LARGE:
                continue
            which, hosts = divmod((number + at + place) % PASSES, 2)
            cpus = _text((EQUAL, UNEQUAL)[hosts], n)
            cell = Cell(workload, batches[which], n, strategy, algorithm, cpus, rtt, rate)
            found.append(cell)
    return found


def _alone(number: int) -> Iterator[Cell]:
    """One worker on every kind of host: three batches in the first pass, what is between next."""
    for workload, batches in BATCHES_BY_WORKLOAD.items():
        first = {batches[0] // 4, *batches}
        between = {b // k for b in batches for k in (2, 4)} - first
        sizes = {0: first, 1: between}.get(number, set())
        for batch, cpus in itertools.product(sorted(sizes), sorted({*EQUAL, *UNEQUAL})):
            yield Cell(workload, batch, 1, "allreduce", "", f"{cpus:g}", 0.5, 1000.0)


def _text(hosts: Sequence[float], n: int) -> str:
    """The CPUs of n of the hosts: of two unequal ones, the fastest and the slowest."""
    chosen = (hosts[0], hosts[-1]) if n == 2 else hosts[:n]
    return " ".join(f"{each:g}" for each in chosen)


def _again(cells: Sequence[Cell], number: int, way: Way) -> list[Cell]:
    """Those that are measured several times."""
    offset = number + WAYS.index(way)
    return [cell for i, cell in enumerate(cells) if (i + offset) % AGAIN_EVERY == 0]


def is_quick(cell: Cell) -> bool:
    """Two workloads, alone and on two hosts, on two networks."""
    near = (cell.rate_mbit, cell.rtt_ms) in {NETWORKS[2], NETWORKS[4]}
    return cell.workload in {"small_cnn", "wide_mlp"} and near and cell.run == 0 and cell.n < 3
