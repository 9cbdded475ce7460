"""A process that answers as AWS does (moto), until its input ends; prints its port.

It knows the images that `cluster.yaml` names, and the role of Ray's heads, for whose making Ray
would wait half a minute.
"""

import json
import sys
from datetime import UTC, datetime

import boto3
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.server import ThreadedMotoServer
from moto.ssm.models import Parameter, ssm_backends

REGION = "us-east-1"
ROLE = "ray-autoscaler-v1"
KINDS = {"m5.large", "c5.2xlarge", "g4dn.xlarge"}  # those of `cluster.yaml`


def main(names: list[str]) -> None:
    """Serve; each name of an image gets an image of its own."""
    for kind in set(INSTANCE_TYPES) - KINDS:  # Ray asks for all, in each of its commands
        del INSTANCE_TYPES[kind]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    words = {"region_name": REGION, "endpoint_url": f"http://127.0.0.1:{port}"}
    images = boto3.client("ec2", **words).describe_images()["Images"]
    linux = [image["ImageId"] for image in images if "Platform" not in image]
    image_by_name = dict(zip(names, linux, strict=False))
    for name, image in image_by_name.items():
        _set_parameter(name, image)
    iam = boto3.client("iam", **words)
    iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName=ROLE)
    iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
    print(json.dumps({"port": port, "image_by_name": image_by_name}), flush=True)
    sys.stdin.read()
    server.stop()


def _set_parameter(name: str, value: str) -> None:
    """Set one of AWS's own, which its interface refuses."""
    ssm_backends[DEFAULT_ACCOUNT_ID][REGION]._parameters[name].append(
        Parameter(
            account_id=DEFAULT_ACCOUNT_ID,
            name=name,
            value=value,
            parameter_type="String",
            description=None,
            allowed_pattern=None,
            keyid=None,
            last_modified_date=datetime.now(UTC),
            version=1,
            data_type="aws:ec2:image",
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
