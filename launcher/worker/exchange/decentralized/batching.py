"""Local batches that follow speed, and a global batch that may grow."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

CHANGE = 0.1  # a local batch that differs by less stays as it is
SPEED_MEMORY = 0.8  # of the mean speed, per step


class Speed:
    """This worker's mean speed in examples per second, its own computing alone."""

    def __init__(self) -> None:
        self.examples_per_s: float | None = None

    def note(self, n_examples: int, busy_s: float) -> None:
        """A step computed so many examples in so much time."""
        if n_examples <= 0 or busy_s <= 0:
            return
        speed, before = n_examples / busy_s, self.examples_per_s
        self.examples_per_s = (
            speed if before is None else SPEED_MEMORY * before + (1 - SPEED_MEMORY) * speed
        )


def share(rank: int, speeds: Mapping[int, float | None]) -> float:
    """A worker's part of the global batch: its part of all speeds.

    Args:
        rank: whose.
        speeds: examples per second of the workers that live; while one is not known, it counts
            as the mean of the others.
    """
    known = [speed for speed in speeds.values() if speed]
    if not known:
        return 1.0 / len(speeds)
    mean = sum(known) / len(known)
    return (speeds[rank] or mean) / sum(speed or mean for speed in speeds.values())


class LocalBatch:
    """How many examples a worker computes per step.

    Every worker reckons its own from what it has heard; nobody has to agree, because every
    gradient weighs as its examples.

    Args:
        rank: of this worker.
        global_batch: examples per step of all workers together.
        n_workers: that there are to begin with.
    """

    def __init__(self, rank: int, global_batch: int, n_workers: int) -> None:
        self._rank = rank
        self.n_examples = max(1, round(global_batch / n_workers))

    def follow(self, global_batch: int, speeds: Mapping[int, float | None]) -> None:
        """Moves to what the speeds ask for, if that differs much.

        Args:
            global_batch: as of now.
            speeds: as in `share`.
        """
        wanted = max(1.0, global_batch * share(self._rank, speeds))
        if abs(wanted - self.n_examples) >= CHANGE * self.n_examples:
            self.n_examples = round(wanted)


class Slices:
    """Which rows of a global batch are this worker's, where all workers read the same batches.

    Each worker cuts by what it has heard. Where two have heard different things, a row may be
    computed twice or not at all, which weighted gradients bear.

    Args:
        rank: of this worker.
        ranks: that share the batches out, this one among them, to begin with.
    """

    def __init__(self, rank: int, ranks: Collection[int]) -> None:
        self._rank = rank
        self._parts = dict.fromkeys(sorted(ranks), 1.0 / len(ranks))

    def follow(self, speeds: Mapping[int, float | None]) -> None:
        """Moves to what the speeds ask for, if that differs much, or if workers came or went.

        Args:
            speeds: as in `share`.
        """
        wanted = {rank: share(rank, speeds) for rank in sorted(speeds)}
        own = self._parts[self._rank]
        if wanted.keys() != self._parts.keys() or abs(wanted[self._rank] - own) >= CHANGE * own:
            self._parts = wanted

    def bounds(self, n_rows: int) -> tuple[int, int]:
        """The first row of this worker's, and the one after its last; at least one row."""
        before = sum(part for rank, part in self._parts.items() if rank < self._rank)
        begin = min(round(n_rows * before), max(0, n_rows - 1))
        end = round(n_rows * (before + self._parts[self._rank]))
        return begin, max(begin + 1, min(end, n_rows))


@dataclass(frozen=True, slots=True)
class Growth:
    """Lets the global batch grow instead of letting the learning rate decay.

    A batch k times as large has 1/k of the gradient's noise at the same learning rate, which is
    what a learning rate of 1/k would have brought (Smith et al., "Don't decay the learning rate,
    increase the batch size", ICLR 2018). So the rate stays where it is as long as the batch grows
    by this rule, and the script's own schedule applies on top.

    Attributes:
        factor: by which the batch grows each time; 1 switches growth off.
        every_steps: steps between.
        max_fraction: of the training examples, that the batch never exceeds (DLion: a tenth).
    """

    factor: float = 1.0
    every_steps: int = 1000
    max_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.factor < 1 or self.every_steps < 1 or not 0 < self.max_fraction <= 1:
            raise ValueError(f"a batch cannot grow by {self}")

    def global_batch(self, first: int, step: int, n_training: int | None) -> int:
        """Examples per step of all workers together.

        Args:
            first: what the script says.
            step: steps taken.
            n_training: examples of the training data; None if not known, and nothing grows.
        """
        if n_training is None or self.factor == 1:
            return first
        n_times = min(step // self.every_steps, 64)
        most = max(first, int(self.max_fraction * n_training))
        return min(most, round(first * self.factor**n_times))
