"""A model that is trained in stages trains as it does on one machine."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from policies.pipeline import Hop, Part, Split, StageNode, best_split

pytestmark = [pytest.mark.tensorflow, pytest.mark.patient, pytest.mark.timeout(900)]

EXACT = ["deep_mlp", "weighted_rows", "skips_across_cuts", "many_inputs_and_outputs", "conv_lstm"]
STATISTICAL = ["half_precision", "batch_norm_and_dropout"]
LINK = Hop(latency_s=1e-3, bytes_per_s=1e8)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    command = [sys.executable, "-m", "tests.worker.pipeline.split_worker", "results.json"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    subprocess.run(command, cwd=folder, check=True, timeout=800, env=environment)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("case", EXACT + STATISTICAL)
def test_stages_train_as_one_model(case, results):
    found = results[case]
    assert "error" not in found, found.get("error")
    assert found["found"].keys() == found["expected"].keys()
    for name, values in found["expected"].items():
        np.testing.assert_allclose(
            found["found"][name], values, rtol=found["tolerance"], err_msg=name
        )
    if case in EXACT:
        assert found["weights_differ_by"] < 1e-4


def test_each_cut_is_crossed_once_each_way_by_each_micro_batch(results):
    found = results["skips_across_cuts"]
    n_micro_batches = 2 * 3 * 4  # epochs, batches, micro-batches
    assert found["n_sent"] == 2 * len(found["cuts"]) * n_micro_batches + found["n_variables"]


def test_what_is_not_exact_is_named(results):
    assert results["deep_mlp"]["differences"] == []
    said = " ".join(results["batch_norm_and_dropout"]["differences"])
    assert "BatchNormalization takes its statistics from a micro-batch" in said
    assert "dropout" in said


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("subclassed", "the order of its layers is known to the code of Own only"),
        ("no input", "begin it with keras.Input"),
        ("own step", "OwnStep has a train_step of its own"),
        ("not compiled", "not compiled with a loss"),
        ("global norm", "global_clipnorm needs the gradients of all stages"),
        ("averages", "use_ema keeps averages"),
        ("scaled", "a scaled loss"),
        ("sum", "no mean over the batch (reduction 'sum')"),
        ("ignored class", "ignores a class"),
        ("over the batch", "the loss dice is no mean over the batch's rows"),
        ("over the batch, too", "the loss tversky is no mean"),
        ("masked output", "its output has a mask"),
        ("stateful", "is stateful"),
        ("no model", "builtins.str is no model of Keras 3"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_reason(case, reason, results):
    said = results["refusals"][case]
    assert reason in said
    assert said.endswith("Train it data-parallel (--parallelism data).")


def test_a_model_says_where_it_cannot_be_cut(results):
    places = results["places"]
    assert places["mask"][-1] is None
    assert "has a mask, which does not travel" in places["mask"][0]
    assert "differs in size from batch to batch" in places["lengths"][0]
    assert places["lengths"][1] is None
    assert places["shared"] == [
        "twice is used on both sides of the cut",
        "twice is used on both sides of the cut",
        None,
    ]


def test_layers_are_measured(results):
    cost = results["cost"]
    assert cost["weights_stayed"]
    wide, relu, narrow = cost["layers"]
    assert [layer["name"] for layer in cost["layers"]] == ["wide", "relu", "narrow"]
    assert cost["pass_s"] > 0.0
    assert min(layer["compute_s"] for layer in cost["layers"]) == 0.0
    assert wide["state_bytes"] == 4 * 4 * (256 * 512 + 512)  # weights, gradients, Adam's two
    assert relu["state_bytes"] == 0
    assert wide["cut_bytes"] == 8 * 512 * 4
    assert narrow["cut_bytes"] == 8 * 2 * 4
    split = best_split([Part(**layer) for layer in cost["layers"]], [StageNode()] * 2, [LINK], 4)
    assert isinstance(split, Split)
    assert wide["kept_bytes"] == 8 * (256 + 512) * 4
