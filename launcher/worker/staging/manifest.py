"""Which files a run's data are: listed once by the driver, the same for all nodes."""

import hashlib
from dataclasses import dataclass, field

from launcher.worker.staging.uris import public_uri, scheme_of


@dataclass(frozen=True, slots=True)
class Source:
    """One place that data come from.

    Attributes:
        uri: an absolute path or a URI, which may carry a password.
        folder: where its files go in the data folder; empty for the folder itself.
        is_folder: whether it is a folder rather than one file.
        is_anonymous: whether it is read without credentials.
    """

    uri: str = field(repr=False)
    folder: str = ""
    is_folder: bool = True
    is_anonymous: bool = False

    @property
    def public(self) -> str:
        """The URI as records and messages may show it."""
        return public_uri(self.uri)

    @property
    def is_local(self) -> bool:
        """Whether it is a path (perhaps one that several machines share)."""
        return not scheme_of(self.uri)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file.

    Attributes:
        path: in the data folder, with `/`.
        source: index of its source.
        key: its path below the source's URI; empty where the source is one file.
        size: in bytes; None: the server does not tell.
        version: changes when the file does: a date, or what its server calls it.
    """

    path: str
    source: int
    key: str
    size: int | None
    version: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a run's data."""

    sources: tuple[Source, ...]
    files: tuple[DataFile, ...]

    @property
    def n_bytes(self) -> int:
        """Size of all files, as far as it is known."""
        return sum(file.size or 0 for file in self.files)

    @property
    def fingerprint(self) -> str:
        """Changes with every file, wherever it is listed; 32 hexadecimal digits."""
        digest = hashlib.sha256()
        for source in self.sources:
            digest.update(f"{source.public}\0{source.folder}\n".encode())
        for file in self.files:
            digest.update(f"{file.path}\0{file.source}\0{file.size}\0{file.version}\n".encode())
        return digest.hexdigest()[:32]

    def identity(self, file: DataFile) -> str:
        """The same for the same file in another manifest; 32 hexadecimal digits."""
        parts = (self.sources[file.source].public, file.key, file.size, file.version)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def files_of(self, source: int) -> tuple[DataFile, ...]:
        """The files of one source."""
        return tuple(file for file in self.files if file.source == source)
