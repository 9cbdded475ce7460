"""A Ray cluster on the hosts of a lab."""

import secrets
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.lab.host import Host

PORT = 6379
OBJECT_STORE_BYTES = 100 << 20
START_S = 120.0
# Ray's defaults notice a silent node after 63 s; with these it takes 6 s.
QUICK_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass(frozen=True, slots=True)
class RayNode:
    """What a host offers to Ray.

    Args:
        labels: the node's Ray labels, such as its price.
    """

    host: Host
    n_cpus: float
    labels: Mapping[str, str]

    @property
    def command(self) -> list[str]:
        """`ray start`, but for where the head is."""
        words = [
            f"--node-ip-address={self.host.addresses[0]}",
            f"--num-cpus={self.n_cpus:g}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--disable-usage-stats",
        ]
        if self.labels:
            words.append("--labels=" + ",".join(f"{k}={v}" for k, v in self.labels.items()))
        return ["ray", "start", *words]


def start_cluster(
    nodes: Sequence[RayNode], environment: Mapping[str, str], head_words: Sequence[str] = ()
) -> str:
    """Start Ray on the hosts, the head on the first; returns when all have joined.

    Args:
        nodes: what each host offers.
        environment: of Ray's processes.
        head_words: further options of `ray start` on the head.

    Returns:
        The cluster's address.
    """
    head, *others = nodes
    address = f"{head.host.addresses[0]}:{PORT}"
    words = ["--head", f"--port={PORT}", "--include-dashboard=false", *head_words]
    _start(head, words, environment)
    with ThreadPoolExecutor(len(nodes)) as pool:  # `ray start` returns when the node has joined
        list(pool.map(lambda node: join_cluster(node, address, environment), others))
    return address


def join_cluster(node: RayNode, address: str, environment: Mapping[str, str]) -> None:
    """Start Ray on a host that joins the cluster; returns when it has joined."""
    _start(node, [f"--address={address}"], environment)


def _start(node: RayNode, words: Sequence[str], environment: Mapping[str, str]) -> None:
    # Ray's daemons keep what they inherit: a pipe would never end.
    log = node.host.outside("/tmp/ray-start.log")
    with log.open("w") as output:
        process = node.host.popen(
            [*node.command, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        code = process.wait(START_S)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    if code != 0:
        said = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"Ray did not start on {node.host.name} (exit code {code}):\n{said}")


def authentication(hosts: Iterable[Host], *, demanded: bool) -> dict[str, str]:
    """The environment of Ray's processes; where a token is demanded, every host gets the same."""
    if not demanded:
        return {"RAY_AUTH_MODE": "disabled"}
    token = secrets.token_hex(32)
    for host in hosts:
        folder = host.home / ".ray"
        folder.mkdir(exist_ok=True)
        (folder / "auth_token").write_text(token)
    return {"RAY_AUTH_MODE": "token"}
