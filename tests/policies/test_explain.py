from dataclasses import replace

import pytest

from policies.recommend import explain, recommend
from policies.schema import Limits
from tests.policies.cases import lab, network, node, situation, workload


def explained(case):
    return explain(recommend(case, (), 0), case)


def basis(explanation, name):
    return {fact.name: fact.basis for fact in explanation.rests_on}[name]


def test_one_sentence_each_for_why_not_fewer_and_not_more():
    found = explained(lab(rtt_s=0.010))
    assert found.why.startswith("3 workers: a step takes")
    assert found.not_fewer is not None
    assert found.not_fewer.startswith("Not two: it would take")
    assert found.not_more.startswith("Not four: it would spend")
    assert found.sentences == (found.why, found.not_fewer, found.not_more)


def test_one_worker_has_no_fewer():
    found = explained(lab(rtt_s=0.050))
    assert found.not_fewer is None
    assert len(found.sentences) == 2
    assert "ring" not in {fact.name for fact in found.rests_on}


def test_a_ceiling_and_a_request_are_reasons_too():
    assert "nodes have room for 4" in explained(lab()).not_more
    asked = explained(lab(workers=2))
    assert asked.not_more == "Not three: 2 was asked for."
    assert asked.not_fewer == "Not one: 2 was asked for."


def test_budget_and_deadline_are_named_with_the_probability():
    found = explained(lab(budget_usd=5.0, deadline_s=7200.0))
    assert "within the budget of $5.00 and the deadline of 2 h with a probability of" in found.why


def test_each_number_says_what_it_rests_on():
    measured = explained(lab())
    assert basis(measured, "speed of lab") == "measured"
    assert basis(measured, "gradients") == "measured"
    assert basis(measured, "ring") == "measured"
    assert basis(measured, "step") == "predicted"
    blind = replace(
        lab(workers=2), network=None, workload=replace(workload(kinds=("other",)), payload_bytes=1)
    )
    assumed = explained(blind)
    assert basis(assumed, "ring") == "assumed"
    assert basis(assumed, "speed of lab") == "assumed"


def test_a_price_is_given_not_measured():
    case = situation([replace(node("a"), price_source="label")], limits=Limits(workers=1))
    assert basis(explained(case), "price") == "given"


def test_an_assumed_price_is_marked():
    case = situation([replace(node("a"), price_source="assumed")], limits=Limits(workers=1))
    assert basis(explained(case), "price") == "assumed"


@pytest.mark.parametrize(
    ("nodes", "limits", "payload", "words"),
    [
        ([node("a", cpus=2.0)], Limits(), 4_000_000, "share this machine's 2 cores"),
        (
            [node("a", cpus=4.0), node("b", cpus=4.0)],
            Limits(cpus_per_worker=2.0),
            900_000_000,
            "share one node's 4 cores",
        ),
        (
            [node("a"), node("b", kind="old")],
            Limits(strategy="allreduce"),
            4_000_000,
            "wait for a slower node",
        ),
    ],
)
def test_the_cause_is_named(nodes, limits, payload, words):
    load = workload(cpus=2.0, payload=payload)
    if nodes[-1].kind == "old":
        kinds = load.node_kinds
        load = replace(load, node_kinds=(*kinds, replace(kinds[0], kind="old", c1_s=0.01)))
    case = situation(nodes, network([n.id for n in nodes]), limits=limits, load=load)
    assert words in explained(case).not_more
