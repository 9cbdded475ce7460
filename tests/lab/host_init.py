"""The first process of a host: makes its own mounts, then lives until standard input ends.

Run as `unshare … python -I host_init.py`, the configuration as one line of JSON on standard input.
It says which process it is, as seen from outside. Everything in the host dies with it.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

MS_RDONLY, MS_BIND, MS_REC = 1, 4096, 16384
# As on any Linux server: windows that grow with the path.
SYSCTLS = {
    "tcp_wmem": "4096 65536 16777216",
    "tcp_rmem": "4096 131072 33554432",
    "tcp_no_metrics_save": "1",  # a link that was changed is not judged by what it was
}


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount, or raise OSError with both paths."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [word.encode() or None for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {source} on {target}")


def make_mounts(config: dict[str, Any]) -> None:
    """Own /proc, /run, /dev/shm, /tmp and some of /etc; shared paths shine through the /tmp."""
    tmp = config["tmp"]
    for path in config["shared"]:
        place = tmp + path.removeprefix("/tmp")
        Path(place).mkdir(parents=True, exist_ok=True)
        mount(path, place, flags=MS_BIND | MS_REC)
    mount("shm", "/dev/shm", "tmpfs", options=f"size={config['shm_bytes']}")
    mount("proc", "/proc", "proc")
    mount("run", "/run", "tmpfs")
    for path, source in config["file_by_path"].items():
        mount(source, path, flags=MS_BIND)
    if config["cpu_group_on"]:
        mount(config["cpu_group"], config["cpu_group_on"], flags=MS_BIND)
    mount(tmp, "/tmp", flags=MS_BIND | MS_REC)  # last: it hides where the others come from


def main() -> None:
    config = json.loads(sys.stdin.buffer.raw.readline())  # type: ignore[attr-defined]
    outer_pid = str(Path("/proc/self").readlink())  # of the outer /proc, which is still there
    Path(config["cpu_group"], "cgroup.procs").write_text("0")  # this process
    make_mounts(config)
    socket.sethostname(config["name"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for name, value in SYSCTLS.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans end here, and are reaped by the kernel
    print(outer_pid, flush=True)
    os.close(1)
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    main()
