"""Whether workers share the data or the layers of the model."""

from dataclasses import replace

import pytest

from policies.explain import explain
from policies.parallelism import recommend_any
from policies.pipeline import Part
from policies.recommend import NoPlanError
from policies.schema import Limits, ModelLayers, StageKind, Work
from policies.stages import learned_correction
from policies.survey import survey
from tests.policies.cases import experience, network, node, situation, workload

MB = 1_000_000
N_MICRO = 8


def layers(n=8, compute_s=0.05, cut=32_000, state=200 * MB, memory=None, **changes):
    parts = tuple(Part(f"dense_{i}", compute_s, 0.01, state, 64_000, cut, None) for i in range(n))
    kinds = (StageKind("c5", 1.0, memory), StageKind("slow", 2.0, memory))
    return replace(ModelLayers(parts, 0.001, N_MICRO, kinds), **changes)


def case(made=None, names="abcd", rtt_s=0.0005, payload=400 * MB, bandwidth=1.25e8, **limits):
    made = made or layers()
    step_s = N_MICRO * sum(p.compute_s for p in made.parts)
    load = workload(c0_s=0.02, c1_s=step_s / 256, payload=payload, layers=made)
    nodes = [node(name) for name in names]
    return situation(
        nodes,
        network(names, rtt_s, bandwidth),
        Work(steps=5_000, epochs=5, global_batch=256),
        Limits(**{"parallelism": "auto", **limits}),
        load,
    )


def test_data_parallelism_never_looks_at_layers():
    decision = recommend_any(case(parallelism="data"), [], 0)
    assert decision.chosen.strategy != "pipeline"
    assert not any("stages" in note for note in decision.notes)


def test_large_gradients_over_small_cuts_are_trained_in_stages():
    decision = recommend_any(case(bandwidth=1.25e7), [], 0)
    assert decision.chosen.strategy == "pipeline"
    assert decision.chosen.options.micro_batches == N_MICRO
    assert len(decision.chosen.options.cuts) == decision.chosen.n_workers - 1
    assert "gradients (400 MB) stay where they are" in decision.reason
    assert "cut after dense_" in decision.reason
    assert "Not three: it would take" in " ".join(explain(decision, case()).sentences)


def test_small_gradients_are_exchanged_and_it_is_said_why():
    decision = recommend_any(case(payload=100_000), [], 0)
    assert decision.chosen.strategy != "pipeline"
    assert "gradients (100 kB) are not far larger than what crosses a cut" in decision.notes[-1]


def test_a_model_larger_than_a_nodes_memory_is_split():
    made = layers(memory=1000 * MB)  # of 1,604 MB
    decision = recommend_any(case(made, payload=100_000), [], 0)
    assert decision.chosen.strategy == "pipeline"
    assert decision.reason.startswith("It does not fit into one node's memory: it needs 1.6 GB.")
    assert all(candidate.plan.n_workers > 1 for candidate in decision.candidates)


def test_each_stage_fits_in_its_nodes_memory():
    made = layers(memory=600 * MB)
    decision = recommend_any(case(made, parallelism="model"), [], 0)
    assert decision.chosen.n_workers == 4  # two layers each: 400 of 510 MB that are usable


@pytest.mark.parametrize(
    ("made", "names", "said"),
    [
        (layers(refusal="Own has a train_step of its own"), "ab", "Own has a train_step"),
        (layers(n=1), "ab", "it can be cut into 1 stages, not 2: it has no more layers"),
        (
            layers(memory=300 * MB),
            "ab",
            r"2 nodes must have memory for all of its weights \(400 MB\)",
        ),
        (layers(memory=480 * MB), "ab", "no cut lets each stage fit in its node's memory"),
        (layers(), "a", "Stages need two nodes or more, and there is one"),
    ],
)
def test_what_cannot_be_split_is_refused_before_money_is_spent(made, names, said):
    with pytest.raises(NoPlanError, match=said) as refused:
        recommend_any(case(made, names, parallelism="model"), [], 0)
    assert refused.value.cheapest is None
    assert "--parallelism data" in str(refused.value)


def test_only_nodes_with_the_memory_train_the_whole_model():
    kinds = (StageKind("c5", 1.0, 1000 * MB), StageKind("large", 1.0, 4000 * MB))
    asked = case(layers(kinds=kinds), payload=100_000)
    nodes = tuple(replace(n, kind="large") if n.id in "cd" else n for n in asked.nodes)
    decision = recommend_any(replace(asked, nodes=nodes), [], 0)
    assert decision.chosen.strategy != "pipeline"
    assert set(decision.chosen.nodes) <= {"c", "d"}


def test_auto_without_a_way_to_split_says_so():
    decision = recommend_any(case(layers(refusal="it is stateful")), [], 0)
    assert decision.notes[-1] == "Not in stages on several nodes: it is stateful."


def test_the_last_node_left_trains_the_whole_model():
    decision = recommend_any(case(names="a", parallelism="model"), [], 0, at_step=100)
    assert decision.chosen.n_workers == 1
    assert decision.reason.startswith("One node is left")


def test_stages_go_over_the_near_links():
    far = lambda a, b: 0.0005 if {a, b} in ({"a", "c"}, {"c", "b"}) else 0.2  # noqa: E731
    decision = recommend_any(case(names="abc", rtt_s=far, parallelism="model", workers=3), [], 0)
    assert decision.chosen.nodes in (("a", "c", "b"), ("b", "c", "a"))


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(NoPlanError, match="Even the likeliest plan") as refused:
        recommend_any(case(parallelism="model", budget_usd=0.01), [], 0)
    assert refused.value.cheapest is not None


def test_an_explanation_tells_stages_and_why_not_one_more():
    asked = case(names="abc", parallelism="model")
    decision = recommend_any(asked, [], 0)
    text = " ".join(explain(decision, asked).sentences)
    assert "each a stage of the model, cut after dense_" in text
    assert "Not four: there are 3 nodes." in text
    names = [fact.name for fact in explain(decision, asked).rests_on]
    assert sum(name.startswith("stage on") for name in names) == decision.chosen.n_workers


def test_steps_that_took_longer_are_expected_to_again():
    asked = case(names="ab", parallelism="model")
    decision = recommend_any(asked, [], 0)
    expected_s = decision.candidate.prediction.step_s.mean
    slow = experience(asked, "ab", 1.5 * expected_s, plan=decision.chosen)
    after = recommend_any(asked, [slow], 0).candidate.prediction.step_s
    assert 1.3 * expected_s < after.mean < 1.6 * expected_s
    assert after.high / after.low < 2.0
    assert learned_correction([slow], asked.workload).mean > 0.3


def test_what_was_measured_in_stages_says_nothing_of_exchanging_gradients():
    asked = case(names="ab")
    staged = recommend_any(replace(asked, limits=Limits(parallelism="model")), [], 0)
    seen = experience(asked, "ab", 100.0, plan=staged.chosen)
    data = replace(asked, limits=Limits(parallelism="data"))
    steps = [recommend_any(data, known, 0).candidate.prediction.step_s for known in ([], [seen])]
    assert steps[0] == steps[1]


def test_data_and_stages_are_weighed_on_one_preparation(monkeypatch):
    prepared = []
    for module in ("policies.parallelism", "policies.recommend"):
        monkeypatch.setattr(
            f"{module}.survey", lambda *given: prepared.append(given) or survey(*given)
        )
    recommend_any(case(), [], 0)
    assert len(prepared) == 1
