from dataclasses import replace

from launcher.plan_exchange import decentralized_of, direct_of
from policies.schema import Asynchrony, Plan, PlanOptions

OPTIONS = PlanOptions(1.0, algorithm="one_shot", asynchrony=Asynchrony(8, 50, 0.5))


def test_a_plan_says_how_its_workers_exchange() -> None:
    plan = Plan(2, ("a", "b"), "decentralized", OPTIONS)
    found = decentralized_of(plan)
    assert found is not None
    assert (found.max_staleness, found.transfer_every_steps, found.merge) == (8, 50, 0.5)
    assert direct_of(plan) is None
    direct = replace(plan, strategy="direct")
    assert decentralized_of(direct) is None
    made = direct_of(direct)
    assert made is not None and made.algorithm == "one_shot"
    assert direct_of(replace(plan, strategy="allreduce")) is None
