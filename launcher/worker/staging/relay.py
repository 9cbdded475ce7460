"""Reads data for nodes that cannot do so themselves: an actor on the driver's machine."""

import os
from collections.abc import Callable, Mapping

from launcher.worker.staging.manifest import DataFile, Manifest
from launcher.worker.staging.origin import BrokenError, Checksum, Found, Origin
from launcher.worker.staging.origins import open_origin

BLOCK_BYTES = 4 << 20


class Relay:
    """Runs as a threaded Ray actor beside the driver."""

    def __init__(self) -> None:
        self._origins: list[Origin] = []

    def serve(self, manifest: Manifest, credentials: Mapping[str, str]) -> None:
        """Get ready. Credentials come by a call, so that they stand in no book of Ray's."""
        for name, value in credentials.items():
            os.environ.setdefault(name, value)
        self._origins = [open_origin(source) for source in manifest.sources]

    def found(self) -> tuple[Found, ...]:
        """The files of the first source.

        Raises:
            LauncherError: it cannot be listed.
        """
        return self._origins[0].found()

    def read(self, file: DataFile, offset: int, n_bytes: int) -> bytes:
        """So many bytes of a file; fewer at its end.

        Raises:
            BrokenError: the source failed for now.
            DataError: it cannot be read.
        """
        reader = self._origins[file.source].open(file, offset)
        try:
            if reader.offset < offset:
                raise BrokenError(f"{file.path} can only be read from its start")
            pieces = []
            while n_bytes > 0 and (piece := reader.read(n_bytes)):
                pieces.append(piece)
                n_bytes -= len(piece)
            return b"".join(pieces)
        finally:
            reader.close()


Fetch = Callable[[DataFile, int, int], bytes]


class RelayReader:
    """A file that is read through the relay, block by block."""

    checksum: Checksum | None = None

    def __init__(self, fetch: Fetch, file: DataFile, offset: int) -> None:
        self._fetch, self._file, self.offset = fetch, file, offset
        self._at, self._block = offset, memoryview(b"")

    def read(self, n_bytes: int) -> bytes:
        """See `Reader`."""
        if not self._block and (self._file.size is None or self._at < self._file.size):
            block = self._fetch(self._file, self._at, BLOCK_BYTES)
            self._at += len(block)
            self._block = memoryview(block)
        piece, self._block = self._block[:n_bytes], self._block[n_bytes:]
        return bytes(piece)

    def close(self) -> None:
        """See `Reader`."""


class RelayOrigin:
    """A source as the driver's machine sees it."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def found(self) -> tuple[()]:
        """The driver has listed it."""
        return ()

    def open(self, file: DataFile, offset: int) -> RelayReader:
        """See `Origin`."""
        return RelayReader(self._fetch, file, offset)


def fetch_by_actor(relay: object) -> Fetch:
    """Reads through a relay that is a Ray actor."""
    import ray

    def fetch(file: DataFile, offset: int, n_bytes: int) -> bytes:
        try:
            return bytes(ray.get(relay.read.remote(file, offset, n_bytes)))  # type: ignore[attr-defined]
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise BrokenError(
                f"the driver's machine does not answer ({type(error).__name__})"
            ) from error

    return fetch
