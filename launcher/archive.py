"""Pack the script's folder into the archive that every worker unpacks.

A zip with sorted names, fixed dates and permissions, so that equal folders give equal bytes.
`.gitignore` and `.rayignore` files are respected in every folder, as Git reads them.
"""

import hashlib
import io
import os
import re
import stat
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pathspec

from launcher.config import Request
from launcher.errors import ScriptError

IGNORE_FILES = (".gitignore", ".rayignore")
NEVER_PACKED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
    | {".ipynb_checkpoints", ".DS_Store", ".launch", ".cache", "node_modules"}
    | {".ssh", ".aws", ".gnupg", ".kube", ".netrc"}  # secrets of a home folder
)
VIRTUAL_ENVIRONMENT = "pyvenv.cfg"  # the file that marks one, whatever its name
STORED_FOLDERS = ("runs", "tunes")  # what storage consists of
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip can hold
N_LARGEST = 5
MAX_WARNINGS = 10


@dataclass(frozen=True, slots=True)
class Archive:
    """A packed folder.

    Attributes:
        content: the bytes of a zip file.
        fingerprint: SHA-256 of all names, permissions and contents.
        code_fingerprint: the same over the Python files alone.
        n_bytes: size of the files before packing.
        ignored: files and folders left out because of an ignore file, at the top of what it cut.
        warnings: what was skipped, one line each.
    """

    content: bytes
    fingerprint: str
    code_fingerprint: str
    n_files: int
    n_bytes: int
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    name: str
    n_bytes: int


class _Walk:
    """Collects the files and folders to pack, what was ignored, and warnings."""

    def __init__(self, root: Path, always: Path, excluded: frozenset[Path]) -> None:
        self.files: list[_File] = []
        self.empty: list[str] = []  # folders of which no file is packed
        self.ignored: list[str] = []
        self.warnings: list[str] = []
        self._root, self._always, self._excluded = root, always, excluded

    def folder(self, folder: Path, rules: "tuple[_Rules, ...]", above: tuple[Path, ...]) -> None:
        """Take in a folder; `above` are the real paths of the folders it lies in."""
        real = _real(folder)
        if real in above:
            self.warn(f"{self.name(folder)} links to a folder that it lies in: skipped.")
            return
        rules = (*rules, *_read_rules(folder))
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self.warn(f"{self.name(folder)} cannot be read ({error.strerror}): skipped.")
            return
        n_files = len(self.files)
        for entry in entries:
            self.entry(Path(entry.path), rules, (*above, real))
        if above and len(self.files) == n_files:  # a script may want to write there
            self.empty.append(f"{self.name(folder)}/")

    def entry(self, path: Path, rules: "tuple[_Rules, ...]", above: tuple[Path, ...]) -> None:
        """Take in a file or folder unless something speaks against it."""
        if path.name in NEVER_PACKED or path in self._excluded:
            return
        is_folder = os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises without rights
        if is_folder and os.path.isfile(path / VIRTUAL_ENVIRONMENT):  # noqa: PTH113 - so does this
            return
        holds_script = self._always.is_relative_to(path)  # or is the script
        if not holds_script and _is_ignored(path, rules, is_folder=is_folder):
            self.ignored.append(self.name(path))
            return
        if not _is_unicode(path.name):
            self.warn(f"{self.name(path)!a} has a name that is not UTF-8: skipped.")
            return
        if path.is_symlink() and not _real(path).is_relative_to(_real(self._root)):
            self.warn(f"{self.name(path)} links out of the folder: a copy is shipped.")
        if is_folder:
            self.folder(path, rules, above)
        else:
            self.file(path)

    def file(self, path: Path) -> None:
        """Take in a regular file that can be read."""
        try:
            status = path.stat()
        except OSError:
            self.warn(f"{self.name(path)} is a broken link: skipped.")
            return
        if not stat.S_ISREG(status.st_mode):
            self.warn(f"{self.name(path)} is not a regular file: skipped.")
        elif not os.access(path, os.R_OK):
            self.warn(f"{self.name(path)} cannot be read: skipped.")
        else:
            self.files.append(_File(path, self.name(path), status.st_size))

    def name(self, path: Path) -> str:
        """The path inside the root, with forward slashes."""
        return path.relative_to(self._root).as_posix()

    def warn(self, text: str) -> None:
        """Note something that was skipped."""
        self.warnings.append(text)


def pack(root: Path, request: Request) -> Archive:
    """Pack the folder that the request's script needs.

    Args:
        root: the folder.
        request: its script is packed even if an ignore file names it; its storage is not.

    Raises:
        ScriptError: the folder is too large, or a file vanished meanwhile.
    """
    walk = _Walk(root, request.script, _storage_folders(request.storage))
    walk.folder(root, (), ())
    _check_size(root, walk, request.max_folder_bytes)
    buffer, everything, code = io.BytesIO(), hashlib.sha256(), hashlib.sha256()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
        for file in sorted(walk.files, key=lambda f: f.name):
            content, mode = _read(file)
            entry = _entry(file.name, mode)
            bundle.writestr(entry, content)
            for digest in (everything, code) if file.name.endswith(".py") else (everything,):
                _add(digest, f"{file.name}\0{mode:o}\0{len(content)}\0".encode(), content)
        for name in filter(_is_unicode, sorted(walk.empty)):
            bundle.writestr(_folder_entry(name), b"")
            _add(everything, f"{name}\0".encode())
    return Archive(
        content=buffer.getvalue(),
        fingerprint=everything.hexdigest(),
        code_fingerprint=code.hexdigest(),
        n_files=len(walk.files),
        n_bytes=sum(file.n_bytes for file in walk.files),
        ignored=tuple(walk.ignored),
        warnings=_shortened(walk.warnings),
    )


@dataclass(frozen=True, slots=True)
class _Rules:
    """One ignore file: its patterns count below its own folder."""

    folder: Path
    spec: pathspec.GitIgnoreSpec


def _read_rules(folder: Path) -> Iterator[_Rules]:
    for name in IGNORE_FILES:
        try:
            lines = (folder / name).read_text("utf-8-sig", errors="replace").splitlines()
        except OSError:
            continue
        yield _Rules(folder, _spec(lines))


def _spec(lines: Sequence[str]) -> pathspec.GitIgnoreSpec:
    """What an ignore file says; like Git, without lines that are no patterns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd sets of characters
        return pathspec.GitIgnoreSpec.from_lines(filter(_is_pattern, lines))


def _is_pattern(line: str) -> bool:
    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def _is_ignored(path: Path, rules: tuple[_Rules, ...], *, is_folder: bool) -> bool:
    """Whether the deepest rule that speaks of the path excludes it."""
    for rule in reversed(rules):
        name = path.relative_to(rule.folder).as_posix() + ("/" if is_folder else "")
        decided = rule.spec.check_file(name).include
        if decided is not None:
            return bool(decided)
    return False


def _check_size(root: Path, walk: _Walk, max_bytes: int) -> None:
    total = sum(file.n_bytes for file in walk.files)
    if total <= max_bytes:
        return
    largest = sorted(walk.files, key=lambda f: (-f.n_bytes, f.name))[:N_LARGEST]
    listed = ", ".join(f"{file.name} ({_shown(file.n_bytes)})" for file in largest)
    raise ScriptError(
        f"The folder {root} holds {_shown(total)} in {len(walk.files):,} files, over the limit of "
        f"{_shown(max_bytes)}. The largest: {listed}. Name what is not needed in .rayignore, or "
        "raise --max-folder."
    )


def _storage_folders(storage: str) -> frozenset[Path]:
    """The folders of local storage that may lie in the script's, which may be storage itself."""
    if storage.startswith("file://"):
        storage = unquote(urlsplit(storage).path)
    if "://" in storage or not storage:
        return frozenset()
    return frozenset(Path(storage, name) for name in ("", *STORED_FOLDERS))


def _real(path: Path) -> Path:
    """The path without links; unlike `Path.resolve`, also of a link to itself."""
    return Path(os.path.realpath(path))


def _read(file: _File) -> tuple[bytes, int]:
    try:
        content = file.path.read_bytes()
        is_executable = bool(file.path.stat().st_mode & 0o100)
    except OSError as error:
        raise ScriptError(
            f"{file.path} cannot be read ({error.strerror}). Was it changed meanwhile? Try again."
        ) from error
    return content, 0o755 if is_executable else 0o644


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = (stat.S_IFREG | mode) << 16
    entry.create_system = 3  # Unix: the permissions above count
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _folder_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = (stat.S_IFDIR | 0o755) << 16 | 0x10  # the last is DOS's sign of a folder
    entry.create_system = 3
    return entry


def _is_unicode(name: str) -> bool:
    """Whether the name can be written in UTF-8, as zip files need it."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _add(digest: "hashlib._Hash", *parts: bytes) -> None:
    for part in parts:
        digest.update(part)


def _shortened(lines: list[str]) -> tuple[str, ...]:
    if len(lines) <= MAX_WARNINGS:
        return tuple(lines)
    return (*lines[:MAX_WARNINGS], f"… and {len(lines) - MAX_WARNINGS} more were skipped.")


def _shown(n_bytes: float) -> str:
    """A size for people: 512 MiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:,.0f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:,.1f} GiB"
