"""Images of AWS by name: looked up once, put into a copy of the file."""

import sys
from typing import Any

import pytest
import yaml

from launcher.errors import ClusterError, UsageError
from launcher.images import aws_parameters, look_up, named_images, with_images
from launcher.price_refresh import aws_price_list

TEXT = """
# a comment
cluster_name: x
available_node_types:
  head: {node_config: &node {ImageId: "resolve:ssm:/ubuntu", InstanceType: m5.large}}
  cpu: {node_config: *node}
  gpu: {node_config: {ImageId: "resolve:ssm:/gpu"}}
  old: {node_config: {ImageId: ami-1}}
  none: {node_config: {}}
"""


class FakeParameters:
    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self._error = error

    def get_parameter(self, *, Name: str) -> dict[str, Any]:  # noqa: N803
        self.asked.append(Name)
        if self._error is not None:
            raise self._error
        return {"Parameter": {"Value": f"ami-{Name[1:]}"}}


def test_names_become_ids_each_looked_up_once() -> None:
    parameters = FakeParameters()
    images = look_up(named_images(yaml.safe_load(TEXT)), parameters, {})
    types = yaml.safe_load(with_images(TEXT, images))["available_node_types"]
    found = [about["node_config"].get("ImageId") for about in types.values()]
    assert found == ["ami-ubuntu", "ami-ubuntu", "ami-gpu", "ami-1", None]
    assert types["head"]["node_config"]["InstanceType"] == "m5.large"
    assert parameters.asked == ["/ubuntu", "/gpu"]


def test_what_is_known_is_not_asked_for_again() -> None:
    parameters = FakeParameters()
    names = ("resolve:ssm:/ubuntu", "resolve:ssm:/gpu")
    found = look_up(names, parameters, {"resolve:ssm:/ubuntu": "ami-old"})
    assert found == {"resolve:ssm:/ubuntu": "ami-old", "resolve:ssm:/gpu": "ami-gpu"}
    assert parameters.asked == ["/gpu"]


def test_files_without_names_ask_nothing() -> None:
    assert (
        named_images({"available_node_types": {"a": {"node_config": {"ImageId": "ami-1"}}}}) == ()
    )
    assert named_images({}) == ()


def test_an_image_that_aws_does_not_tell_is_an_error() -> None:
    from botocore.exceptions import NoCredentialsError

    with pytest.raises(
        ClusterError, match=r"the image /ubuntu: Unable to locate credentials\. Che"
    ):
        look_up(["resolve:ssm:/ubuntu"], FakeParameters(NoCredentialsError()), {})


def test_a_mistake_of_ours_is_not_taken_for_one_of_aws() -> None:
    with pytest.raises(KeyError):
        look_up(["resolve:ssm:/ubuntu"], FakeParameters(KeyError("x")), {})


def test_a_machine_without_boto3_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UsageError, match=r"on AWS this machine needs boto3: pip install boto3$"):
        aws_parameters("us-east-1")
    with pytest.raises(UsageError, match=r"fetch AWS's prices this machine needs boto3"):
        aws_price_list()
