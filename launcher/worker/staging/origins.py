"""Opens a source by its URI, and lists the sources of a run."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from launcher.errors import LauncherError, UsageError
from launcher.worker.staging.local import LocalOrigin
from launcher.worker.staging.manifest import DataFile, Manifest, Source
from launcher.worker.staging.origin import DataDeniedError, Found, Origin
from launcher.worker.staging.uris import WEB, scheme_of


def open_origin(source: Source) -> Origin:
    """The source as something that can be listed and read.

    Raises:
        DataError: it cannot be opened.
    """
    scheme = scheme_of(source.uri)
    if not scheme:
        return LocalOrigin(source.uri)
    if scheme in WEB:
        from launcher.worker.staging.web import WebOrigin

        return WebOrigin(source)
    from launcher.worker.staging.object_store import ObjectOrigin

    return ObjectOrigin(source)


def list_sources(uris: Sequence[str]) -> Manifest:
    """List what is at some URIs. One folder becomes the data folder; several lie in it by name.

    Raises:
        LauncherError: one of them is not there, may not be read or cannot be listed.
    """
    sources: list[Source] = []
    files: list[DataFile] = []
    for index, uri in enumerate(uris):
        source, found = _listed(Source(uri))
        is_folder = not (len(found) == 1 and not found[0].key)
        folder = _name(uri) if is_folder and len(uris) > 1 else ""
        sources.append(replace(source, folder=folder, is_folder=is_folder))
        for each in found:
            path = "/".join(part for part in (folder, each.key or each.name) if part)
            files.append(DataFile(path, index, each.key, each.size, each.version))
    _refuse_clashes(sources, files)
    return Manifest(tuple(sources), tuple(files))


def _listed(source: Source) -> tuple[Source, tuple[Found, ...]]:
    """What a source holds; a public bucket is read without credentials where there are none."""
    try:
        return source, open_origin(source).found()
    except DataDeniedError:
        if source.is_local or scheme_of(source.uri) in WEB or urlsplit(source.uri).username:
            raise
        with contextlib.suppress(LauncherError, OSError, ValueError):
            anonymous = replace(source, is_anonymous=True)
            return anonymous, open_origin(anonymous).found()
        raise  # what it said with credentials is what helps


def _name(uri: str) -> str:
    path = urlsplit(uri).netloc + urlsplit(uri).path if scheme_of(uri) else uri
    return unquote(PurePosixPath(path.rstrip("/")).name) or "data"


def _refuse_clashes(sources: Sequence[Source], files: Sequence[DataFile]) -> None:
    """Refuse two things of one name, and names that lead out of the data folder."""
    tops = Counter(each.folder for each in sources if each.folder)
    tops.update(file.path for file in files if not sources[file.source].folder and len(sources) > 1)
    for name, n in tops.items():
        if n > 1:
            raise UsageError(
                f"Two --data are called {name}: one would hide the other in $LAUNCH_DATA_DIR. "
                "Rename one, or name a folder that holds both."
            )
    for file in files:
        parts = PurePosixPath(file.path).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise UsageError(f"{file.path!r} is not a path inside a folder. Rename the file.")
