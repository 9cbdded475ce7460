"""Hands optimizers the gradients of the global batch."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.worker.data_parallel import DataParallel


class Gradients:
    """Exchanges gradients where the outermost optimizer is about to apply them.

    Args:
        parallel: the engine.
    """

    def __init__(self, parallel: "DataParallel") -> None:
        self._parallel = parallel
        self._exchanging = False

    def exchange(
        self,
        apply: Callable[[list[Any]], Any],
        gradients: Sequence[Any],
        variables: Sequence[Any] | None,
        optimizer: Any,
    ) -> Any:
        """Calls `apply` with the gradients of the global batch; nested calls exchange nothing.

        Args:
            apply: takes the gradients.
            gradients: of this rank's rows.
            variables: that the gradients belong to, where known.
            optimizer: whose gradients.
        """
        gradients = list(gradients)
        if self._exchanging or not gradients:
            return apply(gradients)
        if not self._parallel.is_tracing_step:
            return self._exchange_own(apply, gradients, variables, optimizer)
        if self._is_alone:
            return apply(gradients)
        with self._nested_alone():
            return apply(self._of_keras_step(gradients, variables, optimizer))

    @property
    def _is_alone(self) -> bool:
        """Whether there is nobody to exchange with."""
        return not self._parallel.shares_data

    def _of_keras_step(
        self,
        gradients: list[Any],
        variables: Sequence[Any] | None,
        optimizer: Any,  # noqa: ARG002 - some engines undo its scale
    ) -> list[Any]:
        """What an optimizer applies in a step of Keras's loop."""
        from launcher.worker.step import shaped

        means, _ = self._parallel.state.mean_gradients(shaped(gradients, variables))
        return means

    def _exchange_own(
        self,
        apply: Callable[[list[Any]], Any],
        gradients: list[Any],
        variables: Sequence[Any] | None,
        optimizer: Any,
    ) -> Any:
        """As `exchange`, in a loop of the script's own."""
        from launcher.worker.step import shaped

        parallel = self._parallel
        with self._nested_alone():
            parallel.own.prepare(optimizer, variables or ())
            if not parallel.shares_data:
                result = apply(gradients)
            else:
                values = parallel.own.values.noted()
                found = parallel.state.mean_gradients(shaped(gradients, variables), values)
                parallel.own.values.take(found[1])
                result = apply(found[0])
        parallel.own.applied()
        return result

    @contextlib.contextmanager
    def _nested_alone(self) -> Iterator[None]:
        """Lets optimizers inside of the optimizer apply what they are given."""
        self._exchanging = True
        try:
            yield
        finally:
            self._exchanging = False
