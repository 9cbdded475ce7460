"""The way to the dashboard of a cluster from a file: `ray dashboard` forwards a port over ssh."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from launcher.cluster_file import ClusterFile
from launcher.jobs import UnreachableError
from launcher.machines import RAY
from launcher.worker.environment import environment

DASHBOARD_PORT: Final = 8265
OPEN_S: Final = 60.0  # Ray's import, the provider's answer and ssh
REFUSED_S: Final = 30.0  # Ray's dashboard starts some seconds after its head
LOOK_EVERY_S: Final = 0.2
# Such as `2026-12-01 01:45:22,424 INFO commands.py:422 -- Checking Local environment settings`.
_NOTES = re.compile(r"^\d{4}-\d\d-\d\d \S+\s+(?:INFO|WARN\w*) .*$", re.MULTILINE)
# Runs what follows until its own input ends, as when whoever started it dies; nothing is left then.
_WHILE_WATCHED = (
    'exec 3<&0; (cat <&3 >/dev/null; kill -TERM 0) & "$@" </dev/null 3<&-; kill -TERM 0'
)


@dataclass(slots=True)
class Tunnel:
    """Forwards a port of this machine to the head's dashboard.

    Args:
        variables: of Ray's commands, besides this process's own.
        log: gets what the command says.
        words: the command, up to the options that this class gives; for tests.
    """

    file: ClusterFile
    variables: Sequence[str]
    log: Path
    words: tuple[str, ...] = (sys.executable, "-P", "-m", RAY)
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """The dashboard's address on this machine."""
        return f"http://127.0.0.1:{self.port}"

    def open(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open it, or open it again if it is broken; blocks until it stands.

        Raises:
            UnreachableError: it does not stand after `OPEN_S`.
        """
        with self._lock:
            if self._process is None or not self._stands():
                self._open(clock, sleep)

    def _open(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self.close()
        self.port = self.port or _free_port()
        self._process = self._started()
        until_s, refused_s = clock() + OPEN_S, float("inf")
        while (way := self._way()) != "stands":
            if way == "refused":
                refused_s = min(refused_s, clock())
            if clock() - refused_s > REFUSED_S:
                raise self._unreachable(f"nothing listens at port {DASHBOARD_PORT} of its head")
            if clock() > until_s or self._process.poll() is not None:
                raise self._unreachable(self._last_words())
            sleep(LOOK_EVERY_S)

    def _unreachable(self, reason: str) -> UnreachableError:
        self.close()
        return UnreachableError(
            f"The dashboard of {self.file.path} cannot be reached over ssh: {reason}. Is the "
            f"cluster up (launch status {self.file.path}), and its Ray started with a dashboard "
            "(pip install 'ray[default]' there)?"
        )

    def close(self) -> None:
        """Close it."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            self._process.communicate()
            self._process = None

    def _started(self) -> "subprocess.Popen[bytes]":
        options = ["--port", str(self.port), "--remote-port", str(DASHBOARD_PORT)]
        command = ["env", *self.variables, *self.words, "dashboard", "--no-config-cache", *options]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["sh", "-c", _WHILE_WATCHED, "sh", *command, str(self.file.path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )

    def _stands(self) -> bool:
        return self._way() == "stands"

    def _way(self) -> Literal["stands", "refused", "silent"]:
        """Whether somebody at the other end takes a connection and answers.

        Refused: ssh takes it here, and finds nobody there.
        """
        try:
            connection = socket.create_connection(("127.0.0.1", self.port), 2.0)
        except OSError:
            return "silent"
        with connection:
            if connection.getsockname() == connection.getpeername():
                return "silent"  # Linux may connect a port at which nobody listens with itself
            try:
                connection.settimeout(5.0)
                connection.sendall(b"GET /api/version HTTP/1.0\r\n\r\n")
                return "stands" if connection.recv(1) else "refused"
            except TimeoutError:
                return "silent"
            except OSError:
                return "refused"

    def _last_words(self) -> str:
        """What the command has said last; not what Ray notes on its way."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in _NOTES.split(text)[-1].splitlines()]
        said = [line for line in lines if line]
        return said[-1].rstrip(".") if said else "no answer"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
