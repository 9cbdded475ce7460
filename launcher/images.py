"""Look up which machine images an AWS cluster file means by `resolve:ssm:NAME`.

EC2 would do that itself, but for the head's role, which must rent machines later, Ray asks no right
to read such names. Looked up once, all machines have the same image, those that come later too.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import yaml

from launcher.errors import ClusterError, UsageError

PREFIX = "resolve:ssm:"


class Parameters(Protocol):
    """Boto3's client of AWS Systems Manager, as far as it is used."""

    def get_parameter(self, *, Name: str) -> Mapping[str, Any]:  # noqa: N803 - AWS's own word
        """A parameter's value, among other things."""
        ...


def named_images(words: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that a cluster file's node types have for images, each once."""
    return tuple(
        dict.fromkeys(
            config["ImageId"]
            for config in _node_configs(words)
            if str(config.get("ImageId", "")).startswith(PREFIX)
        )
    )


def look_up(
    names: Iterable[str], parameters: Parameters, known: Mapping[str, str]
) -> dict[str, str]:
    """The IDs of images by their names; those that are known are not asked for again.

    Raises:
        ClusterError: a name cannot be looked up.
    """
    return {name: known.get(name) or _image(name, parameters) for name in names}


def with_images(text: str, image_by_name: Mapping[str, str]) -> str:
    """A cluster file's text with image IDs for names."""
    words = yaml.safe_load(text)
    for config in _node_configs(words):
        name = str(config.get("ImageId"))
        if name in image_by_name:
            config["ImageId"] = image_by_name[name]
    return yaml.safe_dump(words, sort_keys=False, width=1000)


def aws_parameters(region: str) -> Parameters:
    """AWS's own.

    Raises:
        UsageError: boto3 is not installed.
    """
    try:
        import boto3
    except ImportError:
        raise UsageError(
            "For a cluster on AWS this machine needs boto3: pip install boto3"
        ) from None
    client: Parameters = boto3.client("ssm", region_name=region)
    return client


def _image(name: str, parameters: Parameters) -> str:
    try:
        answer = parameters.get_parameter(Name=name.removeprefix(PREFIX))
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("botocore", "boto3"):
            raise
        raise ClusterError(
            f"AWS does not tell the image {name.removeprefix(PREFIX)}: {error}. Check your "
            "credentials with `aws sts get-caller-identity`, or put an image's ID in the file."
        ) from error
    return str(answer["Parameter"]["Value"])


def _node_configs(words: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    types = words.get("available_node_types")
    for about in types.values() if isinstance(types, dict) else ():
        config = about.get("node_config") if isinstance(about, dict) else None
        if isinstance(config, dict):
            yield config
