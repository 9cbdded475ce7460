"""What a run has left in storage: the script's folder, checkpoints, artifacts."""

import io
import json
import logging
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from launcher.errors import RecordError, StorageError
from launcher.record import RunRecord
from launcher.storage import Storage
from launcher.worker import snapshot
from policies.schema import Work, Workload

logger = logging.getLogger(__name__)

CODE_FILE = "code.zip"
ABOUT_FILE = "code.json"
ARTIFACTS_FILE = "artifacts.zip"
ARTIFACTS_FOLDER = "artifacts"


@dataclass(frozen=True, slots=True)
class Shipped:
    """What is trained: the script's folder as zipped, and how the script is to be run.

    Attributes:
        fingerprint: of the folder's content.
        script: path of the script in the folder.
        shown_root: the folder on the user's machine.
        argv0: the script as the user typed it.
    """

    content: bytes
    fingerprint: str
    script: str
    shown_root: str
    argv0: str
    kind: Literal["fit", "train_loop_per_worker"]
    frameworks: tuple[str, ...]
    hints: tuple[str, ...] = ()

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
            return cls(content=folder.read(CODE_FILE), **about)
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"{run} cannot go on: {folder.path(CODE_FILE)} or {ABOUT_FILE} is missing or "
                f"damaged ({error}). Launch the script again."
            ) from error


def last_checkpoint(
    folder: Storage, record: RunRecord, warn: Callable[[str], None]
) -> tuple[bytes, dict[str, Any]] | None:
    """The newest checkpoint that can be read, with its position; None if there is none.

    A damaged or missing one is skipped with a warning.

    Raises:
        StorageError: storage cannot be read.
    """
    for checkpoint in reversed(record.checkpoints):
        try:
            data = folder.read(checkpoint.path)
            snapshot.load(data)
        except FileNotFoundError:
            continue  # only the last few are kept
        except RecordError as error:
            warn(f"{folder.path(checkpoint.path)}: {error}")
            continue
        return data, dict(checkpoint.position)
    return None


def read_artifacts(folder: Storage) -> bytes | None:
    """The zipped files that the script had left, if any."""
    try:
        return folder.read(ARTIFACTS_FILE)
    except FileNotFoundError:
        return None


def unpack_artifacts(folder: Storage) -> str | None:
    """Lay the artifacts out as files for people; the folder's path, or None without any."""
    data = read_artifacts(folder)
    if data is None:
        return None
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        for info in bundle.infolist():
            name = PurePosixPath(info.filename)
            if info.is_dir() or name.is_absolute() or ".." in name.parts:
                continue
            folder.write(f"{ARTIFACTS_FOLDER}/{name}", bundle.read(info))
    return folder.path(ARTIFACTS_FOLDER)


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
        for each in sorted(path.rglob("*"), reverse=True):
            each.rmdir()
        path.rmdir()
