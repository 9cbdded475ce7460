"""Makes the scalars that a script's own train step returns those of all rows.

A rank's loss is a mean over its own rows. What a `tf.function` that trains returns is weighted
and summed over ranks instead, so that scripts print what one machine would, and all ranks
decide alike by it. The losses that gradients were taken of travel with the gradients, at no cost.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from launcher.worker.data_parallel import DataParallel

PURPOSE = "values of a step"


@dataclass(slots=True)
class _Scope:
    """A function of the script's that is being traced, or run as Python.

    Attributes:
        has_trained: whether gradients were applied in it.
        mean_by_id: the mean over all rows by the id of this rank's value, which is kept alive.
    """

    has_trained: bool = False
    mean_by_id: dict[int, tuple[Any, Any]] = field(default_factory=dict)


class Values:
    """What the script's functions return, on one rank.

    Args:
        parallel: the engine.
    """

    def __init__(self, parallel: "DataParallel") -> None:
        self._parallel = parallel
        self._targets: list[Any] = []
        self._sent: list[Any] = []
        self._scopes: list[_Scope] = []

    def note(self, target: Any) -> None:
        """Gradients are taken of this."""
        if self._scopes and not self._parallel.is_in_keras:
            self._targets += [t for t in tf.nest.flatten(target) if _is_scalar(t)]

    def noted(self) -> list[Any]:
        """What is to travel with the gradients that are applied now: float32 scalars."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._sent = [t for t in self._targets if t.dtype == tf.float32 and _graph(t) is graph]
        self._targets = []
        return self._sent

    def take(self, means: list[Any]) -> None:
        """The means over all rows of what was noted."""
        if self._scopes:
            scope = self._scopes[-1]
            scope.has_trained = True
            scope.mean_by_id |= {
                id(own): (own, mean) for own, mean in zip(self._sent, means, strict=True)
            }

    def returned(self, function: Callable[[], Any]) -> Any:
        """What a function of the script's returns, with the scalars of a train step replaced."""
        with self._scope() as scope:
            result = function()
        if not scope.has_trained or self._parallel.is_in_keras:
            return result
        leaves = tf.nest.flatten(result)
        rest = [leaf for leaf in leaves if _is_scalar(leaf) and id(leaf) not in scope.mean_by_id]
        means = self._parallel.state.means(rest, PURPOSE) if rest else []
        scope.mean_by_id |= {id(own): (own, m) for own, m in zip(rest, means, strict=True)}
        replaced = [scope.mean_by_id.get(id(leaf), (None, leaf))[1] for leaf in leaves]
        return tf.nest.pack_sequence_as(result, replaced)

    @contextlib.contextmanager
    def _scope(self) -> Iterator[_Scope]:
        scope = _Scope()
        self._scopes.append(scope)
        try:
            yield scope
        finally:
            self._scopes.remove(scope)
            if not self._scopes:
                self._targets = []


def _is_scalar(leaf: Any) -> bool:
    """Whether it is a scalar of floats."""
    return isinstance(leaf, tf.Tensor) and leaf.shape.rank == 0 and leaf.dtype.is_floating


def _graph(tensor: Any) -> Any:
    """The graph that a tensor belongs to; None for a value."""
    return getattr(tensor, "graph", None) if hasattr(tensor, "op") else None
