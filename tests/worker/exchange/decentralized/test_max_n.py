"""Which gradients go first."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.max_n import choose


def test_entries_near_the_peak_of_their_own_variable_go_first():
    values = np.array([10, 9, 1, 0.5, -0.01, 0.009, 0], np.float32)
    chosen = choose(values, Layout([4, 3]), 4)
    assert chosen.indices.tolist() == [0, 1, 4, 5]
    assert 10 <= chosen.n_percent < 90


def test_everything_goes_where_it_fits_and_nothing_where_nothing_fits():
    layout = Layout([2, 2])
    assert choose(np.ones(4, np.float32), layout, 4).indices is None
    assert choose(np.ones(4, np.float32), layout, 0).indices.size == 0
    assert choose(np.zeros(4, np.float32), layout, 3).indices.size == 0


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(1, 100), st.data())
def test_never_more_than_fit_and_none_less_significant_than_one_that_stays(sizes, n, data):
    layout = Layout(sizes)
    seed = data.draw(st.integers(0, 1000))
    values = np.random.default_rng(seed).standard_cauchy(layout.size).astype(np.float32)
    chosen = choose(values, layout, n)
    if chosen.indices is None:
        assert n >= layout.size
        return
    assert len(chosen.indices) <= n
    assert (np.diff(chosen.indices) > 0).all()
    ratios = np.concatenate([np.abs(v) / np.abs(v).max() for v in layout.variables(values)])
    goes = np.zeros(layout.size, bool)
    goes[chosen.indices] = True
    assert ratios[goes].min(initial=1) >= ratios[~goes].max(initial=0) - 1e-6
    within = ratios >= 1 - chosen.n_percent / 100 - 1e-6
    assert within[goes].all()


def test_a_large_model_fills_most_of_its_budget_from_a_sample():
    rng = np.random.default_rng(0)
    layout = Layout([100_000, 50, 30_000])
    values = rng.normal(size=layout.size).astype(np.float32)
    for n in (1000, 10_000, 100_000):
        assert 0.85 * n <= len(choose(values, layout, n).indices) <= n


def test_a_wider_link_has_a_greater_n():
    values = np.random.default_rng(0).normal(size=500).astype(np.float32)
    ns = [choose(values, Layout([500]), n).n_percent for n in (5, 50, 250, 500)]
    assert ns == sorted(ns)
    assert ns[0] < 50 < ns[2] < ns[3] == 100
