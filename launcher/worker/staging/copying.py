"""Copies one file to this machine: goes on after a break, and proves what has arrived."""

import errno
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Final

from launcher.errors import DataError
from launcher.worker.staging.manifest import DataFile
from launcher.worker.staging.origin import BrokenError, Checksum, Origin, Reader

PIECE_BYTES: Final = 1 << 20
MAX_TRIES: Final = 8  # in a row without a new byte: about two minutes with the pauses between
MAX_DAMAGED: Final = 2  # copies of one file that are thrown away
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class StoppedError(Exception):
    """Somebody asked to stop."""


class FullError(Exception):
    """There is no room on the disk."""


@dataclass(slots=True)
class _Digests:
    """The SHA-256 of what has been written, and the source's own kind where it tells one."""

    expected: Checksum | None = None
    sha256: Any = field(default_factory=hashlib.sha256)
    other: Any = None

    def expect(self, checksum: Checksum | None) -> None:
        if checksum is not None and checksum != self.expected:
            self.expected = checksum
            self.other = hashlib.new(checksum.algorithm, usedforsecurity=False)

    def add(self, piece: bytes) -> None:
        self.sha256.update(piece)
        if self.other is not None:
            self.other.update(piece)

    @property
    def is_right(self) -> bool:
        return self.expected is None or self.other.hexdigest() == self.expected.hex


class Copying:
    """The copy of one file.

    Args:
        part: where its bytes are gathered; what is there already is kept.
        arrived: is told how many bytes more are there (negative: gone again), and how many of
            them have come now.
        stop: ends it early.
    """

    def __init__(
        self,
        origin: Origin,
        file: DataFile,
        part: Path,
        arrived: Callable[[int, int], object],
        stop: Event,
    ) -> None:
        self._origin, self._file, self._part = origin, file, part
        self._arrived, self._stop = arrived, stop
        self._n_damaged = self._n_tries = self._n_told = 0

    def sha256(self) -> str:
        """Blocks until the whole file is in `part`; its SHA-256, in hexadecimal.

        Raises:
            DataError: it cannot be read, keeps breaking off or arrives damaged.
            FullError: there is no room.
            StoppedError: `stop` was set.
        """
        while True:
            before = self._n_bytes
            try:
                return self._attempt()
            except BrokenError as error:
                self._n_tries = 0 if self._n_bytes > before else self._n_tries + 1
                if self._n_tries >= MAX_TRIES:
                    raise DataError(
                        f"{error}. Tried {MAX_TRIES} times in a row. What has arrived is kept: "
                        "launch again to go on from there."
                    ) from error
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._n_tries)
            if self._stop.wait(pause_s):
                raise StoppedError

    @property
    def _n_bytes(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _attempt(self) -> str:
        offset = self._kept()
        reader = self._origin.open(self._file, offset)
        try:
            digests = _Digests()
            digests.expect(reader.checksum)
            self._take_in(digests, reader.offset)
            self._write(reader, digests)
        finally:
            reader.close()
        self._check(digests)
        return str(digests.sha256.hexdigest())

    def _kept(self) -> int:
        """How many bytes are there; too many are none."""
        n_bytes = self._n_bytes
        if self._file.size is not None and n_bytes > self._file.size:
            self._part.unlink()
            return 0
        return n_bytes

    def _take_in(self, digests: _Digests, offset: int) -> None:
        """Read again what is there already; drop what the reader brings anew."""
        self._part.touch()
        with self._part.open("r+b") as stream:
            stream.truncate(offset)
            while piece := stream.read(PIECE_BYTES):
                digests.add(piece)
        self._tell(offset - self._n_told)

    def _write(self, reader: Reader, digests: _Digests) -> None:
        with self._part.open("ab", buffering=0) as stream:
            while piece := reader.read(PIECE_BYTES):
                if self._stop.is_set():
                    raise StoppedError
                self._put(stream, piece)
                digests.add(piece)
                self._tell(len(piece), len(piece))

    def _put(self, stream: Any, piece: bytes) -> None:
        try:
            view = memoryview(piece)
            while view:
                view = view[stream.write(view) :]
        except OSError as error:
            if error.errno in FULL:
                raise FullError from error
            raise DataError(
                f"{self._part} cannot be written: {error.strerror}. Make it writable, or name "
                "another folder."
            ) from error

    def _check(self, digests: _Digests) -> None:
        n_bytes, size = self._n_bytes, self._file.size
        if size is not None and n_bytes < size:
            raise BrokenError(f"{self._file.path} broke off after {n_bytes:,} of {size:,} bytes")
        if (size is None or n_bytes == size) and digests.is_right:
            return
        self._part.unlink()
        self._tell(-self._n_told)
        self._n_damaged += 1
        if self._n_damaged >= MAX_DAMAGED:
            raise DataError(
                f"{self._file.path} arrives damaged: its checksum is not what its server says. "
                "Is a proxy in the way, or the file being written?"
            )
        raise BrokenError(f"{self._file.path} arrived damaged")

    def _tell(self, there_bytes: int, fetched_bytes: int = 0) -> None:
        self._n_told += there_bytes
        if there_bytes or fetched_bytes:
            self._arrived(there_bytes, fetched_bytes)
