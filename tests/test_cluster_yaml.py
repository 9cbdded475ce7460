"""The cluster files are what Ray's own cluster launcher accepts, and carry true prices."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from launcher.cluster_file import check_mounts, read_cluster_file
from launcher.cluster_nodes import instance_type_of
from launcher.node_types import configured_instance_type
from launcher.planned_types import planned_text
from launcher.pricing import Machine, price_of, table_usd_per_h

ROOT = Path(__file__).parents[1]
CLUSTERS = ROOT / "scripts" / "clusters"
AWS, GCP, AZURE, LOCAL = (
    ROOT / "cluster.yaml",
    CLUSTERS / "gcp.yaml",
    CLUSTERS / "azure.yaml",
    CLUSTERS / "local.yaml",
)
CLOUDS = [pytest.param(path, id=path.stem) for path in (AWS, GCP, AZURE)]
ALL = [*CLOUDS, pytest.param(LOCAL, id="local")]


def load(path: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def is_spot(node_type: dict[str, Any]) -> bool:
    """Whether the provider is asked for a machine that it may take back."""
    words = json.dumps(node_type["node_config"]).lower()
    return '"spot"' in words


@pytest.mark.parametrize("path", ALL)
def test_it_fits_the_schema_of_ray(path: Path) -> None:
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    jsonschema.validate(load(path), schema)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", ALL)
def test_ray_up_would_accept_it(path: Path) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(load(path))
    validate_config(prepared)
    for commands in (prepared["head_setup_commands"], prepared["worker_setup_commands"]):
        assert any("scripts/clusters/install.sh" in command for command in commands)


@pytest.mark.parametrize("path", CLOUDS)
def test_every_node_type_tells_its_price_and_type(path: Path) -> None:
    for name, node_type in load(path)["available_node_types"].items():
        labels = node_type["labels"]
        assert instance_type_of(labels) == configured_instance_type(node_type)
        cpus = node_type["resources"]["CPU"]
        price = price_of(Machine(name, cpus, 0.0, labels, instance_type_of(labels)))
        assert price.source == "label"
        on_demand = table_usd_per_h()[str(instance_type_of(labels)).lower()]
        if is_spot(node_type):
            assert labels["launch/market-type"] == "spot"
            assert price.usd_per_h < on_demand
        else:
            assert price.usd_per_h == pytest.approx(on_demand, rel=0.003)


@pytest.mark.parametrize("path", CLOUDS)
def test_cpus_and_gpus_can_be_had_on_demand_and_as_spot(path: Path) -> None:
    types = load(path)["available_node_types"]
    workers = [each for name, each in types.items() if name != "head"]
    kinds = {(each["resources"].get("GPU", 0) > 0, is_spot(each)) for each in workers}
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}


@pytest.mark.parametrize("path", CLOUDS)
def test_a_head_that_trains_nothing_and_workers_within_the_limit(path: Path) -> None:
    config = load(path)
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"]["CPU"] == 0
    assert sum(t.get("min_workers", 0) for t in types.values()) <= config["max_workers"]
    assert config["provider"]["cache_stopped_nodes"] is False


@pytest.mark.parametrize("path", ALL)
def test_every_node_gets_the_launcher_of_this_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    file = read_cluster_file(path)
    places = dict(file.preparation.mounts)
    assert {place.removeprefix("~/train-launcher/") for place in places} == set(places.values())
    assert {"launcher", "policies", "pyproject.toml", "constraints.txt"} <= set(places.values())
    assert file.has_setup
    check_mounts(file)


def test_what_is_rented_is_told_with_its_price() -> None:
    assert planned_text(read_cluster_file(AWS).types) == (
        "1 head ($0.096/h), 2 cpu ($0.34/h each): $0.78/h in all"
    )


def test_every_aws_machine_has_an_image_that_todays_packages_run_on() -> None:
    types = load(AWS)["available_node_types"].values()
    images = {each["node_config"]["ImageId"] for each in types}
    assert all(image.startswith("resolve:ssm:/aws/service/") for image in images)
    assert all("22.04" in image for image in images)


UV = """#!/usr/bin/env bash
echo "$@" >>"$HOME/calls"
[ "$1" != venv ] || mkdir -p "${@: -1}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a `uv` that only notes what it is called for."""
    (tmp_path / ".local" / "bin").mkdir(parents=True)
    uv = tmp_path / ".local" / "bin" / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    return tmp_path


def install(home: Path, *words: str, path: str = "/usr/bin:/bin") -> str:
    environ = {"HOME": str(home), "PATH": path}
    script = CLUSTERS / "install.sh"
    done = subprocess.run(
        ["bash", script, *words], env=environ, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_a_node_gets_one_python_and_pinned_packages(home: Path) -> None:
    install(home, "aws")
    install(home, "aws")
    made, installed, again = (home / "calls").read_text().splitlines()
    assert made == f"venv --python 3.11.9 {home}/launch-env"
    assert installed == again
    assert f"--constraint {ROOT}/constraints.txt" in installed
    assert "--compile-bytecode" in installed
    assert installed.endswith(f"--reinstall-package train-launcher {ROOT}[aws]")
    assert (home / ".bashrc").read_text().count("launch-env") == 1


def test_a_machine_that_has_a_launcher_of_its_own_keeps_it_if_asked(home: Path) -> None:
    own = home / "own"
    own.mkdir()
    (own / "launch").write_text("#!/bin/sh\n")
    (own / "launch").chmod(0o755)
    said = install(home, "--keep", path=f"{own}{os.pathsep}/usr/bin:/bin")
    assert said == f"{own}/launch is there already, and is left as it is\n"
    assert not (home / "calls").exists()
    install(home, "--keep")
    assert (home / "calls").exists()


@pytest.mark.parametrize("extra", ["default", "aws", "gcp", "azure"])
def test_what_a_cloud_needs_is_pinned(extra: str) -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split()
    }
    names = [word.replace(">", "=").split("=")[0].split("[")[0].lower() for word in extras[extra]]
    assert "ray" in names
    assert {name.replace("_", "-") for name in names} <= {name.replace("_", "-") for name in pinned}
