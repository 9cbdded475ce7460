import pickle
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.bandit import P_FITS
from policies.cost_model import step_time_s
from policies.recommend import NoPlanError, recommend, rows_to_show
from policies.schema import Fit, KindSpeed, Limits, Work
from tests.policies.cases import (
    MLP,
    experience,
    lab,
    network,
    node,
    plan_on,
    situation,
    situations,
    workload,
)


def n_of(case, **options):
    return recommend(case, (), 0, **options).chosen.n_workers


def row(decision, n):
    return next(c for c in decision.candidates if c.plan.n_workers == n)


def test_the_best_n_of_much_computing_falls_from_four_to_one_as_the_rtt_grows():
    chosen = [n_of(lab(rtt_s=rtt_s)) for rtt_s in (0.0005, 0.002, 0.010, 0.050, 0.100, 0.200)]
    assert chosen[0] == 4
    assert chosen[-1] == 1
    assert chosen == sorted(chosen, reverse=True)


def test_two_workers_beat_four_when_the_delay_is_high():
    decision = recommend(lab(rtt_s=0.050), (), 0)
    two, four = row(decision, 2).prediction, row(decision, 4).prediction
    assert two.time_s.mean < four.time_s.mean
    assert two.cost_usd.mean < four.cost_usd.mean


def test_large_gradients_stay_on_one_machine():
    assert n_of(lab(MLP)) == 1


def test_one_machine_alone_says_what_two_would_do():
    case = situation([node("a", cpus=2.0)], load=workload(cpus=2.0), work=Work(1000, 10, 256))
    decision = recommend(case, (), 0)
    assert decision.chosen.nodes == ("a",)
    assert row(decision, 2).plan.nodes == ("a", "a")
    assert decision.reason.startswith("1 worker: two would share this machine's 2 cores and take")
    assert not decision.notes


def test_a_reason_weighs_the_choice_against_one_and_against_one_more():
    rtt_s = lambda a, b: 0.041 if "d" in (a, b) else 0.0004  # noqa: E731
    case = situation([node(x) for x in "abcd"], network("abcd", rtt_s))
    decision = recommend(case, (), 0)
    assert decision.chosen.n_workers == 3
    assert decision.reason.startswith("3 workers: ")
    assert "the time of one" in decision.reason
    assert "A fourth would sit 41 ms away and take" in decision.reason


def test_a_reason_names_what_keeps_n_from_growing():
    assert recommend(lab(), (), 0).reason.endswith(
        "No more than four, for the cluster's 4 nodes have room for 4."
    )


def test_a_budget_forces_a_cheaper_plan():
    free = recommend(lab(), (), 0)
    cost = row(free, 4).prediction.cost_usd
    tight = recommend(lab(budget_usd=cost.mean * 0.8), (), 0)
    assert 1 <= tight.chosen.n_workers < 4
    assert tight.p_fits >= P_FITS
    assert "budget" in tight.reason


def test_a_doubtful_budget_is_told_and_left_to_be_asked_about():
    cheapest = row(recommend(lab(), (), 0), 1).prediction.cost_usd
    decision = recommend(lab(budget_usd=cheapest.mean), (), 0)
    assert 0.1 < decision.p_fits < 0.9
    assert any("only" in note for note in decision.notes)


def test_a_hopeless_budget_is_refused_with_the_cheapest_plan():
    with pytest.raises(
        NoPlanError, match=r"likeliest plan, 1 worker, needs .* only \$0\.01 is left"
    ) as caught:
        recommend(lab(budget_usd=0.01), (), 0)
    assert caught.value.cheapest is not None
    assert caught.value.cheapest.plan.n_workers == 1
    assert "Raise --budget" in caught.value.remedy
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_a_hopeless_deadline_is_refused_alike():
    with pytest.raises(NoPlanError, match="only 60 s is left"):
        recommend(lab(deadline_s=60.0), (), 0)


def test_money_and_time_already_spent_count():
    assert recommend(lab(budget_usd=0.2), (), 0).p_fits >= P_FITS
    with pytest.raises(NoPlanError, match="left"):
        recommend(replace(lab(budget_usd=0.2), spent_usd=0.19), (), 0)
    with pytest.raises(NoPlanError, match="left"):
        recommend(replace(lab(deadline_s=3000.0), spent_s=2900.0), (), 0)


def test_a_refusal_says_when_the_limit_is_already_spent():
    poor = replace(lab(budget_usd=0.0005), spent_usd=0.0009)
    with pytest.raises(NoPlanError, match=r"\$0.0009 of the \$0.0005 is spent already"):
        recommend(poor, (), 0)
    late = replace(lab(deadline_s=60.0), spent_s=90.0)
    with pytest.raises(NoPlanError, match=r"90 s of the 60 s is spent already"):
        recommend(late, (), 0)
    both = replace(lab(deadline_s=60.0, budget_usd=0.5), spent_s=90.0, spent_usd=0.6)
    with pytest.raises(NoPlanError, match=r"\$0.60 of the \$0.50 and 90 s of the 60 s are spent"):
        recommend(both, (), 0)


def test_the_cheapest_plan_within_the_deadline():
    assert n_of(lab(objective="cost")) == 1
    assert n_of(lab(objective="cost", deadline_s=1700.0)) == 2


def test_a_fixed_n_is_kept_and_compared_with_one():
    decision = recommend(lab(rtt_s=0.050, workers=3), (), 5)
    assert decision.chosen.n_workers == 3
    assert [c.plan.n_workers for c in decision.candidates] == [1, 3]
    assert decision.reason.startswith("3 workers, as asked: 1")


def test_more_workers_than_can_be_had_are_refused():
    with pytest.raises(NoPlanError, match="3 workers cannot be had: this machine has room for 2"):
        recommend(situation([node("a", cpus=2.0)], limits=Limits(workers=3)), (), 0)


def test_a_cluster_without_free_cpus_is_refused():
    with pytest.raises(NoPlanError, match="No node has free CPUs"):
        recommend(situation([node("a", cpus=0.0)]), (), 0)
    with pytest.raises(NoPlanError, match="No node has free CPUs"):
        recommend(situation([]), (), 0)


def test_data_that_feeds_nobody_is_refused():
    with pytest.raises(NoPlanError, match="Not even one worker can train"):
        recommend(situation([node("a")], load=workload(max_workers=0)), (), 0)


def test_free_nodes_always_fit():
    case = situation([node(x, price=0.0) for x in "ab"], network("ab"), limits=Limits(budget_usd=1))
    decision = recommend(case, (), 0)
    assert all(c.p_fits == 1.0 for c in decision.candidates)
    assert row(decision, 1).prediction.cost_usd.high == 0.0


def test_what_is_assumed_is_noted():
    nodes = [replace(node("a"), price_source="assumed"), node("b", kind="odd")]
    load = workload(fits=(Fit(256, 100, 10, early_stopping=True),))
    notes = " ".join(recommend(situation(nodes, load=load), (), 0).notes)
    for words in ("network was not measured", "not profiled", "price of a node", "stop early"):
        assert words in notes


def test_links_missing_from_a_probe_are_noted():
    case = situation([node(x) for x in "abc"], network("ab"))
    decision = recommend(replace(case, limits=Limits(workers=3)), (), 0)
    assert "Some links of this plan were not measured: they are assumed." in decision.notes


def test_gpu_nodes_compete_with_others():
    load = workload(
        node_kinds=(KindSpeed("p4", 0.01, 0.00002, 4.0, 1.0), KindSpeed("c5", 0.01, 0.002, 4.0))
    )
    nodes = [node("a"), node("b", gpus=1.0, kind="p4", price=3.0)]
    case = situation(nodes, network("ab"), load=load)
    assert recommend(case, (), 0).chosen.nodes == ("b",)
    assert recommend(case, (), 0).chosen.options.gpus_per_worker == 1.0
    cheap = replace(case, limits=Limits(objective="cost"))
    assert recommend(cheap, (), 0).chosen.nodes in {("a",), ("b",)}


def test_experience_can_change_the_choice():
    case = lab(rtt_s=0.010)
    assert n_of(case) > 1
    slow = [
        experience(
            case, "abcd"[:n], 2.5 * step_time_s(plan_on("abcd"[:n], 0.45), case), run=f"r{n}"
        )
        for n in (2, 3, 4)
        for _ in range(4)
    ]
    decision = recommend(case, slow, 0)
    assert decision.chosen.n_workers == 1
    assert decision.history == ("r2", "r3", "r4")


def test_exploration_is_told_and_never_happens_later_in_a_run():
    near_tie = lab(rtt_s=0.0098)
    seeds = range(1, 60)
    told = {
        d.chosen.n_workers: any("tried to learn" in note for note in d.notes)
        for d in (recommend(near_tie, (), seed) for seed in seeds)
    }
    usual = n_of(near_tie)
    assert told[usual] is False
    assert all(flag for n, flag in told.items() if n != usual)
    assert {recommend(near_tie, (), seed, at_step=7).chosen.n_workers for seed in seeds} == {usual}


def test_a_big_cluster_shows_eight_rows_and_its_best_neighbours():
    names = [f"n{i:03}" for i in range(60)]
    decision = recommend(situation([node(x) for x in names], None), (), 0)
    counts = [c.plan.n_workers for c in decision.candidates]
    n = decision.chosen.n_workers
    assert len(counts) <= 8
    assert {1, n, 60} <= set(counts)
    assert {m for m in (n - 1, n + 1) if 1 <= m <= 60} <= set(counts)


def test_rows_always_hold_one_the_chosen_its_neighbours_and_the_largest():
    assert rows_to_show([1, 2, 3], 2) == (1, 2, 3)
    shown = rows_to_show(list(range(1, 31)), 17)
    assert {1, 16, 17, 18, 30} <= set(shown)
    assert len(shown) == 8


@given(situations(), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_the_same_seed_gives_the_same_decision_and_one_is_always_a_candidate(case, seed):
    decision = recommend(case, (), seed)
    assert decision == recommend(case, (), seed)
    assert row(decision, 1)
    assert decision.candidate.plan == decision.chosen
    assert decision.reason


@given(situations(), st.floats(0.001, 20.0))
@settings(max_examples=30, deadline=None)
def test_the_chosen_plan_fits_whenever_any_does(case, budget_usd):
    limited = replace(case, limits=Limits(budget_usd=budget_usd))
    try:
        decision = recommend(limited, (), 0)
    except NoPlanError as refused:
        assert refused.cheapest is not None
        return
    assert decision.p_fits == pytest.approx(decision.candidate.p_fits)
    if any(c.p_fits >= P_FITS for c in decision.candidates):
        assert decision.p_fits >= P_FITS
    else:
        assert decision.p_fits == max(c.p_fits for c in decision.candidates)


@given(situations(), st.floats(0.01, 20.0), st.sampled_from([0.25, 2.0, 8.0]))
@settings(max_examples=25, deadline=None)
def test_scaling_all_prices_and_the_budget_leaves_the_choice(case, budget_usd, k):
    scaled_nodes = tuple(replace(n, price_usd_per_h=k * n.price_usd_per_h) for n in case.nodes)
    plain = replace(case, limits=Limits(budget_usd=budget_usd))
    scaled = replace(case, nodes=scaled_nodes, limits=Limits(budget_usd=k * budget_usd))
    try:
        decision = recommend(plain, (), 3)
    except NoPlanError:
        with pytest.raises(NoPlanError):
            recommend(scaled, (), 3)
        return
    assert recommend(scaled, (), 3).chosen == decision.chosen


@given(situations(), st.randoms())
@settings(max_examples=20, deadline=None)
def test_the_order_of_the_nodes_does_not_matter(case, random):
    shuffled = list(case.nodes)
    random.shuffle(shuffled)
    decision, again = recommend(case, (), 0), recommend(replace(case, nodes=tuple(shuffled)), (), 0)
    assert again.chosen == decision.chosen
    for mine, theirs in zip(decision.candidates, again.candidates, strict=True):
        assert theirs.prediction.time_s.mean == pytest.approx(mine.prediction.time_s.mean)


@given(situations(), st.floats(0.1, 1.0))
@settings(max_examples=25, deadline=None)
def test_the_cheapest_plan_never_costs_more_when_a_node_gets_cheaper(case, factor):
    cheap = replace(case, limits=Limits(objective="cost"))
    first, *rest = cheap.nodes
    lower = replace(first, price_usd_per_h=factor * first.price_usd_per_h)
    before = recommend(cheap, (), 0).candidate.prediction.cost_usd.mean
    after = recommend(replace(cheap, nodes=(lower, *rest)), (), 0).candidate
    assert after.prediction.cost_usd.mean <= before * 1.011


@given(situations(), st.integers(1, 30))
@settings(max_examples=15, deadline=None)
def test_more_work_is_never_sooner_done(case, factor):
    assume(case.workload.payload_bytes > 0)
    longer = replace(case, work=replace(case.work, steps=case.work.steps * factor))
    one, more = row(recommend(case, (), 0), 1), row(recommend(longer, (), 0), 1)
    assert more.prediction.time_s.mean >= one.prediction.time_s.mean
