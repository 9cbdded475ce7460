"""`launch up` and `launch down` over ssh to three hosts."""

from collections.abc import Callable, Iterator

import pytest

from tests.lab.host import ROOT
from tests.lab.lab import Lab
from tests.lab.ssh import missing_ssh, ssh_servers

pytestmark = pytest.mark.lab

FILE = ROOT / "scripts" / "clusters" / "local.yaml"


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    if (reason := missing_ssh()) is not None:
        pytest.skip(reason)
    lab = make_lab(3)
    with ssh_servers(list(lab.hosts.values())):
        yield lab


def raylets(lab: Lab) -> list[str]:
    listing = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '/raylet/raylet$'"
    return [name for name in lab.names if lab.run(name, ["sh", "-c", listing]).returncode == 0]


def test_every_node_joins_also_one_that_ray_cannot_start_and_none_is_left(lab: Lab) -> None:
    only_from(lab, "h3", "h2")  # the head's autoscaler cannot log in there, we can
    up = lab.run("h2", ["launch", "up", FILE], timeout_s=200)
    assert up.returncode == 0, up.stderr
    assert "launch: 10.99.0.3 not there: starting over ssh" in up.stderr
    rows = [line.split() for line in up.stdout.splitlines()]
    assert sorted(row[:4] for row in rows[1:4]) == [
        ["10.99.0.1", "1", "–", "$0.40/h"],
        ["10.99.0.2", "1", "–", "$0.10/h"],
        ["10.99.0.3", "1", "–", "$0.10/h"],
    ]
    assert up.stdout.splitlines()[-1] == "3 nodes up · $0.60/h in all"
    assert raylets(lab) == ["h1", "h2", "h3"]

    lab.cut("h2-h3")
    down = lab.run("h2", ["launch", "down", FILE], timeout_s=100)
    assert down.returncode == 4
    assert "Ray may still run on 10.99.0.3 (ssh: connect to host 10.99.0.3" in down.stderr
    lab.mend("h2-h3")
    down = lab.run("h2", ["launch", "down", FILE], timeout_s=100)
    assert down.returncode == 0, down.stderr
    assert raylets(lab) == []


def only_from(lab: Lab, host: str, src: str) -> None:
    """Let a host be logged in to from one other host only."""
    keys = lab.home(host) / ".ssh" / "authorized_keys"
    keys.write_text(f'from="{lab.ip(src)}" {keys.read_text()}')
