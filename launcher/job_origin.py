"""A run's folder on a cluster's head, read through jobs there."""

import base64
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.errors import DataError, LauncherError
from launcher.jobs import FILES, WANTED, Jobs, UnreachableError, python_on_head
from launcher.journal import Entry, parse_entry
from launcher.worker.staging.manifest import DataFile
from launcher.worker.staging.origin import (
    BrokenError,
    Checksum,
    DataChangedError,
    DataMissingError,
    Found,
)

PURPOSE = "fetch"
_ERRORS: Mapping[str, type[LauncherError]] = {
    "DataChangedError": DataChangedError,
    "DataMissingError": DataMissingError,
}


class JobOrigin:
    """The files of a run; one job sends all that are announced, in their order.

    Args:
        storage: of the head: the URI in the run's record.
    """

    def __init__(self, jobs: Jobs, storage: str, run: str) -> None:
        self._jobs = jobs
        self._command = python_on_head(FILES, shlex.quote(storage), shlex.quote(run))
        self._due: list[DataFile] = []
        self._sent: Iterator[Entry] = iter(())

    def found(self) -> tuple[Found, ...]:
        """See `Origin`."""
        for entry in self._answers(None):
            if entry.kind == "listing":
                return tuple(Found(*each) for each in entry.detail["found"])
        raise DataError(
            "The cluster's head does not list the run's files. Is the launcher there the same as "
            "here?"
        )

    def announce(self, files: Sequence[DataFile]) -> None:
        """Say which files are going to be read, in this order."""
        self._due = list(files)

    def open(self, file: DataFile, offset: int) -> "JobReader":
        """See `Origin`."""
        for entry in self._sent if offset == 0 else ():
            if entry.kind == "file" and entry.detail["key"] == file.key:
                return JobReader(self._sent, int(entry.detail["offset"]))
        rest = self._due[self._due.index(file) :] if file in self._due else [file]
        wanted = [
            [each.key, each.size, each.version, offset if each == file else 0] for each in rest
        ]
        self._sent = self._answers(json.dumps(wanted))
        for entry in self._sent:
            if entry.kind == "file":
                return JobReader(self._sent, int(entry.detail["offset"]))
        raise BrokenError(f"the cluster's head did not send {file.path}")

    def _answers(self, wanted: str | None) -> Iterator[Entry]:
        """What a job there answers, entry by entry.

        Raises:
            BrokenError: the line broke.
            DataError: the head cannot read it.
        """
        try:
            yield from self._entries(wanted)
        except UnreachableError as error:
            raise BrokenError(str(error)) from error

    def _entries(self, wanted: str | None) -> Iterator[Entry]:
        with tempfile.TemporaryDirectory(prefix="launch-wanted-") as folder:
            if wanted is not None:
                Path(folder, WANTED).write_text(wanted, encoding="utf-8")
            job = self._jobs.submit(self._command, Path(folder) if wanted else None, PURPOSE)
        rest = ""
        for piece in self._jobs.said(job):
            *lines, rest = (rest + piece).split("\n")
            for line in lines:
                entry = parse_entry(line.encode())
                if entry is None:
                    continue
                if entry.kind == "error":
                    raise _ERRORS.get(str(entry.detail.get("what")), DataError)(entry.text)
                yield entry


class JobReader:
    """A file as it comes, block by block."""

    checksum: Checksum | None = None

    def __init__(self, sent: Iterator[Entry], offset: int) -> None:
        self._sent, self.offset = sent, offset
        self._block, self._is_over = b"", False

    def read(self, n_bytes: int) -> bytes:
        """See `Reader`."""
        if not self._block and not self._is_over:
            self._block = self._next()
        piece, self._block = self._block[:n_bytes], self._block[n_bytes:]
        return piece

    def close(self) -> None:
        """See `Reader`."""

    def _next(self) -> bytes:
        for entry in self._sent:
            if entry.kind == "block":
                return base64.b64decode(entry.text)
            if entry.kind == "end":
                self._is_over = True
                return b""
        raise BrokenError("the cluster's head sent no more of it")
