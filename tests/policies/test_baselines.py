import math
from dataclasses import replace

import numpy as np
import pytest

from policies.baselines import (
    RULES,
    Goodput,
    adaptdl,
    all_nodes,
    cherrypick,
    ernest,
    fit_goodput,
    half_efficient,
    jansen,
    jansen_step_s,
    matern,
    nearest,
    one_worker,
)
from policies.question import Arm, Case, Question, RingLink

GBIT = 1.25e8
ARMS = tuple(Arm(n) for n in (1, 2, 3, 4))
BOTH = (*ARMS, *(Arm(n, "one_shot") for n in (2, 3, 4)))


def question(arms=ARMS, one_way_s=0.0001, payload=490_000, **changes) -> Question:
    """A CNN whose step of one worker takes 135 ms."""
    asked = Question(
        arms=arms,
        batch=128,
        payload_bytes=payload,
        rtt_s=2 * one_way_s,
        alone_s=lambda rows: 0.011 + 0.000969 * rows,
        links_for=lambda n: [RingLink(one_way_s, GBIT)] * n,
    )
    return replace(asked, **changes)


def refuse(arm):
    raise AssertionError(f"{arm} was run")


class Watched:
    """Steps that follow a law, and which arms were run."""

    def __init__(self, law):
        self.law, self.seen = law, []

    def __call__(self, arm):
        self.seen.append(arm)
        return self.law(arm)


def sharing(exchange_s, per_worker_s=0.0):
    """Computing shared evenly, and an exchange that grows with n."""

    def step_s(arm):
        n = arm.n_workers
        extra_s = exchange_s + per_worker_s * max(n - 2, 0) if n > 1 else 0.0
        return 0.011 + 0.000969 * 128 / n + extra_s

    return Watched(step_s)


def test_one_worker_never_distributes():
    answer = one_worker(question(BOTH), refuse)
    assert answer.arm == Arm(1)
    assert answer.step_s == {Arm(1): pytest.approx(0.135, rel=0.01)}


def test_all_nodes_takes_as_many_as_fit_with_the_usual_exchange():
    assert all_nodes(question(BOTH), refuse).arm == Arm(4)
    direct = tuple(Arm(n, "one_shot") for n in (2, 3))
    assert all_nodes(question((Arm(1), *direct)), refuse).arm == Arm(3, "one_shot")
    assert all_nodes(question((Arm(1),)), refuse).arm == Arm(1)


def test_jansen_by_hand():
    links = [RingLink(0.025, GBIT)] * 4
    expected = 0.135 / 4 + 6 * (0.025 + 490_000 / (4 * GBIT))
    assert jansen_step_s(0.135, 490_000, links, 64e6) == pytest.approx(expected)
    assert jansen_step_s(0.135, 490_000, links[:1], 64e6) == 0.135


def test_jansen_prefers_few_workers_on_slow_links():
    assert jansen(question(one_way_s=0.0001), refuse).arm == Arm(4)
    assert jansen(question(one_way_s=0.1), refuse).arm == Arm(1)


def test_the_largest_n_that_is_half_efficient():
    assert half_efficient({1: 1.0, 2: 1.7, 4: 2.0, 8: 2.5}) == 4
    assert half_efficient({1: 1.0, 2: 0.8}) == 1


def test_a_step_of_goodput_by_hand():
    model = Goodput(alpha_c=0.01, beta_c=0.001, alpha_n=0.05, beta_n=0.02, gamma=1.0)
    assert model.step_s(1, 100) == pytest.approx(0.01 + 0.1)
    assert model.step_s(4, 100) == pytest.approx(0.01 + 0.025 + 0.05 + 2 * 0.02)
    lapped = replace(model, gamma=2.0)
    assert lapped.step_s(2, 100) == pytest.approx(math.hypot(0.01 + 0.05, 0.05))


def test_goodput_takes_a_network_that_it_has_not_seen_for_free():
    model = fit_goodput(question(), {1: 0.135})
    assert model.step_s(4, 128) == pytest.approx(0.011 + 0.000969 * 32, rel=0.01)


def test_goodput_explains_the_steps_that_it_has_seen():
    law = sharing(0.05, 0.02)
    seen_s = {n: law(Arm(n)) for n in (1, 2, 4)}
    model = fit_goodput(question(), seen_s)
    assert {n: model.step_s(n, 128) for n in seen_s} == pytest.approx(seen_s, rel=0.05)


def test_adaptdl_goes_to_all_nodes_first_and_back_where_that_gains():
    near, far = sharing(0.001), sharing(0.0, 0.3)
    assert adaptdl(question(), near).arm == Arm(4)
    assert near.seen == [Arm(1), Arm(4)]
    assert adaptdl(question(), far).arm.n_workers < 4
    assert far.seen[:2] == [Arm(1), Arm(4)]


def test_ernest_runs_up_to_half_of_the_nodes():
    law = sharing(0.02)
    answer = ernest(question(), law)
    assert law.seen == [Arm(2)]
    assert answer.step_s[Arm(2)] == pytest.approx(law(Arm(2)), rel=0.05)
    assert set(answer.step_s) == set(ARMS)


def test_ernest_foresees_a_law_of_its_own_form():
    def law(arm):
        return 0.135 * (arm.n_workers == 1) or 0.011 + 0.000969 * 128 / arm.n_workers + 0.03 * (
            arm.n_workers - 1
        )

    answer = ernest(question(), law)
    for arm in ARMS[1:]:
        assert answer.step_s[arm] == pytest.approx(law(arm), rel=0.15)


def test_cherrypick_finds_the_best_of_many_arms_and_leaves_some_untried():
    arms = (Arm(1), *(Arm(n, x) for n in (2, 3, 4, 6, 8, 12, 16) for x in ("a", "b")))

    def law(arm):
        penalty = 1.0 if arm.exchange == "a" else 1.6
        return penalty * (0.011 + 0.124 / arm.n_workers + 0.002 * arm.n_workers)

    watched = Watched(law)
    answer = cherrypick(question(arms), watched)
    assert law(answer.arm) <= 1.1 * min(law(arm) for arm in arms)
    assert len(watched.seen) == len(set(watched.seen)) < len(arms)


def test_the_covariance_of_near_arms_is_one_and_falls():
    near, middle, far = matern(np.array([0.0, 1.0, 5.0]))
    root5 = math.sqrt(5.0)
    assert near == 1.0
    assert middle == pytest.approx((1 + root5 + 5 / 3) * math.exp(-root5))
    assert far < 0.01


def test_cherrypick_chooses_only_what_it_tried():
    watched = sharing(0.02)
    answer = cherrypick(question(), watched)
    assert answer.arm in watched.seen


def test_the_nearest_case_of_the_table_decides():
    near = Case(128, 0.001, {Arm(1): 1.0, Arm(2): 1.6, Arm(4): 2.5})
    far = Case(128, 0.1, {Arm(1): 1.0, Arm(2): 0.8, Arm(4): 0.3})
    asked = question(table=(near, far))
    answer = nearest(asked, refuse)
    assert answer.arm == Arm(4)
    assert answer.step_s[Arm(4)] == pytest.approx(0.135 / 2.5, rel=0.01)
    assert nearest(replace(asked, rtt_s=0.2), refuse).arm == Arm(1)


def test_an_empty_table_leaves_one_worker():
    assert nearest(question(), refuse).arm == Arm(1)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_chooses_among_the_arms_that_were_offered(name):
    table = (Case(128, 0.001, {Arm(1): 1.0, Arm(2): 1.6}),)
    for arms in ((Arm(1),), ARMS[:2], ARMS, BOTH):
        watched = sharing(0.03)
        answer = RULES[name](question(arms, table=table), watched)
        assert answer.arm in arms
        assert set(answer.step_s) | set(watched.seen) <= set(arms)
        assert all(s > 0 for s in answer.step_s.values())


@pytest.mark.parametrize("name", ["Ernest", "CherryPick", "Jansen"])
def test_rules_that_foresee_steps_keep_a_price_and_a_limit(name):
    price = {arm: 0.1 * arm.n_workers for arm in ARMS}
    dear = question(price=price)
    assert RULES[name](dear, sharing(0.001)).arm == Arm(1)
    hurried = replace(dear, limit_s=dict.fromkeys(ARMS, 0.080))
    assert RULES[name](hurried, sharing(0.001)).arm in {Arm(2), Arm(3)}  # one is too slow


def test_where_no_arm_keeps_its_limit_the_least_over_it_is_taken():
    asked = question(limit_s=dict.fromkeys(ARMS, 0.001))
    assert asked.best({Arm(1): 0.1, Arm(2): 0.05}) == Arm(2)
