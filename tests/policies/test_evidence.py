"""How large deviations are, estimated from made-up sweeps of which that is known."""

from dataclasses import replace

import numpy as np
import pytest

from policies.data.sweep import experience_of
from policies.evidence import estimated, stretch_of, swept
from policies.features import NOISE, OWN
from policies.one_thread import one_thread
from policies.rows import sweep_rows
from policies.warmth import OPEN, opened, prior_at_home
from scripts.proof.synthetic import synthetic
from tests.policies.sweeps import Truth, cells_of

NAMES = ("deep_mlp", "small_cnn", "lstm")
CELLS = [cell for cell in synthetic(3, NAMES) if len(set(cell.cpus)) == 1]


@pytest.fixture(scope="module")
def found():
    """Rows, scales and weights of a made-up sweep: 4 % of noise, nothing of a setting alone."""
    rows = swept(sweep_rows(experience_of(CELLS)))
    with one_thread():
        return rows, *estimated(rows)


def test_noise_is_what_runs_of_one_cell_differ_by(found):
    assert found[1].noise * NOISE == pytest.approx(0.035, rel=0.25)


def test_what_no_setting_has_alone_is_found_to_be_small(found):
    assert found[1].alone < 0.5


def test_intervals_hold_steps_of_scripts_and_networks_that_were_left_out(found):
    rows, scales, used = found
    with one_thread():
        stretch = stretch_of(rows, scales, used)
        assert 0.8 < stretch < 2.0  # of three scripts only
        assert stretch_of(rows, scales.times(0.8), used) == pytest.approx(1.25 * stretch)


def test_scripts_that_differ_more_are_found_to(found):
    alike = swept(sweep_rows(experience_of(cells_of(Truth(noise=0.02)))))
    unlike = swept(sweep_rows(experience_of(cells_of(Truth(noise=0.02, by_workload=0.3)))))
    with one_thread():
        far, near = estimated(unlike)[0], estimated(alike)[0]
    assert far.exchanging + far.computing > near.exchanging + near.computing


def test_disturbed_cells_hardly_make_the_noise_larger(found):
    rng = np.random.default_rng(1)
    strange = (rng.random(len(CELLS)) < 0.05) & [cell.n > 1 for cell in CELLS]
    cells = [
        replace(cell, mean_s=2.0 * cell.mean_s) if off else cell
        for cell, off in zip(CELLS, strange, strict=True)
    ]
    disturbed = experience_of(cells)
    with one_thread():
        scales, used = estimated(swept(sweep_rows(disturbed)))
    pairs = zip(disturbed, experience_of(CELLS), strict=True)
    assert scales.noise < 1.5 * found[1].noise
    assert np.median(used[[x.step_s != y.step_s for x, y in pairs]]) < 0.1 * np.median(used)


def test_few_rows_leave_deviations_as_assumed():
    rows = swept(sweep_rows(experience_of(cells_of())[:3]))
    with one_thread():
        scales, used = estimated(rows)
        assert stretch_of(rows, scales, used) == 1.0
    assert scales.shared == pytest.approx(1.0, abs=0.4)
    assert scales.exchanging == pytest.approx(1.0, abs=0.4)


def test_another_cluster_is_less_sure_than_the_sweep_s_own():
    home = prior_at_home(experience_of(cells_of()))
    away = opened(home)
    assert (away.noise, away.alone) == (1.0, 1.0)
    assert home.noise < 1.0
    wider = np.diag(away.covariance - home.covariance)
    assert (wider >= -1e-12).all() and wider.max() > 0.5 * OPEN
    assert np.diag(away.covariance)[list(OWN)] == pytest.approx(np.diag(home.covariance)[list(OWN)])
