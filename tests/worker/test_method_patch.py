"""Wrapping a method throughout a class tree."""

from launcher.worker.method_patch import wrap_method
from launcher.worker.seeds import folded_seed


def tree():
    class Base:
        def work(self, text):
            return text

    class Child(Base):
        def work(self, text):
            return "child " + super().work(text)

    return Base, Child


def shout(original, _instance, text):
    return original(text) + "!"


def test_base_and_override_are_wrapped_once_each():
    base, child = tree()
    wrap_method(base, "work", shout)
    assert base().work("a") == "a!"
    assert child().work("a") == "child a!!"


def test_classes_that_come_later_are_wrapped():
    base, child = tree()
    wrap_method(base, "work", shout)

    class Later(child):
        def work(self, text):
            return "later " + super().work(text)

    class Mixin:
        def work(self, text):
            return "mixin " + text

    class Mixed(Mixin, base):
        pass

    assert Later().work("a") == "later child a!!!"
    assert Mixed().work("a") == "mixin a!"


def test_a_subclass_may_take_arguments():
    class Base:
        def __init_subclass__(cls, /, word="", **kwargs):
            super().__init_subclass__(**kwargs)
            cls.word = word

        def work(self, text):
            return text

    wrap_method(Base, "work", shout)

    class Child(Base, word="hello"):
        pass

    assert Child.word == "hello"
    assert Child().work("a") == "a!"


def test_overrides_can_be_left_alone():
    base, child = tree()
    wrap_method(base, "work", shout, subclasses=False)
    assert child().work("a") == "child a!"


def test_seeds_differ_between_ranks_and_rank_0_keeps_its_own():
    assert folded_seed(123, 0) == 123
    seeds = {folded_seed(seed, rank) for seed in (0, 123, 2**31 - 3) for rank in range(1, 50)}
    assert len(seeds) == 3 * 49
    assert all(0 <= seed < 2**31 - 2 for seed in seeds)
