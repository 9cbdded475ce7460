"""An ssh server in each host of a lab, so that machines are set up from afar, as in a cloud."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.lab.host import Host, environment

COMMANDS = ("sshd", "ssh", "ssh-keygen", "rsync")
KEY = "/tmp/home/.ssh/id_ed25519"


def missing_ssh() -> str | None:
    """Why hosts cannot have ssh servers here, or None where they can."""
    lacking = [name for name in COMMANDS if shutil.which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} missing: install openssh-server and rsync"
    return None


@contextmanager
def ssh_servers(hosts: Sequence[Host]) -> Iterator[None]:
    """Let every host be reached by ssh from every other, with the key at `KEY`."""
    own = hosts[0].outside(KEY)
    own.parent.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own)], check=True)
    for host in hosts:
        _prepare(host, own)
    servers = [host.popen(_server(host), stderr=subprocess.PIPE, text=True) for host in hosts]
    try:
        for server in servers:
            _wait_until_it_listens(server)
        yield
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def _prepare(host: Host, key: Path) -> None:
    """The key, who may come in with it, and a shell that finds Ray."""
    folder = host.home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not (folder / key.name).exists():
        shutil.copy(key, folder)
    shutil.copy(f"{key}.pub", folder / "authorized_keys")
    (host.home / ".bashrc").write_text(f"export PATH={environment()['PATH']}\n")
    (host.home / ".profile").write_text(". ~/.bashrc\n")


def _server(host: Host) -> list[str]:
    settings = (
        "PermitRootLogin=yes",
        "PasswordAuthentication=no",
        "UsePAM=no",
        "StrictModes=no",
        "PidFile=none",
        "MaxStartups=50",
    )
    sshd = shutil.which("sshd") or "sshd"  # it wants its absolute path
    options = [word for setting in settings for word in ("-o", setting)]
    words = f"mkdir -p /run/sshd && exec {sshd} -D -e -f /dev/null -h {KEY} {' '.join(options)}"
    return ["sh", "-c", words]


def _wait_until_it_listens(server: "subprocess.Popen[str]") -> None:
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("Server listening"):
            return
    raise RuntimeError(f"sshd ended with exit code {server.wait()}")
