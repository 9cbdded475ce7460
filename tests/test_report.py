import io
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from launcher import figures as f
from launcher.explain import print_explanation, print_probe
from launcher.layout import labelled, letter_ranges, letters_of, ring_text, sentence, wrapped
from launcher.network_text import budget_text, near_groups, network_text
from launcher.record import RunRecord, Segment
from launcher.report import print_decision, print_outcome, print_runs
from launcher.runs import Runs
from launcher.summary import cluster_text, node_letters, script_text
from policies.schema import Interval
from tests.fakes import (
    NODE_IDS,
    NOW,
    a_candidate,
    a_decision,
    a_network,
    a_node,
    a_plan,
    a_record,
    a_workload,
)

LETTERS = letters_of(NODE_IDS)


def plain(width: int = 120) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, markup=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def explained(record: RunRecord, width: int = 120) -> str:
    console = plain(width)
    print_explanation(console, record, NOW)
    return text_of(console)


def test_the_cluster_line_counts_nodes_by_kind_with_price_and_source() -> None:
    nodes = (
        a_node(0),
        a_node(1),
        replace(a_node(2, 0.0), kind="8 cpu", price_source="own machine"),
    )
    text = cluster_text("started an embedded Ray", nodes, 120).plain
    assert "started an embedded Ray · 3 nodes · 2 × c5.2xlarge ($0.34/h, label)" in text
    assert "1 × 8 cpu (own machine, $0)" in text


def test_the_network_line_groups_near_nodes_and_names_the_far_ones() -> None:
    text = network_text(a_network(), LETTERS, 120).plain
    assert "6 links in 2.1 s · a–c 0.4 ms, 4.8 Gbit/s · to d 41 ms, 180 Mbit/s" in text
    assert text.endswith("measured")


def test_the_network_line_names_silent_nodes_and_loss() -> None:
    network = a_network()
    lossy = tuple(replace(link, loss=0.02) for link in network.links)
    text = network_text(replace(network, links=lossy, silent=(NODE_IDS[3],)), LETTERS, 120).plain
    assert "no answer from d" in text
    assert "loss 2.0 %" in text


def test_a_network_that_was_remembered_says_its_age() -> None:
    measured = a_network()
    soon = datetime(2026, 11, 30, 12, 0, 20, tzinfo=UTC)
    later = datetime(2026, 11, 30, 12, 4, tzinfo=UTC)
    assert network_text(measured, LETTERS, 120, soon).plain.endswith(" measured")
    assert network_text(measured, LETTERS, 120, later).plain.endswith(" measured 4 min ago")


def test_links_that_were_not_measured_are_said_to_be_assumed() -> None:
    some = replace(a_network(), links=(a_network().links[0], a_network().links[-1]))
    text = network_text(some, LETTERS, 120).plain
    assert "2 of 6 links in 2.1 s" in text
    assert text.endswith("partly assumed")


def test_further_networks_and_what_others_sent_are_named() -> None:
    fast = [
        replace(k, path="10.98.0.0/24", bandwidth_bytes_per_s=1.2e8) for k in a_network(3).links
    ]
    busy = replace(a_network().links[0], other_bytes_per_s=1.25e7)
    network = replace(a_network(), links=(busy, *a_network().links[1:], *fast))
    text = " ".join(network_text(network, LETTERS, 200).plain.split())
    assert "6 links in 2.1 s" in text
    assert "over 10.98.0.0/24 a–c 0.4 ms, 960 Mbit/s" in text
    assert "others sent up to 100 Mbit/s meanwhile (a, b): bandwidth is what was left" in text


def test_what_a_probe_sent_is_shown_beside_its_budget() -> None:
    network = replace(a_network(), sent_bytes=92_400_000, max_bytes=2 << 30)
    assert "92.4 MB of at most 2.1 GB" in budget_text(network, 80).plain


def test_an_unknown_network_is_called_assumed() -> None:
    assert network_text(None, LETTERS, 80).plain.split() == ["network", "not", "known", "assumed"]


def test_a_single_node_has_no_links() -> None:
    network = replace(a_network(), links=())
    assert "one node" in network_text(network, LETTERS, 80).plain


def test_many_far_groups_are_summed_up() -> None:
    links = tuple(replace(link, rtt_s=0.05 + 0.01 * i) for i, link in enumerate(a_network(6).links))
    network = replace(a_network(6), links=(*links[:1], *links[1:]))
    assert len(near_groups(network.links)) == 1
    far = tuple(replace(link, rtt_s=0.001 if i == 0 else 0.5) for i, link in enumerate(links))
    assert (
        "between 5 groups 500 ms" in network_text(replace(network, links=far), LETTERS, 120).plain
    )


def test_the_script_line_says_what_was_measured() -> None:
    text = script_text(a_workload(), {"keras": "3.15.1"}, 120).plain
    assert "Keras 3.15 · 1.2 M parameters · 4.9 MB gradients · batch 256 · 10 × 1,560 steps" in text


def test_a_script_with_chance_in_it_says_so() -> None:
    workload = replace(a_workload(), exactness="statistical", rounding=("dropout",))
    assert "same curve up to chance (dropout)" in script_text(workload, {}, 120).plain


def test_the_chosen_candidate_is_marked_and_numbers_carry_intervals() -> None:
    console = plain()
    print_decision(console, a_decision(), LETTERS)
    lines = text_of(console).splitlines()
    chosen = next(line for line in lines if "✔" in line)
    assert re.search(r"✔ +3 +a b c +allreduce +71 ms \(64–78\) +19 min \(17–21\)", chosen)
    assert "$0.44 (0.40–0.48)" in chosen
    assert sum("✔" in line for line in lines) == 1
    assert "3 workers: half the time of one for $0.13 more." in lines


def test_what_was_spent_before_the_decision_is_told() -> None:
    console = plain()
    print_decision(console, a_decision(), LETTERS, 12.0, 0.02)
    assert "with 90 % intervals; 12 s and $0.02 spent before" in text_of(console)


def test_candidates_that_may_not_fit_show_their_chance() -> None:
    decision = a_decision()
    unsure = replace(decision.candidates[3], p_fits=0.4)
    console = plain()
    print_decision(
        console, replace(decision, candidates=(*decision.candidates[:3], unsure)), LETTERS
    )
    assert "40 %" in text_of(console)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_everything_fits_the_terminal_and_no_number_is_broken(width: int) -> None:
    text = explained(a_record(), width)
    assert all(len(line) <= width for line in text.splitlines())
    for number in ("119 ms (107–131)", "$0.31 (0.28–0.34)", "1,560 steps", "41 ms, 180 Mbit/s"):
        assert number in text


def test_a_narrow_terminal_shows_whole_numbers_even_beyond_its_edge() -> None:
    console = plain(40)
    print_decision(console, a_decision(), LETTERS)
    assert "31 min (28–34)" in text_of(console)


def test_without_a_terminal_there_is_no_colour() -> None:
    assert "\x1b" not in explained(a_record())


def test_a_plan_of_many_nodes_is_shortened() -> None:
    candidate = a_candidate(4, 0.1, 100, 1)
    plan = replace(a_plan(4), n_workers=6, nodes=NODE_IDS)
    decision = replace(a_decision(), candidates=(replace(candidate, plan=plan),), chosen=plan)
    console = plain()
    print_decision(console, decision, LETTERS)
    assert "a … f" in text_of(console)


def test_the_outcome_is_set_against_the_prediction() -> None:
    console = plain()
    print_outcome(console, a_record())
    text = text_of(console)
    assert "done in 18 min 52 s for $0.43 (predicted 19 min, $0.44) · val_accuracy 0.914" in text
    assert "why 3?    launch explain brave-otter" in text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("budget", ["stopped at the budget", "launch resume brave-otter --budget 5"]),
        ("deadline", ["stopped at the deadline", "launch resume brave-otter --deadline 30m"]),
        ("interrupted", ["interrupted", "launch resume brave-otter"]),
    ],
)
def test_a_stopped_run_says_how_to_go_on(status: str, words: list[str]) -> None:
    console = plain()
    print_outcome(console, replace(a_record(), status=status))  # type: ignore[arg-type]
    assert all(word in text_of(console) for word in words)


def test_a_run_that_never_trained_says_so() -> None:
    console = plain()
    print_outcome(console, replace(a_record(), status="interrupted", segments=()))
    assert "interrupted before training began" in text_of(console)


def test_runs_are_listed_with_prediction_and_damage() -> None:
    records = (
        a_record(),
        replace(a_record("lost-one"), status="running", outcome=None, decisions=()),
    )
    console = plain(80)
    runs = Runs(records, ("x/run.json is damaged",))
    print_runs(console, runs, NOW + timedelta(hours=3), {"lost-one": "lost"})
    text = text_of(console)
    assert re.search(r"brave-otter +done +train.py +3 +19 min \(19 min\) +\$0.43 \(\$0.44\)", text)
    assert re.search(r"lost-one +lost +train.py +– +–", text)
    assert "warning: x/run.json is damaged" in text
    assert "3 h ago" in text


def test_no_runs_yet_says_how_to_start_one() -> None:
    console = plain()
    print_runs(console, Runs((), ()), NOW, {})
    assert "launch train.py --budget 5" in text_of(console)


def test_an_explanation_tells_why_and_what_it_rests_on_and_what_happened() -> None:
    text = explained(a_record())
    assert "Not two: " in text
    assert "Not four: " in text
    assert re.search(r"speed of c5.2xlarge +10 ms \+ 0.8 ms per row.*measured", text)
    assert re.search(r"step +71 ms .*predicted", text)
    assert re.search(r"1 +3 +a b c +15,600 +70 ms \(71 ms\) +12 s +18 min 42 s +\$0.43 +done", text)
    assert "12:00:00  warning: a node is silent" in text


def test_the_network_map_has_round_trips_above_and_bandwidth_below() -> None:
    text = explained(a_record())
    assert re.search(r"a +– +0.4 ms +0.4 ms +41 ms", text)
    assert re.search(r"d +180 Mbit/s +180 Mbit/s +180 Mbit/s +–", text)


def test_a_run_that_ended_early_is_explained_as_far_as_it_got() -> None:
    record = replace(
        a_record(), cluster=None, network=None, workload=None, decisions=(), segments=()
    )
    assert "before a decision was made" in explained(record)
    bare = replace(a_record(), workload=None)
    assert "brave-otter" in explained(bare)


def test_a_running_segment_and_one_without_a_decision_are_shown() -> None:
    segment = Segment(plan=a_plan(1), started="2026-11-30T12:00:10.000Z")
    text = explained(replace(a_record(), segments=(segment,)))
    assert re.search(r"1 +1 +a +0 +– +", text)


def test_a_segment_whose_end_nobody_saw_is_lost_unless_the_run_goes_on() -> None:
    segment = Segment(plan=a_plan(1), started="2026-11-30T12:00:10.000Z")
    ended = replace(a_record(), segments=(segment,), status="failed")
    assert re.search(r"1 +1 +a .* lost *$", explained(ended), re.MULTILINE)
    on = replace(ended, status="running")
    assert re.search(r"1 +1 +a .* running *$", explained(on), re.MULTILINE)
    assert "No decision has been made yet" in explained(replace(on, decisions=(), segments=()))


def test_a_probe_shows_the_map() -> None:
    console = plain()
    nodes = tuple(a_node(i) for i in range(4))
    print_probe(console, "joined 10.0.0.4", nodes, a_network())
    assert "network map: " in text_of(console)
    assert "network map over" not in text_of(console)


def test_a_probe_shows_a_map_of_each_network() -> None:
    console = plain()
    fast = tuple(replace(link, path="10.98.0.0/24") for link in a_network().links)
    both = replace(a_network(), links=a_network().links + fast)
    print_probe(console, "joined 10.0.0.4", tuple(a_node(i) for i in range(4)), both)
    assert "network map over 10.98.0.0/24" in text_of(console)


def test_letters_follow_the_rank_order() -> None:
    decision = replace(a_decision(), chosen=replace(a_plan(2), nodes=(NODE_IDS[1], NODE_IDS[0])))
    letters = node_letters((a_node(0), a_node(1), a_node(2)), decision)
    assert [letters[node] for node in NODE_IDS[:3]] == ["b", "a", "c"]


def test_letters_go_on_after_z_and_collapse_to_ranges() -> None:
    names = list(letters_of(str(i) for i in range(30)).values())
    assert names[25:28] == ["z", "aa", "ab"]
    assert letter_ranges(["d", "a", "b", "c", "f", "g"]) == "a–d, f, g"
    assert letter_ranges(["z", "aa", "ab"]) == "z–ab"
    assert ring_text(["x", "x", "y"], {"x": "a", "y": "b"}) == "a×2 b"


@given(st.lists(st.text("abc", min_size=1, max_size=12), min_size=1), st.integers(20, 60))
def test_pieces_are_wrapped_whole(pieces: list[str], width: int) -> None:
    lines = wrapped(pieces, width)
    assert " · ".join(lines) == " · ".join(pieces)
    assert all(len(line) <= max(width, *map(len, pieces)) for line in lines)


def test_a_sentence_keeps_numbers_with_their_units() -> None:
    text = sentence("it takes 41 ms longer and costs 5 minutes", 14)
    assert "41 ms" in text
    assert "5 minutes" in text


def test_a_label_puts_its_basis_at_the_right_edge() -> None:
    assert isinstance(labelled("x", ["y"], "measured", 40), Text)
    assert len(labelled("x", ["y"], "measured", 40).plain) == 40


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (f.time_text(0.000023), "23 µs"),
        (f.time_text(0.0004), "0.4 ms"),
        (f.time_text(0.071), "71 ms"),
        (f.time_text(12.3), "12 s"),
        (f.time_text(1140), "19 min"),
        (f.time_text(8280), "2.3 h"),
        (f.clock_text(41.4), "41 s"),
        (f.clock_text(1132), "18 min 52 s"),
        (f.clock_text(120), "2 min"),
        (f.clock_text(3900), "1 h 5 min"),
        (f.clock_text(7200), "2 h"),
        (f.money_interval(Interval(0, 0, 0)), "$0"),
        (f.time_interval(Interval(1.0, 1.0, 1.0)), "1.0 s"),
        (f.bandwidth_text(12_500), "100 kbit/s"),
        (f.count_text(12_345), "12.3 k"),
        (f.count_text(950), "950"),
        (f.age_text(5), "just now"),
        (f.age_text(300), "5 min ago"),
        (f.age_text(3 * 86_400), "3 days ago"),
        (f.money_limit(5.0), "$5"),
        (f.money_limit(0.5), "$0.50"),
    ],
)
def test_numbers_are_short_and_carry_their_unit(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1.0])
def test_any_number_has_a_text(value: float) -> None:
    interval = Interval(value, value, value)
    for number in (f.time_text, f.clock_text, f.money_limit, f.bandwidth_text, f.metric_text):
        assert number(value)
    for bounds in (f.time_interval, f.money_interval, f.bandwidth_interval):
        assert bounds(interval)


@settings(max_examples=40)
@given(st.lists(st.text("ab", max_size=60), max_size=4), st.sampled_from(["", "measured"]))
def test_a_line_fits_any_terminal_or_goes_over_its_edge(pieces: list[str], basis: str) -> None:
    for width in (1, 20, 40, 100):
        text = labelled("network", pieces, basis, width).plain
        assert all(piece in text for piece in pieces)
        assert text.partition("\n")[0].endswith(basis)
