"""Decentralized training against ring-BSP, exact `direct`, Gaia, Ako and Hop at sites far apart.

Six hosts in three sites train a small model for real, in simulated time: nothing but the clock
and the network is made up. Every method has the best of its learning rates.

With --lab, Keras trains a perceptron of 1.2 M weights and a convolutional network on real hosts
over real links, in runs that are kept one by one, so that it may be ended and goes on later:

    bench_decentralized.py --lab --seeds 3 --minutes 60          # whatever is still to be run
    bench_decentralized.py --lab --only mlp/ako,killed           # of one method of a case, say
    bench_decentralized.py --lab --minutes 0                     # just the table

It needs root and a quiet machine; all of it should take an hour and a half a seed.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

from launcher.worker.exchange.decentralized.dlion import DlionOptions  # noqa: E402
from launcher.worker.exchange.decentralized.transfer import TransferOptions  # noqa: E402
from scripts.micro_clouds import lab_course, lab_runs, lab_table, settings  # noqa: E402
from scripts.micro_clouds.in_lab import HostFailedError, train_in_lab  # noqa: E402
from scripts.micro_clouds.settings import Method  # noqa: E402
from scripts.micro_clouds.simulation import Course  # noqa: E402
from scripts.micro_clouds.world import Killed, Slowed  # noqa: E402

TARGET, LOOK_S = 0.95, 0.25
SKEWED = "-skewed"
CASES = ("hard", "hard-skewed", "mixed")
UNTIL_S, RING_UNTIL_S = 30.0, 600.0
OURS, RING, DIRECT = "decentralized", "ring-BSP", "direct"
LAB_TARGET = 0.9
KEPT = Path("/var/tmp/launch-bench-decentralized")
RIVALS = ("Gaia 1 %", "Gaia 10 %", "Ako", "Hop")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, one setting")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES), help="of links and data")
    lab = parser.add_argument_group("on hosts in the lab, in real time")
    lab.add_argument("--lab", action="store_true", help="run there")
    lab.add_argument("--only", default="", help="runs, by CASE/METHOD, CASE or METHOD, with *")
    lab.add_argument("--minutes", type=float, help="begin no run after so many")
    lab.add_argument("--seconds", type=float, default=60.0, help="of training in each run")
    lab.add_argument("--rates", type=int, default=1, help="of learning, to be tried by each method")
    lab.add_argument("--kept", type=Path, default=KEPT, help="folder of what has been run")
    options = parser.parse_args()
    if options.lab:
        return in_lab(options)
    n_seeds = 1 if options.quick else options.seeds
    cases = CASES[:1] if options.quick else options.cases.split(",")
    found = {case: compare(case, n_seeds) for case in cases}
    disturbed = disturb()
    if options.json:
        options.json.write_text(json.dumps({"compared": found, "disturbed": disturbed}) + "\n")
    return print_goals(found, disturbed)


def in_lab(options: argparse.Namespace) -> int:
    """Runs what has not been run yet; prints what is known, and 1 if a goal is missed."""
    wanted = [name for name in options.only.split(",") if name]
    every = list(lab_runs.runs(options.seconds, options.seeds, options.rates))
    runs = [run for run in every if lab_runs.is_wanted(run, wanted)]
    if not runs:
        raise SystemExit(f"--only {options.only} names no run. Cases: {', '.join(lab_runs.CASES)}.")
    deadline_s = time.monotonic() + 60 * (options.minutes or math.inf)
    if options.minutes != 0:
        run_all(runs, options.kept, deadline_s)
    files = [options.kept / run.file for run in every]
    courses = [lab_course.read(file) for file in files if file.exists()]
    goals = lab_table.show(courses, LAB_TARGET)
    print(f"\n{len(courses)} of {len(every)} runs")
    for goal in goals:
        print(goal)
    return int(any(goal.value < goal.target for goal in goals))


def run_all(runs: list[lab_runs.LabRun], kept: Path, deadline_s: float) -> None:
    """Runs what is not kept yet, until a monotonic time; one that fails is told, and left out."""
    for run in runs:
        file = kept / run.file
        if file.exists() or time.monotonic() >= deadline_s:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            course = train_in_lab(run, file.with_suffix(".log"))
        except HostFailedError as error:
            print(f"{run.name}, seed {run.seed}: {error}; see {file.with_suffix('.log')}")
            continue
        lab_course.keep(course, file)
        print(
            f"{run.name}, rate {run.rate:g}, seed {run.seed}: {course.time_to(LAB_TARGET):.1f} s "
            f"to {LAB_TARGET}, {course.at_end:.3f} at the end",
            flush=True,
        )


def compare(case: str, n_seeds: int) -> dict[str, dict[str, float]]:
    """Each method's median time to the target, and more, at its best learning rate."""
    hardness, skewed = case.removesuffix(SKEWED), case.endswith(SKEWED)
    print(f"\n{hardness} links, {'skewed' if skewed else 'even'} data, {n_seeds} seeds")
    print(f"{'method':<20}  rate   to {TARGET}   accuracy at 20 s   at the end   MB per thin link")
    found, steps = {}, {}
    for method in [*settings.methods(), *ablations()]:
        rows = [of_rate(method, rate, hardness, skewed, n_seeds) for rate in method.rates]
        shown = min(rows, key=lambda figures: (figures["to_target_s"], -figures["at_end"]))
        found[method.name] = shown
        steps[method.name] = {row["rate"]: row["steps_to_target"] for row in rows}
        print(
            f"{method.name:<20} {shown['rate']:>5g} {shown['to_target_s']:>9.1f} s"
            f" {shown['at_20_s']:>18.3f} {shown['at_end']:>12.3f} {shown['thin_mb']:>18.2f}",
            flush=True,
        )
    print_steps(steps[OURS], steps[DIRECT])
    return found


def print_steps(ours: dict[float, float], exact: dict[float, float]) -> None:
    """What the policy's `efficiency` starts from: steps to the target at the same rate."""
    for rate in sorted(ours.keys() & exact.keys()):
        print(
            f"rate {rate:g}: {ours[rate]:.0f} steps of the first worker to {TARGET}, "
            f"{exact[rate]:.0f} of exact training: {ours[rate] / exact[rate]:.2f} ×"
        )


def of_rate(
    method: Method, rate: float, hardness: str, skewed: bool, n_seeds: int
) -> dict[str, float]:
    """Medians over seeds."""
    until_s = RING_UNTIL_S if method.name in (RING, DIRECT) else UNTIL_S
    courses = [
        settings.train(
            method, rate, settings.world_of(hardness), seed=seed, until_s=until_s,
            skewed=skewed, look_every_s=LOOK_S if until_s == UNTIL_S else 2.0,
        )
        for seed in range(n_seeds)
    ]  # fmt: skip
    times = [course.time_to(TARGET) or float("inf") for course in courses]
    return {
        "rate": rate,
        "to_target_s": statistics.median(times),
        "steps_to_target": statistics.median(
            sum(at_s <= until for at_s in course.step_times_s[0])
            for course, until in zip(courses, times, strict=True)
        ),
        "at_20_s": statistics.median(course.accuracy_at(20) for course in courses),
        "at_end": statistics.median(course.accuracy_at(until_s) for course in courses),
        "thin_mb": statistics.median(thin_bytes(course) for course in courses) / 1e6,
    }


def thin_bytes(course: Course) -> float:
    """Bytes over the mean link between sites, scaled up to the model that is stood for."""
    scale = settings.SIMULATED_BYTES / (4 * settings.layout().size)
    between = [n for (a, b), n in course.sent_bytes.items() if a // 2 != b // 2]
    return scale * statistics.mean(between)


def ablations() -> list[Method]:
    """Our rule without each of its techniques."""
    ours = next(method for method in settings.methods() if method.name == OURS)
    without = {
        "without transfer": DlionOptions(transfer=TransferOptions(every_steps=0)),
        "without priority": DlionOptions(prioritised=False),
        "without weights": DlionOptions(weighted=False),
    }
    methods = [
        replace(ours, name=name, new_rule=settings.dlion(options))
        for name, options in without.items()
    ]
    return [*methods, replace(ours, name="with equal batches", weighted=False)]


def disturb() -> dict[str, float]:
    """What the others lose when one is slowed to a fifth, and how one comes back from the dead."""
    ours = next(method for method in settings.methods() if method.name == OURS)
    world = settings.world_of("hard")
    slowed = replace(world, events=(Slowed(10.0, 0, world.examples_per_s[0] / 5),))
    killed = replace(world, events=(Killed(10.0, 2, back_at_s=15.0),))
    calm, slow, dead = (
        settings.train(ours, ours.rates[1], each, seed=0, until_s=30.0)
        for each in (world, slowed, killed)
    )
    others = [rank for rank in range(world.n_workers) if rank != 0]
    return {
        "others_keep": statistics.mean(
            examples(slow, rank, 10, 30) / examples(calm, rank, 10, 30) for rank in others
        ),
        "longest_gap_s": max(
            gap_s(dead, rank, 10, 15) for rank in range(world.n_workers) if rank != 2
        ),
        "returned_at_end": float(dead.accuracies[-1][2]),
        "others_at_end": float(statistics.mean(dead.accuracies[-1][[0, 1, 3, 4, 5]])),
    }


def examples(course: Course, rank: int, begin_s: float, end_s: float) -> int:
    """That a worker computed between two times."""
    pairs = zip(course.step_times_s[rank], course.step_examples[rank], strict=True)
    return sum(n for at_s, n in pairs if begin_s <= at_s < end_s)


def gap_s(course: Course, rank: int, begin_s: float, end_s: float) -> float:
    """The longest time between two steps of a worker."""
    times = [at_s for at_s in course.step_times_s[rank] if begin_s <= at_s < end_s]
    return max(later - sooner for sooner, later in itertools.pairwise(times))


def print_goals(found: dict[str, dict[str, dict[str, float]]], disturbed: dict[str, float]) -> int:
    """One line per goal; 1 if one is missed."""
    goals: list[tuple[str, float, float]] = []
    for name, methods in found.items():
        ours = methods[OURS]
        best = min(methods[rival]["to_target_s"] for rival in RIVALS)
        goals += [
            (f"{name}: times ring-BSP", methods[RING]["to_target_s"] / ours["to_target_s"], 4.2),
            (f"{name}: times the best rival", best / ours["to_target_s"], 1.5),
            (f"{name}: accuracy at 20 s over ring-BSP",
             ours["at_20_s"] / methods[RING]["at_20_s"], 1.26),
            (f"{name}: final accuracy less exact", ours["at_end"] - methods[DIRECT]["at_end"],
             -0.01),
        ]  # fmt: skip
    goals += [
        ("others keep when one is slowed", disturbed["others_keep"], 0.95),
        ("a dead one stops nobody: seconds less", -disturbed["longest_gap_s"], -1.0),
        ("a returned one's accuracy less the others'",
         disturbed["returned_at_end"] - disturbed["others_at_end"], -0.03),
    ]  # fmt: skip
    print()
    for name, value, target in goals:
        is_met = "met" if value >= target else "missed"
        print(f"goal {name}: {value:.2f} (target {target:g}) {is_met}")
    return int(any(value < target for _, value, target in goals))


if __name__ == "__main__":
    sys.exit(main())
