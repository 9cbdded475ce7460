"""Unmodified Keras models that train decentralized, in processes of their own."""

import pytest

from tests.worker.groups import run_processes

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def ranks(request):
    return run_processes("decentralized_worker.py", request.param, 2)


@pytest.fixture(scope="module")
def sites():
    return run_processes("decentralized_worker.py", "keras", 2, ["rome,oslo"])


def test_workers_learn_from_data_that_only_their_sites_have(sites):
    first, second = sites
    assert (first["n_iterations"], second["n_iterations"]) == (16 * 2, 16 * 4)
    assert (first["rows"], second["rows"]) == (48, 48)  # each has its batches to itself
    for found in sites:
        assert found["loss"][-1] < 0.8 * found["loss"][0]
    for own, other in zip(first["weights"], second["weights"], strict=True):
        assert (own == other).all()  # the first one waited, and keeps what was trained to the end
    assert first["accuracy"] > 0.75
    assert second["positions"]["place_by_site"]["oslo"] == [0, 64]


def test_every_worker_learns_and_takes_the_scripts_steps(ranks):
    for rank in ranks:
        for n_hidden in (16, 24):
            found = rank[n_hidden]
            assert found["accuracy"] > 0.8
            assert found["loss"][-1] < 0.7 * found["loss"][0]
            assert found["n_iterations"] == 8 * 9 >= found["n_steps"] > 4 * 9
            assert found["n_predictions"] == 480
            assert found["exchange_loss"] < found["loss"][0]
            assert sum(found["sent_bytes"].values()) > 0
            assert len(found["n_percent"]) <= 1  # the other one may have ended before


def test_the_workers_share_each_batch_out(ranks):
    for n_hidden in (16, 24):
        assert 0.5 * 48 <= sum(rank[n_hidden]["rows"] for rank in ranks) <= 1.5 * 48


def test_a_loop_of_the_scripts_own_is_refused_with_the_remedy(ranks):
    for rank in ranks:
        assert "ScriptError" in rank["own_loop"]
        assert "Use model.fit" in rank["own_loop"]


def test_a_step_that_trains_two_models_is_refused_with_the_remedy(ranks):
    for rank in ranks:
        assert "ScriptError" in rank["two_models"]
        assert "as a GAN's does" in rank["two_models"]
        assert "--strategy direct" in rank["two_models"]
