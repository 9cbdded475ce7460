"""`cluster.yaml` on a simulated AWS: Ray's own provider rents what it says, and returns all of it.

The machines themselves do nothing: `ssh` and `rsync` to them succeed, and the head answers as told.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from launcher.images import PREFIX, named_images

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ROOT = Path(__file__).parents[2]
FILE = ROOT / "cluster.yaml"
LIMIT_S = 240.0
MORE = {"cpu-spot": 2, "gpu": 1, "gpu-spot": 1}  # what a run asks for
SSH = """#!/bin/sh
case "$*" in *launch-look*) cd {root}; exec {python} -m tests.ray.aws_head "$*" ;; esac
"""
RSYNC = """#!/bin/sh
for last; do source=$to; to=$last; done
case "$to" in *ray_bootstrap_*) cp "$source" "$HOME/${to##*/}" ;; esac
"""
Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def aws() -> Iterator[dict[str, Any]]:
    """The simulated AWS: its address, and the images that it has by the names of `cluster.yaml`."""
    names = [name.removeprefix(PREFIX) for name in named_images(yaml.safe_load(FILE.read_text()))]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.ray.simulated_aws", *names],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **CREDENTIALS},
    )
    try:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        yield {**told, "endpoint": f"http://127.0.0.1:{told['port']}"}
    finally:
        server.communicate("", timeout=LIMIT_S)


CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def launch(aws: dict[str, Any], short_dir: Path) -> Launch:
    """The command, with a home of its own; ssh and rsync reach machines that do nothing."""
    tools = short_dir / "bin"
    tools.mkdir()
    scripts = {"ssh": SSH.format(root=ROOT, python=sys.executable), "rsync": RSYNC}
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environ = {
        **os.environ,
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": aws["endpoint"],
        "HOME": str(short_dir),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "LAUNCH_TEST_MORE": json.dumps(MORE),
    }

    def call(*words: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [Path(sys.executable).with_name("launch"), *map(str, words)],
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )

    return call


def machines(aws: dict[str, Any]) -> list[dict[str, Any]]:
    """All machines that were ever rented, as EC2 tells of them."""
    ec2 = boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=aws["endpoint"],
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    found = ec2.describe_instances()["Reservations"]
    return [machine for reservation in found for machine in reservation["Instances"]]


def tags(machine: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in machine["Tags"]}


def test_what_the_file_says_is_rented_shown_and_returned(
    aws: dict[str, Any], launch: Launch
) -> None:
    up = launch("up", FILE)
    assert up.returncode == 0, up.stderr
    assert "renting 1 head ($0.096/h), 2 cpu ($0.34/h each): $0.78/h in all" in up.stderr
    assert "launch: head, step 2 of 7: Processing file mounts" in up.stderr
    rented = machines(aws)
    kinds = Counter(
        (
            tags(machine)["ray-user-node-type"],
            machine["InstanceType"],
            machine.get("InstanceLifecycle", "on demand"),
        )
        for machine in rented
    )
    assert kinds == {
        ("head", "m5.large", "on demand"): 1,
        ("cpu", "c5.2xlarge", "on demand"): 2,
        ("cpu-spot", "c5.2xlarge", "spot"): 2,
        ("gpu", "g4dn.xlarge", "on demand"): 1,
        ("gpu-spot", "g4dn.xlarge", "spot"): 1,
    }
    for machine in rented:
        assert tags(machine)["ray-cluster-name"] == "launch"
        assert machine["Placement"]["AvailabilityZone"] == "us-east-1a"
        kind = "deeplearning" if "gpu" in tags(machine)["ray-user-node-type"] else "canonical"
        (image,) = (i for name, i in aws["image_by_name"].items() if kind in name)
        assert machine["ImageId"] == image
    heads = [m for m in rented if tags(m)["ray-node-type"] == "head"]
    assert [bool(m.get("IamInstanceProfile")) for m in heads] == [True]  # it rents the others

    status = launch("status", FILE, "--json")
    assert status.returncode == 0, status.stderr
    shown = json.loads(status.stdout)
    assert shown["n_up"] == len(rented) == 7
    assert {node["node_type"] for node in shown["nodes"]} == {"head", "cpu", *MORE}
    assert all(0 < node["paid_s"] < LIMIT_S for node in shown["nodes"])

    down = launch("down", FILE)
    assert down.returncode == 0, down.stderr
    assert {machine["State"]["Name"] for machine in machines(aws)} == {"terminated"}
    assert "is down. It has cost $" in down.stderr
    assert launch("status").stdout.strip() == "No cluster that was brought up from here is up."
