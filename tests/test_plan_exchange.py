from dataclasses import replace

from launcher.plan_exchange import decentralized_of, direct_of, stages_of
from policies.pipeline import Part
from policies.schema import Asynchrony, ModelLayers, Plan, PlanOptions
from tests.policies.cases import workload

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


def test_a_plan_in_stages_says_where_its_workers_cut_the_model() -> None:
    layers = ModelLayers(tuple(Part(f"l{i}", 1.0, 0.0, 1, 1, 1) for i in range(5)))
    plan = Plan(2, ("a", "b"), "pipeline", PlanOptions(1.0, cuts=(3,), micro_batches=8))
    found = stages_of(plan, workload(layers=layers))
    assert found is not None
    assert (found.cuts, found.n_layers, found.n_micro_batches) == ((3,), 5, 8)
    assert len(found.secret) == 32
    assert str(found.secret) not in repr(found)
    assert direct_of(plan) is None
    assert decentralized_of(plan) is None
    assert stages_of(plan, workload()) is None
    assert stages_of(replace(plan, strategy="allreduce"), workload(layers=layers)) is None
