"""Rules that train together, in simulated time over simulated links."""

from dataclasses import replace

import numpy as np
import pytest

from launcher.worker.exchange.decentralized.batching import Growth
from launcher.worker.exchange.decentralized.dlion import Dlion, DlionOptions
from launcher.worker.exchange.decentralized.transfer import TransferOptions
from scripts.micro_clouds.perceptron import Perceptron, digits
from scripts.micro_clouds.settings import shards_of
from scripts.micro_clouds.simulation import Simulation
from scripts.micro_clouds.synchronous import Synchronous
from scripts.micro_clouds.world import Killed, Link, Ring, Slowed, Wires, World, sites

N_HIDDEN = 16
NEAR, FAR = Link(0.0003, 5e5), Link(0.04, 5e3)  # of a model of 5 kB
WORLD = World((800.0, 800.0, 400.0, 200.0), sites((2, 2), NEAR, {(0, 1): FAR}))
OPTIONS = DlionOptions(transfer=TransferOptions(every_steps=20))


def new_replica():
    return Perceptron(64, N_HIDDEN, 0.2)


def decentralized(rank, peers, is_new):
    return Dlion(rank, peers, new_replica().layout, OPTIONS, is_new=is_new)


def exact(rank, peers, is_new):
    return Synchronous(rank, peers)


@pytest.fixture(scope="module")
def data():
    training, test = digits(np.random.default_rng(0))
    return shards_of(training, 4, np.random.default_rng(0), skewed=False), test


def train(data, world, rule=decentralized, *, until_s=3.0, wires=None, growth=None):
    simulation = Simulation(
        world,
        wires or Wires(world.links),
        new_rule=rule,
        new_replica=new_replica,
        shards=data[0],
        test=data[1],
        global_batch=64,
        weighted=rule is decentralized,
        growth=growth,
    )
    return simulation.run(until_s, look_every_s=0.25)


def steps_between(course, rank, begin_s, end_s):
    return sum(begin_s <= at_s < end_s for at_s in course.step_times_s[rank])


def test_over_thin_links_workers_learn_while_exact_training_waits(data):
    course = train(data, WORLD)
    around = train(data, WORLD, exact, wires=Ring(WORLD.links, 4))
    assert course.accuracy_at(3) > 0.8 > 0.6 > around.accuracy_at(3)
    assert max(course.steps) > 4 * max(around.steps)
    thin, wide = course.sent_bytes[0, 2] / course.steps[0], course.sent_bytes[0, 1]
    assert thin < 0.1 * wide / course.steps[0]
    most = 3 * FAR.bytes_per_s + 4 * new_replica().layout.size  # and weights that wait to leave
    assert max(course.sent_bytes[pair] for pair in [(0, 2), (3, 1)]) <= 1.1 * most


def test_a_worker_that_is_slowed_to_a_fifth_hardly_slows_the_others(data):
    before, after = train(data, WORLD), train(data, replace(WORLD, events=(Slowed(1.0, 1, 160.0),)))
    for rank in (0, 2, 3):
        kept = steps_between(after, rank, 1.0, 3.0) / steps_between(before, rank, 1.0, 3.0)
        assert kept > 0.7  # their slices grow, so that their steps do
    assert after.accuracy_at(3) > before.accuracy_at(3) - 0.05


def test_a_dead_worker_stops_nobody_and_catches_up_when_it_returns(data):
    course = train(data, replace(WORLD, events=(Killed(1.0, 3, back_at_s=2.0),)), until_s=4.0)
    for rank in (0, 1, 2):
        gaps_s = np.diff([at_s for at_s in course.step_times_s[rank] if at_s > 0.5])
        assert gaps_s.max() < 0.2
    assert np.isnan(course.accuracies[6, 3])  # at 1.5 s
    assert course.accuracies[-1, 3] > course.accuracies[-1, :3].mean() - 0.1
    assert steps_between(course, 3, 2.0, 4.0) > 10


def test_the_global_batch_grows_when_asked(data):
    growth = Growth(factor=2, every_steps=10, max_fraction=0.1)
    course = train(data, WORLD, until_s=1.5, growth=growth)
    ends = [examples[-1] for examples in course.step_examples]
    assert sum(examples[0] for examples in course.step_examples) == 64
    assert sum(ends) == pytest.approx(0.1 * sum(len(shard.labels) for shard in data[0]), rel=0.15)
    assert course.accuracy_at(1.5) > 0.6


def test_exact_training_in_the_simulation_is_one_machines(data):
    course = train(data, replace(WORLD, links=sites((4,), NEAR, {})), exact, until_s=0.5)
    assert max(course.steps) - min(course.steps) <= 1
    last = course.accuracies[-1]
    assert np.ptp(last) == 0
