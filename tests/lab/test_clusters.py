"""Clusters as people have them: hosts that share nothing, differ, are in use, demand a token."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.requirement import missing

pytestmark = pytest.mark.lab

LIMIT_S = 240.0
EXTRA = "/tmp/extra"  # on every host's path, each with its own content
DATA = "/tmp/data/x.csv"

SCRIPT = """
    import sys, time
    from pathlib import Path

    import keras
    import numpy as np

    import helpful

    class Pace(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(float(sys.argv[1]))

    x = np.random.default_rng(3).normal(size=(80, 6)).astype("float32")
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1], batch_size=20, epochs=4, verbose=0, callbacks=[Pace()])
    Path("note.txt").write_text("kept")
"""

# A job of someone else: holds a CPU of the node that it runs on until its input ends.
HOLDER = """
    import sys, ray
    ray.init(address="auto", log_to_driver=False)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=1)
    class Holder:
        def ready(self):
            return True

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    holder = Holder.options(scheduling_strategy=here).remote()
    ray.get(holder.ready.remote())
    print("holding", flush=True)
    sys.stdin.read()
"""

FREE = """
    import ray
    ray.init(address="auto", log_to_driver=False)
    from ray._private.state import available_resources_per_node
    print(sum(each.get("CPU", 0) for each in available_resources_per_node().values()))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts; h3 has another TensorFlow, and neither the module nor the data of the script."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Lab(3) as lab:
        for name in lab.names:
            folder = lab.outside(name, EXTRA)
            folder.mkdir()
            if name == "h3":
                (folder / "tensorflow-2.19.0.dist-info").mkdir()
                about = "Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.19.0\n"
                (folder / "tensorflow-2.19.0.dist-info" / "METADATA").write_text(about)
            else:
                (folder / "helpful.py").write_text("")
                lab.outside(name, DATA).parent.mkdir()
                lab.outside(name, DATA).write_text("")
        lab.start_ray(env={"PYTHONPATH": EXTRA})
        work = lab.home("h2") / "work"
        work.mkdir()
        (work / "train.py").write_text(dedent(SCRIPT))
        yield lab


def launch(lab: Lab, *words: str) -> "subprocess.CompletedProcess[str]":
    """Call `launch` on h2, which is not the head."""
    done = lab.run(
        "h2",
        ["launch", *words],
        cwd="/tmp/home/work",
        env={"PYTHONPATH": EXTRA},
        timeout_s=LIMIT_S,
    )
    print(f"launch {' '.join(words)} → {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def python(lab: Lab, name: str, program: str, **how: Any) -> Any:
    return lab.popen(
        name,
        ["python", "-c", dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def wait_until(condition: Callable[[], bool], what: str, limit_s: float) -> None:
    ends_at_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_at_s, f"{what} did not happen within {limit_s} s"
        time.sleep(0.5)


def runs(lab: Lab, name: str) -> list[Path]:
    return sorted((lab.home(name) / "launch" / "runs").glob("*"))


def test_the_doctor_names_what_differs_on_which_node(lab: Lab) -> None:
    done = launch(lab, "doctor", "train.py", "--json", "--", "0", "--data", DATA)
    assert done.returncode == 4
    report = json.loads(done.stdout)
    failed = {
        (node["ip"], check)
        for node in report["nodes"]
        for check, level in node["checks"].items()
        if level == "fail"
    }
    assert failed == {("10.99.0.3", check) for check in ("versions", "modules", "paths")}
    said = " ".join(problem["text"] for problem in report["problems"])
    assert "has TensorFlow 2.19.0, the driver 2.21" in said
    assert "lacks the module helpful" in said
    assert f"lacks {DATA} (--data), which the driver's machine has" in said
    assert all(abs(node["clock_offset_s"]) < 0.1 for node in report["nodes"])


def test_an_unfit_node_is_left_out_and_all_files_are_kept_on_the_drivers_host(lab: Lab) -> None:
    done = launch(lab, "--workers", "2", "--yes", "--json", "train.py", "--", "0", "--data", DATA)
    assert done.returncode == 0
    assert done.stderr.count("10.99.0.3 is left out: it has TensorFlow 2.19.0") == 1
    record = json.loads(done.stdout)
    (segment,) = record["segments"]
    ip_by_node = {node["id"]: node["ip"] for node in record["cluster"]["nodes"]}
    assert set(ip_by_node.values()) == {"10.99.0.1", "10.99.0.2"}  # what the decision rested on
    assert set(segment["plan"]["nodes"]) == ip_by_node.keys()
    assert {link["src"] for link in record["network"]["links"]} == ip_by_node.keys()
    left_out = [event["detail"] for event in record["events"] if event["kind"] == "warning"]
    assert any("10.99.0.3 is left out" in detail for detail in left_out)
    (folder,) = runs(lab, "h2")
    assert (folder / "model.keras").stat().st_size > 0
    assert (folder / "artifacts" / "note.txt").read_text() == "kept"
    kept = record["checkpoints"][-1]
    assert (folder / kept["path"]).stat().st_size == kept["bytes"]
    assert not runs(lab, "h1") + runs(lab, "h3")


def test_a_busy_node_is_no_candidate_unless_it_is_waited_for(lab: Lab) -> None:
    holder = python(lab, "h1", HOLDER)
    try:
        assert holder.stdout.readline() == "holding\n"
        plain = launch(lab, "--dry-run", "--json", "train.py", "--", "0", "--data", DATA)
        assert plain.returncode == 0
        busy = "10.99.0.1 is busy: another job holds 1 of 1 CPUs"
        assert f"{busy}; --wait 10m waits for that" in plain.stderr
        nodes = {node["ip"] for node in json.loads(plain.stdout)["cluster"]["nodes"]}
        assert nodes == {"10.99.0.2"}  # h3 is not fit
        waiting = lab.popen(
            "h2",
            [
                "launch",
                "--dry-run",
                "--json",
                "--wait",
                "2m",
                "train.py",
                "--",
                "0",
                "--data",
                DATA,
            ],
            cwd="/tmp/home/work",
            env={"PYTHONPATH": EXTRA},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = next(line for line in waiting.stderr if "waiting" in line)
        assert busy in said
        holder.stdin.close()
        out, _ = waiting.communicate(timeout=LIMIT_S)
        nodes = {node["ip"] for node in json.loads(out)["cluster"]["nodes"]}
        assert nodes == {"10.99.0.1", "10.99.0.2"}
    finally:
        holder.kill()
        holder.wait()
        for stream in (holder.stdin, holder.stdout, holder.stderr):
            stream.close()


def test_a_killed_driver_leaves_nothing_held_for_longer_than_a_minute(lab: Lab) -> None:
    driver = lab.popen(
        "h2",
        [
            "launch",
            "--workers",
            "2",
            "--yes",
            "--name",
            "killed",
            "train.py",
            "--",
            "2",
            "--data",
            DATA,
        ],
        cwd="/tmp/home/work",
        env={"PYTHONPATH": EXTRA},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        record = lab.home("h2") / "launch" / "runs" / "killed" / "run.json"
        wait_until(
            lambda: record.exists() and bool(json.loads(record.read_text())["checkpoints"]),
            "the first checkpoint",
            LIMIT_S,
        )
        assert training(lab)
    finally:
        driver.kill()
        driver.wait()
    killed_s = time.monotonic()
    wait_until(lambda: not training(lab) and free_cpus(lab) == 3, "the release", 60)
    print(f"released after {time.monotonic() - killed_s:.1f} s")


def training(lab: Lab) -> list[str]:
    """The processes that train, on all hosts."""
    found = [lab.run(name, ["ps", "-eo", "args"], timeout_s=20).stdout for name in lab.names]
    return [line for text in found for line in text.splitlines() if "RayTrainWorker" in line]


def free_cpus(lab: Lab) -> float:
    done = lab.run("h1", ["python", "-c", dedent(FREE)], timeout_s=60)
    return float(done.stdout) if done.returncode == 0 else float("nan")


def test_a_silent_node_costs_the_doctor_its_deadline_once(lab: Lab) -> None:
    lab.cut_host("h3")
    started_s = time.monotonic()
    try:
        done = launch(lab, "doctor", "--json")
    finally:
        lab.mend_host("h3")
    assert time.monotonic() - started_s < 59  # 30 s at most, once, and the start of the command
    assert done.returncode == 4
    report = json.loads(done.stdout)
    (problem,) = [each for each in report["problems"] if each["level"] == "fail"]
    assert problem["check"] == "answers"
    assert "no connection in 2 s from this machine to its Ray (10.99.0.3:" in problem["text"]


def test_a_cluster_that_demands_a_token_is_joined_with_it_and_refused_without(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2)
    lab.start_ray(auth=True)
    doctor = ["env", "-u", "RAY_AUTH_MODE", "launch", "doctor"]
    done = lab.run("h2", doctor, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "All 2 nodes are fit to train." in done.stdout
    (lab.home("h2") / ".ray" / "auth_token").unlink()
    refused = lab.run("h2", doctor, timeout_s=LIMIT_S)
    assert refused.returncode == 4
    assert "it wants a token that this user lacks (~/.ray/auth_token)" in refused.stderr
    assert "Traceback" not in refused.stderr
