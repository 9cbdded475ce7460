"""`cluster.yaml` is what Ray's own cluster launcher accepts, and carries true prices."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from launcher.cluster_nodes import instance_type_of
from launcher.pricing import Machine, price_of, table_usd_per_h

FILE = Path(__file__).parents[1] / "cluster.yaml"


@pytest.fixture
def config() -> dict[str, Any]:
    loaded = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_it_fits_the_schema_of_ray(config: dict[str, Any]) -> None:
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    jsonschema.validate(config, schema)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_ray_up_would_accept_it(config: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["available_node_types"]["cpu"]["labels"]["launch/price-usd-per-hour"] == "0.34"
    commands = prepared["worker_setup_commands"]
    assert any("constraints.txt" in command for command in commands)


def test_every_node_type_tells_its_price_and_type(config: dict[str, Any]) -> None:
    for name, node_type in config["available_node_types"].items():
        labels = node_type["labels"]
        assert instance_type_of(labels) == node_type["node_config"]["InstanceType"]
        cpus = node_type["resources"]["CPU"]
        price = price_of(Machine(name, cpus, 0.0, labels, instance_type_of(labels)))
        assert price.source == "label"
        on_demand = table_usd_per_h()[str(instance_type_of(labels))]
        if "InstanceMarketOptions" in node_type["node_config"]:
            assert price.usd_per_h < on_demand
        else:
            assert price.usd_per_h == on_demand


def test_the_pinned_launcher_is_installed_on_every_node(config: dict[str, Any]) -> None:
    assert config["file_mounts"] == {"~/train-launcher": "."}
    install = next(c for c in config["setup_commands"] if "ray[default]" in c)
    assert "--constraint ~/train-launcher/constraints.txt ~/train-launcher" in install
    assert "--compile-bytecode" in install
    assert (FILE.parent / "constraints.txt").is_file()


def test_a_head_that_trains_nothing_and_workers_within_the_limit(config: dict[str, Any]) -> None:
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"]["CPU"] == 0
    assert sum(t.get("min_workers", 0) for t in types.values()) <= config["max_workers"]
    assert any(t["resources"].get("GPU") for t in types.values())
