"""What the probe costs, how steady its numbers are, and how true.

On this machine's loopback: one node is an embedded Ray, as `launch` starts it; more are Ray nodes
of one CPU each. Then between real hosts of the lab (`bench_probe_hosts.py`), which needs root.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

from bench_probe_hosts import measure_hosts

from launcher.cluster import Cluster, connect, disconnect
from launcher.probe import probe
from policies.schema import Network
from tests.lab.requirement import missing

GOALS = (
    # name, number of nodes, target in seconds (of a machine that does nothing else)
    ("probe_1_node_s", 1, 1.0),
    ("probe_4_nodes_s", 4, 6.0),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Probes of one cluster size; `spread` is (max - min) / median over the repetitions."""

    n_nodes: int
    n_paths: int
    took_s: float
    rtt_us: float
    rtt_spread: float
    gbit_per_s: float
    gbit_spread: float
    n_silent: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer nodes, fewer repetitions")
    parser.add_argument("--only", choices=("loopback", "hosts"), help="one part")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    rows = [] if options.only == "hosts" else measure_loopback(options.quick)
    print_table(rows)
    goals, failed, details = [], 0, list[dict[str, object]]()
    if (reason := missing()) is not None:
        print(f"no real hosts: {reason}")
    elif options.only != "loopback":
        verdicts, details = measure_hosts(options.quick)
        goals, failed = verdicts.lines, verdicts.missed
    if options.json:
        found = [*(asdict(row) for row in rows), *details]
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print()
    missed = print_goals(rows)
    print("\n".join(goals))
    return 1 if missed or failed else 0


def measure_loopback(quick: bool) -> list[Row]:
    return [measure(n, 2 if quick else 5) for n in ((1, 2) if quick else (1, 2, 4))]


def measure(n_nodes: int, n_times: int) -> Row:
    with logical_nodes(n_nodes) as cluster:
        networks = [probe(cluster) for _ in range(n_times)]
    rtts_us = [1e6 * typical(n, "rtt_s") for n in networks]
    gbits = [8e-9 * typical(n, "bandwidth_bytes_per_s") for n in networks]
    return Row(
        n_nodes,
        n_paths=n_nodes * (n_nodes + 1) // 2,
        took_s=statistics.median(n.took_s for n in networks),
        rtt_us=statistics.median(rtts_us),
        rtt_spread=spread(rtts_us),
        gbit_per_s=statistics.median(gbits),
        gbit_spread=spread(gbits),
        n_silent=sum(len(n.silent) for n in networks),
    )


@contextmanager
def logical_nodes(n: int) -> Iterator[Cluster]:
    """An embedded Ray, or several Ray nodes of one CPU each on this machine, joined."""
    folder = Path(tempfile.mkdtemp(prefix="lb", dir="/tmp"))
    os.environ["RAY_TMPDIR"] = str(folder)
    nodes = None if n == 1 else started_nodes(n)
    started_s = time.perf_counter()
    address = nodes.address if nodes else "local"
    cluster = connect(address, None, price_usd_per_h=None, temp_dir=folder, log_dir=folder / "log")
    print(f"{cluster.how} in {time.perf_counter() - started_s:.2f} s", file=sys.stderr)
    try:
        yield cluster
    finally:
        disconnect(cluster)
        if nodes:
            nodes.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def started_nodes(n: int) -> Any:
    from ray.cluster_utils import Cluster as Nodes

    small = {"num_cpus": 1, "object_store_memory": 80 << 20}
    nodes = Nodes(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    for _ in range(n - 1):
        nodes.add_node(**small)
    return nodes


def typical(network: Network, name: str) -> float:
    found = [getattr(link, name) for link in network.links]
    return statistics.median(value for value in found if value is not None)


def spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


def print_table(rows: list[Row]) -> None:
    if not rows:
        return
    print("nodes  paths  took     RTT      spread  rate          spread  silent")
    for r in rows:
        print(
            f"{r.n_nodes:5}  {r.n_paths:5}  {r.took_s:5.2f} s  {r.rtt_us:4.0f} µs  "
            f"{r.rtt_spread:5.0%}  {r.gbit_per_s:6.1f} Gbit/s  {r.gbit_spread:5.0%}  {r.n_silent:6}"
        )


def print_goals(rows: list[Row]) -> int:
    if not rows:
        return 0
    missed = 0
    for name, n_nodes, target_s in GOALS:
        for row in rows:
            if row.n_nodes == n_nodes:
                met = row.took_s <= target_s
                missed += not met
                verdict = "met" if met else "missed"
                print(f"goal {name}: {row.took_s:.2f} (target {target_s}) {verdict}")
    silent = sum(row.n_silent for row in rows)
    print(f"goal silent_nodes: {silent} (target 0) {'missed' if silent else 'met'}")
    return 1 if missed or silent else 0


if __name__ == "__main__":
    sys.exit(main())
