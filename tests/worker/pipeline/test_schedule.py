"""The order of passes in a pipeline."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.worker.pipeline.schedule import Backward, Forward, one_forward_one_backward

F, B = Forward, Backward


def test_the_last_stage_alternates_from_the_start():
    assert one_forward_one_backward(2, 3, 3) == (F(0), B(0), F(1), B(1), F(2), B(2))


def test_a_stage_runs_ahead_by_the_stages_behind_it():
    assert one_forward_one_backward(0, 3, 4) == (F(0), F(1), F(2), B(0), F(3), B(1), B(2), B(3))
    assert one_forward_one_backward(0, 3, 1) == (F(0), B(0))


@given(st.integers(1, 6), st.integers(1, 9))
def test_every_stage_gets_through_without_waiting_for_ever(n_stages, n_micro):
    orders = [list(one_forward_one_backward(k, n_stages, n_micro)) for k in range(n_stages)]
    done = set()
    while any(orders):
        ready = [
            k for k, order in enumerate(orders) if order and needs(order[0], k, n_stages) <= done
        ]
        assert ready, orders
        for k in ready:
            done.add((k, orders[k].pop(0)))

    assert done == {(k, p(i)) for k in range(n_stages) for p in (F, B) for i in range(n_micro)}


def needs(one, stage, n_stages):
    """What must be done before."""
    match one:
        case Forward(i):
            return {(stage - 1, one)} if stage else set()
        case Backward(i):
            return {(stage, Forward(i))} if stage == n_stages - 1 else {(stage + 1, one)}


@given(st.integers(1, 6), st.integers(1, 9))
def test_a_stage_holds_no_more_than_the_stages_from_it_on(n_stages, n_micro):
    for stage in range(n_stages):
        held = most = 0
        for one in one_forward_one_backward(stage, n_stages, n_micro):
            held += 1 if isinstance(one, Forward) else -1
            most = max(most, held)
        assert held == 0
        assert most == min(n_stages - stage, n_micro)
