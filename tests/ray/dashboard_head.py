"""A head of Ray with its dashboard, as another machine's: a home and a Python path of its own."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import requests

from tests.ports import free_ports

LIMIT_S = 200.0
OBJECT_STORE_BYTES = 80 << 20
ROOT = Path(__file__).parents[2]
# What `ray[default]` brings besides Ray. It is kept apart from the environment of the other tests:
# with it every node of theirs would start an agent of the dashboard.
EXTRAS = ROOT / ".venv" / "ray-default"


def with_extras(environment: dict[str, str]) -> dict[str, str]:
    return environment | {"PYTHONPATH": str(EXTRAS)}


@contextlib.contextmanager
def dashboard_head(folder: Path, home: Path) -> Iterator[str]:
    """A head with 2 CPUs; the address of its dashboard."""
    port, ray_port, agent_port, client_port = free_ports(4)
    log = folder / "ray-start.log"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LAUNCH_", "RAY_", "TF_"))}
    command = [
        Path(sys.executable).with_name("ray"),
        *("start", "--head", "--block", f"--port={ray_port}", "--node-ip-address=127.0.0.1"),
        *("--num-cpus=2", f"--object-store-memory={OBJECT_STORE_BYTES}", f"--temp-dir={folder}"),
        *("--include-dashboard=true", f"--dashboard-port={port}", "--disable-usage-stats"),
        # Ray's own choice of these is the same for all heads, and open to whoever connects.
        f"--dashboard-agent-listen-port={agent_port}",
        f"--ray-client-server-port={client_port}",
        "--labels=launch/price-usd-per-hour=3600",
    ]
    environment = with_extras(kept) | {"HOME": str(home), "RAY_AUTH_MODE": "disabled"}
    with log.open("w") as stream:
        process = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(address) or process.poll() is not None, "the start of Ray")
        assert process.poll() is None, log.read_text()[-2000:]
        yield address
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(family, LIMIT_S)


def answers(address: str) -> bool:
    """Whether the dashboard takes jobs already."""
    with contextlib.suppress(requests.RequestException):
        return requests.get(f"{address}/api/jobs/", timeout=20).ok
    return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    ends_at_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends_at_s, f"{what} did not happen within {LIMIT_S} s"
        time.sleep(0.5)
