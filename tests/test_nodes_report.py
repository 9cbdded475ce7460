"""What is shown of clusters: nodes, prices, what they have cost, how they end."""

import io
from pathlib import Path

from rich.console import Console

from launcher.cluster_bill import Bill, BilledNode, State
from launcher.cluster_book import Entry
from launcher.cluster_file import ClusterFile, SshAccess
from launcher.clusters import Status
from launcher.head import AutoDown, Look
from launcher.nodes_report import print_open, print_status, status_json
from launcher.pricing import Price

FILE = ClusterFile(
    Path("c.yaml"), "aws", None, (), 2, False, True, SshAccess(None, None, None), (), (), "mine"
)
RULE = AutoDown(600.0, when_done=False, is_alive=True, kept=None)


def a_node(name: str, state: State = "joined", price: Price | None = None) -> BilledNode:
    return BilledNode(name, "cpu", 8.0, 0.0, price or Price(0.5, "label"), state, 3600.0)


def a_status(
    *nodes: BilledNode,
    look: Look | None = None,
    silence: str | None = None,
    entry: Entry | None = None,
) -> Status:
    return Status(FILE, Bill(nodes), look or Look(0.0), silence, entry)


def shown(status: Status) -> str:
    text = io.StringIO()
    print_status(Console(file=text, width=120, markup=False), status)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def test_what_is_up_is_shown_with_what_it_costs_and_has_cost() -> None:
    text = shown(a_status(a_node("10.0.0.4"), a_node("10.0.0.5", "gone")))
    assert "10.0.0.4  cpu   8     –     $0.50/h (label)  joined  1 h       $0.50" in text
    assert "1 node up · $0.50/h in all · $1.00 so far" in text
    assert "It stays up until: launch down c.yaml" in text


def test_a_cluster_that_is_down_tells_what_it_has_cost() -> None:
    entry = Entry("mine", "c.yaml", ".", "aws", 1.0, 0.0, 10.0, 2.5)
    assert shown(a_status(entry=entry)).endswith("nothing is up · $2.50 in all")
    assert shown(a_status()).endswith("nothing is up · $0 in all")


def test_how_a_cluster_ends_by_itself_is_told() -> None:
    look = Look(1000.0, used_at=700.0, auto_down=RULE)
    text = shown(a_status(a_node("a"), look=look))
    assert "unused for 5 min" in text
    assert "It goes down by itself when nobody has used it for 10 min; now: launch down" in text
    assert "in use" in shown(a_status(a_node("a"), look=Look(0.0, is_used=True)))


def test_why_a_head_stays_up_is_told() -> None:
    rule = AutoDown(600.0, when_done=False, is_alive=False, kept="the results of x lie on its disk")
    text = shown(a_status(a_node("a"), look=Look(0.0, auto_down=rule, error="no"), silence="no"))
    assert "Its head stays up because the results of x lie on its disk. Fetch them, then:" in text


def test_a_head_that_does_not_answer_is_told() -> None:
    unknown = BilledNode("i-1", None, 0.0, 0.0, None, "not joined", 60.0)
    text = shown(a_status(unknown, silence="ssh: timed out"))
    assert "i-1   –     0     –     unknown  not joined  1 min     ?" in text
    assert "Its head does not answer: ssh: timed out" in text


def test_what_is_not_known_is_not_made_up() -> None:
    text = shown(a_status(silence="ssh: timed out"))
    assert "It is not known what is up · $0 so far" in text
    assert "until" not in text


def test_all_clusters_are_shown_with_their_sum() -> None:
    text = io.StringIO()
    console = Console(file=text, width=120, markup=False)
    print_open(console, [a_status(a_node("a")), a_status(a_node("b")), a_status()])
    assert text.getvalue().endswith("2 clusters up · $1.00/h in all\n")
    print_open(console, [])
    assert text.getvalue().endswith("No cluster that was brought up from here is up.\n")


def test_machines_get_the_same() -> None:
    document = status_json(a_status(a_node("a")))
    assert document["n_up"] == 1
    assert document["cost_usd"] == 0.5
    assert document["nodes"][0]["price"] == {"usd_per_h": 0.5, "source": "label"}
