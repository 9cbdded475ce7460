"""How clusters are shown that have nodes which are not started yet."""

from dataclasses import replace

from launcher.summary import cluster_text, legend_text, node_letters, nodes_to_show
from policies.schema import Decision, Node
from tests.fakes import a_decision, a_node, a_plan


def new(number: int) -> Node:
    node = replace(a_node(0, 0.15), id=f"spot {number}", ip="", node_type="spot", is_up=False)
    return replace(node, lingers_s=300.0)


NODES = (a_node(0), *(new(i) for i in range(1, 6)))


def decision() -> Decision:
    """One that has two of the nodes to start among its candidates."""
    made = a_decision()
    plan = replace(a_plan(3), nodes=(NODES[0].id, "spot 1", "spot 2"))
    candidates = (made.candidates[0], replace(made.candidates[2], plan=plan))
    return replace(made, chosen=plan, candidates=candidates)


def test_the_cluster_line_tells_nodes_that_are_up_from_those_that_can_be_started() -> None:
    text = cluster_text("joined 10.0.0.4", NODES, 120).plain
    assert "1 node · 1 × c5.2xlarge ($0.34/h, label)" in text
    assert "up to 5 × spot not started yet ($0.15/h, label)" in text


def test_the_legend_names_types_of_nodes_that_are_not_started_yet() -> None:
    shown = nodes_to_show(NODES, decision())
    assert [node.id for node in shown] == [NODES[0].id, "spot 1", "spot 2"]
    text = legend_text(node_letters(shown, decision()), shown, 120).plain
    assert "a 10.0.0.4" in text
    assert "b, c spot, not started yet" in text


def test_without_a_decision_only_nodes_that_are_up_have_letters() -> None:
    assert nodes_to_show(NODES, None) == NODES[:1]
