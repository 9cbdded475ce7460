"""Searchers at equal cost: Optuna's TPE, the learned proposal, and chance.

On random functions of another seed than those that the proposal was trained on, and on a real
one: how well a small perceptron reads scikit-learn's digits. There the best of as many trials with
scikit-learn's default configuration, which differ by their seed, stands for not tuning at all.

    .venv/bin/python scripts/bench_tune.py [--quick] [--json FILE]
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from train_proposals import Functions

from launcher.search_space import Space, Value
from launcher.searching import SEARCHERS, Search, SearcherName
from launcher.space_file import read_space

N_TRIALS = 20
DIMENSIONS = (2, 3, 5)
TEST_SEED = 1_000_003  # of functions that the proposal has not seen
PERCEPTRON = """
rate: {float: [1e-4, 1.0], log: true}
alpha: {float: [1e-6, 1.0], log: true}
units: {int: [4, 64], log: true}
batch: {choice: [16, 32, 64, 128]}
activation: {choice: [relu, tanh]}
"""
TARGETS = {"tpe": 0.9, "lstm": 1.0}  # of what chance leaves, on the functions

Objective = Callable[[Mapping[str, Value]], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One searcher on one kind of objective: the best loss of a search, over seeds.

    Attributes:
        test: what the best configuration is worth on the test part, where there is one.
    """

    objective: str
    searcher: str
    losses: tuple[float, ...]
    test: tuple[float, ...] = ()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer seeds")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    rows = [*on_functions(8 if options.quick else 40), *on_digits(2 if options.quick else 5)]
    print_rows(rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return print_goals(rows)


def searched(
    space: Space, searcher: SearcherName, seed: int, objective: Objective
) -> tuple[float, dict[str, Value]]:
    """The lowest loss of so many trials, and its configuration."""
    search = Search(space, searcher, seed, "min", None)
    best: tuple[float, dict[str, Value]] = (float("inf"), {})
    for number in range(N_TRIALS):
        params = search.ask(number)
        loss = objective(params)
        search.tell(number, loss, is_whole=True)
        if loss < best[0]:
            best = loss, params
    return best


def on_functions(n: int) -> Iterator[Row]:
    """All searchers on the same random functions."""
    for d in DIMENSIONS:
        lines = [f"x{i}: {{float: [0, 1]}}" for i in range(d)]
        space = read_space("\n".join(lines), "functions")
        functions = Functions.draw(np.random.default_rng(TEST_SEED + d), n, d)
        for searcher in SEARCHERS:
            losses = [
                searched(space, searcher, index, one_of(functions, index))[0] for index in range(n)
            ]
            yield Row(f"functions of {d}", searcher, tuple(losses))


def one_of(functions: Functions, index: int) -> Objective:
    """One of many functions as an objective."""
    n, d = functions.centre.shape

    def loss(params: Mapping[str, Value]) -> float:
        point = np.array([float(params[f"x{i}"]) for i in range(d)])
        return float(functions(np.broadcast_to(point, (n, d)))[index])

    return loss


class Digits:
    """A perceptron on digits: trained on 500, chosen by 400, tested on the others.

    Args:
        seed: of the division and of the first weights.
    """

    def __init__(self, seed: int) -> None:
        images, answers = load_digits(return_X_y=True)
        self._seed = seed
        train, rest, self._y, rest_y = train_test_split(
            images / 16.0, answers, train_size=500, stratify=answers, random_state=seed
        )
        held, test, held_y, test_y = train_test_split(
            rest, rest_y, train_size=400, stratify=rest_y, random_state=seed
        )
        self._x, self._held, self._test = train, (held, held_y), (test, test_y)

    def fitted(self, seed: int = 0, **settings: Value) -> MLPClassifier:
        """A perceptron after 15 epochs."""
        model = MLPClassifier(max_iter=15, random_state=self._seed + seed, **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(self._x, self._y)

    def errors(self, model: MLPClassifier) -> tuple[float, float]:
        """The share of wrong answers on what is chosen by, and on the test part."""
        return 1 - model.score(*self._held), 1 - model.score(*self._test)


def settings(params: Mapping[str, Value]) -> dict[str, Value]:
    """A configuration in scikit-learn's words."""
    return {
        "learning_rate_init": params["rate"],
        "alpha": params["alpha"],
        "hidden_layer_sizes": (params["units"],),
        "batch_size": params["batch"],
        "activation": params["activation"],
    }


def on_digits(n_seeds: int) -> Iterator[Row]:
    """All searchers, and as many trials of the default, on a real task."""
    space = read_space(PERCEPTRON, "perceptron")
    tasks = [Digits(seed) for seed in range(n_seeds)]
    for searcher in SEARCHERS:
        found = []
        for seed, task in enumerate(tasks):

            def loss(params: Mapping[str, Value], task: Digits = task) -> float:
                return task.errors(task.fitted(**settings(params)))[0]

            best, params = searched(space, searcher, seed, loss)
            found.append((best, task.errors(task.fitted(**settings(params)))[1]))
        yield Row("digits", searcher, *zip(*found, strict=True))
    defaults = [min(task.errors(task.fitted(seed)) for seed in range(N_TRIALS)) for task in tasks]
    yield Row("digits", "default", *zip(*defaults, strict=True))


def print_rows(rows: Sequence[Row]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("objective", "searcher", f"best of {N_TRIALS} trials", "±", "test error"):
        table.add_column(name)
    for row in rows:
        spread = stdev(row.losses) / len(row.losses) ** 0.5
        test = f"{mean(row.test):.4f}" if row.test else ""
        values = f"{mean(row.losses):.4f}", f"{spread:.4f}"
        table.add_row(row.objective, row.searcher, *values, test)
    Console(width=100).print(table)


def print_goals(rows: Sequence[Row]) -> int:
    """One line a goal; 1 if one is missed."""

    def of(searcher: str, objective: str) -> list[Row]:
        return [r for r in rows if r.searcher == searcher and r.objective.startswith(objective)]

    chance = mean(mean(row.losses) for row in of("random", "functions"))
    goals = []
    for searcher, target in TARGETS.items():
        ratio = mean(mean(row.losses) for row in of(searcher, "functions")) / chance
        goals.append((f"{searcher}_against_chance", ratio, target, ratio <= target))
    tuned, default = mean(of("tpe", "digits")[0].test), mean(of("default", "digits")[0].test)
    goals.append(("tuned_against_default_test_error", tuned / default, 0.8, tuned <= 0.8 * default))
    for name, value, target, met in goals:
        print(f"goal {name}: {value:.2f} (target {target}) {'met' if met else 'missed'}")
    return 0 if all(met for *_, met in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
