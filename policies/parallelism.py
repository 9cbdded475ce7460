"""Whether workers share the data or the layers of the model, and the decision that follows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from policies.bandit import P_FITS, best
from policies.forecast import Forecast
from policies.recommend import (
    P_REFUSED,
    POLICY,
    NoPlanError,
    recommend,
    recommend_from,
    refusal,
)
from policies.robust import Prior
from policies.schema import Candidate, Decision, Experience, ModelLayers, Situation
from policies.stages import (
    MAX_STAGES,
    NotStaged,
    Staged,
    best_staged,
    fitting,
    learned_correction,
    whole_bytes,
)
from policies.survey import survey
from policies.wording import duration, percent, size, workers

# `auto` takes stages where gradients are so many times as large as what crosses the cuts, and the
# whole is so much shorter.
FAR_LARGER: Final = 4.0
WORTH: Final = 0.9


def recommend_any(
    situation: Situation,
    experience: Sequence[Experience],
    seed: int,
    *,
    at_step: int = 0,
    prior: Prior | None = None,
) -> Decision:
    """Choose data or model parallelism as the limits say, and the plan.

    Args:
        situation: nodes, network, workload, work, limits and what is already spent.
        experience: measured segments of past runs, of both forms.
        seed: decides what is explored.
        at_step: where training stands.
        prior: of data parallelism, before any experience.

    Raises:
        NoPlanError: no plan is possible, or none has a fair chance to keep budget and deadline.
    """
    asked, layers = situation.limits.parallelism, situation.workload.layers
    if asked == "data" or layers is None:
        return recommend(situation, experience, seed, at_step=at_step, prior=prior)
    stages = _Stages(situation, experience, prior)
    if asked == "model":
        return stages.decided(at_step, _rows(stages.forecasts))
    if stages.able is None:
        why = f"It does not fit into one node's memory: it needs {size(whole_bytes(layers))}."
        return stages.decided(at_step, _rows(stages.forecasts), why)
    decision = recommend_from(stages.able, experience, seed, at_step=at_step)
    return _compared(stages, decision, layers)


class _Stages:
    """The plans in stages that there are.

    `able` is what there is to decide on among the nodes that the whole model fits in; None where
    there are none.
    """

    def __init__(
        self, situation: Situation, experience: Sequence[Experience], prior: Prior | None
    ) -> None:
        self.situation = situation
        self._history = tuple(dict.fromkeys(e.run for e in experience))
        found, limits = survey(situation, experience, prior), situation.limits
        learned = learned_correction(experience, situation.workload)
        most = min(len(found.node_by_id), limits.max_workers or MAX_STAGES, MAX_STAGES)
        counts = range(2, most + 1) if limits.workers is None else [limits.workers]
        plans = {n: best_staged(found, n, learned) for n in counts if n > 1}
        self.staged = {n: each for n, each in plans.items() if isinstance(each, Staged)}
        self.reasons = [each.reason for each in plans.values() if isinstance(each, NotStaged)]
        large = fitting(situation.nodes, self._layers)
        if len(large) < len(situation.nodes):
            situation = replace(situation, nodes=large)
            self.able = survey(situation, experience, prior) if large else None
        else:
            self.able = found
        self._alone = None if self.able is None else self.able.best_of(1)

    @property
    def forecasts(self) -> dict[int, Forecast]:
        """By number of workers."""
        return {n: each.forecast for n, each in self.staged.items()}

    @property
    def best(self) -> Forecast | None:
        """The best of them."""
        found = list(self.forecasts.values())
        return best(found, self.situation.limits.objective) if found else None

    def decided(self, at_step: int, rows: Sequence[Candidate], why: str = "") -> Decision:
        """The decision for the best plan in stages.

        Raises:
            NoPlanError: there is none, or it keeps budget or deadline with less than 10 %.
        """
        chosen = self.best
        if chosen is None and at_step and self._alone is not None:
            chosen, why = self._alone, "One node is left: it trains the whole model."
        if chosen is None:
            raise self._impossible()
        if chosen.p_fits < P_REFUSED:
            raise refusal(chosen, self.forecasts or {1: chosen}, self.situation)
        if self._alone is not None and all(row.plan.n_workers > 1 for row in rows):
            rows = [self._alone.candidate, *rows]
        return Decision(
            at_step=at_step,
            reason=f"{why} {self.reason(chosen)}".strip(),
            policy=POLICY,
            seed=0,
            history=self._history,
            chosen=chosen.plan,
            candidates=tuple(rows),
            p_fits=chosen.p_fits,
            notes=self._notes(chosen),
        )

    def reason(self, chosen: Forecast) -> str:
        """Where the model is cut, and what that brings."""
        n = chosen.plan.n_workers
        if n == 1:
            return ""
        parts = self._layers.parts
        names = ", ".join(parts[cut - 1].name for cut in chosen.plan.options.cuts)
        text = f"{workers(n)}, each a stage of the model, which is cut after {names}"
        if self._alone is not None:
            ratio = chosen.time.mean / self._alone.time.mean
            text += f": {percent(ratio) if ratio < 1 else f'{ratio:.1f} ×'} the time of one"
        return f"{text}."

    @property
    def _layers(self) -> ModelLayers:
        layers = self.situation.workload.layers
        assert layers is not None
        return layers

    def _impossible(self) -> NoPlanError:
        layers = self._layers
        if layers.refusal is not None or self.reasons:
            reason = layers.refusal or self.reasons[0]
            return NoPlanError(
                f"The model cannot be split into stages on several nodes: {reason}.",
                "Train it data-parallel (--parallelism data), or give it larger or more nodes.",
            )
        return NoPlanError(
            f"Stages need two nodes or more, and there {_are(len(self.situation.nodes))}.",
            "Add nodes, or train on one (--parallelism data).",
        )

    def _notes(self, chosen: Forecast) -> tuple[str, ...]:
        layers, notes = self._layers, []
        if chosen.p_fits < P_FITS:
            notes.append(
                "This plan keeps budget and deadline with a chance of "
                f"{percent(chosen.p_fits)} only."
            )
        if chosen.plan.n_workers > 1:
            notes.append(
                f"A batch goes through the stages in {layers.micro_batches} micro-batches; "
                f"{_cut_text(chosen, layers)}."
            )
            notes += [f"Not as on one machine: {each}." for each in layers.differences]
        return tuple(notes)


def _are(n: int) -> str:
    return "is one" if n == 1 else f"are {n}"


def _rows(by_n: dict[int, Forecast]) -> list[Candidate]:
    return [by_n[n].candidate for n in sorted(by_n)]


def _cut_text(chosen: Forecast, layers: ModelLayers) -> str:
    n_bytes = crossing_bytes(chosen, layers)
    return f"{size(n_bytes)} cross each cut in a step, there and back"


def crossing_bytes(chosen: Forecast, layers: ModelLayers) -> int:
    """What crosses the widest cut of a plan in a step, activations and their gradients."""
    cuts = chosen.plan.options.cuts
    widest = max((layers.parts[cut - 1].cut_bytes for cut in cuts), default=0)
    return 2 * layers.micro_batches * widest


def _compared(stages: _Stages, decision: Decision, layers: ModelLayers) -> Decision:
    """Stages where they are worth it, else the data-parallel decision; both say why."""
    staged, data = stages.best, decision.candidate.prediction
    if staged is None:
        reason = layers.refusal or next(iter(stages.reasons), "there is one node")
        return _noted(decision, f"Not in stages on several nodes: {reason}.")
    payload, crossing = stages.situation.workload.payload_bytes, crossing_bytes(staged, layers)
    times = f"{duration(staged.time.mean)}, data-parallel {duration(data.time_s.mean)}"
    n = staged.plan.n_workers
    near = {m: each for m, each in stages.forecasts.items() if abs(m - n) <= 1}
    rows = (*decision.candidates, *_rows(near))
    if payload < FAR_LARGER * crossing:
        text = f"gradients ({size(payload)}) are not far larger than what crosses a cut in a step"
        return _noted(decision, f"Not in stages: {text} ({size(crossing)}).", rows)
    better = staged.time.mean <= WORTH * data.time_s.mean and staged.p_fits >= P_FITS
    if not better:
        return _noted(decision, f"Not in stages: that would take {times}.", rows)
    why = f"In stages it takes {times}, for gradients ({size(payload)}) stay where they are."
    return stages.decided(decision.at_step, rows, why)


def _noted(decision: Decision, text: str, rows: tuple[Candidate, ...] = ()) -> Decision:
    return replace(decision, notes=(*decision.notes, text), candidates=rows or decision.candidates)
