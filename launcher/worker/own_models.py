"""Finds the models that a script trains without Keras's own loops."""

import gc
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from launcher.worker.replicas import broadcast

if TYPE_CHECKING:
    from launcher.worker.data_parallel import DataParallel


class OwnModels:
    """The models whose weights the script's optimizers have changed, on one rank.

    A script need not tell anybody of its models. They are looked for among all living objects,
    which takes a fraction of a second, when an optimizer is first used and at the end.

    Args:
        parallel: the engine.
    """

    def __init__(self, parallel: "DataParallel") -> None:
        self._parallel = parallel
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._changed: dict[int, Any] = {}
        self._late: list[Sequence[Any]] = []

    @property
    def changed(self) -> list[Any]:
        """The weights that were changed."""
        return list(self._changed.values())

    def prepare(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Before an optimizer is first used: gives all ranks rank 0's weights; collective."""
        if optimizer in self._optimizers:
            return
        self._optimizers.add(optimizer)
        self._changed |= {id(variable): variable for variable in variables}
        self.fold_rank()
        if self._parallel.shares_data and not self._broadcast(variables):
            self._late.append(variables)

    def settle(self) -> None:
        """What had to wait for weights to be made; collective."""
        late, self._late = self._late, []
        for variables in late:
            self._broadcast(variables)

    def _broadcast(self, variables: Sequence[Any]) -> bool:
        """Gives all ranks rank 0's weights, if they exist: not while legacy Keras is traced."""
        return all(map(_exists, variables)) and broadcast(self._parallel.exchange, variables)

    def fold_rank(self) -> None:
        """Makes the random layers of this rank differ from other ranks'."""
        rank = self._parallel.exchange.rank
        for framework in self._parallel.frameworks if rank else ():
            for model in _living(framework.model_class):
                framework.fold_rank(model, rank)

    def note(self, model: Any) -> None:
        """Keras has trained a batch of this model."""
        self._changed |= {id(variable): variable for variable in model.trainable_variables}

    def trained(self) -> list[Any]:
        """The models with weights that were changed, without those that are parts of others."""
        if not self._changed:
            return []
        found = [
            model
            for framework in self._parallel.frameworks
            for model in _living(framework.model_class)
            if any(id(weight) in self._changed for weight in model.trainable_variables)
        ]
        weights = {id(m): frozenset(id(w) for w in m.trainable_variables) for m in found}
        parts = {id(part) for m in found for part in self._parallel.framework_of(m).parts(m)}
        whole = [
            model
            for model in found
            if id(model) not in parts
            and not any(weights[id(model)] < others for others in weights.values())
        ]
        return sorted(whole, key=lambda model: (-model.count_params(), model.name))


def _living(model_class: type) -> list[Any]:
    """All objects of a class, by type: asking a proxy for its class may wake it up."""
    return [each for each in gc.get_objects() if issubclass(type(each), model_class)]


def _exists(variable: Any) -> bool:
    """Whether a variable has its value yet: not while the function that makes it is traced."""
    try:
        return bool(np.shape(variable.numpy()) == tuple(variable.shape))
    except tf.errors.FailedPreconditionError:
        return False
