"""Follow a run that another process drives: what it showed, and what it shows now."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from launcher.errors import ClusterError, TrainingFailedError
from launcher.journal import Entry, JournalReader, KeptStatus, read_bytes, write_answer
from launcher.layout import without_colours
from launcher.process import Process
from launcher.progress import Status

POLL_S = 0.2
LIVENESS_EVERY_S = 2.0
TAIL_LINES = 30
ANSWER_TIMEOUT_S = 30.0  # of an actor on the head
TEXT_KINDS = frozenset({"output", "line", "print"})


class Followed(Protocol):
    """A run that another process drives."""

    def entries(self) -> list[Entry]:
        """What it has shown since the last call."""

    def is_alive(self) -> bool:
        """Whether its driver lives."""

    def stop(self) -> None:
        """Ask it to stop at a checkpoint."""

    def answer(self, index: int, text: str) -> None:
        """Answer a question of its."""


class FileFollowed:
    """A run whose driver and journal are on this machine."""

    def __init__(self, journal: Path, process: Process, stop: Callable[[], None]) -> None:
        self._journal, self._process, self._stop = journal, process, stop
        self._reader = JournalReader(lambda offset: read_bytes(journal, offset))

    def entries(self) -> list[Entry]:
        """What it has shown since the last call."""
        return self._reader.entries()

    def is_alive(self) -> bool:
        """Whether its driver lives; taken for granted if that is in another container."""
        return self._process.is_alive if self._process.is_here else True

    def stop(self) -> None:
        """Ask it to stop at a checkpoint."""
        self._stop()

    def answer(self, index: int, text: str) -> None:
        """Answer a question of its."""
        write_answer(self._journal, index, text)


class HostFollowed:
    """A run whose driver has a host in the cluster (`launcher.host`).

    Args:
        host: the actor's handle; Ray must be connected.
    """

    def __init__(self, host: Any) -> None:
        self._host = host
        self._reader = JournalReader(lambda offset: self._ask(host.read, offset))

    def entries(self) -> list[Entry]:
        """What it has shown since the last call."""
        return self._reader.entries()

    def is_alive(self) -> bool:
        """Whether its driver lives."""
        return bool(self._ask(self._host.is_alive))

    def stop(self) -> None:
        """Ask it to stop at a checkpoint."""
        self._ask(self._host.stop)

    def answer(self, index: int, text: str) -> None:
        """Answer a question of its."""
        self._ask(self._host.answer, index, text)

    def _ask(self, method: Any, *args: Any) -> Any:
        import ray

        try:
            return ray.get(method.remote(*args), timeout=ANSWER_TIMEOUT_S)
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"The cluster's head does not answer any more ({type(error).__name__}). The run "
                "may go on there: launch attach RUN"
            ) from error


class Lines(Protocol):
    """Where what a run shows is shown again."""

    def stage(self, text: str) -> None:
        """Say what is going on now."""

    def line(self, text: str) -> None:
        """Write a line of ours that stays."""

    def output(self, text: str, stream: str = "stdout") -> None:
        """Pass on what the script printed."""

    def training(self, status: Status) -> None:
        """Show where training stands."""

    def pause(self) -> None:
        """Take the live line away."""


@dataclass(slots=True)
class Viewer:
    """Shows a run's entries as if it ran here.

    Attributes:
        results: takes tables and the outcome.
        colour: whether it may get them coloured.
        ask: reads a person's answer; None where nobody is asked.
        kinds: what is shown; None means all.
    """

    lines: Lines
    results: Callable[[str], None]
    colour: bool
    ask: Callable[[], str] | None = None
    kinds: frozenset[str] | None = None

    def show(self, entry: Entry, followed: Followed) -> None:
        """Show one entry; an unknown kind shows nothing."""
        if self.kinds is not None and entry.kind not in self.kinds:
            return
        if entry.kind == "stage":
            self.lines.stage(entry.text)
        elif entry.kind == "line":
            self.lines.line(entry.text)
        elif entry.kind == "output":
            self.lines.output(entry.text, str(entry.detail.get("stream", "stdout")))
        elif entry.kind == "training":
            self.lines.training(KeptStatus.of(entry.detail))
        elif entry.kind == "print":
            self.lines.pause()
            self.results(entry.text if self.colour else without_colours(entry.text))
        elif entry.kind == "question" and self.ask is not None:
            followed.answer(int(entry.detail["index"]), self.ask())
            self.lines.pause()


class Follower:
    """Follows a run until an entry that is waited for.

    Args:
        run: its name, for messages.
    """

    def __init__(
        self,
        followed: Followed,
        viewer: Viewer,
        run: str = "the run",
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.followed, self.run = followed, run
        self._viewer, self._sleep, self._clock = viewer, sleep, clock
        self._waiting: deque[Entry] = deque()
        self._looked_at_s = clock()

    def catch_up(self) -> Entry | None:
        """Show the last lines of what was shown so far; the run's result if it has ended."""
        past = self.followed.entries()
        for entry in tail(past):
            self._viewer.show(entry, self.followed)
        return next((entry for entry in past if entry.kind == "result"), None)

    def until(self, *kinds: str) -> Entry:
        """Show what comes, until the next entry of one of these kinds; that one is shown too.

        Raises:
            TrainingFailedError: the driver ended without a word.
        """
        while True:
            while self._waiting:
                entry = self._waiting.popleft()
                self._viewer.show(entry, self.followed)
                if entry.kind in kinds:
                    return entry
            self._waiting.extend(self._new())

    def _new(self) -> list[Entry]:
        """What has come; waits a moment if that is nothing."""
        found = self.followed.entries()
        if found:
            return found
        if self._clock() - self._looked_at_s > LIVENESS_EVERY_S:
            self._looked_at_s = self._clock()
            if not self.followed.is_alive():
                last_words = self.followed.entries()
                if not last_words:
                    raise TrainingFailedError(self._lost())
                return last_words
        self._sleep(POLL_S)
        return []

    def _lost(self) -> str:
        return (
            f"{self.run} is lost: its driver ended without a word (killed, or out of memory?). "
            f"Go on from its last checkpoint: launch resume {self.run}"
        )


def tail(past: Sequence[Entry], n_lines: int = TAIL_LINES) -> list[Entry]:
    """The last lines that a run has shown, and where it stands."""
    kept: list[Entry] = []
    n_kept = 0
    for entry in reversed(past):
        if entry.kind not in TEXT_KINDS:
            continue
        if n_kept >= n_lines:
            break
        kept.append(_last_lines(entry, n_lines - n_kept))
        n_kept += max(1, kept[-1].text.count("\n"))
    return [*reversed(kept), *_standing(past)]


def _last_lines(entry: Entry, n_lines: int) -> Entry:
    lines = entry.text.splitlines(keepends=True)
    text = "".join(lines[-n_lines:])
    return Entry(entry.kind, {**entry.detail, "text": text})


def _standing(past: Sequence[Entry]) -> list[Entry]:
    """The last stage or state of training, unless the run has ended."""
    for entry in reversed(past):
        if entry.kind == "result":
            return []
        if entry.kind in {"stage", "training", "question"}:
            return [entry]
    return []
