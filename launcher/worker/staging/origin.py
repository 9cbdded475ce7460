"""What all kinds of sources have in common, and what can go wrong with them."""

from dataclasses import dataclass
from typing import Protocol

from launcher.errors import DataError, UsageError
from launcher.worker.staging.manifest import DataFile


class DataMissingError(UsageError):
    """There is nothing where data should be."""


class DataDeniedError(DataError):
    """The source does not let this machine read."""


class DataChangedError(DataError):
    """A file is not the one any more that was listed."""


class BrokenError(Exception):
    """A source failed for now; trying again may help."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a source: its path below the source's URI (empty for the one file itself)."""

    key: str
    name: str
    size: int | None
    version: str


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a file's server says of its content; `algorithm` is a name of `hashlib`."""

    algorithm: str
    hex: str


class Reader(Protocol):
    """An open file of a source; `offset` is where its next byte lies, `checksum` of the whole."""

    offset: int
    checksum: Checksum | None

    def read(self, n_bytes: int) -> bytes:
        """At most so many bytes; none at the end.

        Raises:
            BrokenError: the source failed for now.
        """

    def close(self) -> None:
        """Let go of it."""


class Origin(Protocol):
    """A source that can be listed and read."""

    def found(self) -> tuple[Found, ...]:
        """All its files.

        Raises:
            DataMissingError: there is nothing.
            DataDeniedError: it may not be read.
            DataError: it cannot be read.
        """

    def open(self, file: DataFile, offset: int) -> Reader:
        """Read a file from an offset on, or from its start where the source cannot do that.

        Raises:
            BrokenError: the source failed for now.
            DataError: it cannot be read, or is another file now.
        """


def changed(what: str) -> DataChangedError:
    """The error for a file that is not the one that was listed."""
    return DataChangedError(
        f"{what} has changed since it was listed. Launch again when it is complete."
    )
