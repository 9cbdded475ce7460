"""Proposes configurations and says which trials will not win.

Optuna does the work, asked directly: its searchers propose, and its successive halving (Li et al.,
2020) stops trials. `launcher.tuning` says why it is not Ray Tune that asks.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import optuna
from optuna.trial import TrialState

from launcher.search_space import Choice, Parameter, Space, Value
from policies.proposals import LearnedProposals, Shown
from policies.tuning import HALVING, rungs

SearcherName = Literal["tpe", "random", "lstm"]
SEARCHERS: tuple[SearcherName, ...] = ("tpe", "random", "lstm")
N_RANDOM = 6  # trials before TPE models what it saw


class Proposes(Protocol):
    """Proposes the next point by what earlier trials showed."""

    def __call__(self, shown: Sequence[Shown]) -> tuple[float, ...]:
        """A point of the unit cube."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A trial of an earlier stretch: its configuration, its metric by epoch, its end.

    `value` is None for one that failed; an open one `is_open` and has none either.
    """

    number: int
    params: dict[str, Value]
    values: tuple[tuple[int, float], ...]
    value: float | None
    is_whole: bool
    is_open: bool = False


class Search:
    """The trials of one search, as the searcher sees them.

    Args:
        mode: whether a small or a large metric is good.
        epochs: of a whole trial, where that is known; without, none is stopped early.
        propose: takes the searcher's place.
    """

    def __init__(
        self,
        space: Space,
        searcher: SearcherName,
        seed: int,
        mode: Literal["min", "max"],
        epochs: int | None,
        propose: Proposes | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if searcher == "lstm" and propose is None:
            propose = LearnedProposals(len(space.parameters), seed)
        self._space, self._propose, self._mode = space, propose, mode
        self._searcher, self._seed = searcher, seed
        self._study = optuna.create_study(
            sampler=_sampler(searcher, seed, 0),
            pruner=_pruner(epochs),
            direction="minimize" if mode == "min" else "maximize",
        )
        self._trials: dict[int, optuna.Trial] = {}
        self._shown: dict[int, Shown] = {}

    def ask(self, number: int) -> dict[str, Value]:
        """The configuration of a new trial, without what is fixed.

        It depends on the seed, the trial's number and what others have shown, and on nothing else:
        a search that is resumed goes on as it would have.
        """
        self._study.sampler = _sampler(self._searcher, self._seed, number)
        if not self._trials and self._space.defaults:
            self._study.enqueue_trial(self._space.defaults)
        elif self._propose is not None:
            point = self._propose(list(self._shown.values()))
            self._study.enqueue_trial(self._space.decode(point))
        return self._asked(number)

    def report(self, number: int, epoch: int, value: float) -> bool:
        """Note the metric after an epoch; whether the trial should be stopped."""
        trial = self._trials[number]
        trial.report(value, epoch)
        return bool(trial.should_prune())

    def tell(self, number: int, value: float | None, *, is_whole: bool) -> None:
        """Note how a trial ended: with a value or with none, trained to its end or not."""
        if value is None or not math.isfinite(value):
            self._study.tell(self._trials[number], state=TrialState.FAIL)
            return
        loss = value if self._mode == "min" else -value
        self._shown[number] = Shown(self._shown[number].point, loss)
        if is_whole:
            self._study.tell(self._trials[number], value)
        else:
            self._study.tell(self._trials[number], state=TrialState.PRUNED)

    def replay(self, trials: Iterable[Ended]) -> None:
        """Take in the trials of an earlier stretch, in their order."""
        for ended in trials:
            self._study.enqueue_trial(dict(ended.params))
            self._asked(ended.number)
            for epoch, value in ended.values:
                self.report(ended.number, epoch, value)
            if not ended.is_open:
                self.tell(ended.number, ended.value, is_whole=ended.is_whole)

    def _asked(self, number: int) -> dict[str, Value]:
        trial = self._study.ask()
        params: dict[str, Value] = {}
        for each in self._space.parameters:
            if each in self._space.active(params):
                params[each.name] = _suggested(trial, each)
        self._trials[number] = trial
        self._shown[number] = Shown(self._space.encode(params), None)
        return params


def _suggested(trial: optuna.Trial, parameter: Parameter) -> Value:
    if isinstance(parameter, Choice):
        chosen: Any = trial.suggest_categorical(parameter.name, parameter.values)
        return chosen  # type: ignore[no-any-return]
    if parameter.is_int:
        return trial.suggest_int(
            parameter.name,
            int(parameter.low),
            int(parameter.high),
            step=int(parameter.step or 1),
            log=parameter.log,
        )
    return trial.suggest_float(
        parameter.name, parameter.low, parameter.high, step=parameter.step, log=parameter.log
    )


def _sampler(searcher: SearcherName, seed: int, number: int) -> optuna.samplers.BaseSampler:
    seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    if searcher == "random":
        return optuna.samplers.RandomSampler(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=N_RANDOM,
            multivariate=True,  # parameters that belong together are proposed together
            group=True,  # … as far as they count together
            constant_liar=True,  # what still runs is not proposed again
        )


def _pruner(epochs: int | None) -> optuna.pruners.BasePruner:
    found = rungs(epochs, HALVING) if epochs is not None else ()
    if not found:
        return optuna.pruners.NopPruner()
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=found[0], reduction_factor=HALVING)
