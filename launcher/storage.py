"""Files on any pyarrow filesystem: a local folder, NFS, S3 or GCS, by path or URI.

A local write is atomic and survives a crash (temporary file, fsync, rename); object stores
replace an object atomically by themselves; elsewhere a file is moved into place when it is whole.
"""

import functools
import os
import queue
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from launcher.errors import StorageError
from launcher.storage_errors import public_uri, storage_errors

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
REPLACE_AT_ONCE = frozenset({"s3", "gcs", "abfs"})
CHECK_S = 60.0
CLAIM_SETTLES_S = 1.5  # object stores date objects to the second


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder on some filesystem; every path below is relative to it.

    Attributes:
        uri: as the user named it, for messages, records and `Storage.open`.
        root: the folder's path on the filesystem.
        filesystem: a `pyarrow.fs.FileSystem`, or None for the local one.
    """

    uri: str
    root: str
    filesystem: Any = None

    @classmethod
    def open(cls, uri: str) -> "Storage":
        """Open storage by path or URI, such as `s3://bucket/launch?endpoint_override=host:9000`.

        Raises:
            StorageError: the URI is not one that pyarrow understands.
        """
        if "://" not in uri:
            return cls(uri=uri, root=os.path.abspath(uri))  # noqa: PTH100 - keeps symlinks
        if uri.startswith("file://"):
            return cls(uri=uri, root=unquote(urlsplit(uri).path))
        from pyarrow import fs

        with storage_errors(f"Storage {public_uri(uri)} cannot be opened"):
            filesystem, root = fs.FileSystem.from_uri(uri)
        return cls(uri=uri, root=root, filesystem=filesystem)

    @property
    def public_uri(self) -> str:
        """The URI without a user name and password, as records and messages may hold it."""
        return public_uri(self.uri)

    @property
    def is_local(self) -> bool:
        """Whether this is a folder of this machine (perhaps a shared one)."""
        return self.filesystem is None

    def path(self, name: str = "") -> str:
        """The full path of a file, for people and for other programs."""
        if self.is_local:
            return str(Path(self.root) / name)
        scheme = self.uri.split("://", 1)[0]
        return f"{scheme}://{self._at(name)}"

    def folder(self, name: str) -> "Storage":
        """The storage of a folder below this one."""
        if "?" in self.uri:
            base, _, query = self.uri.partition("?")
            uri = f"{base.rstrip('/')}/{name}?{query}"
        else:
            uri = f"{self.uri.rstrip('/')}/{name}"
        return Storage(uri=uri, root=self._at(name), filesystem=self.filesystem)

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""
        with storage_errors(f"{self.path(name)} cannot be looked up"):
            if self.is_local:
                return Path(self._at(name)).exists()
            found = self.filesystem.get_file_info(self._at(name))
            return bool(found.type.name != "NotFound")

    def read(self, name: str) -> bytes:
        """A file's content.

        Raises:
            FileNotFoundError: there is no such file.
            StorageError: it cannot be read.
        """
        if not self.exists(name):
            raise FileNotFoundError(self.path(name))
        with storage_errors(f"{self.path(name)} cannot be read"):
            if self.is_local:
                return Path(self._at(name)).read_bytes()
            with self.filesystem.open_input_stream(self._at(name)) as stream:
                return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that a reader sees the old content or the new, never a part."""
        with storage_errors(f"{self.path(name)} cannot be written"):
            if self.is_local:
                _write_local(Path(self._at(name)), content)
                return
            with self._output(name) as stream:
                stream.write(content)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file that must not exist yet; False if it does.

        Of several callers at the same moment exactly one gets True. Object stores have no such
        call in pyarrow: there each caller leaves a claim, waits until all claims of the same
        second must be visible, and the earliest (by the store's clock) wins. Blocks for
        `CLAIM_SETTLES_S` then.
        """
        if self.is_local:
            with storage_errors(f"{self.path(name)} cannot be written"):
                return _create_local(Path(self._at(name)), content)
        if self.exists(name) or not self._claim(name):
            return False
        self.write(name, content)
        return True

    def delete(self, name: str) -> None:
        """Delete a file or a folder with all it holds; nothing happens if there is none."""
        with storage_errors(f"{self.path(name)} cannot be deleted"):
            if not self.exists(name):
                return
            if self.is_local:
                _delete_local(Path(self._at(name)))
            elif self.filesystem.get_file_info(self._at(name)).type.name == "Directory":
                self.filesystem.delete_dir(self._at(name))
            else:
                self.filesystem.delete_file(self._at(name))

    def list(self, name: str = "") -> tuple[str, ...]:
        """Names of the files and folders directly in a folder, sorted; none if it is missing."""
        with storage_errors(f"{self.path(name)} cannot be listed"):
            if self.is_local:
                folder = Path(self._at(name))
                return tuple(sorted(p.name for p in folder.iterdir())) if folder.is_dir() else ()
            found = self.filesystem.get_file_info(self._select(name, recursive=False))
            return tuple(sorted(info.base_name for info in found))

    def files(self, name: str = "") -> tuple[str, ...]:
        """Relative paths of all files in a folder and the folders in it, sorted."""
        with storage_errors(f"{self.path(name)} cannot be listed"):
            if self.is_local:
                folder = Path(self._at(name))
                return tuple(
                    sorted(
                        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()
                    )
                )
            found = self.filesystem.get_file_info(self._select(name, recursive=True))
            base = self._at(name)
            return tuple(
                sorted(
                    PurePosixPath(info.path).relative_to(base).as_posix()
                    for info in found
                    if info.is_file
                )
            )

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file, or a folder with all its files, to storage."""
        if source.is_file():
            self.write_file(source, name)
            return
        for path in sorted(p for p in source.rglob("*") if p.is_file()):
            self.write_file(path, f"{name}/{path.relative_to(source).as_posix()}")

    def download(self, name: str, target: Path) -> None:
        """Copy a stored file, or a folder with all its files, to a local path."""
        if self._is_file(name):
            self._read_file(name, target)
            return
        for file in self.files(name):
            self._read_file(f"{name}/{file}", target / file)

    def write_file(self, source: Path, name: str) -> None:
        """Copy one local file to storage without holding it in memory."""
        with storage_errors(f"{self.path(name)} cannot be written"):
            if self.is_local:
                target = Path(self._at(name))
                with _replacing(target) as stream, source.open("rb") as origin:
                    shutil.copyfileobj(origin, stream)
                return
            with source.open("rb") as origin, self._output(name) as stream:
                shutil.copyfileobj(origin, stream, 2**20)

    def check_writable(self) -> None:
        """Write and delete a small file.

        Raises:
            StorageError: that failed, or took too long; the message says why.
        """
        _check_endpoint(self.uri)
        name = f".launch-write-check-{uuid.uuid4().hex}"  # a process id may be another host's, too

        def check() -> None:
            self.write(name, b"")
            self.delete(name)

        in_time(f"{self.path()} cannot be written", check, CHECK_S)

    def _claim(self, name: str) -> bool:
        """Whether this caller's claim to a name is the first one."""
        mine, folder = uuid.uuid4().hex, f"{name}.claims"
        self.write(f"{folder}/{mine}", b"")
        time.sleep(CLAIM_SETTLES_S)
        with storage_errors(f"{self.path(folder)} cannot be listed"):
            claims = self.filesystem.get_file_info(self._select(folder, recursive=False))
        first = min(claims, key=lambda claim: (claim.mtime, claim.base_name))
        return bool(first.base_name == mine)

    def _is_file(self, name: str) -> bool:
        with storage_errors(f"{self.path(name)} cannot be looked up"):
            if self.is_local:
                return Path(self._at(name)).is_file()
            return bool(self.filesystem.get_file_info(self._at(name)).is_file)

    def _read_file(self, name: str, target: Path) -> None:
        with storage_errors(f"{self.path(name)} cannot be read"):
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.is_local:
                shutil.copyfile(self._at(name), target)
                return
            with (
                self.filesystem.open_input_stream(self._at(name)) as origin,
                target.open("wb") as stream,
            ):
                shutil.copyfileobj(origin, stream, 2**20)

    def _at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}".rstrip("/") if name else self.root

    def _select(self, name: str, *, recursive: bool) -> Any:
        from pyarrow import fs

        return fs.FileSelector(self._at(name), recursive=recursive, allow_not_found=True)

    @contextmanager
    def _output(self, name: str) -> Iterator[Any]:
        """A stream whose content becomes the file when all of it is written."""
        target = PurePosixPath(self._at(name))
        self.filesystem.create_dir(str(target.parent), recursive=True)
        if self.filesystem.type_name in REPLACE_AT_ONCE:
            with self.filesystem.open_output_stream(str(target)) as stream:
                yield stream
            return
        temporary = str(target.parent / _temporary_name(target.name))
        try:
            with self.filesystem.open_output_stream(temporary) as stream:
                yield stream
            self.filesystem.move(temporary, str(target))
        except BaseException:
            with suppress(OSError):
                self.filesystem.delete_file(temporary)
            raise


def in_time(what: str, call: Callable[[], T], timeout_s: float) -> T:
    """Call something that uses storage, which may hang; blocks for at most `timeout_s`.

    Args:
        what: has not happened if it hangs, as a message begins.

    Raises:
        StorageError: there was no answer in time. (The call may still go on in the background.)
    """
    outcome: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def work() -> None:
        try:
            found = call()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            outcome.put(functools.partial(_raise, error))
        else:
            outcome.put(lambda: found)

    threading.Thread(target=work, name="launch-storage", daemon=True).start()
    try:
        give = outcome.get(timeout=timeout_s)
    except queue.Empty:
        raise StorageError(
            f"{what}: no answer in {timeout_s:.0f} s. Is the storage mounted, and its server up?"
        ) from None
    return give()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _check_endpoint(uri: str) -> None:
    """Connect to an object store's own server, as pyarrow would try for 12 s on a closed port."""
    query = parse_qs(urlsplit(uri).query)
    for endpoint in query.get("endpoint_override", []):
        server = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        secure = "https" in (server.scheme, *query.get("scheme", ["https"]))
        with storage_errors(f"{public_uri(uri)} cannot be reached"):
            address = server.hostname or "", server.port or (443 if secure else 80)
            socket.create_connection(address, CONNECT_TIMEOUT_S).close()


@contextmanager
def _replacing(target: Path) -> Iterator[Any]:
    """A stream whose content becomes the target file when all of it is on the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / _temporary_name(target.name)
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _temporary_name(name: str) -> str:
    return f".{name[:40]}-{uuid.uuid4().hex}.part"


def _write_local(target: Path, content: bytes) -> None:
    with _replacing(target) as stream:
        stream.write(content)


def _create_local(target: Path, content: bytes) -> bool:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("xb") as stream:
            stream.write(content)
    except FileExistsError:
        if target.is_file():
            return False
        raise
    return True


def _delete_local(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
