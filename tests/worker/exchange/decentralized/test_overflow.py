"""Whose affair a gradient is that overflows."""

import numpy as np

from launcher.worker.exchange.decentralized.overflow import MOST_IN_A_ROW, Overflows


def test_a_scale_that_is_too_high_is_the_optimizers_affair_and_divergence_is_not():
    overflows, infinite, finite = Overflows(), np.array([1, np.inf]), np.array([1, 2.0])
    assert not overflows.note(finite)
    for _ in range(2):
        assert all(overflows.note(infinite) for _ in range(MOST_IN_A_ROW))
        assert not overflows.note(infinite)
        assert not overflows.note(finite)
