"""The manifest for KubeRay, against its schema of a RayCluster.

That schema comes with KubeRay's Kubernetes resource definition (ray.io_rayclusters.yaml, 900 KB),
which is in no registry that the tests reach. The one here says of the parts that the manifest uses
what that one says (ray.io/v1), and what KubeRay's operator checks: names, types, what is required.
It is stricter: nothing else may stand there, and rayStartParams must, as older versions want it.
"""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import launcher
from launcher.cluster_nodes import instance_type_of
from launcher.pricing import Machine, price_of

ROOT = Path(__file__).parents[1]
FILE = ROOT / "scripts" / "clusters" / "kubernetes.yaml"
TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
QUANTITY = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?$"}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


CONTAINER = closed(
    ["name", "image"],
    name=TEXT,
    image=TEXT,
    ports={
        "type": "array",
        "items": closed(["containerPort"], containerPort={"type": "integer"}, name=TEXT),
    },
    resources=closed([], requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts={
        "type": "array",
        "items": closed(["name", "mountPath"], name=TEXT, mountPath=TEXT),
    },
)
TEMPLATE = closed(
    ["spec"],
    spec=closed(
        ["containers"],
        containers={"type": "array", "minItems": 1, "items": CONTAINER},
        volumes={
            "type": "array",
            "items": closed(["name"], name=TEXT, emptyDir={"type": "object"}),
        },
    ),
)
# Numbers, too, must be words. Labels have a place of their own since KubeRay 1.5, which refuses
# them among these.
START = {
    "type": "object",
    "additionalProperties": TEXT,
    "propertyNames": {"not": {"const": "labels"}},
}
LABEL = {"type": "string", "maxLength": 63, "pattern": "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"}
LABELS = {"type": "object", "additionalProperties": LABEL}
GROUP = {"rayStartParams": START, "labels": LABELS, "template": TEMPLATE}
SCHEMA = closed(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=closed(["name"], name={"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}),
    spec=closed(
        ["headGroupSpec"],
        rayVersion=TEXT,
        enableInTreeAutoscaling={"type": "boolean"},
        headGroupSpec=closed(
            ["rayStartParams", "template"],
            serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
            **GROUP,
        ),
        workerGroupSpecs={
            "type": "array",
            "items": closed(
                ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
                groupName=TEXT,
                replicas=COUNT,
                minReplicas=COUNT,
                maxReplicas=COUNT,
                numOfHosts=COUNT,
                **GROUP,
            ),
        },
    ),
)


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    words = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    jsonschema.validate(words, SCHEMA)
    found: dict[str, Any] = words["spec"]
    return found


def groups(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def test_what_a_pod_holds_is_what_ray_may_hand_out_of_it(spec: dict[str, Any]) -> None:
    for group in spec["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        limits, start = container["resources"]["limits"], group["rayStartParams"]
        assert container["resources"]["requests"] == limits
        assert start["num-cpus"] == limits["cpu"]
        assert start.get("num-gpus") == limits.get("nvidia.com/gpu")
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_head_trains_nothing_and_shows_its_dashboard(spec: dict[str, Any]) -> None:
    start = spec["headGroupSpec"]["rayStartParams"]
    assert (start["num-cpus"], start["dashboard-host"]) == ("0", "0.0.0.0")


def test_every_worker_has_a_price(spec: dict[str, Any]) -> None:
    for group in spec["workerGroupSpecs"]:
        labels = group["labels"]
        machine = Machine(group["groupName"], 7.0, 0.0, labels, instance_type_of(labels))
        assert price_of(machine).source == "label"


def test_image_and_manifest_have_the_ray_that_is_pinned(spec: dict[str, Any]) -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    (ray,) = (line.removeprefix("ray==") for line in pins if line.startswith("ray=="))
    dockerfile = (FILE.parent / "Dockerfile").read_text()
    assert spec["rayVersion"] == ray
    assert f"FROM rayproject/ray:{ray}-" in dockerfile
    for name in ("launcher", "policies", "pyproject.toml", "constraints.txt", "README.md"):
        assert name in dockerfile
        assert (Path(launcher.__file__).parents[1] / name).exists()
