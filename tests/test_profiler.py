import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from launcher.profiler import (
    UNKNOWN_STEPS,
    Holding,
    ProfileCache,
    fingerprint,
    profile,
    step_line,
    workload_of,
)
from launcher.worker.job import Job
from launcher.worker.measurement import Measurement
from tests.fakes import a_node


def a_measurement() -> Measurement:
    return Measurement(
        global_batch=128,
        batch_rows=(128, 32),
        step_s=(0.138, 0.042),
        steps=12,
        epochs=5,
        validation_steps=3,
        early_stopping=False,
        n_params=86_000,
        payload_bytes=344_000,
        n_tensors=8,
        random_layers=(),
        max_workers=128,
        max_workers_reason="a batch has 128 rows",
        import_s=3.0,
        setup_s=1.5,
    )


def a_job() -> Job:
    return Job(
        run="brave-otter",
        archive=None,
        script="train.py",
        shown_root="/project",
        argv0="train.py",
        args=("--epochs", "3"),
        kind="fit",
        frameworks=("keras",),
        seed=7,
    )


def a_holding() -> Holding:
    return Holding(a_node(0), cpus=8, gpus=0)


# ---- c0 + c1 · rows


@given(st.floats(0, 1), st.floats(1e-6, 1e-2), st.integers(2, 4096), st.integers(2, 8))
def test_a_line_is_found_again(c0_s: float, c1_s: float, small: int, factor: int) -> None:
    rows = (small * factor, small)
    found = step_line(rows, [c0_s + c1_s * each for each in rows])
    assert found[0] == approx(c0_s, rel=1e-6, abs=1e-7)
    assert found[1] == approx(c1_s, rel=1e-6)


times = st.floats(1e-5, 1e3)


@given(st.integers(2, 4096), st.integers(2, 8), times, times)
def test_both_coefficients_are_never_negative(
    small: int, factor: int, big_s: float, small_s: float
) -> None:
    c0_s, c1_s = step_line((small * factor, small), (big_s, small_s))
    assert c0_s >= 0
    assert c1_s >= 0


@given(st.integers(2, 4096), st.integers(2, 8), times, times)
def test_the_whole_batch_takes_at_most_what_was_measured(
    small: int, factor: int, big_s: float, small_s: float
) -> None:
    c0_s, c1_s = step_line((small * factor, small), (big_s, small_s))
    assert c0_s + c1_s * small * factor <= big_s * (1 + 1e-9)


def test_a_smaller_batch_that_was_not_faster_means_a_constant_step() -> None:
    assert step_line((128, 32), (0.10, 0.11)) == (0.10, 0.0)


def test_a_line_below_zero_is_drawn_through_the_origin() -> None:
    assert step_line((128, 32), (1.28, 0.01)) == (0.0, approx(0.01))


@pytest.mark.parametrize("rows", [(1,), (3, 3)])
def test_one_batch_size_tells_a_constant_only(rows: tuple[int, ...]) -> None:
    assert step_line(rows, (0.2, 0.3)[: len(rows)]) == (0.2, 0.0)


# ---- remembered profiles


@pytest.fixture
def cache(tmp_path: Path) -> ProfileCache:
    return ProfileCache(tmp_path / "state" / "profiles")


def test_a_measurement_is_remembered(cache: ProfileCache) -> None:
    measurement = replace(a_measurement(), random_layers=("dropout",), steps=None)
    cache.save("abc", measurement)
    assert cache.load("abc") == measurement


def test_an_unknown_fingerprint_is_not_remembered(cache: ProfileCache) -> None:
    cache.save("abc", a_measurement())
    assert cache.load("abd") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"7", b"{}", b"\xff\xfe"])
def test_a_damaged_profile_is_measured_again(cache: ProfileCache, content: bytes) -> None:
    cache.save("abc", a_measurement())
    (cache.folder / "abc.json").write_bytes(content)
    assert cache.load("abc") is None


def test_a_profile_of_another_version_is_measured_again(cache: ProfileCache) -> None:
    cache.save("abc", a_measurement())
    path = cache.folder / "abc.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"new": 1}))
    assert cache.load("abc") is None
    del document["n_params"]
    path.write_text(json.dumps(document))
    assert cache.load("abc") is None


def test_a_folder_that_cannot_be_written_only_costs_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ProfileCache(tmp_path / "file" / "profiles")
    with caplog.at_level(logging.WARNING):
        cache.save("abc", a_measurement())
    assert "cannot be remembered" in caplog.text
    assert cache.load("abc") is None


def test_a_profile_that_cannot_be_put_in_place_leaves_nothing_behind(cache: ProfileCache) -> None:
    (cache.folder / "abc.json").mkdir(parents=True)
    cache.save("abc", a_measurement())
    assert [path.name for path in cache.folder.iterdir()] == ["abc.json"]


def test_remembered_profiles_need_no_cluster(cache: ProfileCache) -> None:
    cache.save("abc", a_measurement())
    workload, remembered = profile(a_job(), [a_holding()], ["abc"], cache)
    assert remembered
    assert workload.n_params == 86_000


# ---- fingerprints


def print_of(
    content: str = "files",
    job: Job | None = None,
    versions: dict[str, str] | None = None,
    holding: Holding | None = None,
) -> str:
    return fingerprint(content, job or a_job(), versions or {"ray": "1"}, holding or a_holding())


def test_equal_circumstances_have_one_fingerprint() -> None:
    assert print_of() == print_of()
    assert print_of(versions={"a": "1", "b": "2"}) == print_of(versions={"b": "2", "a": "1"})


def test_whatever_a_measurement_depends_on_changes_the_fingerprint() -> None:
    node = a_node(0)
    others = [
        print_of("other files"),
        print_of(job=replace(a_job(), script="other.py")),
        print_of(job=replace(a_job(), args=("--epochs", "4"))),
        print_of(job=replace(a_job(), args=("--epochs 3",))),
        print_of(job=replace(a_job(), args=())),
        print_of(job=replace(a_job(), frameworks=("tf_keras",))),
        print_of(versions={"ray": "2"}),
        print_of(holding=Holding(replace(node, kind="c5.large"), 8, 0)),
        print_of(holding=Holding(node, 4, 0)),
        print_of(holding=Holding(node, 8, 1)),
    ]
    assert len({print_of(), *others}) == 1 + len(others)


def test_arguments_that_are_no_text_have_a_fingerprint_too() -> None:
    odd = [print_of(job=replace(a_job(), args=(f"/data/caf{byte}",))) for byte in "\udce9\udcea"]
    assert len({print_of(), *odd}) == 3


def test_nodes_of_a_kind_share_a_fingerprint() -> None:
    assert print_of(holding=Holding(a_node(0), 8, 0)) == print_of(holding=Holding(a_node(1), 8, 0))


# ---- the policy's view


def test_a_workload_speaks_of_the_script_and_of_every_kind() -> None:
    slow = Holding(replace(a_node(1), kind="c5.large"), cpus=2, gpus=0)
    slower = replace(a_measurement(), step_s=(0.276, 0.084), setup_s=4.0)
    workload = workload_of(
        [a_measurement(), slower], [a_holding(), slow], "f" * 32, ("keras", "tf_keras")
    )
    (fit,) = workload.fits
    assert (fit.global_batch, fit.steps, fit.epochs, fit.validation_steps) == (128, 12, 5, 3)
    assert [speed.kind for speed in workload.node_kinds] == ["c5.2xlarge", "c5.large"]
    assert workload.node_kinds[0].c1_s == approx(0.001)
    assert workload.node_kinds[1].c1_s == approx(0.002)
    assert (workload.setup_s, workload.exactness) == (4.0, "exact")


def test_random_layers_make_a_workload_statistical() -> None:
    noisy = replace(a_measurement(), random_layers=("dropout",))
    workload = workload_of([noisy], [a_holding()], "f" * 32, ("keras",))
    assert (workload.exactness, workload.rounding) == ("statistical", ("dropout",))


def test_a_dataset_of_unknown_length_gets_an_assumed_one() -> None:
    unknown = replace(a_measurement(), steps=None)
    workload = workload_of([unknown], [a_holding()], "f" * 32, ("keras",))
    assert workload.fits[0].steps == UNKNOWN_STEPS
