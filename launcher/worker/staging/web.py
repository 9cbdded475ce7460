"""Data on a web server: one file per address."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import requests

from launcher.errors import DataError, UsageError
from launcher.worker.staging.manifest import DataFile, Source
from launcher.worker.staging.origin import (
    BrokenError,
    Checksum,
    DataDeniedError,
    DataMissingError,
    Found,
    changed,
)
from launcher.worker.staging.uris import without_secrets

TIMEOUT_S = (10.0, 60.0)  # to connect, and between two pieces
PASSES = frozenset({408, 425, 429, 500, 502, 503, 504})  # statuses that may be others soon
IDENTITY = {"Accept-Encoding": "identity"}  # sizes and offsets are those of the file itself


class WebReader:
    """A response that is being read."""

    def __init__(self, origin: "WebOrigin", response: Any, offset: int) -> None:
        self._origin, self._response = origin, response
        self.offset = offset
        self.checksum = _checksum(response.headers)

    def read(self, n_bytes: int) -> bytes:
        """See `Reader`."""
        try:
            return bytes(self._response.raw.read(n_bytes, decode_content=False))
        except Exception as error:  # urllib3 has many, each of which a new request may cure
            raise BrokenError(self._origin.text(error)) from error

    def close(self) -> None:
        """See `Reader`."""
        self._response.close()


class WebOrigin:
    """One file at an address."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._session = requests.Session()

    def found(self) -> tuple[Found, ...]:
        """See `Origin`."""
        name = unquote(PurePosixPath(urlsplit(self._source.uri).path).name)
        if not name or urlsplit(self._source.uri).path.endswith("/"):
            raise UsageError(
                f"{self._source.public} names no file, and a web server cannot list a folder. "
                "Give --data once for each file."
            )
        try:
            with self._response({}) as response:
                length = response.headers.get("Content-Length")
                size = int(length) if length is not None else None
                return (Found("", name, size, self._version(response.headers)),)
        except BrokenError as error:
            raise DataError(f"{error}. Is the address right, and the server up?") from error

    def open(self, file: DataFile, offset: int) -> WebReader:
        """See `Origin`."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        response = self._response(headers)
        if self._version(response.headers) != file.version:
            response.close()
            raise changed(self._source.public)
        return WebReader(self, response, offset if response.status_code == 206 else 0)

    def text(self, error: Exception) -> str:
        """What went wrong, in a line without secrets."""
        reason = without_secrets(" ".join(str(error).split()), self._source.uri)[:300]
        return f"{self._source.public}: {reason or type(error).__name__}"

    def _version(self, headers: Mapping[str, str]) -> str:
        """What changes when the file does, as far as its server tells.

        Without a tag the query counts, too: it may name the file, where it is no signature.
        """
        if tag := headers.get("ETag"):
            return tag
        total = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length")
        query = hashlib.sha256(urlsplit(self._source.uri).query.encode()).hexdigest()[:16]
        return f"{headers.get('Last-Modified') or f'{total} bytes'} {query}"

    def _response(self, headers: Mapping[str, str]) -> Any:
        """The answer to a request, its body yet to be read."""
        public = self._source.public
        try:
            response = self._session.get(
                self._source.uri, headers={**IDENTITY, **headers}, stream=True, timeout=TIMEOUT_S
            )
        except requests.RequestException as error:
            raise BrokenError(self.text(error)) from error
        status = response.status_code
        if status < 400:
            return response
        response.close()
        if status in {401, 403, 407}:
            raise DataDeniedError(
                f"{public}: no right to read (HTTP {status}). Check the user name and password, "
                "or whether a signed address has expired."
            )
        if status in {404, 410}:
            raise DataMissingError(f"There is nothing at {public} (HTTP {status}). Check --data.")
        if status == 416:
            raise changed(public)
        if status in PASSES:
            raise BrokenError(f"{public}: HTTP {status}")
        raise DataError(f"{public} cannot be read: HTTP {status}. Check --data.")


def _checksum(headers: Mapping[str, str]) -> Checksum | None:
    """MD5 of the whole file, where the server tells: Google's stores do, some others too."""
    coded = headers.get("Content-MD5", "") if "Content-Range" not in headers else ""
    for each in headers.get("x-goog-hash", "").split(","):
        name, _, value = each.strip().partition("=")
        coded = value if name == "md5" else coded
    try:
        found = base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Checksum("md5", found.hex()) if len(found) == 16 else None
