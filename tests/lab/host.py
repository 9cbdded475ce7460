"""One host: a machine of its own to whatever runs in it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.cpu_quota import V1, make_group, remove_group, set_quota

ROOT = Path(__file__).parents[2]  # of the checkout
HERE = Path(__file__).parent
HOME = "/tmp/home"
NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
SHM_BYTES = 1 << 30
# A new machine knows nothing of the caller's clusters, runs and settings.
NOT_INHERITED = ("RAY_", "LAUNCH_", "TF_", "KERAS_", "COV_", "PYTHON", "VIRTUAL_ENV", "TMPDIR")
ISOLATED = (sys.executable, "-I", "-S")


@dataclass(frozen=True, slots=True)
class Host:
    """A running host.

    Args:
        name: its host name, such as `h1`.
        addresses: its IPv4 address on each network that it is part of.
        pid: its first process, as seen from outside.
        folder: its files outside: `tmp` is its /tmp.
        group: its group of CPU time.
    """

    name: str
    addresses: tuple[str | None, ...]
    pid: int
    folder: Path
    group: Path

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command in the host; `options` are those of `subprocess.Popen`.

        Args:
            cwd: working directory as the host sees it; its home by default.
            env: variables besides the usual ones; signals to the process reach the command.
        """
        words, environment = self.entry(command, cwd=cwd, env=env)
        return subprocess.Popen(words, env=environment, **options)

    def entry(
        self,
        command: Sequence[str | Path],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """The words and the environment that run a command in the host, from outside."""
        where = (str(self.pid), str(self.group), str(cwd or HOME))
        words = [*ISOLATED, str(HERE / "enter.py"), *where, *map(str, command)]
        return words, {**environment(), **(env or {})}

    def run(
        self,
        command: Sequence[str | Path],
        *,
        timeout_s: float | None = None,
        stdin: str | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host and wait for it; its output is captured as text.

        Raises:
            subprocess.TimeoutExpired: it took longer than `timeout_s`, and was killed.
        """
        pipe = subprocess.PIPE
        source = subprocess.DEVNULL if stdin is None else pipe
        process = self.popen(command, stdin=source, stdout=pipe, stderr=pipe, text=True, **options)
        with process:
            try:
                out, err = process.communicate(stdin, timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def set_cpu(self, cpus: float | None) -> None:
        """Cap what the host may compute, in cores; None is no cap."""
        set_quota(self.group, cpus)

    @property
    def namespace(self) -> str:
        return f"/proc/{self.pid}/ns/net"

    def outside(self, path: str | Path) -> Path:
        """Where a path of the host lies on the real machine."""
        inside = Path(path)
        return self.folder / inside.relative_to("/") if inside.is_relative_to("/tmp") else inside

    @property
    def home(self) -> Path:
        """The host's home folder, as seen from outside."""
        return self.outside(HOME)

    def kill(self) -> None:
        """End everything in the host at once, without a word."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        remove_group(self.group)


def environment() -> dict[str, str]:
    """What a command in a host finds in its environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(NOT_INHERITED)}
    path = f"{Path(sys.executable).parent}:{kept.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"
    return {**kept, "HOME": HOME, "PATH": path}


def boot(
    name: str,
    addresses: tuple[str | None, ...],
    folder: Path,
    group: Path,
    *,
    file_by_path: Mapping[str, Path],
    shared: Sequence[Path] = (),
) -> tuple[Host, subprocess.Popen[bytes]]:
    """Bring a host up; it lives as long as the process that is returned has its standard input.

    Args:
        file_by_path: files of the real machine that stand in for others in the host.
        shared: paths under /tmp that it sees in spite of its own /tmp.
    """
    (folder / "tmp" / "home").mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    config = {
        "name": name,
        "tmp": str(folder / "tmp"),
        "shared": [str(path) for path in visible_paths(shared)],
        "shm_bytes": SHM_BYTES,
        "file_by_path": {path: str(file) for path, file in file_by_path.items()},
        "cpu_group": str(make_group(group)),
        "cpu_group_on": str(V1) if V1.is_dir() else "",
    }
    log = folder / "init.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            ["unshare", *NAMESPACES, *ISOLATED, str(HERE / "host_init.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            bufsize=0,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(config).encode() + b"\n")
    answer = process.stdout.readline().strip()
    process.stdout.close()
    if not answer:
        code = process.wait()
        raise RuntimeError(f"{name} did not come up (exit code {code}):\n{log.read_text()}")
    return Host(name, addresses, int(answer), folder, group), process


def system_files(folder: Path, address_by_name: Mapping[str, str]) -> dict[str, Path]:
    """Write what hosts have in place of the machine's: names of all hosts, and root's own home."""
    (folder / "hosts").write_text(
        "127.0.0.1 localhost\n"
        + "".join(f"{address} {name}\n" for name, address in address_by_name.items())
    )
    users = [line.split(":") for line in Path("/etc/passwd").read_text().splitlines()]
    lines = [":".join([*u[:5], HOME, *u[6:]] if u[0] == "root" else u) for u in users]
    (folder / "passwd").write_text("\n".join(lines) + "\n")
    return {"/etc/hosts": folder / "hosts", "/etc/passwd": folder / "passwd"}


def visible_paths(shared: Sequence[Path]) -> list[Path]:
    """The given paths and the project's own, as far as the host's /tmp would hide them."""
    paths = {ROOT, Path(sys.prefix), Path(sys.base_prefix), *(path.resolve() for path in shared)}
    return sorted(path for path in paths if path.is_relative_to("/tmp") and path != Path("/tmp"))
