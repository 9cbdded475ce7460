"""Follow a run by its record alone, where its driver is out of reach."""

import io
import time
from collections.abc import Callable

from launcher.config import Environment
from launcher.console import make_console
from launcher.journal import Entry
from launcher.ownership import SILENT_S, Sign
from launcher.record import RunEvent, RunRecord
from launcher.report import print_outcome
from launcher.runs import RunStore
from policies.wording import dollars

READ_EVERY_S = 2.0
KIND_BY_EVENT = {"stage": "stage", "warning": "line", "restart": "line", "resume": "line"}


class RecordFollowed:
    """A run of which only the record can be read: stages, warnings and steps, not its output."""

    def __init__(
        self,
        store: RunStore,
        run: str,
        environment: Environment,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._run, self._environment, self._clock = store, run, environment, clock
        self._record: RunRecord | None = None
        self._read_at_s = float("-inf")
        self._sign: Sign | None = None
        self._changed_at_s = clock()
        self._n_events, self._steps = 0, -1

    def entries(self) -> list[Entry]:
        """What has changed since the last call."""
        if self._clock() - self._read_at_s < READ_EVERY_S:
            return []
        self._read_at_s = self._clock()
        record = self._store.load(self._run)
        self._note_sign(record)
        found = [*self._events(record), *self._progress(record)]
        if record.status != "running":
            found += [Entry("print", {"text": self._outcome(record)}), _result(record)]
        return found

    def is_alive(self) -> bool:
        """Whether its driver has given a sign of life lately, by changes alone."""
        return self._clock() - self._changed_at_s < SILENT_S

    def stop(self) -> None:
        """Leave a request in storage, where its driver looks for it."""
        ownership = self._store.ownership(self._run)
        ownership.ask_to_stop(ownership.reached())

    def answer(self, index: int, text: str) -> None:
        """Questions are not in a record."""

    def _note_sign(self, record: RunRecord) -> None:
        sign = Sign(record.term, record.heartbeat_at)
        if sign != self._sign:
            self._sign, self._changed_at_s = sign, self._clock()

    def _events(self, record: RunRecord) -> list[Entry]:
        new, self._n_events = record.events[self._n_events :], len(record.events)
        return [_entry(event) for event in new if event.kind in KIND_BY_EVENT]

    def _progress(self, record: RunRecord) -> list[Entry]:
        steps = sum(segment.steps for segment in record.segments)
        if not record.segments or steps == self._steps:
            return []
        self._steps = steps
        return [Entry("line", {"text": f"launch: {steps:,} steps, {dollars(record.cost_usd)}"})]

    def _outcome(self, record: RunRecord) -> str:
        text = io.StringIO()
        print_outcome(make_console(text, is_tty=False, environment=self._environment), record)
        return text.getvalue()


def _entry(event: RunEvent) -> Entry:
    kind = KIND_BY_EVENT[event.kind]
    text = event.detail if kind == "stage" else f"launch: {event.kind}: {event.detail}"
    return Entry(kind, {"text": text})


def _result(record: RunRecord) -> Entry:
    error = None if record.outcome is None else record.outcome.error
    text = f"launch: {error}\n" if error else ""
    return Entry("result", {"exit_code": record.exit_code or 0, "text": text})
