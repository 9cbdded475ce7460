"""An optimizer's state: what a stage has of it, and the whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from launcher.worker.pipeline.refusals import UnsplittableError
from launcher.worker.pipeline.weights import copies


@dataclass(frozen=True, slots=True)
class Place:
    """What one of an optimizer's variables keeps.

    Attributes:
        weight: the number of the weight that it belongs to; None where it belongs to all.
        ordinal: among the variables of that weight, or of all.
    """

    weight: int | None
    ordinal: int


def places(optimizer: Any, weights: Sequence[Any]) -> tuple[Place, ...]:
    """What each of an optimizer's variables keeps, in their order, if it trains these weights.

    A copy is built whose states are as small as can be, so no memory is taken.

    Args:
        optimizer: of Keras 3; it is not changed.
        weights: that it trains, in the order in which it is given them.

    Raises:
        UnsplittableError: the optimizer does not tell which weight a state belongs to.
    """
    found = _places(optimizer, weights)
    if weights and _n_common(found) != _n_common(_places(optimizer, weights[:1])):
        name = type(optimizer).__name__
        raise UnsplittableError(f"{name} does not tell which weight each of its states belongs to")
    return found


def _n_common(found: Sequence[Place]) -> int:
    return sum(place.weight is None for place in found)


def _places(optimizer: Any, weights: Sequence[Any]) -> tuple[Place, ...]:
    copy = type(optimizer).from_config(optimizer.get_config())
    numbers = {id(weight): number for number, weight in enumerate(weights)}
    owners: dict[int, int] = {}

    def add(reference_variable: Any, name: Any = None, initializer: Any = "zeros") -> Any:
        del name, initializer
        state = copy.add_variable((), name="state")
        owners[id(state)] = numbers[id(reference_variable)]
        return state

    object.__setattr__(copy, "add_variable_from_reference", add)
    copy.build(list(weights))
    counts: dict[int | None, int] = {}
    found = []
    for variable in copy.variables:
        weight = owners.get(id(variable))
        found.append(Place(weight, counts.get(weight, 0)))
        counts[weight] = counts.get(weight, 0) + 1
    return tuple(found)


def build(optimizer: Any, weights: Sequence[Any]) -> None:
    """Makes the states of some weights, and of no others."""
    if not optimizer.built:
        optimizer.build(list(weights))


def read(optimizer: Any) -> list[np.ndarray]:
    """Copies of all of an optimizer's variables, in a file where they are large."""
    return copies(optimizer.variables)


def write(optimizer: Any, own: Sequence[Place], values: dict[Place, Any]) -> None:
    """Sets those of an optimizer's variables for which there are values.

    Args:
        optimizer: built.
        own: what its variables keep.
        values: by place.
    """
    for variable, place in zip(optimizer.variables, own, strict=True):
        if place in values:
            variable.assign(values[place])


class Optimizers:
    """Which optimizers have the states of a stage only, and what the whole was when last kept."""

    def __init__(self) -> None:
        self._whole: WeakKeyDictionary[Any, list[np.ndarray] | None] = WeakKeyDictionary()

    def is_cut(self, optimizer: Any) -> bool:
        """Whether it has the states of a stage only."""
        return optimizer in self._whole

    def whole(self, optimizer: Any) -> list[np.ndarray] | None:
        """The states of an optimizer that trains all weights, where they are known."""
        return self._whole.get(optimizer)

    def remember(self, optimizer: Any, states: list[np.ndarray] | None) -> None:
        """Note the whole of an optimizer's states, or forget it."""
        self._whole[optimizer] = states

    def adopt(self, model: Any, own: Sequence[Any], weights: Sequence[Any]) -> Any:
        """The model's optimizer with the states of some of its weights only.

        One that has been built for all weights, as in a model that was loaded, is replaced by one
        of the same settings with its states.

        Args:
            model: compiled.
            own: the weights that are trained here.
            weights: all of them.
        """
        optimizer = model.optimizer
        if optimizer in self._whole and optimizer.built:
            return optimizer
        known = self._whole.get(optimizer)
        if optimizer.built:
            known = read(optimizer)
            optimizer = type(optimizer).from_config(optimizer.get_config())
            model.optimizer = optimizer
        build(optimizer, own)
        if known is not None:
            numbers = {id(weight): number for number, weight in enumerate(weights)}
            values = dict(zip(places(optimizer, weights), known, strict=True))
            here = [
                p if p.weight is None else Place(numbers[id(own[p.weight])], p.ordinal)
                for p in places(optimizer, own)
            ]
            write(optimizer, here, values)
        self._whole[optimizer] = None
        return optimizer
