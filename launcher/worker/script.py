"""Run the user's file as Python would, in a private copy of its folder."""

import builtins
import contextlib
import inspect
import io
import os
import random
import sys
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ray

from launcher.errors import LauncherError
from launcher.worker.job import Job
from launcher.worker.main_thread import ExitHandlers, as_main_program
from launcher.worker.shadowed import own_modules_first
from launcher.worker.staging.use import with_data_folder

HIDDEN = (str(Path(__file__).resolve().parent.parent), "<frozen importlib")
PARAMS = "LAUNCH_PARAMS"  # where a script may find its parameters, a JSON object
RAY_FOLDER = str(Path(ray.__file__).resolve().parent)


class Stopped(BaseException):
    """Ends the script at an agreed step; no further line of it runs.

    A `BaseException`, so that a script's own `except Exception` does not hold it up.
    """


class Ending:
    """What has ended the script, which may catch even that (`except:`) and go on.

    Attributes:
        cause: as it was raised; None while the script runs.
    """

    def __init__(self) -> None:
        self.cause: Stopped | None = None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note what ends the script in the block. An ended script does not get into it."""
        if self.cause is not None:
            raise self.cause
        try:
            yield
        except Stopped as cause:
            self.cause = cause
            raise


class UserScriptError(Exception):
    """The user's script raised; carries what to show instead of a traceback of ours."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class ExitCodeError(UserScriptError):
    """The script left with a code that says that it failed; why, it has printed itself."""


def unpack(archive: bytes, folder: Path) -> None:
    """Write the files of a zip archive into a new private folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(archive)) as bundle:
        for info in bundle.infolist():
            path = Path(bundle.extract(info, folder))
            mode = info.external_attr >> 16
            if mode and not info.is_dir():
                path.chmod(mode & 0o777 | 0o600)


def seed_everything(seed: int, frameworks: tuple[str, ...]) -> None:
    """Give Python, NumPy, TensorFlow and Keras one seed, the same on every rank."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    for name in frameworks:
        module = __import__(name)
        module.utils.set_random_seed(seed % 2**32)


@contextlib.contextmanager
def script_environment(job: Job, folder: Path) -> Iterator[Path]:
    """Working directory, `sys.argv` and `sys.path` as if Python ran the script there."""
    path = folder / job.script
    argv, cwd, search = list(sys.argv), Path.cwd(), list(sys.path)
    sys.argv = [job.argv0, *(with_data_folder(arg) for arg in job.args)]
    sys.path.insert(0, str(path.parent))
    os.chdir(folder)
    if job.params is not None:
        os.environ[PARAMS] = job.params
    try:
        with own_modules_first(path.parent):
            yield path
    finally:
        sys.argv, sys.path[:] = argv, search
        os.environ.pop(PARAMS, None)
        os.chdir(cwd)


@contextlib.contextmanager
def _without_input() -> Iterator[None]:
    """While the block runs, standard input is at its end.

    A worker may have the terminal of whoever launched it: a script that reads would take what is
    typed there, or wait for it unseen.
    """
    try:
        saved = os.dup(0)
    except OSError:  # it is closed
        yield
        return
    stream = sys.stdin
    with open(os.devnull) as nothing:  # noqa: PTH123 - a device, no path of ours
        os.dup2(nothing.fileno(), 0)
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = stream
            os.dup2(saved, 0)
            os.close(saved)


def run_script(job: Job, folder: Path, ending: Ending | None = None) -> None:
    """Run the script to its end.

    Args:
        ending: what has ended it counts, whatever the script made of it.

    Raises:
        UserScriptError: it raised, or left with a non-zero `sys.exit`.
        Stopped: the launcher stopped it.
    """
    ending = ending or Ending()
    try:
        _run(job, folder, ending)
    except UserScriptError:
        if ending.cause is None:
            raise
    if ending.cause is not None:
        raise ending.cause


def _run(job: Job, folder: Path, ending: Ending) -> None:
    with script_environment(job, folder) as path, as_main_program(), _without_input():
        try:
            _run_to_its_end(job, path, ExitHandlers(folder), ending)
        except SystemExit as leaving:
            _check_exit_code(leaving, job)
        except (Stopped, LauncherError):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the script raises is the user's
            raise UserScriptError(user_traceback(error, job, folder)) from None
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(ValueError, OSError):
                    stream.flush()


def _run_to_its_end(job: Job, path: Path, handlers: ExitHandlers, ending: Ending) -> None:
    """Run the script, and what it wants done at its exit unless it is stopped before."""
    with handlers.taken():
        try:
            if job.kind == "fit":
                _execute(path, "__main__")
            else:
                _call_train_loop(path)
        finally:
            is_stopped = isinstance(sys.exception(), (Stopped, LauncherError))
            if ending.cause is None and not is_stopped:
                handlers.call()


def _execute(path: Path, name: str) -> dict[str, Any]:
    """Run a file as the module `name`, as `python FILE` does; its globals."""
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__dict__["__builtins__"] = builtins
    replaced = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    finally:
        if replaced is not None:
            sys.modules[name] = replaced
    return module.__dict__


def _call_train_loop(path: Path) -> None:
    """Call `train_loop_per_worker` as Ray Train would: with a config if it takes one."""
    loop = _execute(path, "__launch__")["train_loop_per_worker"]
    if inspect.signature(loop).parameters:
        loop({})
    else:
        loop()


def _check_exit_code(leaving: SystemExit, job: Job) -> None:
    if leaving.code in (None, 0):
        return
    if isinstance(leaving.code, int):
        raise ExitCodeError(f"{job.argv0} ended with sys.exit({leaving.code})\n") from None
    raise UserScriptError(f"{leaving.code}\n") from None


def user_traceback(error: BaseException, job: Job, folder: Path) -> str:
    """The traceback as Python would print it: from the script on, without the launcher.

    Paths of the private copy are shown as the user's own.
    """
    shown = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    _trim(shown, str(folder), seen)
    text = "".join(shown.format())
    return text.replace(str(folder), job.shown_root)


def _trim(shown: traceback.TracebackException, folder: str, seen: set[int]) -> None:
    """Drop frames before the user's first one, and all of the launcher's and of imports."""
    if id(shown) in seen:
        return
    seen.add(id(shown))
    frames = [frame for frame in shown.stack if not frame.filename.startswith(HIDDEN)]
    first = next((i for i, frame in enumerate(frames) if frame.filename.startswith(folder)), None)
    if first is not None:
        frames = frames[first:]
    else:
        frames = [frame for frame in frames if not frame.filename.startswith(RAY_FOLDER)]
    shown.stack = traceback.StackSummary.from_list(frames)
    for linked in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if linked is not None:
            _trim(linked, folder, seen)
