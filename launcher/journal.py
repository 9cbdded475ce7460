"""A run's journal: what it shows, one JSON object a line, for those who follow it elsewhere."""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.progress import Status
from launcher.record import RunRecord, dump_record
from launcher.small_file import replace_file

logger = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = 64 * 2**20  # of what the script prints
STATUS_EVERY_S = 1.0
_STATUS_NAMES = (
    "epoch", "epochs", "step", "steps", "loss", "step_s", "cost_usd", "budget_usd", "eta_s",
    "epoch_ended",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that was shown: its kind and its details, all plain JSON values."""

    kind: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Its text; empty if it has none."""
        return str(self.detail.get("text", ""))


@dataclass(frozen=True, slots=True)
class KeptStatus:
    """Where training stood, read from a journal."""

    epoch: int = 0
    epochs: int | None = None
    step: int = 0
    steps: int | None = None
    loss: float | None = None
    step_s: float | None = None
    cost_usd: float = 0.0
    budget_usd: float | None = None
    eta_s: float | None = None
    epoch_ended: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, detail: Mapping[str, Any]) -> "KeptStatus":
        """The status in an entry; unknown keys are left out."""
        names = (*_STATUS_NAMES, "metrics")
        return cls(**{name: detail[name] for name in names if name in detail})


class Journal:
    """Writes entries to a file; that it cannot be written ends the journal, never the run.

    Args:
        path: is made, with its folder.
        clock: monotonic, in seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._clock = path, clock
        self._lock = threading.Lock()
        self._output_bytes = 0
        self._status_at_s = float("-inf")
        self._is_open = True
        self.write("opened")

    def write(self, kind: str, **detail: Any) -> None:
        """Append an entry."""
        line = json.dumps({"kind": kind, **detail}, ensure_ascii=False)
        with self._lock:
            if not self._is_open:
                return
            try:
                with self.path.open("a", encoding="utf-8", errors="replace") as stream:
                    stream.write(f"{line}\n")
            except OSError as error:
                logger.info("the journal %s ends: %s", self.path, error)
                self._is_open = False

    def begun(self, record: RunRecord) -> None:
        """Append which run this is about."""
        self.write("begun", run=record.run, record=json.loads(dump_record(record)))

    def output(self, text: str, stream: str) -> None:
        """Append what the script printed, up to `MAX_OUTPUT_BYTES` in all."""
        if self._output_bytes > MAX_OUTPUT_BYTES:
            return
        self._output_bytes += len(text)
        self.write("output", text=text, stream=stream)
        if self._output_bytes > MAX_OUTPUT_BYTES:
            self.write("line", text="launch: what the script prints from here on is not kept")

    def training(self, status: Status) -> None:
        """Append where training stands, once a second at most."""
        now_s = self._clock()
        if not status.epoch_ended and now_s - self._status_at_s < STATUS_EVERY_S:
            return
        self._status_at_s = now_s
        known = {name: getattr(status, name) for name in _STATUS_NAMES}
        if status.epoch_ended:
            known["metrics"] = dict(status.metrics)
        self.write("training", **known)


class JournalLines:
    """Writes to a journal what would be shown on a terminal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def stage(self, text: str) -> None:
        """Say what is going on now."""
        self._journal.write("stage", text=text)

    def line(self, text: str) -> None:
        """Write a line of ours."""
        self._journal.write("line", text=text)

    def output(self, text: str, stream: str = "stdout") -> None:
        """Pass on what the script printed."""
        self._journal.output(text, stream)

    def training(self, status: Status) -> None:
        """Show where training stands."""
        self._journal.training(status)

    def pause(self) -> None:
        """There is no live line to take away."""

    def close(self) -> None:
        """There is nothing to clean up."""


class JournalText:
    """A text stream for a console: each piece it prints becomes an entry when it is flushed."""

    encoding = "utf-8"

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pieces: list[str] = []

    def write(self, text: str) -> int:
        """Take a piece of text."""
        self._pieces.append(text)
        return len(text)

    def flush(self) -> None:
        """Append what was written to the journal."""
        text, self._pieces = "".join(self._pieces), []
        if text:
            self._journal.write("print", text=text)

    def isatty(self) -> bool:
        """Colours are decided by who makes the console."""
        return False


class JournalAnswers:
    """Answers of a person who follows the run from elsewhere, one line in a file for each.

    Args:
        limit_s: how long a question waits; then the answer is no.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        limit_s: float = 600.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._journal, self._limit_s, self._sleep = journal, limit_s, sleep
        self._n_asked = 0

    def readline(self) -> str:
        """The next answer; empty if none comes."""
        path = answer_path(self._journal.path, self._n_asked)
        self._journal.write("question", index=self._n_asked)
        self._n_asked += 1
        waited_s = 0.0
        while waited_s < self._limit_s:
            if path.exists():
                return path.read_text(encoding="utf-8")
            self._sleep(0.1)
            waited_s += 0.1
        return ""


def answer_path(journal: Path, index: int) -> Path:
    """Where the answer to a question of a journal is expected."""
    return journal.with_name(f"{journal.name}.answer-{index}")


def write_answer(journal: Path, index: int, text: str) -> None:
    """Answer a question of a journal."""
    replace_file(answer_path(journal, index), text)


class JournalReader:
    """Reads a journal's entries as they come.

    Args:
        read: bytes of the file from an offset on, empty where there are none yet.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._offset = 0
        self._rest = b""

    def entries(self) -> list[Entry]:
        """What has come since the last call."""
        found: list[Entry] = []
        while data := self._read(self._offset):
            self._offset += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            found += [entry for line in lines if (entry := parse_entry(line)) is not None]
        return found


def parse_entry(line: bytes) -> Entry | None:
    """The entry in a line; None where there is none."""
    try:
        detail = json.loads(line)
        return Entry(str(detail.pop("kind")), detail)
    except (ValueError, KeyError, AttributeError, TypeError):
        return None  # such as a line that a full disk cut


def read_bytes(path: Path, offset: int, size: int = 2**20) -> bytes:
    """A part of a file; empty where there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(size)
    except FileNotFoundError:
        return b""
