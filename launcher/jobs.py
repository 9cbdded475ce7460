"""A cluster from afar: jobs on its head, through its dashboard (Ray's Jobs API)."""

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from launcher.errors import ClusterError
from launcher.log import quieten

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 60.0
QUIET_S: Final = 300.0  # a connection that has gone is not told of while nothing is sent over it
STOP_WAIT_S: Final = 1800  # Ray kills a job that is asked to stop after 3 s unless told otherwise
ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
RUN_KEY: Final = "launch"  # metadata of our jobs: what each is for
# Modules that run on a head, and the files that each finds in its folder.
DRIVER, ORDERS = "launcher.job_driver", "orders"
FILES, WANTED = "launcher.job_files", "wanted"
NO_CLIENT = (
    "This machine's Ray cannot talk to a dashboard: it lacks {lacking}. Install it: "
    "pip install 'ray[default]'"
)
# A job's shell is a child of its supervisor, and that one of the node's raylet, which knows by
# which Python the node's workers run: the launcher is installed there.
_PYTHON = (
    "raylet=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status); "
    "python=$(tr '\\0' '\\n' </proc/$raylet/cmdline"
    " | sed -n 's/^--python_worker_command=\\([^ ]*\\).*/\\1/p'); "
    'exec "${python:-python3}" -P -m '
)


class UnreachableError(ClusterError):
    """The cluster does not answer for now; trying again may help."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as its server knows it; `message` is what the server says of its end."""

    is_over: bool
    message: str = ""


class Jobs(Protocol):
    """The job server of a cluster."""

    def submit(self, command: str, folder: Path | None, purpose: str) -> str:
        """Start a shell command on the head in a copy of a folder; the job's id."""
        ...

    def state(self, job: str) -> JobState:
        """Where a job stands."""
        ...

    def stop(self, job: str) -> None:
        """Send a job SIGTERM, and let it end in its own time."""
        ...

    def said(self, job: str) -> Iterator[str]:
        """What a job has said and says, from its beginning to its end, or to a long silence."""
        ...

    def having(self, purpose: str) -> tuple[str, ...]:
        """The jobs that were started for a purpose, the newest first."""
        ...


def python_on_head(module: str, *words: str) -> str:
    """The shell command that runs one of the launcher's modules on the head."""
    return " ".join([_PYTHON + module, *words])


def own_version() -> str:
    """The launcher's version: orders are understood by the same one only."""
    return version("train-launcher")


def is_dashboard(address: str | None) -> bool:
    """Whether an address is a dashboard's, and no Ray head's."""
    return address is not None and address.startswith(("http://", "https://"))


@dataclass(slots=True)
class RayJobs:
    """The job server behind a dashboard's address.

    Attributes:
        address: `http://HEAD:8265`.
        shown: the cluster, for messages.
        mend: puts the way there in order again, if that is possible.
    """

    address: str
    shown: str
    mend: Callable[[], None] = lambda: None
    _client: Any = field(default=None, repr=False)

    def connect(self) -> None:
        """See that a job server answers.

        Raises:
            UnreachableError: nobody answers.
            ClusterError: who answers is no dashboard of Ray's, or does not let us in.
        """
        self._require_listener()
        with self._told(), _no_other_address():
            self._client = _client(self.address)

    def submit(self, command: str, folder: Path | None, purpose: str) -> str:
        """See `Jobs`."""
        environment: dict[str, Any] = {
            "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)},
        }
        if folder is not None:
            environment["working_dir"] = str(folder)
        self.mend()
        job = f"launch_{uuid.uuid4().hex}"
        try:
            with self._told():
                self._asked.submit_job(
                    submission_id=job,
                    entrypoint=command,
                    runtime_env=environment,
                    metadata={RUN_KEY: purpose},
                )
        except BaseException:  # it may have arrived all the same, and nobody would follow it
            with suppress(Exception):
                self._asked.stop_job(job)
            raise
        return job

    def state(self, job: str) -> JobState:
        """See `Jobs`."""
        with self._told():
            info = self._asked.get_job_info(job)
            return JobState(str(info.status.value) in ENDED, str(info.message or ""))

    def stop(self, job: str) -> None:
        """See `Jobs`."""
        self.mend()
        with self._told():
            self._asked.stop_job(job)

    def said(self, job: str) -> Iterator[str]:
        """See `Jobs`."""
        self.mend()
        loop = asyncio.new_event_loop()
        pieces = self._asked.tail_job_logs(job)
        try:
            while (piece := self._next(loop, pieces)) is not None:
                yield piece
        finally:
            with suppress(Exception):
                loop.run_until_complete(pieces.aclose())
            loop.close()

    def having(self, purpose: str) -> tuple[str, ...]:
        """See `Jobs`."""
        with self._told():
            found = [job for job in self._asked.list_jobs() if _purpose(job) == purpose]
        found.sort(key=lambda job: -(job.start_time or 0))
        return tuple(str(job.submission_id) for job in found)

    def _next(self, loop: asyncio.AbstractEventLoop, pieces: AsyncIterator[str]) -> str | None:
        """What comes next; None at the end, and where nothing comes: the way may be dead."""
        with self._told():
            try:
                return loop.run_until_complete(asyncio.wait_for(_first(pieces), QUIET_S))
            except TimeoutError:
                return None

    @property
    def _asked(self) -> Any:
        if self._client is None:
            self.connect()
        return self._client

    def _told(self) -> "_Told":
        return _Told(self.shown)

    def _require_listener(self) -> None:
        parts = urlsplit(self.address)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            port = 0
        if not parts.hostname or not port:
            raise ClusterError(
                f"--address {self.shown} is not an address. Give http://HEAD:8265, where the "
                "cluster's dashboard is."
            )
        try:
            socket.create_connection((parts.hostname, port), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reason = error.strerror or f"no connection in {CONNECT_TIMEOUT_S:g} s"
            raise UnreachableError(
                f"No Ray dashboard answers at {self.shown}: {reason}. Is the cluster up, and its "
                "dashboard reached from here?"
            ) from error


@dataclass(frozen=True, slots=True)
class _Told:
    """Turns what Ray's client raises into errors of ours, one line each."""

    shown: str

    def __enter__(self) -> None:
        """Nothing is to be prepared."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, ClusterError):
            return
        if not isinstance(error, Exception):
            return
        text = " ".join(str(error).split())
        if "ray[default]" in text:
            raise ClusterError(NO_CLIENT.format(lacking="aiohttp")) from error
        if _is_silence(error):
            raise UnreachableError(
                f"The Ray dashboard at {self.shown} does not answer ({type(error).__name__}). Is "
                "the cluster up?"
            ) from error
        if type(error).__name__ == "AuthenticationError":
            raise ClusterError(
                f"The Ray cluster at {self.shown} wants a token that this user lacks. Put its "
                "token into ~/.ray/auth_token, or name that file in RAY_AUTH_TOKEN_PATH, and set "
                "RAY_AUTH_MODE=token."
            ) from error
        raise ClusterError(
            f"What answers at {self.shown} refuses: {_short(text)}. Is it the dashboard of a Ray "
            "of this version?"
        ) from error


def _client(address: str) -> Any:
    """Ray's client, which by itself would wait for an answer for ever."""
    from ray.job_submission import JobSubmissionClient

    quieten()  # what was imported here says what it sends and hears

    class PatientClient(JobSubmissionClient):  # type: ignore[misc]
        def _do_request(self, *words: Any, **options: Any) -> Any:
            return super()._do_request(*words, **{"timeout": ANSWER_TIMEOUT_S, **options})

    return PatientClient(address)


async def _first(pieces: AsyncIterator[str]) -> str | None:
    """The next piece; None if there is none."""
    async for piece in pieces:
        return piece
    return None


@contextmanager
def _no_other_address() -> Iterator[None]:
    """Hide the variables that Ray's client would put in place of the address it is given."""
    names = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _is_silence(error: Exception) -> bool:
    """Whether the way there is broken, rather than the question refused."""
    module = type(error).__module__
    broken = isinstance(error, (OSError, asyncio.TimeoutError))
    return broken or module.startswith("aiohttp") or "WebSocket" in str(error)


def _purpose(job: Any) -> str | None:
    metadata: Mapping[str, str] = job.metadata or {}
    return metadata.get(RUN_KEY) if job.submission_id else None


def _short(text: str, length: int = 200) -> str:
    return text.rstrip(". ") if len(text) <= length else f"{text[: length - 1]}…"
