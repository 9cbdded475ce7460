"""`launch up`, `status` and `down` over ssh to three hosts, and a cluster that ends by itself."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


def launch(lab: Lab, *words: str | Path) -> Any:
    """Call the launcher on h2, which is no head."""
    return lab.run("h2", ["launch", *words], cwd=ROOT, timeout_s=250)


def test_every_node_joins_and_none_is_left(lab: Lab) -> None:
    only_from(lab, "h3", "h2")  # the head's autoscaler cannot log in there, we can
    up = launch(lab, "up", FILE)
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
    copied = lab.home("h3") / "train-launcher" / "scripts" / "clusters" / "install.sh"
    assert copied.is_file()  # by us: the head could not

    status = json.loads(launch(lab, "status", FILE, "--json").stdout)
    assert status["n_up"] == 3
    assert not status["is_used"]
    assert 0 < status["cost_usd"] < 0.6 / 60 * 5

    lab.cut("h2-h3")
    down = launch(lab, "down", FILE)
    assert down.returncode == 4
    assert "Ray may still run on 10.99.0.3 (ssh: connect to host 10.99.0.3" in down.stderr
    lab.mend("h2-h3")
    assert "It is not known what is up" in launch(lab, "status").stdout

    anyone(lab, "h3")
    again = launch(lab, "up", FILE, "--idle-down", "10s")
    assert again.returncode == 0, again.stderr
    assert "takes the cluster down when nobody has used it for" in again.stderr
    until = time.monotonic() + 200
    while raylets(lab):
        assert time.monotonic() < until, "the cluster did not go down by itself"
        time.sleep(1)
    assert "nothing is up" in launch(lab, "status", FILE).stdout
    assert launch(lab, "status").stdout == "No cluster that was brought up from here is up.\n"


def only_from(lab: Lab, host: str, src: str) -> None:
    """Let a host be logged in to from one other host only."""
    keys = lab.home(host) / ".ssh" / "authorized_keys"
    keys.write_text(f'from="{lab.ip(src)}" {keys.read_text()}')


def anyone(lab: Lab, host: str) -> None:
    """Let a host be logged in to from everywhere again."""
    keys = lab.home(host) / ".ssh" / "authorized_keys"
    keys.write_text(keys.read_text().partition(" ")[2])
