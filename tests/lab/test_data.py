"""Data of one host are there on every host that trains, and what a run leaves comes to another."""

import json
import shutil
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from tests.lab.lab import Lab
from tests.lab.requirement import missing

pytestmark = pytest.mark.lab

LIMIT_S = 240.0
ROWS = 600_000  # 4.8 MB in each of two files: several blocks

SCRIPT = """
    import os, socket, sys
    from pathlib import Path

    import keras
    import numpy as np

    data = Path(os.environ["LAUNCH_DATA_DIR"])
    assert sys.argv[1] == f"{data}/deep", sys.argv
    x, y = np.load(data / "x.npy"), np.load(Path(sys.argv[1]) / "y.npy")
    assert x.shape == y.shape == (600_000,) and float(x[-1]) == 599_999.0, x.shape
    Path("/tmp/seen.txt").write_text(f"{socket.gethostname()} {data}")
    x, y = x[:2000].reshape(-1, 4) / 2000, y[:2000].reshape(-1, 4)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=50, epochs=2, verbose=0)
    Path("done.txt").write_text("done")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts with Ray; a folder of data on the first one."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Lab(2, rtt_s=0.002, rate_bytes_per_s=25e6) as lab:
        lab.start_ray()
        work = lab.home("h1") / "work"
        work.mkdir()
        (work / "train.py").write_text(dedent(SCRIPT))
        folder = lab.outside("h1", "/tmp/set")
        (folder / "deep").mkdir(parents=True)
        np.save(folder / "x.npy", np.arange(ROWS, dtype=np.float64))
        np.save(folder / "deep" / "y.npy", np.zeros(ROWS))
        yield lab


@pytest.fixture(scope="module")
def record(lab: Lab) -> dict[str, Any]:
    words = ["train.py", "--workers", "2", "--strategy", "direct", "--data", "/tmp/set"]
    more = ["--price", "0.4", "--yes", "--json", "--", "$LAUNCH_DATA_DIR/deep"]
    done = lab.run("h1", ["launch", *words, *more], cwd="/tmp/home/work", timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_folder_is_used_in_place_and_brought_where_it_is_not(
    lab: Lab, record: dict[str, Any]
) -> None:
    assert record["status"] == "done"
    assert lab.outside("h1", "/tmp/seen.txt").read_text() == "h1 /tmp/set"
    host, folder = lab.outside("h2", "/tmp/seen.txt").read_text().split()
    assert (host, folder.startswith("/tmp/home/.launch/data/")) == ("h2", True)
    ip_by_node = {node["id"]: node["ip"] for node in record["cluster"]["nodes"]}
    came = {ip_by_node[each["node"]]: each["fetched_bytes"] for each in record["data"]["nodes"]}
    assert came == {lab.ip("h1"): 0, lab.ip("h2"): record["data"]["n_bytes"]}
    ahead = record["decisions"][0]["data"]
    assert ahead["is_shared"]


def test_a_run_is_fetched_from_the_host_that_keeps_it(lab: Lab, record: dict[str, Any]) -> None:
    run = record["run"]
    index = lab.home("h2") / ".launch" / "runs"
    index.mkdir(parents=True, exist_ok=True)
    shutil.copy(lab.home("h1") / ".launch" / "runs" / f"{run}.json", index)
    words = ["launch", "fetch", run, "--to", "got", "--json"]
    done = lab.run("h2", words, cwd="/tmp/home", timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["files"]["model"] == ["model.keras"]
    got = lab.home("h2") / "got"
    assert json.loads((got / "run.json").read_text())["run"] == run
    assert (got / "artifacts" / "done.txt").read_text() == "done"
    assert len(found["files"]["checkpoints"]) > 0
