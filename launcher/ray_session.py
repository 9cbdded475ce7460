"""Starts Ray in this process without a sound: embedded, or as a driver of a running cluster."""

import json
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import launcher
from launcher.errors import ClusterError

_MIB = 2**20
OBJECT_STORE_BYTES = (128 * _MIB, 1024 * _MIB)  # of an embedded Ray: at least, at most
RAY_LOG = "ray.log"
# Of 107 for a socket's path, Ray takes 64: /session_2026-11-30_12-00-00_123456_1234567/sockets/…
MAX_TEMP_DIR_BYTES = 43
_KEEP_SESSIONS_S = 7 * 24 * 3600.0

# A worker that can't keep byte-code pays double for every import.
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"

# What `ray job submit` tells the driver that it starts.
_SUBMITTED_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def join(address: str, *, token: bool, log_dir: Path, modules: Sequence[Path] = ()) -> str:
    """Connect to a running cluster; its workers get this very launcher package.

    Shipping the package costs each new worker 0.3 s. It comes before what a node has installed.

    Args:
        address: `host:port` of the cluster, already checked.
        token: whether the cluster wants this user's token.
        log_dir: an existing folder, for `ray.log`.
        modules: folders of more packages that workers shall find.

    Returns:
        The address by Ray's own books.

    Raises:
        ClusterError: Ray could not connect.
    """
    runtime_env = {
        "py_modules": [str(Path(launcher.__file__).parent), *map(str, modules)],
        "excludes": ["__pycache__"],
        "env_vars": {_NO_BYTECODE: ""},
    }
    if token:
        from ray._private.authentication import authentication_token_setup as authentication

        _write_ray_log(log_dir)
        authentication.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return _init(log_dir, address=address, runtime_env=runtime_env)


def start(temp_dir: Path | None, log_dir: Path) -> str:
    """Start an embedded Ray with all of this machine's CPUs and GPUs; its address.

    Takes about 2 s, in which Ray waits for its own processes.

    Raises:
        ClusterError: Ray could not start.
    """
    # Ray starts a dashboard's server even without a dashboard, and waits a second for it, unless
    # its port is taken. So a line in `ray.log` says that the port is in use.
    with (
        _variable(_NO_BYTECODE, lambda _: None),
        _own_process_groups(),
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        return _init(
            log_dir,
            address="local",
            include_dashboard=False,
            dashboard_port=taken.getsockname()[1],
            object_store_memory=object_store_bytes(),
            _temp_dir=str((temp_dir or _own_temp_dir()).absolute()),
        )


def _init(log_dir: Path, **options: Any) -> str:
    """`ray.init`, silent and without the user's folders on the workers' path; its address."""
    import ray
    from ray.exceptions import RayError
    from ray.job_config import JobConfig

    _write_ray_log(log_dir)
    job = JobConfig()
    job._py_driver_sys_path = _NoFolders()
    try:
        with _signal_handlers_kept(), _variable(_SUBMITTED_JOB, without_working_dir):
            context = ray.init(
                **options, job_config=job, log_to_driver=False, logging_level=logging.INFO
            )
    except (RayError, RuntimeError, ValueError, OSError) as error:
        ray.shutdown()
        raise ClusterError(
            f"Ray did not start: {' '.join(str(error).split())} (see {log_dir / RAY_LOG})"
        ) from error
    return str(context.address_info["gcs_address"])


class _NoFolders(list[str]):
    """A path list that stays empty.

    Ray appends the driver's script folder and working folder to every worker's `sys.path`,
    before its own packages: a user's `ray.py` or `launcher/` there would replace ours.
    """

    def extend(self, _folders: Any, /) -> None:
        """Take nothing."""


def _write_ray_log(log_dir: Path) -> None:
    """Send what Ray's Python side logs to a file, and to nowhere else.

    What it tells of processes that died would come on standard output even so.
    """
    from ray._private import worker  # the import of Ray installs the handler replaced here

    logger = logging.getLogger("ray")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.FileHandler(log_dir / RAY_LOG, encoding="utf-8", delay=True))
    logger.propagate = False
    worker.print_to_stdstream = _log_message


def _log_message(data: dict[str, Any], ignore_prefix: bool) -> None:  # noqa: ARG001
    """Log what Ray would print."""
    logging.getLogger("ray").warning("%s", "\n".join(map(str, data["lines"])))


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """Undo the SIGTERM handler that `ray.init` installs on the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _own_process_groups() -> Iterator[None]:
    """Start Ray's processes where a signal to this process's group does not reach them.

    A closed terminal, `timeout 1h launch …` and batch systems signal the whole group. Ray must
    live on until training has stopped at a checkpoint; it ends with this process in any case.
    """
    from ray._private import services

    popen = services.ConsolePopen
    services.ConsolePopen = partial(popen, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = popen


@contextmanager
def _variable(name: str, change: Callable[[str], str | None]) -> Iterator[None]:
    """Start Ray with an environment variable changed, or taken away (None), if there is one."""
    value = os.environ.pop(name, None)
    changed = None if value is None else change(value)
    if changed is not None:
        os.environ[name] = changed
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value


def without_working_dir(job_json: str) -> str:
    """A submitted job's settings without its `working_dir`.

    Ray puts that folder first on every worker's path, where a user's module hides ours; the
    launcher ships the script's folder itself.
    """
    job = json.loads(job_json)
    if isinstance(job.get("runtime_env"), dict):
        job["runtime_env"].pop("working_dir", None)
    return json.dumps(job)


def object_store_bytes() -> int:
    """Shared memory for an embedded Ray: a tenth of what is free, within bounds.

    The launcher sends archives and checkpoints through it, never training data.
    """
    at_least, at_most = OBJECT_STORE_BYTES
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shared = Path("/dev/shm")
    if shared.is_dir():
        status = os.statvfs(shared)
        free = min(free, 5 * status.f_bavail * status.f_frsize)
    return max(at_least, min(at_most, free // 10))


def own_temp_dir(place: Path) -> Path:
    """The folder for this user's embedded sessions: below `place`, or /tmp where that is too long.

    Sockets lie in it, whose paths Linux limits. It is per user, because Ray's own /tmp/ray belongs
    to whoever came first.
    """
    name = f"launch-ray-{os.getuid()}"
    is_short = len(os.fsencode(place / name)) <= MAX_TEMP_DIR_BYTES
    return (place if is_short else Path("/tmp")) / name


def _own_temp_dir() -> Path:
    """A folder for this user's embedded sessions, without those of more than a week ago."""
    folder = own_temp_dir(Path(tempfile.gettempdir()))
    for session in folder.glob("session_2*"):
        with suppress(OSError):
            if time.time() - session.stat().st_mtime > _KEEP_SESSIONS_S:
                shutil.rmtree(session, ignore_errors=True)
    return folder
