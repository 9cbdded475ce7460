"""How many workers the launcher chooses in the lab, against training at every number.

Each workload trains with each number of workers on four hosts of the lab, through `launch`,
while the round trip between the hosts is changed under it. Then the launcher is asked, with no
memory of any kind, what it would choose at each round trip. A job's time is its measured
start-up (from the decision to the first step) plus its declared steps at the measured step.
"""

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab.lab import Lab  # noqa: E402 - the checkout's own package

WORKLOADS = ("small_cnn", "larger_cnn", "wide_mlp")
RTTS_S = (0.0005, 0.010, 0.050)
N_HOSTS = 4
COUNTS = (1, 2, 3, 4)
CPUS = 0.45  # of a core per host
RATE_BYTES_PER_S = 125e6
STEPS, EPOCHS = 20, 150  # as declared: 3,000 steps
SETTLE_EPOCHS, MEASURED_EPOCHS = 1, 5
LIMIT_S = 240.0
NEAR, WORST = 1.10, 1.5
EPOCH_LINE = re.compile(r"epoch \d+ step ([\d.]+) ms")


@dataclass(frozen=True, slots=True)
class Trained:
    """What training with n workers took: start-up, and the step by round trip (seconds)."""

    workload: str
    n: int
    startup_s: float
    step_s_by_rtt: dict[float, float]

    def job_s(self, rtt_s: float) -> float:
        """Time of the whole declared job."""
        step_s = self.step_s_by_rtt.get(rtt_s) or self.step_s_by_rtt[min(self.step_s_by_rtt)]
        return self.startup_s + STEPS * EPOCHS * step_s


@dataclass(frozen=True, slots=True)
class Row:
    """One workload on one network: times by n, and what the launcher chose."""

    workload: str
    rtt_s: float
    job_s_by_n: dict[int, float]
    step_s_by_n: dict[int, float]
    chosen: int
    predicted_s: float
    predicted_step_s: float

    @property
    def best(self) -> int:
        """The number of workers with the shortest job."""
        return min(self.job_s_by_n, key=lambda n: self.job_s_by_n[n])

    def lost(self, n: int) -> float:
        """Time of a job of n workers over the best one's."""
        return self.job_s_by_n[n] / self.job_s_by_n[self.best]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one workload, two round trips")
    parser.add_argument(
        "--strategy",
        choices=("allreduce", "direct", "auto"),
        default="allreduce",
        help="how gradients are exchanged, in training and in the choice",
    )
    parser.add_argument("--workloads", help=f"only these, of {', '.join(WORKLOADS)}")
    parser.add_argument("--rtts-ms", help="only these round trips, such as 50 or 10,50")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    workloads = WORKLOADS[:1] if options.quick else WORKLOADS
    rtts_s = (RTTS_S[0], RTTS_S[-1]) if options.quick else RTTS_S
    if options.workloads:
        workloads = tuple(options.workloads.split(","))
    if options.rtts_ms:
        rtts_s = tuple(float(ms) / 1e3 for ms in options.rtts_ms.split(","))
    lab = Lab(N_HOSTS, rtt_s=rtts_s[0], rate_bytes_per_s=RATE_BYTES_PER_S, cpus=(CPUS,) * N_HOSTS)
    with lab:
        lab.start_ray(num_cpus=1)
        rows = list(compare(lab, options.strategy, workloads, rtts_s))
    print(f"strategy {options.strategy}, {N_HOSTS} hosts of {CPUS} cores, 1 Gbit/s")
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    is_whole = options.strategy == "allreduce" and len(rtts_s) == len(RTTS_S)
    return print_goals(rows, turning=is_whole)


def compare(
    lab: Lab, strategy: str, workloads: Sequence[str], rtts_s: Sequence[float]
) -> Iterator[Row]:
    """Train each workload at every n, then ask for the choice at every round trip."""
    for workload in workloads:
        trained = {n: train(lab, strategy, workload, n, rtts_s) for n in COUNTS}
        for rtt_s in rtts_s:
            lab.set("*-*", rtt_s=rtt_s)
            decision = ask(lab, strategy, workload, rtt_s)
            n = decision["chosen"]["n_workers"]
            candidate = next(c for c in decision["candidates"] if c["n_workers"] == n)
            row = Row(
                workload,
                rtt_s,
                {m: t.job_s(rtt_s) for m, t in trained.items()},
                {
                    m: t.step_s_by_rtt.get(rtt_s, min(t.step_s_by_rtt.values()))
                    for m, t in trained.items()
                },
                n,
                candidate["time_s"]["mean"],
                candidate["step_s"]["mean"],
            )
            said = ", ".join(
                f"{c['n_workers']}: {1e3 * c['step_s']['mean']:.0f} ms, {c['time_s']['mean']:.0f} s"
                for c in decision["candidates"]
            )
            report(f"{workload} at {1e3 * rtt_s:g} ms: best {row.best}, chosen {n} ({said})")
            yield row


def train(lab: Lab, strategy: str, workload: str, n: int, rtts_s: Sequence[float]) -> Trained:
    """Train with n workers until the step is measured at every round trip, then stop it."""
    lab.set("*-*", rtt_s=rtts_s[0])
    home = f"/tmp/home/train-{workload}"  # the profile is remembered, as it is for people
    command = [*launch(workload, strategy), "--workers", str(n), "--yes", "--name", f"measured-{n}"]
    command += ["--", "--steps", str(STEPS), "--epochs", "100000"]
    process = lab.popen(
        "h1",
        command,
        env={"HOME": home},
        cwd=str(ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        epochs = step_times(process)
        step_s_by_rtt = {}
        for rtt_s in rtts_s if n > 1 else rtts_s[:1]:
            lab.set("*-*", rtt_s=rtt_s)
            measured = [next(epochs) for _ in range(SETTLE_EPOCHS + MEASURED_EPOCHS)]
            step_s_by_rtt[rtt_s] = statistics.median(measured[SETTLE_EPOCHS:])
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    startup_s = startup(lab, home, n)
    steps = ", ".join(f"{1e3 * s:.1f} ms" for s in step_s_by_rtt.values())
    report(f"{workload} n={n}: started in {startup_s:.1f} s, steps of {steps}")
    return Trained(workload, n, startup_s, step_s_by_rtt)


def launch(workload: str, strategy: str) -> list[str]:
    """The command as a person types it in the checkout."""
    return [
        "launch",
        f"scripts/workloads/{workload}.py",
        "--address",
        "10.99.0.1:6379",
        "--strategy",
        strategy,
    ]


def step_times(process: subprocess.Popen[str]) -> Iterator[float]:
    """The mean step of each epoch as the script prints it, in seconds."""
    deadline_s = time.monotonic() + LIMIT_S
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = EPOCH_LINE.search(line)
        if found:
            yield float(found[1]) / 1e3
        if time.monotonic() > deadline_s:
            break
    raise SystemExit(f"launch ended or took over {LIMIT_S:g} s:\n{''.join(lines[-40:])}")


def startup(lab: Lab, home: str, n: int) -> float:
    """From the decision to the first step, by the run's record."""
    path = lab.outside("h1", f"{home}/launch/runs/measured-{n}/run.json")
    record = json.loads(path.read_text())
    segment = record["segments"][0]
    return moment(segment["first_step_at"]) - moment(segment["started"])


def moment(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def ask(lab: Lab, strategy: str, workload: str, rtt_s: float) -> dict:
    """The decision of a launcher that has never seen this workload nor this network."""
    home = f"/tmp/home/ask-{workload}-{rtt_s}"
    command = [*launch(workload, strategy), "--dry-run", "--json"]
    command += ["--", "--steps", str(STEPS), "--epochs", str(EPOCHS)]
    done = lab.run("h1", command, env={"HOME": home}, cwd=str(ROOT), timeout_s=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"launch --dry-run failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)["decisions"][-1]


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_table(rows: Sequence[Row]) -> None:
    names = "".join(f"{f'n={n}':>18}" for n in COUNTS)
    print(f"{'':<12}{'RTT':>8}{names}   best chosen  lost  all lose  one loses  step off")
    for row in rows:
        cells = "".join(
            f"{row.job_s_by_n[n]:>8.0f} s{1e3 * row.step_s_by_n[n]:>5.0f} ms" for n in COUNTS
        )
        off = row.predicted_step_s / row.step_s_by_n.get(row.chosen, float("nan")) - 1
        print(
            f"{row.workload:<12}{1e3 * row.rtt_s:>5g} ms{cells}{row.best:>7}{row.chosen:>7}"
            f"{row.lost(row.chosen) - 1:>6.0%}{row.lost(max(COUNTS)) - 1:>10.0%}"
            f"{row.lost(1) - 1:>11.0%}{off:>+10.0%}"
        )
    print(f"(job of {STEPS * EPOCHS:,} steps and step; lost: time over the best n's)\n")


def print_goals(rows: Sequence[Row], *, turning: bool) -> int:
    near = sum(row.lost(row.chosen) <= NEAR for row in rows)
    needed = len(rows) - 1 if len(rows) > 2 else len(rows)
    worst = max(row.lost(row.chosen) for row in rows)
    turns = [w for w in {row.workload for row in rows} if turns_round(rows, w)]
    goals = [
        (f"within_10_percent: {near} of {len(rows)} (target {needed})", near >= needed),
        (f"worst_ratio: {worst:.2f} (target {WORST})", worst <= WORST),
    ]
    if turning:
        goals.append((f"workloads_whose_order_turns: {len(turns)} (target 1)", bool(turns)))
    for text, met in goals:
        print(f"goal {text} {'met' if met else 'missed'}")
    return 0 if all(met for _, met in goals) else 1


def turns_round(rows: Sequence[Row], workload: str) -> bool:
    """Whether 4 beats 2 beats 1 on the nearest network, and 1 beats 2 beats 4 on the farthest."""
    own = sorted((r for r in rows if r.workload == workload), key=lambda r: r.rtt_s)
    return is_ordered(own[0], (4, 2, 1)) and is_ordered(own[-1], (1, 2, 4))


def is_ordered(row: Row, order: Sequence[int]) -> bool:
    """Whether the steps of these n are ever slower, in this order."""
    times = [row.step_s_by_n[n] for n in order]
    return times == sorted(times)


if __name__ == "__main__":
    sys.exit(main())
