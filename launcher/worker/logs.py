"""The logs of epochs and evaluations, from all ranks' metric states."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from launcher.worker.metric_sums import summed, weighted_logs
from launcher.worker.replicas import average

if TYPE_CHECKING:
    from launcher.worker.data_parallel import DataParallel


class Logs:
    """Knows which metrics the numbers come from that a step returns.

    Args:
        parallel: the engine.
    """

    def __init__(self, parallel: "DataParallel") -> None:
        self._parallel = parallel
        self.reset()

    def reset(self) -> None:
        """Forgets what belongs to a fit."""
        self._results: list[tuple[Any, Any]] = []
        self._metrics: WeakKeyDictionary[Any, dict[str, dict[str, Any]]] = WeakKeyDictionary()

    def begin_step(self) -> None:
        """A train_step or test_step begins."""
        self._results.clear()

    def note_result(self, metric: Any, result: Any) -> Any:
        """Remembers which metric a result inside a step came from."""
        if self._parallel.in_keras_step:
            self._results.append((result, metric))
        return result

    def end_step(self, model: Any, role: str, logs: Any) -> None:
        """Remembers which metrics a step's logs came from."""
        if not isinstance(logs, dict) or not self._parallel.shares_data:
            return
        by_id = {id(result): metric for result, metric in self._results}
        noted = {key: by_id[id(value)] for key, value in logs.items() if id(value) in by_id}
        self._metrics.setdefault(model, {})[role] = noted

    def of_epoch(self, model: Any, logs: Any, compute: Callable[[Any], Any]) -> Any:
        """The logs of an epoch or an evaluation from all ranks' metric states; collective.

        Args:
            model: whose logs.
            logs: what the last step returned.
            compute: Keras's own way from `logs` to the result.
        """
        parallel, call = self._parallel, self._parallel.running
        if not parallel.shares_data or call is None or call.kind == "whole":
            return compute(logs)
        role = "train" if call.kind == "fit" else "test"
        if role == "train" and not parallel.sync_batchnorm:
            share = parallel.shares[parallel.exchange.rank] / sum(parallel.shares)
            statistics = parallel.framework_of(model).moving_statistics(model)
            average(parallel.exchange, statistics, share)
        noted = self._metrics.get(model, {}).get(role, {})
        with summed(parallel.exchange, [*model.metrics, *noted.values()]):
            result = compute(logs)
            if result is not logs or not isinstance(logs, dict):
                return result
            known = {k: _value(m.result()) for k, m in noted.items() if k in logs}
        others = {k: v for k, v in logs.items() if k not in known}
        weight = float(parallel.state.weight.numpy())
        return known | weighted_logs(parallel.exchange, others, weight)


def _value(result: Any) -> Any:
    return np.asarray(result)[()] if not isinstance(result, dict) else result
