"""Records of runs in a simulated cluster, whose steps differ from what the cost model says."""

from dataclasses import replace
from datetime import timedelta

from launcher.record import (
    ClusterRecord,
    DecisionRecord,
    Outcome,
    RunRecord,
    Segment,
    StepTime,
    new_record,
    timestamp,
)
from policies.cost_model import nodes_cost_usd_per_h
from policies.rows import prior_of
from policies.schema import Experience, Plan, PlanOptions, Work, Workload
from tests.fakes import NODE_IDS, NOW, a_decision, a_network, a_node, a_request, a_workload

COMPUTE, EXCHANGE = 1.1, 1.4  # how much longer both really take
STARTUP_S, BEFORE_S, REST_S = 14.0, 9.0, 20.0
NODES = tuple(a_node(i) for i in range(4))


def a_trained(
    name: str,
    n: int,
    *,
    day: int = 0,
    steps: int = 15_600,
    load: Workload | None = None,
    strategy: str = "allreduce",
    noise: float = 1.0,
    asked: int | None = None,
) -> RunRecord:
    """A run that trained with n workers on the first n nodes and is done.

    It began `day` days after the first; a step took `noise` times what it really takes.
    """
    load = load or a_workload()
    began = NOW + timedelta(days=day)
    algorithm = "one_shot" if strategy == "direct" else None
    plan = Plan(n, NODE_IDS[:n], strategy, PlanOptions(8, algorithm=algorithm))  # type: ignore[arg-type]
    step_s = noise * true_step_s(plan, load)
    first = began + timedelta(seconds=BEFORE_S + STARTUP_S)
    ended = first + timedelta(seconds=steps * step_s)
    time_s = BEFORE_S + STARTUP_S + steps * step_s + REST_S
    usd_per_h = nodes_cost_usd_per_h(plan, NODES)
    cost_usd = usd_per_h * (time_s - BEFORE_S) / 3600
    segment = Segment(
        plan=plan,
        started=timestamp(began + timedelta(seconds=BEFORE_S)),
        first_step_at=timestamp(first),
        ended=timestamp(ended),
        steps=steps,
        global_batch=256,
        step_s=StepTime(step_s, step_s, step_s),
        cost_usd=cost_usd,
        end="done",
    )
    work = Work(15_600, 10, 256)
    decision = replace(a_decision(), chosen=plan)
    record = new_record(
        a_request(name=name, workers=asked), name, now=began, owner="host:1", versions={}
    )
    return replace(
        record,
        status="done",
        exit_code=0,
        heartbeat_at=timestamp(ended),
        cluster=ClusterRecord("10.0.0.4:6379", NODES, how="ray at 10.0.0.4"),
        network=a_network(),
        workload=load,
        decisions=(DecisionRecord(decision, work, 0.0, BEFORE_S),),
        segments=(segment,),
        outcome=Outcome(time_s, cost_usd, steps),
    )


def true_step_s(plan: Plan, load: Workload) -> float:
    """What a step really takes, in seconds."""
    parts = prior_of(Experience("", NODES, a_network(), load, plan, 256, 1, 1.0))
    return COMPUTE * parts.compute_s + EXCHANGE * parts.exchange_s
