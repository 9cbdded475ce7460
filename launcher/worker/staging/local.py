"""Data in a folder or file of this machine, perhaps one that others see as well."""

import os
from collections.abc import Iterator
from pathlib import Path

from launcher.errors import DataError
from launcher.worker.staging.manifest import DataFile
from launcher.worker.staging.origin import (
    Checksum,
    DataDeniedError,
    DataMissingError,
    Found,
    changed,
)


class LocalReader:
    """An open file."""

    checksum: Checksum | None = None

    def __init__(self, path: Path, offset: int) -> None:
        self.offset = offset
        self._stream = path.open("rb")
        self._stream.seek(offset)

    def read(self, n_bytes: int) -> bytes:
        """See `Reader`."""
        return self._stream.read(n_bytes)

    def close(self) -> None:
        """See `Reader`."""
        self._stream.close()


class LocalOrigin:
    """A path of this machine."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def found(self) -> tuple[Found, ...]:
        """See `Origin`."""
        try:
            if self._path.is_file():
                return (_found(self._path, "", self._path.name),)
            if self._path.is_dir():
                return tuple(self._walk(self._path, (self._path.resolve(),)))
        except PermissionError as error:
            raise DataDeniedError(
                f"{error.filename} may not be read by this user. Change its rights."
            ) from error
        except OSError as error:
            raise _unreadable(self._path, error) from error
        raise DataMissingError(f"There is no {self._path} on {os.uname().nodename}. Check --data.")

    def open(self, file: DataFile, offset: int) -> LocalReader:
        """See `Origin`."""
        path = self._path / file.key if file.key else self._path
        try:
            now = _found(path, file.key, path.name)
            if (now.size, now.version) != (file.size, file.version):
                raise changed(str(path))
            return LocalReader(path, offset)
        except FileNotFoundError:
            raise changed(str(path)) from None
        except OSError as error:
            raise _unreadable(path, error) from error

    def is_same(self, files: tuple[DataFile, ...]) -> bool:
        """Whether these files are here, as large and as old as they were listed."""
        try:
            for file in files:
                path = self._path / file.key if file.key else self._path
                now = _found(path, file.key, path.name)
                if (now.size, now.version) != (file.size, file.version):
                    return False
                if not os.access(path, os.R_OK):
                    return False
        except OSError:
            return False
        return True

    def _walk(self, folder: Path, above: tuple[Path, ...]) -> Iterator[Found]:
        """All regular files, links followed but not in circles; `above` holds real paths."""
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                path = Path(entry.path)
                if entry.is_dir():
                    if (real := path.resolve()) not in above:
                        yield from self._walk(path, (*above, real))
                elif entry.is_file():
                    key = path.relative_to(self._path).as_posix()
                    yield _found(path, key, path.name)


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror}. Is it mounted, and its disk sound?")


def _found(path: Path, key: str, name: str) -> Found:
    status = path.stat()
    # Whole seconds: what copies of a file (rsync -a, a disk image) have in common.
    return Found(key, name, status.st_size, str(int(status.st_mtime)))
