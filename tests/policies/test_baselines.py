import pytest

from policies.baselines import RingLink, adaptdl, jansen, jansen_step_s, largest, one_worker

GBIT = 1.25e8


def test_the_simple_rules():
    assert one_worker((1, 2, 4)) == 1
    assert largest((1, 2, 4)) == 4


def test_jansen_by_hand():
    links = [RingLink(0.025, GBIT)] * 4
    expected = 0.135 / 4 + 6 * (0.025 + 490_000 / (4 * GBIT))
    assert jansen_step_s(0.135, 490_000, links, 64e6) == pytest.approx(expected)
    assert jansen_step_s(0.135, 490_000, links[:1], 64e6) == 0.135


def test_jansen_prefers_few_workers_on_slow_links():
    def links(one_way_s):
        return lambda n: [RingLink(one_way_s, GBIT)] * n

    assert jansen(0.135, 490_000, links(0.0001), (1, 2, 4)) == 4
    assert jansen(0.135, 490_000, links(0.100), (1, 2, 4)) == 1


def test_adaptdl_takes_the_largest_n_that_is_half_efficient():
    assert adaptdl({1: 1.0, 2: 0.6, 4: 0.5, 8: 0.4}) == 4
    assert adaptdl({1: 1.0, 2: 1.2}) == 1
