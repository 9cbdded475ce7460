"""Training runs of about a minute in the lab, each disturbed at a random moment.

Prints, per kind of fault: how many runs recovered, how long they stood still, how many steps
were made again, what was spent beyond the budget and what was left behind. Needs root. A run
takes about two and a half minutes with its lab.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.lab.chaos import Case, Fate, fate_of, make_case, undisturbed_curve
from tests.lab.faults import FAULTS

TWO_AT_ONCE = 0.2  # of the runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=1, help="go on with this run of the seed's")
    parser.add_argument("--quick", action="store_true", help="one run, of a crashed node")
    parser.add_argument("--kinds", help="only these, comma-separated")
    parser.add_argument("--logs", type=Path, help="a folder for what the runs said")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    kinds = ["node crashed"] if options.quick else list(FAULTS)
    if options.kinds:
        kinds = [kind.strip() for kind in options.kinds.split(",")]
    if unknown := set(kinds) - FAULTS.keys():
        parser.error(f"unknown kinds {sorted(unknown)}; there are {', '.join(FAULTS)}")
    runs = range(options.first - 1, 1 if options.quick else options.runs)
    fates = run_all(options.seed, runs, kinds, options.logs)
    print_table(fates)
    if options.json:
        options.json.write_text(json.dumps([asdict(fate) for fate in fates], indent=1) + "\n")
    return print_goals(fates)


def run_all(seed: int, runs: range, kinds: Sequence[str], logs: Path | None) -> list[Fate]:
    """Every kind in turn; every fifth run or so has a second one besides.

    Args:
        runs: which of those that the seed draws.
    """
    rng = np.random.default_rng(seed)
    curve = undisturbed_curve(Case((), 0, "direct", "2", budget_usd=1.0))
    report(f"undisturbed: {len(curve)} epochs, last loss {list(curve.values())[-1]:.6g}")
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    fates = []
    for number in range(runs.stop):
        drawn = [kinds[number % len(kinds)]]
        if rng.random() < TWO_AT_ONCE and len(kinds) > 1:
            drawn.append(str(rng.choice([kind for kind in kinds if kind != drawn[0]])))
        case = make_case(rng, drawn)
        log = None if logs is None else logs / f"run-{number:02}.txt"
        victim_seed = int(rng.integers(1 << 31))
        if number not in runs:
            continue
        fates.append(fate_of(case, curve, victim_seed, log))
        report(f"{number + 1:>3} {described(fates[-1])}")
    return fates


def described(fate: Fate) -> str:
    """A line about a run."""
    case = fate.case
    text = (
        f"{' + '.join(case.kinds)} at step {case.at_step}, {case.workers} × {case.strategy}, "
        f"${case.budget_usd:g}: code {fate.exit_code}, still for {fate.pause_s:.1f} s, "
        f"{fate.steps_again} steps again"
    )
    wrong = [fate.trouble, *fate.left]
    if fate.overrun_usd:
        wrong.append(f"${fate.overrun_usd:.4f} over")
    wrong = [each for each in wrong if each]
    return f"{text}: {'well' if not wrong else 'NOT WELL: ' + '; '.join(wrong)}"


def print_table(fates: Sequence[Fate]) -> None:
    print(
        f"{'kind':<20}{'runs':>5}{'well':>6}{'still, s':>10}{'worst':>8}"
        f"{'steps again':>13}{'over $':>8}{'left':>6}"
    )
    for kind in dict.fromkeys(kind for fate in fates for kind in fate.case.kinds):
        own = [fate for fate in fates if kind in fate.case.kinds]
        pauses = [fate.pause_s for fate in own]
        print(
            f"{kind:<20}{len(own):>5}{sum(fate.is_well for fate in own):>6}"
            f"{statistics.median(pauses):>10.1f}{max(pauses):>8.1f}"
            f"{statistics.median(fate.steps_again for fate in own):>13.0f}"
            f"{max(fate.overrun_usd for fate in own):>8.4f}{sum(len(f.left) for f in own):>6}"
        )
    print(
        "(still: the longest time without a step after the fault, median; "
        "runs with two faults count twice)\n"
    )


def print_goals(fates: Sequence[Fate]) -> int:
    well = sum(fate.is_well for fate in fates)
    overruns = sum(fate.overrun_usd > 0 for fate in fates)
    left = sum(bool(fate.left) for fate in fates)
    goals = [
        (f"runs_that_went_well: {well} (target {len(fates)})", well == len(fates)),
        (f"overruns: {overruns} (target 0)", overruns == 0),
        (f"runs_with_something_left: {left} (target 0)", left == 0),
    ]
    for text, met in goals:
        print(f"goal {text} {'met' if met else 'missed'}")
    return 0 if all(met for _, met in goals) else 1


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
