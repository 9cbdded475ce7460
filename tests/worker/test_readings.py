"""Telling the passes that train from those that only look."""

import pytest

from launcher.worker.readings import Readings


class Script:
    """Reads and trains as a script's loop does, and notes which elements were known to train."""

    def __init__(self):
        self.readings, self.n_applied = Readings(), 0

    def read(self, reading):
        self.readings.note(self.n_applied)
        return self.readings.take(reading)

    def train(self, times=1):
        self.n_applied += times

    def loop(self, key, n=4, every=1):
        """One pass with an application of gradients after every so many elements; 0: none."""
        reading, known = self.readings.begin(key, can_be_cut=True), []
        for i in range(1, n + 1):
            known.append(self.read(reading))
            if every and i % every == 0:
                self.train()
        self.readings.note(self.n_applied)
        self.readings.end(reading)
        return known


def test_a_pass_is_known_to_train_when_it_has_trained_once():
    script = Script()
    assert script.loop("train") == [False, True, True, True]
    assert script.loop("train") == [True] * 4


def test_a_pass_without_applied_gradients_never_trains():
    script = Script()
    script.loop("train")
    assert script.loop("validation", every=0) == [False] * 4


@pytest.mark.parametrize("n_optimizers", [1, 2])
def test_several_optimizers_make_one_step(n_optimizers):
    script = Script()
    reading, known = script.readings.begin("gan", can_be_cut=True), []
    for _ in range(4):
        known.append(script.read(reading))
        script.train(n_optimizers)
    assert known == [False, True, True, True]


def test_gradients_may_be_applied_after_every_third_batch():
    script = Script()
    assert script.loop("train", n=9, every=3) == [False] * 3 + [True] * 6


def test_a_pass_that_pauses_is_doubted_until_it_trains_again():
    script = Script()
    reading = script.readings.begin("train", can_be_cut=True)
    known = []
    for trains in (True, True, False, True, True):
        known.append(script.read(reading))
        if trains:
            script.train()
    assert known == [False, True, True, False, True]


def test_the_same_lines_may_train_and_then_only_look():
    script = Script()
    assert script.loop("both") == [False, True, True, True]
    assert script.loop("both", every=0) == [True, False, False, False]
    assert script.loop("both") == [False, True, True, True]
    assert script.loop("both", every=0) == [False] * 4


def test_a_validation_inside_of_a_pass_does_not_train():
    script = Script()
    train = script.readings.begin("train", can_be_cut=True)
    for _ in range(3):
        script.read(train)
        script.train()
        assert script.loop("validation", n=2, every=0) == [False, False]
    assert script.read(train)


def test_an_iterator_that_is_only_looked_at_now_and_then_does_not_train():
    script = Script()
    train, validation = (script.readings.begin(k, can_be_cut=True) for k in ("train", "val"))
    for step in range(6):
        script.read(train)
        script.train()
        if step % 2:
            assert not script.read(validation)
    assert script.read(train)


def test_two_passes_that_are_read_in_one_step_stay_whole():
    script = Script()
    pair = [script.readings.begin(key, can_be_cut=True) for key in ("x", "y")]
    for _ in range(4):
        assert [script.read(reading) for reading in pair] == [False, False]
        script.train()
