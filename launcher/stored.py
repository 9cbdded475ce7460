"""What a run has left in storage: the script's folder, checkpoints, artifacts."""

import contextlib
import io
import json
import logging
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from launcher import keeper
from launcher.errors import LauncherError, RecordError, ScriptFailedError, StorageError
from launcher.storage import Storage, in_time
from launcher.worker import snapshot
from launcher.worker.files import key as files_key
from policies.schema import Work, Workload

logger = logging.getLogger(__name__)

CODE_FILE = "code.zip"
ABOUT_FILE = "code.json"
ARTIFACTS_FOLDER = "artifacts"
READ_S = 600.0  # for a checkpoint of gigabytes over a slow line; a storage that hangs is given up
UNPACK_S = 120.0
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Shipped:
    """What is trained: the script's folder as zipped, and how the script is to be run.

    Attributes:
        fingerprint: of the folder's content.
        script: path of the script in the folder.
        shown_root: the folder on the user's machine.
        argv0: the script as the user typed it.
        ignored: files and folders that ignore files keep from being shipped.
    """

    content: bytes
    fingerprint: str
    script: str
    shown_root: str
    argv0: str
    kind: Literal["fit", "train_loop_per_worker"]
    frameworks: tuple[str, ...]
    hints: tuple[str, ...] = ()
    parallel_draws: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def keep(self, folder: Storage) -> None:
        """Write the folder and how to run it beside the run's record."""
        about = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "content"
        }
        folder.write(CODE_FILE, self.content)
        folder.write(ABOUT_FILE, json.dumps(about, indent=1).encode())

    @classmethod
    def read(cls, folder: Storage, run: str) -> "Shipped":
        """Read what `keep` wrote.

        Raises:
            RecordError: it is not there any more, or damaged.
        """
        try:
            about = json.loads(folder.read(ABOUT_FILE))
            about |= {name: tuple(about[name]) for name in ("frameworks", "hints")}
            about |= {name: tuple(about.get(name, ())) for name in ("ignored", "parallel_draws")}
            return cls(content=folder.read(CODE_FILE), **about)
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{run} cannot go on: {folder.path(CODE_FILE)} or {ABOUT_FILE} is missing or "
                f"damaged ({error}). Launch the script again."
            ) from error

    def with_hint(self, error: LauncherError) -> LauncherError:
        """The script's error with what was not shipped, where it may have looked for that."""
        if not isinstance(error, ScriptFailedError) or "No such file" not in error.traceback:
            return error
        names = [name for name in self.ignored if _names(error.traceback, name)][:MAX_NAMED]
        if not names:
            return error
        lines = [
            f"launch: {name} is not shipped to the workers, since .gitignore or .rayignore names "
            f"it. To ship it, write !{name} into .rayignore\n"
            for name in names
        ]
        return ScriptFailedError(error.rank, error.traceback.rstrip("\n") + "\n" + "".join(lines))


def _names(text: str, path: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(path)}(?![\w.-])", text) is not None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in storage that is whole, with the script's files as they were then, zipped."""

    data: bytes
    position: dict[str, Any]
    files: bytes | None = None


def newest_checkpoint(folder: Storage, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint in a run's folder that is whole; None if there is none.

    A damaged one is skipped with a warning; so is one whose files are damaged, unless no other
    is left.

    Raises:
        StorageError: storage cannot be read, or does not answer.
    """
    what = f"{folder.path(keeper.FOLDER)} cannot be read"
    return in_time(what, lambda: _newest_checkpoint(folder, warn), READ_S)


def _newest_checkpoint(folder: Storage, warn: Callable[[str], None]) -> Checkpoint | None:
    without_files: Checkpoint | None = None
    paths = keeper.checkpoint_paths(folder.list(keeper.FOLDER))
    for path in reversed(paths):
        try:
            data = folder.read(path)
            found = Checkpoint(data, snapshot.position(data))
        except FileNotFoundError:
            continue  # cleared away meanwhile
        except RecordError as error:
            warn(f"{folder.path(path)}: {error}")
            continue
        key = keeper.files_key(path)
        if key is None:
            return found
        files = _files(folder, keeper.files_path(key), key, warn)
        if files is not None:
            return replace(found, files=files)
        without_files = without_files or found
    if without_files is not None:
        warn("Training goes on from a checkpoint without the files that the script had written.")
    elif paths:
        warn("No checkpoint is whole: training begins anew.")
    return without_files


def has_checkpoint(folder: Storage) -> bool:
    """Whether a run's folder holds a checkpoint, whole or not."""
    return bool(keeper.checkpoint_paths(folder.list(keeper.FOLDER)))


def _files(folder: Storage, path: str, key: str, warn: Callable[[str], None]) -> bytes | None:
    """The script's files that belong to a checkpoint; None, with a warning, if damaged."""
    try:
        content = folder.read(path)
    except FileNotFoundError:
        warn(f"{folder.path(path)} is missing. An earlier checkpoint is tried.")
        return None
    if files_key(content) != key:
        warn(f"{folder.path(path)} is damaged. An earlier checkpoint is tried.")
        return None
    return content


def laid_out(folder: Storage, path: str, warn: Callable[[str], None]) -> str:
    """Lay the zipped files at `path` out as files for people; where they are then.

    Where storage fails, they stay zipped.
    """
    target = folder.path(ARTIFACTS_FOLDER)
    try:
        in_time(f"{target} cannot be written", lambda: unpack_artifacts(folder, path), UNPACK_S)
    except (StorageError, FileNotFoundError) as error:
        warn(f"{error} The script's files stay in {folder.path(path)}.")
        return folder.path(path)
    return target


def unpack_artifacts(folder: Storage, path: str) -> None:
    """Write the zipped files at `path` into the folder for artifacts."""
    with zipfile.ZipFile(io.BytesIO(folder.read(path))) as bundle:
        for info in bundle.infolist():
            name = PurePosixPath(info.filename)
            if info.is_dir() or name.is_absolute() or ".." in name.parts:
                continue
            folder.write(f"{ARTIFACTS_FOLDER}/{name}", bundle.read(info))


def work_left(workload: Workload, position: dict[str, Any]) -> Work:
    """What the first `fit` still has to do from a position; of a later `fit`, all of one.

    How many `fit` calls a script makes is not known before it makes them.
    """
    fit = workload.fits[0]
    total = fit.steps * fit.epochs
    done = int(position.get("total_steps", 0))
    if position.get("fit", 0):
        done = int(position["epoch"]) * fit.steps + int(position["step"])
    left = max(1, total - done)
    return Work(
        steps=left,
        epochs=left / max(1, fit.steps),
        global_batch=fit.global_batch,
        validation_steps=fit.validation_steps,
    )


def forget(folder: Storage) -> None:
    """Remove the folder of a run that never started, so that its name is free again."""
    for name in folder.files():
        try:
            folder.delete(name)
        except StorageError as error:
            logger.warning("%s", error)
    if folder.is_local:
        path = Path(folder.root)
        with contextlib.suppress(OSError):  # someone else's file, or a storage that fails
            for each in sorted(path.rglob("*"), reverse=True):
                each.rmdir()
            path.rmdir()
