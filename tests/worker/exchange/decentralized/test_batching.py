"""Local batches, budgets and choices of whom to ask."""

import pytest

from launcher.worker.exchange.decentralized.batching import Growth, LocalBatch, Slices, Speed, share
from launcher.worker.exchange.decentralized.budget import FIRST_BYTES, LinkBudget, StepClock
from launcher.worker.exchange.decentralized.message import Standing
from launcher.worker.exchange.decentralized.transfer import (
    TransferOptions,
    source_of,
    source_of_all,
)


def test_local_batches_are_in_proportion_to_speed_and_add_up_to_the_global_one():
    speeds = {0: 100.0, 1: 300.0, 2: None}
    assert [share(rank, speeds) for rank in range(3)] == pytest.approx([1 / 6, 1 / 2, 1 / 3])
    batches = [LocalBatch(rank, 96, 3) for rank in range(3)]
    assert [batch.n_examples for batch in batches] == [32, 32, 32]
    for batch in batches:
        batch.follow(96, speeds)
    assert [batch.n_examples for batch in batches] == [16, 48, 32]


def test_a_small_change_of_speed_moves_nothing():
    batch = LocalBatch(0, 100, 2)
    batch.follow(100, {0: 100.0, 1: 110.0})
    assert batch.n_examples == 50
    batch.follow(100, {0: 1e-6, 1: 110.0})
    assert batch.n_examples == 1


def test_rows_of_a_batch_are_shared_out_by_speed_among_those_that_live():
    speeds = {0: 100.0, 1: 300.0, 2: None}
    slices = [Slices(rank, range(3)) for rank in range(3)]
    assert [each.bounds(96) for each in slices] == [(0, 32), (32, 64), (64, 96)]
    for each in slices:
        each.follow(speeds)
    assert [each.bounds(96) for each in slices] == [(0, 16), (16, 64), (64, 96)]
    slices[0].follow({**speeds, 0: 101.0})
    assert slices[0].bounds(96) == (0, 16)
    del speeds[1]
    slices[2].follow(speeds)
    assert slices[2].bounds(96) == (48, 96)


def test_every_worker_has_a_row_at_least():
    slices = Slices(2, range(3))
    slices.follow({0: 1.0, 1: 1.0, 2: 1e-9})
    assert slices.bounds(2) == (1, 2)
    assert Slices(1, range(3)).bounds(1) == (0, 1)


def test_the_workers_of_a_site_share_its_batches_out_alone():
    slices = [Slices(rank, (1, 3)) for rank in (1, 3)]
    assert [each.bounds(96) for each in slices] == [(0, 48), (48, 96)]
    for each in slices:
        each.follow({1: 100.0, 3: 300.0})
    assert [each.bounds(96) for each in slices] == [(0, 24), (24, 96)]


def test_speed_follows_a_change_within_a_few_steps():
    speed = Speed()
    assert speed.examples_per_s is None
    speed.note(0, 1.0)
    speed.note(10, 1.0)
    assert speed.examples_per_s == 10
    for _ in range(10):
        speed.note(10, 5.0)
    assert speed.examples_per_s == pytest.approx(2, rel=0.5)


def test_the_global_batch_grows_only_when_asked_and_never_beyond_its_part_of_the_data():
    assert Growth().global_batch(64, 10_000, 1000) == 64
    growth = Growth(factor=2, every_steps=10, max_fraction=0.25)
    assert [growth.global_batch(64, step, 1000) for step in (0, 9, 10, 25, 10**9)] == [
        64, 64, 128, 250, 250,
    ]  # fmt: skip
    assert growth.global_batch(300, 50, 1000) == 300
    assert growth.global_batch(64, 50, None) == 64
    with pytest.raises(ValueError, match="cannot grow"):
        Growth(factor=0.5)


def test_a_link_gets_what_it_carries_in_a_step_less_what_waits():
    budget = LinkBudget()
    assert budget.capacity_bytes(0.1, 0) == FIRST_BYTES
    assert budget.capacity_bytes(0.1, 1) == 0
    budget.note_transfer(0, 1.0)
    budget.note_transfer(100_000, 0.1)
    assert budget.capacity_bytes(None, 0) == pytest.approx(18_000)
    assert budget.capacity_bytes(0.1, 0) == pytest.approx(90_000)
    assert budget.capacity_bytes(0.1, 50_000) == pytest.approx(40_000)
    assert budget.capacity_bytes(0.1, 500_000) == 0


def test_a_budget_follows_the_link():
    budget = LinkBudget(1e6)
    for _ in range(40):
        budget.note_transfer(1000, 0.1)
    assert budget.rate_bytes_per_s == pytest.approx(1e4, rel=0.1)


def test_receipts_in_bursts_do_not_make_a_link_faster():
    budget = LinkBudget()
    for _ in range(20):
        for took_s in (0.3, 1e-5, 1e-5):  # of a peer that reads three messages at a time
            budget.note_transfer(1000, took_s)
    assert budget.rate_bytes_per_s == pytest.approx(1e4, rel=0.3)


def test_a_link_that_seems_dead_is_still_given_enough_to_show_that_it_lives():
    budget = LinkBudget(1.0, least_bytes=2048)
    assert budget.capacity_bytes(0.1, 0) == 2048
    assert budget.capacity_bytes(0.1, 1) == 0


def test_the_duration_of_steps_is_their_mean_of_late():
    clock = StepClock()
    clock.tick(0.0)
    assert clock.step_s is None
    for i in range(1, 50):
        clock.tick(0.2 * i)
    assert clock.step_s == pytest.approx(0.2)


def test_a_pause_between_two_steps_does_not_fill_links_with_what_they_carry_meanwhile():
    clock = StepClock()
    clock.tick(0.0)
    clock.tick(0.1)
    clock.tick(30.0)  # a validation
    assert clock.step_s < 0.2
    for i in range(1, 30):
        clock.tick(30.0 + 0.5 * i)  # but steps that stay long do count
    assert clock.step_s == pytest.approx(0.5, rel=0.02)


def at(loss, step=10):
    return Standing(step=step, loss=loss)


def test_weights_come_over_the_cheapest_path_from_one_as_good_as_the_best():
    peers = {1: at(0.500), 2: at(0.505), 3: at(0.8)}

    def source(options, own, capacities, peers=peers, size_bytes=100):
        return source_of(options, own, peers, capacities, size_bytes)

    capacities = {1: 10, 2: 1000, 3: 9000}
    assert source(TransferOptions(), at(0.7), capacities) == 2
    assert source(TransferOptions(as_good=0.0), at(0.7), capacities) == 1
    assert source(TransferOptions(), at(0.52), capacities) is None
    assert source(TransferOptions(), at(None), capacities) is None
    assert source(TransferOptions(), at(0.7), {1: 10}, {1: at(None)}) is None


def test_weights_that_would_travel_for_too_many_steps_stay_where_they_are():
    peers, options = {1: at(0.1), 2: at(0.5)}, TransferOptions(most_steps=10)
    assert source_of(options, at(0.7), peers, {1: 99, 2: 100}, 1000) == 2
    assert source_of(options, at(0.7), peers, {1: 100, 2: 100}, 1000) == 1
    assert source_of(options, at(0.7), peers, {1: 9}, 1000) is None


def test_a_new_worker_asks_one_that_is_in_step():
    peers = {1: at(1.0, step=100), 2: at(1.0, step=95), 3: at(1.0, step=3)}
    assert source_of_all(peers, {1: 10, 2: 20, 3: 1000}) == 2
    assert source_of_all({1: at(None, step=0)}, {1: 10}) is None
    assert source_of_all({}, {}) is None
