"""What is given up where training is not exact, in words."""

from policies.schema import Candidate, StepsFactor
from policies.wording import duration, exchange_name


def approximation_notes(chosen: Candidate) -> tuple[str, ...]:
    """What a decision says of a plan that changes the learning curve; nothing of an exact one."""
    text = given_up(chosen)
    return () if text is None else (text,)


def given_up(chosen: Candidate) -> str | None:
    """What a plan gives up, and what it takes to make up for it; None where training is exact."""
    asynchrony, factor = chosen.plan.options.asynchrony, chosen.steps_factor
    same_s = chosen.prediction.same_accuracy_s
    if asynchrony is None or factor is None or same_s is None:
        return None
    bound = asynchrony.max_staleness
    age = "of any age" if bound is None else f"up to {bound} steps old"
    own = " Each site trains on its own data alone." if asynchrony.own_data else ""
    return (
        f"Given up: {chosen.plan.n_workers} workers that wait for nobody do not train as one "
        f"machine does. They apply gradients {age}, and over thin links a part of them.{own} "
        f"The same accuracy may take {factor_text(factor)} ({factor.basis}): "
        f"{duration(same_s.mean)} instead of {duration(chosen.prediction.time_s.mean)}."
    )


def factor_text(factor: StepsFactor) -> str:
    """How many more steps: "1.25 × the steps (0.8 to 2.0)"."""
    at = factor.steps
    return f"{at.mean:.2f} × the steps ({at.low:.1f} to {at.high:.1f})"


def against_exact(chosen: Candidate, rival: Candidate) -> str:
    """Why workers wait for nobody, as a clause: against the best exact plan of as many."""
    same_s = chosen.prediction.same_accuracy_s or chosen.prediction.time_s
    extra_s = rival.prediction.time_s.mean - same_s.mean
    if extra_s <= 0.0:
        return ""
    return (
        f", waiting for nobody since {exchange_name(rival.plan)} would take {duration(extra_s)} "
        "longer to the same accuracy"
    )
