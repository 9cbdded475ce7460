"""The order of a stage's forward and backward passes: one forward, one backward (1F1B)."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forward:
    """The forward pass of a micro-batch."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward pass of a micro-batch, whose forward pass was made before."""

    micro_batch: int


Pass = Forward | Backward


def one_forward_one_backward(stage: int, n_stages: int, n_micro_batches: int) -> tuple[Pass, ...]:
    """A stage's passes, in order (PipeDream-Flush, Narayanan et al., 2021).

    A stage with n stages behind it makes n forward passes ahead, then a forward and a backward
    pass in turn, so that it never holds more than n + 1 micro-batches.

    Args:
        stage: number of the stage, from 0.
        n_stages: how many there are.
        n_micro_batches: of the step.
    """
    ahead = min(n_stages - 1 - stage, n_micro_batches)
    return tuple(_passes(ahead, n_micro_batches))


def _passes(ahead: int, n_micro_batches: int) -> Iterator[Pass]:
    yield from map(Forward, range(ahead))
    for micro_batch in range(ahead, n_micro_batches):
        yield Forward(micro_batch)
        yield Backward(micro_batch - ahead)
    yield from map(Backward, range(n_micro_batches - ahead, n_micro_batches))
