"""The reference models are scripts that run as they are, and that the launcher takes."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.preflight import check_script
from tests.models.models_worker import MODELS, SHORT

SCRIPTS = sorted({script for script, _ in SHORT.values()})


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_launcher_takes_each_script(script: str, tmp_path: Path) -> None:
    check_script(MODELS / f"{script}.py", MODELS.parent, home=tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_neither_import_the_launcher_nor_name_places_of_one_machine(script: str) -> None:
    text = (MODELS / f"{script}.py").read_text()
    assert not re.search(r"^(from|import) (launcher|policies)", text, re.MULTILINE)
    assert not re.search(r"[\"'](/|~)", text)


@pytest.fixture
def digits() -> Iterator[Any]:
    sys.path.insert(0, str(MODELS))
    try:
        import moving_digits

        yield moving_digits
    finally:
        sys.path.remove(str(MODELS))


def test_enlarged_digits_look_like_the_small_ones(digits: Any) -> None:
    from sklearn.datasets import load_digits

    images, answers = digits.enlarged_digits()
    small = load_digits().images / 16.0
    assert images.shape == (1797, 16, 16, 1)
    assert images.min() >= 0.0 and images.max() <= 1.0
    halved = images[..., 0].reshape(-1, 8, 2, 8, 2).mean(axis=(2, 4))
    assert np.corrcoef(halved.ravel(), small.ravel())[0, 1] > 0.97
    assert (answers == load_digits().target).all()


def test_no_digit_is_in_both_parts(digits: Any) -> None:
    images, answers, test_images, test_answers = digits.digit_images()
    assert (len(images), len(test_images)) == (1437, 360)
    assert len(answers) == 1437
    assert min(np.bincount(test_answers)) >= 34
    train = {image.tobytes() for image in images}
    assert sum(image.tobytes() in train for image in test_images) == 0


def test_digits_that_move_stay_in_the_frame(digits: Any) -> None:
    clips, answers, test_clips, _ = digits.moving_digits(n_clips=25, noise=0.0)
    assert (clips.shape, test_clips.shape) == ((20, 8, 24, 24, 1), (5, 8, 24, 24, 1))
    ink = clips.sum(axis=(2, 3, 4))
    np.testing.assert_allclose(ink, ink[:, :1].repeat(8, axis=1), rtol=1e-5)
    assert all((clip[0] != clip[-1]).any() for clip in clips)
    again, same, *_ = digits.moving_digits(n_clips=25, noise=0.0)
    assert (again == clips).all() and (same == answers).all()


def test_two_digits_move_at_a_time(digits: Any) -> None:
    clips, test_clips = digits.moving_pairs(n_clips=10)
    assert (clips.shape, test_clips.shape) == ((8, 10, 32, 32, 1), (2, 10, 32, 32, 1))
    assert clips.min() >= 0.0 and clips.max() <= 1.0


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("models")
    worker = Path(__file__).with_name("models_worker.py")
    command = [sys.executable, str(worker), "results.json"]
    subprocess.run(command, cwd=folder, check=True, timeout=800)
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


@pytest.mark.tensorflow
@pytest.mark.patient
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SHORT)
def test_each_script_trains_and_says_how_well(name: str, results: dict[str, Any]) -> None:
    print(results[name])
    assert "Traceback" not in results[name]
    assert re.search(r"^test: |val_accuracy", results[name], re.MULTILINE)


@pytest.mark.tensorflow
@pytest.mark.patient
@pytest.mark.timeout(900)
def test_a_perceptron_learns_in_seconds(results: dict[str, Any]) -> None:
    found = re.search(r"^test: accuracy (\S+),", results["mlp"], re.MULTILINE)
    assert found and float(found[1]) > 0.93


@pytest.mark.tensorflow
@pytest.mark.patient
@pytest.mark.timeout(900)
def test_parameters_are_as_many_as_documented(results: dict[str, Any]) -> None:
    print(results["parameters"])
    documented = " ".join((MODELS / f"{script}.py").read_text() for script in SCRIPTS)
    counts = results["parameters"]
    assert {name for name, count in counts.items() if f"{count:,}" not in documented} == set()


@pytest.mark.tensorflow
@pytest.mark.patient
@pytest.mark.timeout(900)
def test_public_data_sets_are_brought_into_shape(results: dict[str, Any]) -> None:
    pictures = [[4, 32, 32, 3], [4], [2, 32, 32, 3], [2]]
    assert results["downloads"]["cifar10"] == pictures
    clips = [[9, 19, 32, 32, 1], [9, 19, 32, 32, 1], [1, 19, 32, 32, 1], [1, 19, 32, 32, 1]]
    assert results["downloads"]["moving-mnist"] == clips
