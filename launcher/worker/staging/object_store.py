"""Data in an object store: S3, what speaks as S3 does, or Google's."""

import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

from launcher.errors import DataError
from launcher.worker.staging.manifest import DataFile, Source
from launcher.worker.staging.origin import (
    BrokenError,
    Checksum,
    DataDeniedError,
    DataMissingError,
    Found,
    changed,
)
from launcher.worker.staging.uris import scheme_of, without_secrets

DENIED = re.compile(
    "ACCESS_DENIED|No credentials|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN"
    "|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION|HTTP status code: 40[13]"
    "|[Pp]ermission denied|UNAUTHENTICATED|PERMISSION_DENIED|OAuth2 access token",
)
GONE = re.compile("NO_SUCH_KEY|NO_SUCH_BUCKET|RESOURCE_NOT_FOUND|HTTP status code: 404|NOT_FOUND")
REMEDY = {
    "s3": "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the role of the machine.",
    "gs": "Check GOOGLE_APPLICATION_CREDENTIALS, or the service account of the machine.",
}
BLOCK_BYTES = 8 << 20
N_AHEAD = 3  # blocks; with eight files at a time 192 MiB of memory
N_REQUESTS = 16  # at a time
_MD5 = re.compile("[0-9a-f]{32}")


class ObjectReader:
    """An open object, read some blocks ahead: each is a request that takes a round trip.

    Args:
        size: of the object.
        pool: makes the requests.
    """

    def __init__(
        self,
        origin: "ObjectOrigin",
        stream: Any,
        what: str,
        offset: int,
        size: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._origin, self._stream, self._what, self._pool = origin, stream, what, pool
        self.offset = offset
        self.checksum = _checksum(stream.metadata() or {})
        self._starts = iter(range(offset, size, BLOCK_BYTES))
        self._ahead: deque[Future[bytes]] = deque()
        self._block = memoryview(b"")

    def read(self, n_bytes: int) -> bytes:
        """See `Reader`."""
        if not self._block:
            self._block = memoryview(self._next_block())
        piece, self._block = self._block[:n_bytes], self._block[n_bytes:]
        return bytes(piece)

    def close(self) -> None:
        """See `Reader`."""
        for each in self._ahead:
            each.cancel()
        wait(self._ahead)
        self._stream.close()

    def _next_block(self) -> bytes:
        for start in islice(self._starts, N_AHEAD - len(self._ahead)):
            self._ahead.append(self._pool.submit(self._stream.read_at, BLOCK_BYTES, start))
        if not self._ahead:
            return b""
        with self._origin.faults(self._what):
            return bytes(self._ahead.popleft().result())


class ObjectOrigin:
    """A bucket, a folder in it or one object."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._pool = ThreadPoolExecutor(N_REQUESTS, "launch-data")
        with self._no_retry(f"{source.public} cannot be opened"):
            self._filesystem, self._root = _filesystem(source)

    def found(self) -> tuple[Found, ...]:
        """See `Origin`."""
        from pyarrow import fs

        public = self._source.public
        with self._no_retry(f"{public} cannot be listed"):
            info = self._filesystem.get_file_info(self._root)
            if info.is_file:
                return (Found("", info.base_name, info.size, str(info.mtime_ns)),)
            selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
            infos = [each for each in self._filesystem.get_file_info(selector) if each.is_file]
        if not infos:
            raise DataMissingError(f"There is nothing at {public}. Check --data.")
        found = [
            Found(
                PurePosixPath(each.path).relative_to(self._root).as_posix(),
                each.base_name,
                each.size,
                str(each.mtime_ns),
            )
            for each in infos
        ]
        return tuple(sorted(found, key=lambda each: each.key))

    def open(self, file: DataFile, offset: int) -> ObjectReader:
        """See `Origin`."""
        path = f"{self._root}/{file.key}" if file.key else self._root
        what = f"{scheme_of(self._source.uri)}://{path}"
        with self.faults(what):
            stream = self._filesystem.open_input_file(path)
            if stream.size() != file.size or _is_newer(stream.metadata() or {}, file.version):
                stream.close()
                raise changed(what)
            return ObjectReader(self, stream, what, offset, stream.size(), self._pool)

    @contextmanager
    def faults(self, what: str) -> Iterator[None]:
        """Turn what pyarrow raises into errors of ours; what may pass becomes a `BrokenError`."""
        try:
            yield
        except (OSError, ValueError) as error:  # pyarrow's errors are children of these two
            reason = without_secrets(" ".join(str(error).split()), self._source.uri)[:300]
            if DENIED.search(reason):
                raise self._denied(what, reason) from error
            if isinstance(error, FileNotFoundError) or GONE.search(reason):
                raise DataMissingError(f"There is no {what} (any more). Check --data.") from error
            raise BrokenError(f"{what}: {reason}") from error

    @contextmanager
    def _no_retry(self, what: str) -> Iterator[None]:
        try:
            with self.faults(what):
                yield
        except BrokenError as error:
            raise DataError(f"{error}. Is the address right, and the server up?") from error

    def _denied(self, what: str, reason: str) -> DataDeniedError:
        remedy = REMEDY["s3" if scheme_of(self._source.uri) == "s3" else "gs"]
        return DataDeniedError(f"{what}: no right to read ({reason.rstrip('. ')}). {remedy}")


def _filesystem(source: Source) -> tuple[Any, str]:
    """The file system of a source, and its path there."""
    from pyarrow import fs

    uri = re.sub(r"^gcs://", "gs://", source.uri.rstrip("/"))
    if not source.is_anonymous:
        filesystem, root = fs.FileSystem.from_uri(uri)
        return filesystem, root.rstrip("/")
    split = urlsplit(uri)
    root = f"{split.netloc}{split.path}".rstrip("/")
    if scheme_of(uri) == "gs":
        return fs.GcsFileSystem(anonymous=True), root
    known = {"endpoint_override", "scheme", "region"}
    options = {key: values[0] for key, values in parse_qs(split.query).items() if key in known}
    if not {"region", "endpoint_override"} & set(options):
        options["region"] = fs.resolve_s3_region(split.netloc)
    return fs.S3FileSystem(anonymous=True, **options), root


def _checksum(metadata: dict[Any, Any]) -> Checksum | None:
    """MD5, where the store tells: S3's ETag of an object that came in one piece."""
    tag = _text(metadata, "ETag").strip('"')
    return Checksum("md5", tag) if _MD5.fullmatch(tag) else None


def _is_newer(metadata: dict[Any, Any], version: str) -> bool:
    """Whether an object was written after it was listed, as far as the store tells."""
    try:
        written_s = datetime.fromisoformat(_text(metadata, "Last-Modified")).timestamp()
    except ValueError:
        return False
    return written_s >= int(version) // 10**9 + 1


def _text(metadata: dict[Any, Any], name: str) -> str:
    value = metadata.get(name.encode(), metadata.get(name, ""))
    return value.decode() if isinstance(value, bytes) else str(value)
