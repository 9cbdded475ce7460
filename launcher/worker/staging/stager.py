"""A node's part in bringing data: an actor that looks, brings and reports."""

import logging
import threading
from dataclasses import replace
from typing import Any

from launcher.errors import DataError, LauncherError
from launcher.worker.staging import filling
from launcher.worker.staging.copying import StoppedError
from launcher.worker.staging.filling import Filling
from launcher.worker.staging.manifest import Manifest
from launcher.worker.staging.origins import list_sources
from launcher.worker.staging.relay import fetch_by_actor
from launcher.worker.staging.wanted import Look, Report, Wanted

logger = logging.getLogger(__name__)


class Stager:
    """Runs as a threaded Ray actor on a node."""

    def __init__(self) -> None:
        self._report = Report()
        self._changed = threading.Condition()
        self._stop = threading.Event()

    def look(self, wanted: Wanted) -> Look:
        """See `filling.look`."""
        return filling.look(wanted)

    def listed(self, uri: str) -> Manifest:
        """What is at a path of this node; see `list_sources`."""
        return list_sources((uri,))

    def begin(self, wanted: Wanted, relay: Any = None) -> None:
        """Start to bring what is missing, in the background.

        Args:
            relay: the actor on the driver's machine, for what goes through it.
        """
        fetch = None if relay is None else fetch_by_actor(relay)
        self._tell(Report())
        work = Filling(wanted, fetch, self._tell, self._stop)
        threading.Thread(target=self._work, args=(work,), daemon=True).start()

    def report(self, timeout_s: float = 0.0) -> Report:
        """How far it is; waits for the end for at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._report.is_over, timeout_s)
            return self._report

    def stop(self) -> None:
        """End at once; what has arrived is kept."""
        self._stop.set()

    def _work(self, work: Filling) -> None:
        try:
            report = work.run()
        except StoppedError:
            report = replace(self._report, error=DataError("Bringing the data was stopped."))
        except LauncherError as error:
            report = replace(self._report, error=error)
        except Exception as error:
            logger.exception("bringing data failed")
            report = replace(
                self._report, error=DataError(f"The data cannot be brought here: {error!r}.")
            )
        self._tell(report)

    def _tell(self, report: Report) -> None:
        with self._changed:
            self._report = report
            self._changed.notify_all()
