"""What a decision's reader should know of the chosen plan besides the reason for it."""

from collections.abc import Iterator
from datetime import UTC, datetime

from policies.approximation import approximation_notes
from policies.bandit import P_FITS
from policies.forecast import Forecast
from policies.node_start import not_up
from policies.path_notes import path_notes
from policies.spot import losses
from policies.survey import Survey
from policies.wording import duration, percent


def notes(chosen: Forecast, found: Survey, *, explored: bool) -> tuple[str, ...]:
    """Doubts, assumptions and side effects of the chosen plan, a sentence or two each.

    Args:
        chosen: the plan with its forecast.
        found: what the decision rests on.
        explored: whether the plan is tried to learn more.
    """
    return (
        *_of_the_choice(chosen, found, explored=explored),
        *_of_nodes_and_links(chosen, found),
        *path_notes(chosen.plan, found.paths),
        *approximation_notes(chosen.candidate),
        *_of_the_script(chosen, found),
        *_assumed(chosen, found),
    )


def _of_the_choice(chosen: Forecast, found: Survey, *, explored: bool) -> Iterator[str]:
    if chosen.p_fits < P_FITS:
        yield f"This plan keeps budget and deadline with a chance of {percent(chosen.p_fits)} only."
    if explored:
        yield "This plan is tried to learn more; another is expected to be as good."
    if found.residual.change is not None:
        since = datetime.fromtimestamp(found.residual.change.at_s, UTC)
        yield (
            f"Steps have taken otherwise here since {since:%Y-%m-%d %H:%M} UTC: what was measured "
            "before counts for little."
        )


def _of_nodes_and_links(chosen: Forecast, found: Survey) -> Iterator[str]:
    situation, parts = found.situation, chosen.parts
    if situation.network is None and len(situation.nodes) > 1:
        yield "The network was not measured: its links are assumed."
    elif parts.assumed_links:
        yield "Some links of this plan were not measured: they are assumed."
    elif parts.inferred_links:
        yield "Some links of this plan were not measured: they are inferred from others."
    starting = not_up(chosen.plan, situation.nodes)
    if starting:
        noun = "node of this plan is" if len(starting) == 1 else "nodes of this plan are"
        yield f"{len(starting)} {noun} not started yet: measured when up, and decided again then."
    lost = losses(chosen.plan, situation.nodes, chosen.time.mean, 0.0)
    if lost.n:
        yield (
            f"Its provider may take nodes of this plan back: {lost.n:.2g} losses are expected "
            "(assumed), and counted in time and cost."
        )
    if parts.hidden_s > 0.0:
        yield (
            "Gradients leave while a step still computes, which hides "
            f"{duration(parts.hidden_s)} of their exchange."
        )


def _of_the_script(chosen: Forecast, found: Survey) -> Iterator[str]:
    is_exact = chosen.plan.strategy != "decentralized"
    every_row = chosen.plan.options.sync_batchnorm or not found.situation.workload.n_batch_norms
    if is_exact and not every_row:
        yield (
            "Batch normalisation takes each worker's own rows, so the curve is the same up to "
            "chance; --sync-batchnorm makes it exact."
        )


def _assumed(chosen: Forecast, found: Survey) -> Iterator[str]:
    situation, held = found.situation, set(chosen.plan.nodes)
    if chosen.parts.assumed_speed:
        yield "A node of this plan was not profiled: its speed is assumed."
    if any(n.id in held and n.price_source == "assumed" for n in situation.nodes):
        yield "The price of a node of this plan is assumed."
    if any(fit.early_stopping for fit in situation.workload.fits):
        yield "The script may stop early: time and cost are upper bounds."
