"""Follow a run that a job on a cluster's head drives: its journal is what the job says."""

import logging
import shlex
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ClusterError
from launcher.jobs import Jobs, UnreachableError
from launcher.journal import Entry, JournalReader, answer_path

logger = logging.getLogger(__name__)

AGAIN_S = 2.0  # between tries to hear a job again
PATIENCE_S = 180.0  # how long a head may be out of reach
SILENT = f"the cluster's head does not answer: trying again for {PATIENCE_S / 60:g} min"
ANSWERS = "the cluster's head answers again"
# Ray's own first line in a job's log, which shows the command.
_PREAMBLE = "Running entrypoint for job "


class JobLog:
    """What a job has said so far, read in the background; hears it again when the line breaks."""

    def __init__(
        self, jobs: Jobs, job: str, *, wait: Callable[[float], object] | None = None
    ) -> None:
        self._jobs, self._job = jobs, job
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._text = bytearray()
        self._error: ClusterError | None = None
        self._is_whole = self._is_silent = False
        self._wait = wait or self._stop.wait
        self._thread = threading.Thread(target=self._hear, name="launch-job-log", daemon=True)
        self._thread.start()

    def read(self, offset: int) -> bytes:
        """What has come from a byte on; nothing where there is no more yet."""
        with self._lock:
            return bytes(self._text[offset:])

    @property
    def is_whole(self) -> bool:
        """Whether the job is over and all it said is here."""
        return self._is_whole

    @property
    def is_silent(self) -> bool:
        """Whether the head does not answer at the moment."""
        return self._is_silent

    @property
    def error(self) -> ClusterError | None:
        """Why it cannot be heard any more, if so."""
        return self._error

    def close(self) -> None:
        """Stop listening, once the next piece has come."""
        self._stop.set()

    def _hear(self) -> None:
        silent_since_s = None
        while not self._stop.is_set():
            try:
                if self._heard_out():
                    self._is_whole = True
                    return
                silent_since_s, self._is_silent = None, False
            except UnreachableError as error:
                now_s = time.monotonic()
                silent_since_s, self._is_silent = silent_since_s or now_s, True
                logger.info("the job cannot be heard: %s", error)
                if now_s - silent_since_s > PATIENCE_S:
                    self._error = error
                    return
            except ClusterError as error:
                self._error = error
                return
            self._wait(AGAIN_S)

    def _heard_out(self) -> bool:
        """Listen from the beginning, past what is known; whether the job has ended."""
        n_known, n_seen = len(self._text), 0
        for piece in self._jobs.said(self._job):
            words = piece.encode()
            new = words[max(0, n_known - n_seen) :]
            n_seen += len(words)
            self._is_silent = False
            with self._lock:
                self._text += new
            if self._stop.is_set():
                return True
        return self._jobs.state(self._job).is_over


class JobFollowed:
    """A run whose driver is a job on a cluster's head.

    Args:
        log: what the job says.
    """

    def __init__(self, jobs: Jobs, job: str, log: JobLog | None = None) -> None:
        self._jobs, self.job = jobs, job
        self._log = log or JobLog(jobs, job)
        self._reader = JournalReader(self._log.read)
        self._has_begun = self._was_silent = False

    def entries(self) -> list[Entry]:
        """What it has shown since the last call.

        Raises:
            ClusterError: the driver did not start, or the head has not answered for too long.
        """
        is_whole = self._log.is_whole  # before the last entries are read
        found = self._reader.entries()
        self._has_begun = self._has_begun or bool(found)
        if found:
            return found
        if self._log.error is not None:
            raise self._log.error
        if self._log.is_silent != self._was_silent:
            self._was_silent = self._log.is_silent
            return [Entry("stage", {"text": SILENT if self._was_silent else ANSWERS})]
        if is_whole and not self._has_begun:
            raise ClusterError(
                f"The cluster's head did not start the driver: {self._last_words()}. Is the "
                "launcher installed there, in the Python of its Ray?"
            )
        return []

    def is_alive(self) -> bool:
        """Whether the driver may say more."""
        return not self._log.is_whole

    def stop(self) -> None:
        """Ask it to stop at a checkpoint."""
        self._jobs.stop(self.job)

    def answer(self, index: int, text: str) -> None:
        """Answer a question of its, by a job that leaves the answer beside the driver's journal."""
        name = answer_path(Path(f"job-driver-{self.job}.log"), index).name
        word = shlex.quote(text.strip())
        folder = 'cd "$(dirname "$(readlink /proc/$$/fd/1)")"'
        self._jobs.submit(
            f"{folder} && printf '%s\\n' {word} >{name}.part && mv {name}.part {name}",
            None,
            "answer",
        )

    def close(self) -> None:
        """Stop listening."""
        self._log.close()

    def _last_words(self) -> str:
        text = self._log.read(0).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines()]
        said = [line for line in lines if line and not line.startswith(_PREAMBLE)]
        if said:
            return " ".join(said[-1:]).rstrip(".")
        with suppress(ClusterError):
            lines = self._jobs.state(self.job).message.split("\n")
            said = [line.strip() for line in lines if line.strip()]
        return said[-1].rstrip(".") if said else "it ended without a word"


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that a job drives, and where it is kept."""

    run: str
    storage: str


def begun_run(jobs: Jobs, job: str) -> Begun | None:
    """What run a job drives; blocks until it has said so. None where it has ended without one."""
    text = b""
    for piece in jobs.said(job):
        text += piece.encode()
        whole = text[: text.rfind(b"\n") + 1]
        reader = JournalReader(lambda offset, whole=whole: whole[offset:])  # type: ignore[misc]
        for entry in reader.entries():
            if entry.kind == "begun":
                record = entry.detail["record"]
                return Begun(str(entry.detail["run"]), str(record["storage"]))
            if entry.kind == "result":
                return None
    return None
