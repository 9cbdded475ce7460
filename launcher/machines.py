"""Run Ray's own commands here, and shell commands on a cluster's machines over ssh."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher.cluster_file import ClusterFile, SshAccess
from launcher.worker.environment import environment

RAY = "ray.scripts.scripts"  # the module behind the command `ray`
CONNECT_S = 10
# What Ray's log puts before each line where there is no terminal.
_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+\t[A-Z]+ \S+:\d+ -- ")
_NOISE = ("bash: cannot set terminal process group", "bash: no job control", "bash: initialize_job")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, and what it said last."""

    code: int
    said: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Its last line, or its exit code where it said nothing."""
        return self.said[-1] if self.said else f"exit code {self.code}"


class Machines(Protocol):
    """Where commands run."""

    def here(self, module: str, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
        """Run `python -m MODULE WORDS` here; `heard` gets each line as it comes."""
        ...

    def on(self, address: str, command: str, timeout_s: float) -> Ended:
        """Run a shell command on a machine, as its user would after logging in."""
        ...

    def copy(self, address: str, source: str, place: str, timeout_s: float) -> Ended:
        """Copy a file or a folder from here to a machine, as the cluster file's mounts are."""
        ...


@dataclass(frozen=True, slots=True)
class RealMachines:
    """The real ones.

    Args:
        variables: of Ray's commands, besides this process's own.
        log: gets all that is said.
        filters: rsync's own, for what is copied.
    """

    ssh: SshAccess
    variables: tuple[str, ...]
    log: Path
    filters: tuple[str, ...] = ()

    def here(self, module: str, words: Sequence[str], heard: Callable[[str], None]) -> Ended:
        """Run `python -P -m MODULE WORDS` here; `heard` gets each line as it comes.

        Modules in the folder where the command is called are not Ray's business, hence `-P`.
        """
        said: list[str] = []
        command = ["env", *self.variables, sys.executable, "-P", "-m", module, *words]
        with (
            self.log.open("a", encoding="utf-8") as log,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment(),
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    log.write(line)
                    if text := _PREFIX.sub("", line).strip():
                        said.append(text)
                        heard(text)
            except BaseException:  # a signal that came to this process alone
                process.terminate()
                raise
        return Ended(process.returncode, tuple(said))

    def on(self, address: str, command: str, timeout_s: float) -> Ended:
        """Run a shell command on a machine, as its user would after logging in."""
        words = [*ssh_words(self.ssh, address), login_shell(command)]
        return self._run(address, f"$ {command}", words, timeout_s)

    def copy(self, address: str, source: str, place: str, timeout_s: float) -> Ended:
        """Copy a file or a folder from here to a machine, as the cluster file's mounts are."""
        path, there = Path(source).expanduser(), _from_home(place)
        folder = there if path.is_dir() else str(Path(there).parent)
        made = self.on(address, f"mkdir -p {shlex.quote(folder)}", timeout_s)
        if made.code != 0:
            return made
        *ssh, who = ssh_words(self.ssh, address)
        ends = (f"{path}/", f"{who}:{there}/") if path.is_dir() else (str(path), f"{who}:{there}")
        as_it_is = ["--protect-args"] if shlex.quote(there) != there else []
        words = ["rsync", "--rsh", shlex.join(ssh), "-az", *as_it_is, *self.filters, *ends]
        return self._run(address, f"copies {source} to {place}", words, timeout_s)

    def _run(self, address: str, what: str, words: Sequence[str], timeout_s: float) -> Ended:
        try:
            done = subprocess.run(
                words,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout_s,
                env=environment(),
            )
        except subprocess.TimeoutExpired:
            return Ended(-1, (f"no answer in {timeout_s:g} s",))
        except FileNotFoundError:
            return Ended(-1, (f"this machine has no {words[0]}: install it",))
        lines = [line.strip() for line in done.stdout.splitlines()]
        said = tuple(line for line in lines if line and not line.startswith(_NOISE))
        with self.log.open("a", encoding="utf-8") as log:
            log.write("".join(f"{address}: {line}\n" for line in (what, *said)))
        return Ended(done.returncode, said)


def _from_home(place: str) -> str:
    """A place on a machine for tools that begin in its user's home folder."""
    return "." if place in {"~", "~/"} else place.removeprefix("~/")


def make_machines(file: ClusterFile, logs: Path) -> RealMachines:
    """The machines of a cluster file; all that is said goes to `ray-up.log` in `logs`."""
    # With the second autoscaler, the default, only one of a local provider's workers joins.
    variables = ("RAY_UP_enable_autoscaler_v2=0",) if file.is_local else ()
    return RealMachines(file.ssh, variables, logs / "ray-up.log", file.rsync_filters)


def ssh_words(access: SshAccess, address: str) -> list[str]:
    """The ssh command up to the remote command, with the settings that Ray itself uses."""
    settings = [
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_S}",
    ]
    if access.proxy_command:
        settings.append(f"ProxyCommand={access.proxy_command}")
    key = ["-i", str(Path(access.key).expanduser())] if access.key else []
    who = f"{access.user}@{address}" if access.user else address
    return ["ssh", *key, *(word for setting in settings for word in ("-o", setting)), who]


def login_shell(command: str) -> str:
    """The command in a shell that has read ~/.bashrc, where people set PATH (as Ray does)."""
    return f"bash --login -c -i {shlex.quote(f'source ~/.bashrc; {command}')}"
