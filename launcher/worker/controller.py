"""Ray Train's controller for workers that do not need each other: it bears that some die."""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import ray
from ray.train.v2._internal.callbacks.backend_setup import BackendSetupCallback
from ray.train.v2._internal.exceptions import (
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group.poll import WorkerGroupPollStatus, WorkerStatus

from launcher.worker.backend import LaunchBackend

FIRST: Final = 0  # the rank that keeps the model: without it training starts again
LEFT_S: Final = 10.0  # for the others to end after the first
MOST: Final = 3  # processes that are started in place of one worker's
DEATHS: Final = (WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError)

logger = logging.getLogger(__name__)


class TolerantController(TrainController):
    """Goes on without workers that fail; one whose node lives is started again in its place.

    Ray Train replaces single workers for TorchFT, by the same call.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._started: dict[int, list[threading.Thread]] = {}  # in place of each worker
        self._first_ended_s: float | None = None
        super().__init__(*args, **kwargs)

    async def _poll_workers(self) -> WorkerGroupPollStatus:
        """What the workers do; one that failed counts as ended, but for the first.

        So does, a little after the first has done its part, one that still goes on: it was not
        there to hear that training has ended.
        """
        found = await super()._poll_workers()
        if self._is_over(found.worker_statuses):
            statuses = {i: replace(x, running=False) for i, x in found.worker_statuses.items()}
        else:
            statuses = found.worker_statuses
        return replace(found, worker_statuses={i: self._borne(i, x) for i, x in statuses.items()})

    def _is_over(self, statuses: Mapping[int, WorkerStatus]) -> bool:
        """Whether the first worker has ended, and the others had time to."""
        at_first = [x for i, x in statuses.items() if self._backend.rank_at(i) == FIRST]
        if not at_first or at_first[0].running or at_first[0].error is not None:
            return False
        if self._first_ended_s is None:
            self._first_ended_s = time.monotonic()
        return time.monotonic() - self._first_ended_s > LEFT_S

    def _borne(self, index: int, status: WorkerStatus) -> WorkerStatus:
        if status.error is None or self._backend.rank_at(index) in (None, FIRST):
            return status
        if isinstance(status.error, DEATHS):
            self._replace(index)
        return WorkerStatus(running=False)

    def _replace(self, index: int) -> None:
        """Start another process in its place, in the background: its node may be gone."""
        started = self._started.setdefault(index, [])
        if self._first_ended_s is not None or len(started) >= MOST:
            return
        if any(thread.is_alive() for thread in started):
            return
        thread = threading.Thread(target=self._start_again, args=(index,), daemon=True)
        started.append(thread)
        thread.start()

    def _start_again(self, index: int) -> None:
        group = self.get_worker_group()
        try:
            node_id = group.get_workers()[index].metadata.node_id
            if any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes()):
                group.replace_replica_group(index)
        except Exception:  # whatever it is, the others go on
            logger.info("worker %d cannot be started again", index, exc_info=True)

    @property
    def _backend(self) -> LaunchBackend:
        """The one that has started the workers."""
        found = (each for each in self._callbacks if isinstance(each, BackendSetupCallback))
        backend: LaunchBackend = next(found)._backend
        return backend
