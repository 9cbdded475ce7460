"""How a batch is shared out: equally, or so that unequal workers end at the same time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """Workers alike: a step of b rows takes each of them c0_s + c1_s · b."""

    c0_s: float
    c1_s: float
    n_workers: int

    def step_s(self, rows: float) -> float:
        """Time of a step of so many rows."""
        return self.c0_s + self.c1_s * rows


def equal_rows(n_workers: int, global_batch: int) -> int:
    """The largest of equal slices, in rows."""
    return math.ceil(global_batch / n_workers)


def even_rows(workers: Sequence[Line], global_batch: int) -> tuple[int, ...]:
    """The largest slice of each kind of worker when all end together, in whole rows."""
    return tuple(math.ceil(rows - 1e-6) for rows in even_slices(workers, global_batch))


def even_slices(workers: Sequence[Line], global_batch: int) -> tuple[float, ...]:
    """The slice of each kind of worker when all end together, in rows, at least one.

    Solves Σ n·(T − c0)/c1 = batch over the workers with c0 < T; the others get a single row.
    """
    busy = [line for line in workers if line.c1_s > 0.0]
    step_s = 0.0
    while busy:
        per_s = math.fsum(line.n_workers / line.c1_s for line in busy)
        head = math.fsum(line.n_workers * line.c0_s / line.c1_s for line in busy)
        step_s = (global_batch + head) / per_s
        left = [line for line in busy if line.c0_s < step_s]
        if len(left) == len(busy):
            break
        busy = left
    if not busy:
        n_workers = sum(line.n_workers for line in workers)
        return (max(1.0, global_batch / n_workers),) * len(workers)
    return tuple(_rows(line, step_s if line in busy else line.c0_s) for line in workers)


def _rows(line: Line, step_s: float) -> float:
    rows = (step_s - line.c0_s) / line.c1_s if line.c1_s > 0.0 else 0.0
    return max(1.0, rows)
