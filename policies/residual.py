"""The learned part: Bayesian regression of log(observed / prior) on what a step consists of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from policies.cost_model import StepParts
from policies.drift import Change, changed
from policies.efficiency import ASSUMED, Efficiency, learn_efficiency
from policies.features import (
    N_FEATURES,
    NOISE,
    Setting,
    features,
    never_learned,
    noise_std,
    plan_std,
    setting_of,
)
from policies.node_start import learn_node_starts
from policies.one_thread import one_thread
from policies.others import with_others, without_others
from policies.pauses import LearnedPauses, learn_pauses
from policies.robust import (
    Correction,
    Groups,
    Posterior,
    Prior,
    before_any_row,
    robust_fit,
    standard,
)
from policies.rows import relevant, rows_of
from policies.schema import Experience, Situation
from policies.startup import LearnedStartup, learn_startup

# What is believed before any experience, of this cluster or of the shipped sweep.
COLD = standard(N_FEATURES)


@dataclass(frozen=True, slots=True)
class Residual:
    """Posterior of the regression, for plans of `script`.

    Features are scaled so that every weight is a standard normal before any experience.
    `group_by_setting` says where the posterior holds what belongs to one setting alone,
    `stretch` how many times as much as usual that may be.
    `alone` is how many times as large as assumed such deviations are in general.
    `change` is set where the cluster has changed: what was measured before counts for little.
    `efficiency` is what a step of `decentralized` is worth.
    """

    script: str
    posterior: Posterior
    group_by_setting: Mapping[Setting, int]
    startup: LearnedStartup
    pauses: LearnedPauses
    n_rows: int
    stretch: Sequence[float] = ()
    node_start_by_type: Mapping[str, Correction] = field(default_factory=dict)
    change: Change | None = None
    efficiency: Efficiency = ASSUMED
    alone: float = 1.0

    def step(self, parts: StepParts) -> Correction:
        """What experience says of a step with these parts."""
        x, loading = features(parts, own=True), self.alone * plan_std(parts)
        group = self.group_by_setting.get(setting_of(self.script, parts))
        if group is not None:
            loading *= self.stretch[group]
        beside = self.noise_std(parts) ** 2 - self.posterior.noise_variance + never_learned(parts)
        variance = self.posterior.variance(x, group, loading) + beside
        return Correction(self.posterior.mean(x, group, loading), math.sqrt(variance))

    def noise_std(self, parts: StepParts) -> float:
        """Deviation of the logarithm of a step from run to run."""
        return math.sqrt(self.posterior.noise_variance) * noise_std(parts) / NOISE


def learn(
    situation: Situation, experience: Sequence[Experience], prior: Prior | None = None
) -> Residual:
    """The posterior after `experience`; rows of the situation's own script weigh more.

    Args:
        situation: whose script and nodes are decided on.
        experience: measured segments, in any order.
        prior: of the weights, as the shipped sweep leaves it; standard normal by default.
    """
    with one_thread():
        alike = [each for each in experience if each.plan.strategy != "pipeline"]
        return _learn(situation, alike, COLD if prior is None else prior)


def _learn(situation: Situation, experience: Sequence[Experience], believed: Prior) -> Residual:
    script, nodes = situation.workload.fingerprint, situation.nodes
    known = relevant(experience, script, nodes)
    rows = rows_of(known, script, nodes, believed)
    cold = Residual(
        script,
        before_any_row(believed, believed.noise * NOISE),
        {},
        learn_startup(known, script, nodes),
        learn_pauses(rows, script, nodes),
        0,
        node_start_by_type=learn_node_starts(nodes, known),
        efficiency=learn_efficiency(known, script),
        alone=believed.alone,
    )
    if not rows.experience:
        return cold
    change, stretch = changed(rows, nodes, believed), rows.stretch(believed)
    weight = rows.weight if change is None else rows.weight * change.weight_of(rows)
    groups = Groups(rows.group, rows.plan_std * stretch[rows.group])
    x, prior = with_others(rows, script, believed)
    fit = robust_fit(x, rows.log_ratio, weight, rows.noise, prior=prior, groups=groups)
    return replace(
        cold,
        posterior=without_others(fit),
        group_by_setting=rows.settings,
        n_rows=len(rows.experience),
        stretch=tuple(stretch.tolist()),
        change=change,
    )
