"""The step on the nodes and in the ring order that the launcher chooses, against others.

Six hosts of the lab stand at two sites, 0.5 ms inside and 40 ms between. The launcher chooses
(`launch --dry-run --workers N`), from its own probe and profile. Then N workers train with the
engine, and each placement in turn is laid under them: the links between ranks, and their cores,
are set to those of the nodes that the placement gives them.
"""

import argparse
import json
import os
import random
import re
import runpy
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab.lab import Lab  # noqa: E402 - the checkout's own package

WORKLOAD = "scripts/workloads/small_cnn.py"
SITES = ("h1", "h2", "h3"), ("h4", "h5", "h6")
NEAR_S, FAR_S = 0.0005, 0.040
RATE_BYTES_PER_S = 125e6
CPUS, SLOW_CPUS = 0.3, 0.1
SETTLE_EPOCHS, MEASURED_EPOCHS = 1, 3
PORT = 7001
LIMIT_S = 240.0
GOAL = 1.05  # chosen over the best placement that was measured
STEP = re.compile(r"step ([\d.]+) ms")

Placement = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """How many workers, and which hosts are slow."""

    name: str
    n: int
    slow: tuple[str, ...] = ()

    def cpus(self, host: str) -> float:
        """The cores of a host."""
        return SLOW_CPUS if host in self.slow else CPUS


@dataclass(frozen=True, slots=True)
class Row:
    """Measured steps of one case, in seconds."""

    case: str
    chosen: Placement
    crossings: int
    chosen_s: float
    random_s: float
    worst: Placement
    worst_s: float
    best_s: float


CASES = (
    Case("3 of 3 + 3", 3),
    Case("all of 3 + 3", 6),
    Case("3, one of them slow", 3, slow=("h3",)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one random placement, not three")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--workers", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        train(options.rank, options.workers.split(","))
        return 0
    rows = [measured(case, 1 if options.quick else 3) for case in CASES]
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return print_goals(rows)


def measured(case: Case, n_random: int) -> Row:
    """Choose and measure one case, in a lab of its own."""
    hosts = [host for site in SITES for host in site]
    kinds = [{"launch/instance-type": "slow" if h in case.slow else "usual"} for h in hosts]
    cpus = tuple(case.cpus(host) for host in hosts)
    lab = Lab(
        len(hosts), rtt_s=NEAR_S, rate_bytes_per_s=RATE_BYTES_PER_S, cpus=cpus, labels=tuple(kinds)
    )
    with lab:
        for a in SITES[0]:
            for b in SITES[1]:
                lab.set(f"{a}-{b}", rtt_s=FAR_S)
        lab.start_ray(num_cpus=1)
        chosen = choose(lab, case)
        report(f"{case.name}: chosen {' '.join(chosen)}")
        rivals = others(case, chosen, n_random)
        with group(lab, case.n) as epochs:
            steps_s = {p: step_s(lab, case, p, epochs) for p in (chosen, *rivals)}
    *randoms, worst = rivals
    return Row(
        case.name,
        chosen,
        crossings(chosen),
        steps_s[chosen],
        statistics.mean(steps_s[p] for p in randoms),
        worst,
        steps_s[worst],
        min(steps_s.values()),
    )


def choose(lab: Lab, case: Case) -> Placement:
    """What the launcher would train on, in ring order."""
    command = ["launch", WORKLOAD, "--address", lab.ray_address, "--workers", str(case.n)]
    command += ["--strategy", "allreduce"]  # whose ring is trained below
    done = lab.run("h1", [*command, "--dry-run", "--json"], cwd=str(ROOT), timeout_s=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"launch --dry-run failed:\n{done.stderr[-3000:]}")
    record = json.loads(done.stdout)
    ip_by_node = {node["id"]: node["ip"] for node in record["cluster"]["nodes"]}
    name_by_ip = {lab.ip(name): name for name in lab.names}
    chosen = record["decisions"][-1]["chosen"]["nodes"]
    return tuple(name_by_ip[ip_by_node[node]] for node in chosen)


def others(case: Case, chosen: Placement, n_random: int) -> tuple[Placement, ...]:
    """Random placements, and last the worst: the most crossings, with the slow hosts."""
    hosts = sorted(host for site in SITES for host in site)
    rng = random.Random(1)
    every = [p for p in permutations(hosts, case.n) if p[0] == min(p) and p != chosen]
    worst = max(every, key=lambda p: (len(set(case.slow) & set(p)), crossings(p), p))
    return *rng.sample([p for p in every if p != worst], n_random), worst


def crossings(ring: Placement) -> int:
    """How often a ring goes from one site to the other."""
    at = [host in SITES[0] for host in ring]
    return sum(a != b for a, b in zip(at, at[1:] + at[:1], strict=True))


@contextmanager
def group(lab: Lab, n: int) -> Iterator[Iterator[float]]:
    """N training processes, rank i on host i + 1; gives the epochs' steps as rank 0 prints them."""
    for a in range(1, n + 1):
        for b in range(a + 1, n + 1):
            lab.set(f"h{a}-h{b}", rtt_s=NEAR_S)
    workers = ",".join(f"{lab.ip(f'h{i + 1}')}:{PORT}" for i in range(n))
    processes = []
    try:
        for rank in range(n):
            command = [sys.executable, __file__, "--rank", str(rank), "--workers", workers]
            out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(
                lab.popen(f"h{rank + 1}", command, stdout=out, stderr=subprocess.DEVNULL, text=True)
            )
        lines = iter(processes[0].stdout or ())
        yield (float(found[1]) / 1e3 for line in lines if (found := STEP.search(line)))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def step_s(lab: Lab, case: Case, placement: Placement, epochs: Iterator[float]) -> float:
    """The step when rank i has the links and the cores of `placement[i]`."""
    for i, a in enumerate(placement):
        lab.set_cpu(f"h{i + 1}", case.cpus(a))
        for j, b in enumerate(placement[:i]):
            near = (a in SITES[0]) == (b in SITES[0])
            lab.set(f"h{i + 1}-h{j + 1}", rtt_s=NEAR_S if near else FAR_S)
    times = [next(epochs) for _ in range(SETTLE_EPOCHS + MEASURED_EPOCHS)][SETTLE_EPOCHS:]
    report(f"  {' '.join(placement)}: {1e3 * statistics.median(times):.1f} ms")
    return statistics.median(times)


def train(rank: int, workers: Sequence[str]) -> None:
    """One rank: the workload under the engine, until it is killed."""
    task = {"type": "worker", "index": rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": list(workers)}, "task": task})
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from launcher.worker.data_parallel import DataParallel
    from launcher.worker.devices import set_up_devices
    from launcher.worker.exchange.collective import CollectiveExchange

    set_up_devices(1)
    DataParallel(CollectiveExchange.from_tf_config()).install(["keras"])
    script = ROOT / WORKLOAD
    sys.path.insert(0, str(script.parent))
    sys.argv = [script.name, "--epochs", "100000", "--steps", "20"]
    runpy.run_path(str(script), run_name="__main__")


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_table(rows: Sequence[Row]) -> None:
    print(f"{'':<22}{'chosen':>10}{'random':>10}{'worst':>10}  random/chosen  worst/chosen")
    for row in rows:
        steps = "".join(f"{1e3 * s:>7.1f} ms" for s in (row.chosen_s, row.random_s, row.worst_s))
        print(
            f"{row.case:<22}{steps}{row.random_s / row.chosen_s:>14.2f}"
            f"{row.worst_s / row.chosen_s:>14.2f}   {' '.join(row.chosen)}"
        )
    print()


def print_goals(rows: Sequence[Row]) -> int:
    ratio = max(row.chosen_s / row.best_s for row in rows)
    one_site, both_sites, without_slow = rows
    goals = [
        (f"chosen_over_best_measured: {ratio:.2f} (target {GOAL})", ratio <= GOAL),
        (f"three_of_six_crossings: {one_site.crossings} (target 0)", one_site.crossings == 0),
        (f"six_of_six_crossings: {both_sites.crossings} (target 2)", both_sites.crossings == 2),
        (
            f"slow_nodes_chosen: {without_slow.chosen.count('h3')} (target 0)",
            "h3" not in without_slow.chosen,
        ),
    ]
    for text, met in goals:
        print(f"goal {text} {'met' if met else 'missed'}")
    return 0 if all(met for _, met in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
