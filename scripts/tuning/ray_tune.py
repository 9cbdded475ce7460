"""Ray Tune with trials of one worker each, as its documentation has it: Optuna and ASHA.

    python scripts/tuning/ray_tune.py SCRIPT SPACE TRIALS SEED EPOCHS -- ARGS

Prints one JSON line: how long it took, and the best trial's metric after its last epoch.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from launcher.search_space import Choice, Space, Value
from launcher.space_file import read_space
from launcher.trials import arguments
from policies.tuning import HALVING, rungs

METRIC = "val_loss"


def trainable(script: str, args: tuple[str, ...]) -> Callable[[dict[str, Value]], None]:
    """Runs the script in a trial's process, which tells Ray Tune of each epoch."""

    def train(config: dict[str, Value]) -> None:
        import keras

        fit = keras.Model.fit

        def reporting(model: Any, *words: Any, **options: Any) -> Any:
            tell = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: tune.report(logs))
            options["callbacks"] = [*(options.get("callbacks") or ()), tell]
            return fit(model, *words, **options)

        keras.Model.fit = reporting
        source = Path(script).read_text("utf-8")
        sys.argv = [script, *args, *arguments(config, source)]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")

    return train


def distributions(space: Space) -> dict[str, optuna.distributions.BaseDistribution]:
    """The same space, in Optuna's words."""
    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for each in space.parameters:
        if isinstance(each, Choice):
            found[each.name] = optuna.distributions.CategoricalDistribution(each.values)
        elif each.is_int:
            found[each.name] = optuna.distributions.IntDistribution(
                int(each.low), int(each.high), log=each.log, step=int(each.step or 1)
            )
        else:
            found[each.name] = optuna.distributions.FloatDistribution(
                each.low, each.high, log=each.log, step=each.step
            )
    return found


def main() -> None:
    script, file, n_trials, seed, epochs, _, *args = sys.argv[1:]
    space = read_space(Path(file).read_text("utf-8"), file)
    begun_s = time.monotonic()
    ray.init(address="auto", runtime_env={"env_vars": {"PYTHONPATH": str(Path.cwd())}})
    tuner = tune.Tuner(
        tune.with_resources(trainable(str(Path(script).resolve()), tuple(args)), {"cpu": 1}),
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode="min",
            num_samples=int(n_trials),
            search_alg=OptunaSearch(distributions(space), METRIC, "min", seed=int(seed)),
            scheduler=ASHAScheduler(
                max_t=int(epochs),
                grace_period=rungs(int(epochs), HALVING)[0],
                reduction_factor=HALVING,
            ),
        ),
        run_config=tune.RunConfig(storage_path=f"{os.environ['HOME']}/ray-tune", verbose=0),
    )
    results = tuner.fit()
    best = results.get_best_result(METRIC, "min", scope="last").metrics[METRIC]
    print(json.dumps({"time_s": time.monotonic() - begun_s, "best": float(best)}), flush=True)


if __name__ == "__main__":
    main()
