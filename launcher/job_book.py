"""Remembers which runs were sent from here to a cluster afar, and how each can be reached."""

import json
from dataclasses import dataclass
from pathlib import Path

from launcher.codec import Codec, DecodeError
from launcher.errors import StorageError
from launcher.small_file import read_object, replace_file

_CODEC = Codec()


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where a run's driver is: a job of a cluster that has a dashboard's address, or a file.

    Attributes:
        job: the driver's id by Ray's Jobs API.
        storage: of the run, on the cluster's head unless it is a URI.
        address: of the dashboard.
        cluster: absolute path of the cluster file.
        folder: where the command was called: paths in the file may begin there.
    """

    job: str
    storage: str
    address: str | None = None
    cluster: str | None = None
    folder: str = ""

    @property
    def option(self) -> str:
        """How a command line names the cluster."""
        return f"--address {self.address}" if self.address else f"--cluster {self.cluster}"


@dataclass(frozen=True, slots=True)
class JobBook:
    """A folder with one small file per run."""

    folder: Path

    def write(self, run: str, place: JobPlace) -> None:
        """Note where a run is; its newest place wins.

        Raises:
            StorageError: the folder cannot be written.
        """
        try:
            # An address may hold a password.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.folder / f"{run}.json", json.dumps(_CODEC.encode(place)))
        except OSError as error:
            raise StorageError(
                f"{self.folder}, which remembers runs afar, cannot be written: {error.strerror}. "
                "Make it writable, or make room there."
            ) from error

    def forget(self, run: str) -> None:
        """Drop the note on a run that never started: its name is free again."""
        (self.folder / f"{run}.json").unlink(missing_ok=True)

    def find(self, run: str) -> JobPlace | None:
        """Where a run is, if it was sent from here."""
        try:
            return _CODEC.decode(JobPlace, read_object(self.folder / f"{run}.json"))
        except DecodeError:
            return None
