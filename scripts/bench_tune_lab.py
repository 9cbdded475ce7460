"""`launch tune` against Ray Tune with trials of one worker each, on four hosts of the lab.

The same script, space, number of trials, searcher and early stopping. Needs root; run it on a quiet
machine.

    sudo .venv/bin/python scripts/bench_tune_lab.py [--quick] [--seeds N] [--json FILE]
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.lab.lab import Lab  # noqa: E402 - the checkout's own package

N_HOSTS = 4
CPUS = 0.45  # of a core per host
RTT_S, RATE_BYTES_PER_S = 0.0005, 125e6
USD_PER_H = 1.0  # a host, so that money can be compared
SCRIPT, SPACE = "models/dconvlstm.py", "scripts/tuning/space.yaml"
LIMIT_S = 3600.0
GOAL_RATIO, GOAL_WORSE = 0.6, 1.05


@dataclass(frozen=True, slots=True)
class Pair:
    """Both searches of one seed: seconds, US dollars, and the lowest loss they found."""

    seed: int
    ours_s: float
    ours_usd: float
    ours_best: float
    theirs_s: float
    theirs_usd: float
    theirs_best: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few trials of few epochs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    n_trials, epochs = (4, 3) if options.quick else (14, 18)
    lab = Lab(N_HOSTS, rtt_s=RTT_S, rate_bytes_per_s=RATE_BYTES_PER_S, cpus=(CPUS,) * N_HOSTS)
    with lab:
        lab.start_ray(num_cpus=1)
        pairs = [pair(lab, seed, n_trials, epochs) for seed in range(1, options.seeds + 1)]
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in pairs], indent=1) + "\n")
    return print_goals(pairs)


def pair(lab: Lab, seed: int, n_trials: int, epochs: int) -> Pair:
    """Both searches, one after the other."""
    args = ["--epochs", str(epochs), "--examples", "600"]
    where = ["--address", "10.99.0.1:6379", "--price", str(USD_PER_H), "--budget", "1000"]
    words = ["--space", SPACE, "--trials", str(n_trials), "--seed", str(seed), "--json", *where]
    record = json.loads(said(lab, ["launch", "tune", SCRIPT, *words, "--", *args]))
    numbers = [str(n_trials), str(seed), str(epochs)]
    theirs_words = ["scripts/tuning/ray_tune.py", SCRIPT, SPACE, *numbers, "--", *args]
    theirs = json.loads(said(lab, [sys.executable, *theirs_words]).splitlines()[-1])
    found = Pair(
        seed,
        ours_s=record["spent_s"],
        ours_usd=sum(trial["cost_usd"] for trial in record["trials"]),
        ours_best=record["best"]["values"][-1]["value"],
        theirs_s=theirs["time_s"],
        theirs_usd=N_HOSTS * USD_PER_H * theirs["time_s"] / 3600.0,
        theirs_best=theirs["best"],
    )
    print(found, file=sys.stderr, flush=True)
    return found


def said(lab: Lab, command: Sequence[str]) -> str:
    """What a command on the first host prints on standard output."""
    env = {"HOME": "/tmp/home", "PYTHONPATH": str(ROOT)}
    done = lab.run("h1", command, env=env, cwd=str(ROOT), timeout_s=LIMIT_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def print_goals(pairs: Sequence[Pair]) -> int:
    """A table, then one line a goal; 1 if one is missed."""
    print(f"{'seed':>4}{'launch tune':>14}{'Ray Tune':>12}{'cost':>16}{'best loss':>18}")
    for each in pairs:
        times = f"{each.ours_s:>12.0f} s{each.theirs_s:>10.0f} s"
        costs = f"${each.ours_usd:.3f}, ${each.theirs_usd:.3f}"
        print(f"{each.seed:>4}{times}{costs:>16}{each.ours_best:>9.4f}{each.theirs_best:>9.4f}")
    ratio = mean(each.ours_s for each in pairs) / mean(each.theirs_s for each in pairs)
    worse = mean(each.ours_best for each in pairs) / mean(each.theirs_best for each in pairs)
    money = mean(each.ours_usd for each in pairs) / mean(each.theirs_usd for each in pairs)
    goals = [
        ("time_over_ray_tune", ratio, GOAL_RATIO, ratio <= GOAL_RATIO),
        ("loss_over_ray_tune", worse, GOAL_WORSE, worse <= GOAL_WORSE),
        ("money_over_ray_tune", money, 1.0, money <= 1.0),
    ]
    for name, value, target, met in goals:
        print(f"goal {name}: {value:.2f} (target {target}) {'met' if met else 'missed'}")
    return 0 if all(met for *_, met in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
