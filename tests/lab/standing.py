"""A lab that stands in the background, for people: started, found again, and ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.errors import ClusterError, UsageError
from tests.lab.host import ROOT, Host
from tests.lab.lab import Hosts, Lab
from tests.lab.network import Network
from tests.lab.session import ROOT as SESSIONS
from tests.lab.session import stale_sessions

FILE = "standing.json"
LOG = SESSIONS / "standing.log"
START_S, END_S = 180.0, 100.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to bring up; see `Lab`, whose arguments these are but for the last two.

    Args:
        num_cpus: what Ray may hand out on each host; None is no Ray.
        auth: whether Ray demands a token.
    """

    n_hosts: int
    rtt_s: float
    jitter_s: float
    loss: float
    rate_bytes_per_s: float
    nic_bytes_per_s: float
    cpus: tuple[float | None, ...]
    prices_usd_per_h: tuple[float, ...] | None
    shared: tuple[str, ...]
    num_cpus: tuple[float, ...] | None
    auth: bool

    def make(self) -> Lab:
        """The lab, not yet up."""
        prices = self.prices_usd_per_h or ()
        return Lab(
            self.n_hosts,
            rtt_s=self.rtt_s,
            jitter_s=self.jitter_s,
            loss=self.loss,
            rate_bytes_per_s=self.rate_bytes_per_s,
            nic_bytes_per_s=self.nic_bytes_per_s,
            cpus=self.cpus,
            labels=[{"launch/price-usd-per-hour": f"{price:g}"} for price in prices] or None,
            shared=[Path(path) for path in self.shared],
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a standing lab is.

    Args:
        pid: the process that keeps it up.
    """

    pid: int
    plan: Plan
    hosts: tuple[Host, ...]
    networks: tuple[Network, ...]
    environment: Mapping[str, str]
    ray_address: str | None

    def attach(self) -> Hosts:
        """Its hosts, to do things to."""
        by_name = {host.name: host for host in self.hosts}
        return Hosts(by_name, self.networks, self.environment)

    def sees(self, path: Path) -> bool:
        """Whether the hosts see a path as it is out here."""
        shared = (*self.plan.shared, str(ROOT))
        return not path.is_relative_to("/tmp") or any(path.is_relative_to(p) for p in shared)


def find() -> Standing:
    """The lab that stands.

    Raises:
        UsageError: there is none.
    """
    found = look()
    if found is None:
        raise UsageError("No lab is up. Start one: scripts/lab up --hosts 3")
    return found


def look() -> Standing | None:
    """The lab that stands, if there is one."""
    if not SESSIONS.is_dir():
        return None
    stale = stale_sessions()
    files = [f for f in sorted(SESSIONS.glob(f"*/{FILE}")) if f.parent.name not in stale]
    return _decode(json.loads(files[0].read_text())) if files else None


def start(plan: Plan) -> Standing:
    """Bring a lab up in the background; returns when it is ready.

    Raises:
        UsageError: one stands already.
        ClusterError: it did not come up.
    """
    if (standing := look()) is not None:
        n_hosts = len(standing.hosts)
        raise UsageError(f"A lab of {n_hosts} hosts is up. Take it down first: scripts/lab down")
    SESSIONS.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.lab.standing", json.dumps(asdict(plan))],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
    except BaseException:
        process.terminate()
        raise
    if ready != "ready\n" or (standing := look()) is None:
        last = LOG.read_text(errors="replace").strip().splitlines()[-1:]
        raise ClusterError(f"The lab did not come up: {' '.join(last)}. All is said in {LOG}.")
    return standing


def stop(standing: Standing) -> None:
    """Take the lab down; returns when it is gone."""
    os.kill(standing.pid, signal.SIGTERM)
    until = time.monotonic() + END_S
    while look() is not None:
        if time.monotonic() > until:
            raise ClusterError(
                f"The lab's process {standing.pid} still runs after {END_S:g} s. End it: "
                f"kill -9 {standing.pid}"
            )
        time.sleep(0.05)


def keep_up(plan: Plan) -> None:
    """Bring the lab up, say so, and keep it until SIGTERM."""
    with plan.make() as lab:
        address = None
        if plan.num_cpus is not None:
            address = lab.start_ray(num_cpus=plan.num_cpus, auth=plan.auth)
        hosts = tuple(lab.hosts.values())
        standing = Standing(os.getpid(), plan, hosts, lab.networks, lab.environment, address)
        (lab.session.folder / FILE).write_text(json.dumps(asdict(standing), default=str))
        print("ready", flush=True)
        os.close(1)
        while True:
            signal.pause()


def _decode(words: dict[str, Any]) -> Standing:
    hosts = [
        Host(**{**h, "addresses": tuple(h["addresses"]), "folder": Path(h["folder"]),
                "group": Path(h["group"])})
        for h in words["hosts"]
    ]  # fmt: skip
    networks = [Network(tuple(n["names"]), Path(n["socket"])) for n in words["networks"]]
    known = {"plan": _plan(words["plan"]), "hosts": tuple(hosts), "networks": tuple(networks)}
    return Standing(**{**words, **known})


def _plan(words: dict[str, Any]) -> Plan:
    return Plan(**{k: tuple(v) if isinstance(v, list) else v for k, v in words.items()})


if __name__ == "__main__":
    keep_up(_plan(json.loads(sys.argv[1])))
