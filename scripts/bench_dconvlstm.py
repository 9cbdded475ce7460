"""DConvLSTM on four hosts of the lab: data-parallel and model-parallel against one machine.

Time, accuracy on the test part and memory of each host, by three runs of the same script; then a
model that needs twice the memory that a host may use. Needs root; run it on a quiet machine.

    sudo .venv/bin/python scripts/bench_dconvlstm.py [--quick] [--json FILE]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab.cpu_quota import processes  # noqa: E402 - the checkout's own package
from tests.lab.lab import Lab  # noqa: E402

N_HOSTS = 4
CPUS = 0.45  # of a core per host
RTT_S, RATE_BYTES_PER_S = 0.0005, 125e6
FORMS = {  # by name: the options of `launch`
    "one": ("--workers", "1"),
    "data": ("--workers", str(N_HOSTS), "--parallelism", "data"),
    "model": ("--workers", str(N_HOSTS), "--parallelism", "model"),
}
LIMIT_S = 1500.0
SAMPLE_EVERY_S = 0.5
MEMORY = Path("/sys/fs/cgroup/memory")
WIDTH = 4096  # of the model that is too large: 134 M parameters, 2.1 GB with Adam's and gradients
GOAL_ACCURACY, GOAL_APART, GOAL_ERROR, GOAL_LARGER = 0.97, 0.01, 0.15, 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Attributes:
        accuracy: on the test part; None if the script tells none.
        step_s: measured; `predicted_step_s` before it began.
        memory_bytes: the most that the training process of each host used.
    """

    form: str
    code: int
    accuracy: float | None = None
    time_s: float | None = None
    step_s: float | None = None
    predicted_step_s: float | None = None
    memory_bytes: dict[str, int] = field(default_factory=dict)


class Peaks:
    """Watches the training processes of all hosts from outside, in a thread."""

    def __init__(self, lab: Lab) -> None:
        self._groups = {name: lab.host(name).group for name in lab.names}
        self.bytes_by_host = dict.fromkeys(lab.names, 0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Peaks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_EVERY_S):
            for name, group in self._groups.items():
                most = max((peak_bytes(pid) for pid in processes(group)), default=0)
                self.bytes_by_host[name] = max(self.bytes_by_host[name], most)


def peak_bytes(pid: int) -> int:
    """The most that a training process has used so far; 0 for any other process."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found and b"RayTrainWorker" in command else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few epochs, no model too large")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    with new_lab() as lab:
        epochs = 4 if options.quick else 30
        seeds = range(options.seeds)
        results = [trained(lab, form, seed, epochs) for seed in seeds for form in FORMS]
        large = [] if options.quick else too_large(lab)
    if options.json:
        document = {
            "digits": [asdict(each) for each in results],
            "large": [asdict(each) for each in large],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print_results([*results, *large])
    return print_goals(results, large, is_quick=options.quick)


@contextmanager
def new_lab() -> Iterator[Lab]:
    lab = Lab(N_HOSTS, rtt_s=RTT_S, rate_bytes_per_s=RATE_BYTES_PER_S, cpus=(CPUS,) * N_HOSTS)
    with lab:
        lab.start_ray(num_cpus=1)
        yield lab


def trained(lab: Lab, form: str, seed: int, epochs: int) -> Result:
    """The network on digits, in one of the forms."""
    args = ("--epochs", str(epochs), "--seed", str(seed))
    return launched(lab, form, f"digits-{form}-{seed}", "models/dconvlstm.py", args)


def launched(lab: Lab, form: str, name: str, script: str, args: Sequence[str]) -> Result:
    """A run of `launch` in one of the forms, and what it took."""
    command = ["launch", script, "--address", "10.99.0.1:6379", "--yes", "--json"]
    command += ["--name", name, "--seed", "7", *FORMS[form], "--", *args]
    with Peaks(lab) as peaks:
        done = lab.run("h1", command, cwd=str(ROOT), timeout_s=LIMIT_S)
    print(f"{name}: exit code {done.returncode}", file=sys.stderr, flush=True)
    if done.returncode:
        print(done.stderr[-1500:], file=sys.stderr, flush=True)
        return Result(form, done.returncode, memory_bytes=peaks.bytes_by_host)
    return result_of(form, json.loads(done.stdout), done.stderr, peaks.bytes_by_host)


def result_of(form: str, record: dict[str, Any], said: str, memory: dict[str, int]) -> Result:
    """What a run's record and output tell."""
    found = re.search(r"^test: accuracy ([\d.]+)", said, re.MULTILINE)
    decision, segment = record["decisions"][0], record["segments"][-1]
    chosen = next(c for c in decision["candidates"] if same_plan(c, decision["chosen"]))
    measured = segment["step_s"] or {}
    return Result(
        form,
        0,
        accuracy=float(found[1]) if found else None,
        time_s=record["outcome"]["time_s"],
        step_s=measured.get("mean") or measured.get("median"),
        predicted_step_s=chosen["step_s"]["mean"],
        memory_bytes=memory,
    )


def same_plan(candidate: dict[str, Any], chosen: dict[str, Any]) -> bool:
    return all(candidate.get(key) == value for key, value in chosen.items())


def too_large(lab: Lab) -> list[Result]:
    """A model that needs twice the memory that a host may use: on one host, and in stages.

    What the process needs without a model is measured with a tiny one, and allowed on top.
    """
    script, args = "scripts/workloads/deep_mlp.py", ("--width", str(WIDTH))
    tiny = launched(lab, "one", "tiny", script, ("--width", "16"))
    whole = launched(lab, "one", "whole", script, args)
    base, most = (max(each.memory_bytes.values()) for each in (tiny, whole))
    limit = base + int((most - base) / GOAL_LARGER)
    with limited_memory(lab, limit):
        alone = launched(lab, "one", "limited-one", script, args)
        staged = launched(lab, "model", "limited-model", script, args)
    print(f"limit {limit / 1e6:,.0f} MB for what each host starts", file=sys.stderr, flush=True)
    return [whole, alone, staged]


@contextmanager
def limited_memory(lab: Lab, limit_bytes: int) -> Iterator[None]:
    """Let what is started in each host from now on use so much memory.

    What Ray's own processes have already does not count; those that they start do.
    """
    groups = {name: MEMORY / f"bench-{os.getpid()}-{name}" for name in lab.names}
    for name, group in groups.items():
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        for pid in processes(lab.host(name).group):
            (group / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        for group in groups.values():
            for pid in (group / "cgroup.procs").read_text().split():
                try:
                    (MEMORY / "cgroup.procs").write_text(pid)
                except ProcessLookupError:
                    continue
            group.rmdir()


def print_results(results: Sequence[Result]) -> None:
    print(
        f"{'':<8}{'code':>5}{'time':>9}{'step':>10}{'predicted':>11}{'accuracy':>10}   memory, MB"
    )
    for each in results:
        memory = ", ".join(f"{n / 1e6:,.0f}" for n in each.memory_bytes.values() if n)
        time = "–" if each.time_s is None else f"{each.time_s:.0f} s"
        step, predicted = (
            "–" if value is None else f"{1e3 * value:.0f} ms"
            for value in (each.step_s, each.predicted_step_s)
        )
        accuracy = "–" if each.accuracy is None else f"{each.accuracy:.4f}"
        cells = f"{each.form:<8}{each.code:>5}{time:>9}{step:>10}{predicted:>11}{accuracy:>10}"
        print(f"{cells}   {memory}")
    print()


def print_goals(results: Sequence[Result], large: Sequence[Result], *, is_quick: bool) -> int:
    """One line a goal; 1 if one is missed."""
    accuracy = {
        form: mean(each.accuracy or 0.0 for each in results if each.form == form) for form in FORMS
    }
    apart = max(abs(accuracy[form] - accuracy["one"]) for form in ("data", "model"))
    pairs = [(e.predicted_step_s, e.step_s) for e in results if e.form != "one"]
    errors = [abs(p / s - 1) if p and s else float("inf") for p, s in pairs]
    goals = [
        ("accuracies_apart", apart, GOAL_APART, apart <= GOAL_APART),
        ("prediction_error", max(errors), GOAL_ERROR, max(errors) <= GOAL_ERROR),
    ]
    if not is_quick:
        lowest = min(accuracy.values())
        goals.append(("test_accuracy", lowest, GOAL_ACCURACY, lowest >= GOAL_ACCURACY))
        _, alone, staged = large
        held = GOAL_LARGER if alone.code and not staged.code else 0.0
        goals.append(("times_the_memory_of_a_host", held, GOAL_LARGER, held >= GOAL_LARGER))
    for name, value, target, met in goals:
        print(f"goal {name}: {value:.3f} (target {target}) {'met' if met else 'missed'}")
    return 0 if all(met for *_, met in goals) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.TimeoutExpired as error:
        sys.exit(f"{error.cmd[:4]} took over {LIMIT_S:g} s")
