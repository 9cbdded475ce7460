"""The main job on real Ray: the `launch` command as people call it, on a cluster of two nodes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.mounts import mounted, needs_root

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

COMMAND = Path(sys.executable).parent / "launch"
OBJECT_STORE_BYTES = 80 << 20
LIMIT_S = 200.0

# Its pace is read from a file outside of its folder, so that one profile serves all tests.
SCRIPT = """
    import json, sys, time
    from pathlib import Path

    import keras
    import numpy as np

    class Pace(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(float(Path(sys.argv[1]).read_text()))

    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 1)) + 0.1).astype("float32")
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(8, "tanh"),
                              keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    print("los geht's: größer", flush=True)
    history = model.fit(x, y, batch_size=20, epochs=4, validation_split=0.2, verbose=2,
                        callbacks=[Pace(), keras.callbacks.CSVLogger("log.csv")])
    Path("history.json").write_text(json.dumps(history.history))
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a launch left: its exit code, its output, and the record it names."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """The record as `--json` prints it: all of standard output."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def folder(self) -> Path:
        return Path(self.record["storage"], "runs", self.record["run"])

    @property
    def history(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = json.loads(
            (self.folder / "artifacts" / "history.json").read_text()
        )
        return found


class User:
    """A person at a terminal, in a home of their own, whose script lies in `work`."""

    def __init__(self, home: Path, address: str) -> None:
        self.home, self.address = home, address
        self.work = home / "my work"
        self.work.mkdir(parents=True)
        self.script = self.work / "train.py"
        self.script.write_text(textwrap.dedent(SCRIPT))
        self.pace = home / "pace"
        self.said: list[str] = []  # lines on standard error of the latest launch
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LAUNCH_", "RAY_", "TF_", "COV_"))
        } | {"HOME": str(home)}

    def launch(
        self, *words: str, pace: float = 0.0, during: Callable[[Any], None] | None = None
    ) -> Finished:
        """Call `launch` and wait for its end; `during` gets the process meanwhile."""
        self.set_pace(pace)
        process = subprocess.Popen(
            [str(COMMAND), *words],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        errors = self.said = list[str]()
        reader = threading.Thread(target=_follow, args=(process.stderr, errors))
        reader.start()
        try:
            if during is not None:
                during(process)
            assert process.stdout is not None
            out = process.stdout.read()
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            reader.join()
        print(f"launch {' '.join(words)} → {code}\n{''.join(errors)}")
        return Finished(code, out, "".join(errors))

    def train(self, *options: str, **how: Any) -> Finished:
        """Launch the script on the cluster and get the record."""
        where = ["--address", self.address, "--cpus-per-worker", "2", "--seed", "5"]
        words = [*where, "--yes", "--json", *options, "train.py", "--", str(self.pace)]
        return self.launch(*words, **how)

    def set_pace(self, seconds: float) -> None:
        """Let each step take so long from now on; whoever reads it finds it whole."""
        beside = self.pace.with_suffix(".new")
        beside.write_text(str(seconds))
        beside.replace(self.pace)

    def has_checkpoint(self, run: str) -> bool:
        """Whether the record of a run, while it is written, has a checkpoint."""
        path = self.home / "launch" / "runs" / run / "run.json"
        return path.exists() and bool(json.loads(path.read_text())["checkpoints"])


def _follow(stream: Any, lines: list[str]) -> None:
    lines.extend(stream)


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 120.0) -> None:
    ends_at_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_at_s, f"{what} did not happen within {limit_s} s"
        time.sleep(0.2)


def seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


@pytest.fixture(scope="module")
def two_nodes(short_dir: Path) -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", str(short_dir))
    patch.setenv("TMPDIR", str(short_dir))  # a killed worker leaves its copy of the script
    patch.setenv("HOME", str(short_dir / "home"))
    from ray.cluster_utils import Cluster as Nodes

    sizes = {
        "num_cpus": 2,
        "object_store_memory": OBJECT_STORE_BYTES,
    }
    nodes = Nodes(initialize_head=True, head_node_args={**sizes, "include_dashboard": False})
    nodes.add_node(**sizes)
    yield nodes
    nodes.shutdown()
    patch.undo()


@pytest.fixture(scope="module")
def user(two_nodes: Any, short_dir: Path) -> User:
    return User(short_dir / "home", two_nodes.address)


@pytest.fixture(scope="module")
def alone(user: User) -> Finished:
    """The script on one worker, uninterrupted."""
    return user.train("--workers", "1")


@pytest.fixture(scope="module")
def both(user: User) -> Finished:
    """The script on two workers, uninterrupted."""
    return user.train("--workers", "2")


def same(one: dict[str, list[float]], other: dict[str, list[float]], rel: float) -> bool:
    assert set(one) == {"loss", "mae", "val_loss", "val_mae"}
    return {name: pytest.approx(values, rel=rel) for name, values in one.items()} == other


def test_one_worker_trains_and_keeps_files_and_model(alone: Finished) -> None:
    assert alone.code == 0, alone.err
    record = alone.record
    assert (record["status"], record["exit_code"]) == ("done", 0)
    assert record["outcome"]["steps"] == 32
    assert len(alone.history["loss"]) == 4
    assert record["outcome"]["metrics"]["loss"] == pytest.approx(alone.history["loss"][-1])
    assert (alone.folder / "artifacts" / "log.csv").read_text().count("\n") == 5
    assert Path(record["outcome"]["model"]) == alone.folder / "model.keras"
    assert (alone.folder / "model.keras").stat().st_size > 0


def test_two_workers_on_two_nodes_have_the_same_curve(alone: Finished, both: Finished) -> None:
    assert both.code == 0, both.err
    (segment,) = both.record["segments"]
    assert len(set(segment["plan"]["nodes"])) == 2
    assert same(both.history, alone.history, rel=1e-4)
    assert both.record["outcome"]["metrics"] == pytest.approx(
        alone.record["outcome"]["metrics"], rel=1e-4
    )


def test_at_the_budget_all_workers_stop_and_resume_to_the_same_curve(
    user: User, both: Finished
) -> None:
    segment = both.record["segments"][0]
    startup_s = seconds(segment["first_step_at"]) - seconds(segment["started"])
    for more_s in (15.0, 25.0, 35.0):  # a start may be slower than that one was
        budget_usd = 2 * (startup_s + more_s)  # two nodes at a dollar a second
        limits = ("--price", "3600", "--budget", f"{budget_usd:.2f}")
        stopped = user.train("--workers", "2", *limits, pace=more_s / 15.0)
        assert stopped.code == 5, stopped.err
        assert stopped.record["status"] == "budget"
        assert stopped.record["outcome"]["cost_usd"] <= budget_usd
        if stopped.record["checkpoints"]:
            break
    position = stopped.record["checkpoints"][-1]["position"]
    assert 0 < position["total_steps"] < 32
    resumed = user.launch("resume", stopped.record["run"], "--budget", "1000", "--yes", "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.record["outcome"]["steps"] == 32
    assert resumed.record["outcome"]["cost_usd"] > stopped.record["outcome"]["cost_usd"]
    assert same(resumed.history, both.history, rel=1e-6)
    assert (resumed.folder / "artifacts" / "log.csv").read_text().count("\n") == 5


def test_a_model_in_stages_is_stopped_and_resumed_to_one_workers_curve(
    user: User, alone: Finished
) -> None:
    def interrupt(process: Any) -> None:
        wait_until(lambda: user.has_checkpoint("stages"), "the first checkpoint")
        process.send_signal(signal.SIGINT)

    words = ("--parallelism", "model", "--workers", "2", "--name", "stages")
    stopped = user.train(*words, pace=0.5, during=interrupt)
    assert stopped.code == 130, stopped.err
    (segment,) = stopped.record["segments"]
    assert (segment["plan"]["strategy"], segment["plan"]["options"]["cuts"]) == ("pipeline", [1])
    assert len(set(segment["plan"]["nodes"])) == 2
    assert "each a stage of the model" in stopped.record["decisions"][0]["reason"]
    resumed = user.launch("resume", "stages", "--yes", "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.record["outcome"]["steps"] == 32
    assert same(resumed.history, alone.history, rel=1e-5)
    size = (resumed.folder / "model.keras").stat().st_size
    assert size == pytest.approx((alone.folder / "model.keras").stat().st_size, rel=0.01)


def test_ctrl_c_stops_at_a_checkpoint(user: User) -> None:
    def interrupt(process: Any) -> None:
        wait_until(lambda: user.has_checkpoint("interrupted"), "the first checkpoint")
        process.send_signal(signal.SIGINT)

    stopped = user.train("--workers", "1", "--name", "interrupted", pace=0.5, during=interrupt)
    assert stopped.code == 130, stopped.err
    assert stopped.record["status"] == "interrupted"
    kept = stopped.record["checkpoints"][-1]
    assert kept["position"]["total_steps"] == stopped.record["outcome"]["steps"]
    assert (stopped.folder / kept["path"]).stat().st_size == kept["bytes"]


def test_an_error_in_fit_shows_the_scripts_own_traceback(user: User) -> None:
    failed = user.train("--workers", "1", pace=-1.0)
    assert failed.code == 1
    assert failed.record["status"] == "failed"
    shown = failed.err[failed.err.index("Traceback") :]
    assert f'File "{user.script}", line ' in shown
    assert "ValueError: sleep length must be non-negative" in shown
    assert shown.count("Traceback") == 1
    frames = [line for line in shown.splitlines() if line.lstrip().startswith("File ")]
    assert not [frame for frame in frames if "/ray/" in frame or "/launcher/" in frame]


def test_a_training_process_that_dies_is_replaced_from_the_checkpoint(
    user: User, alone: Finished, two_nodes: Any
) -> None:
    def kill(process: Any) -> None:
        wait_until(lambda: user.has_checkpoint("replaced"), "the first checkpoint")
        os.kill(training_process(two_nodes).pid, signal.SIGKILL)
        user.set_pace(0.0)

    replaced = user.train("--workers", "1", "--name", "replaced", pace=0.5, during=kill)
    assert replaced.code == 0, replaced.err
    assert [segment["end"] for segment in replaced.record["segments"]] == ["failed", "done"]
    assert "restart" in [event["kind"] for event in replaced.record["events"]]
    assert same(replaced.history, alone.history, rel=1e-6)


@needs_root
def test_a_storage_that_is_full_for_a_while_holds_up_nothing(
    user: User, alone: Finished, short_dir: Path
) -> None:
    with mounted(short_dir / "full", 4 << 20) as mount:

        def trouble(process: Any) -> None:
            kept = mount.path / "runs" / "trouble" / "checkpoints"
            wait_until(lambda: any(kept.glob("*.npz")), "the first checkpoint")
            mount.fill()
            wait_until(lambda: "No space left" in "".join(user.said), "a word about it")
            user.set_pace(0.1)
            mount.empty()

        where = ("--workers", "1", "--name", "trouble", "--storage", str(mount.path))
        ended = user.train(*where, pace=0.6, during=trouble)
        assert ended.code == 0, ended.err
        assert same(ended.history, alone.history, rel=1e-6)
        assert Path(ended.record["outcome"]["model"]).exists()
        stored = json.loads((ended.folder / "run.json").read_text())
        assert stored["status"] == "done"
    assert "works again" in ended.err


def training_process(nodes: Any) -> psutil.Process:
    """The process that trains, among the children of the cluster's nodes."""
    raylets = [
        info.process.pid for node in nodes.list_all_nodes() for info in node.all_processes["raylet"]
    ]
    children = [child for pid in raylets for child in psutil.Process(pid).children()]
    (found,) = [child for child in children if "RayTrainWorker" in command_line(child)]
    return found


def command_line(process: psutil.Process) -> str:
    """Its words; none once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_an_embedded_ray_runs_odd_names_and_leaves_no_process(short_dir: Path) -> None:
    user = User(short_dir / "other", "local")
    for name in ("launcher", "models", "policies"):
        (user.work / name).mkdir()
        (user.work / name / "__init__.py").write_text(f"WHOSE = 'my {name}'\n")
    (user.work / "ray.py").write_text("WHOSE = 'my ray'\n")
    imports = "import launcher, models, policies, ray\n"
    shown = "print(launcher.WHOSE, models.WHOSE, policies.WHOSE, ray.WHOSE, __file__)\n"
    script = user.work / "größe messen.py"
    script.write_text(imports + textwrap.dedent(SCRIPT) + shown)
    words = ["--workers", "1", "--yes", script.name, "--", str(user.pace)]
    ended = user.launch("--address", "local", *words)
    assert ended.code == 0, ended.err
    assert "los geht's: größer\n" in ended.out
    assert "my launcher my models my policies my ray" in ended.out
    wait_until(
        lambda: not any(has_home(each, user.home) for each in psutil.process_iter()),
        "the end of all its processes",
    )


def has_home(process: psutil.Process, home: Path) -> bool:
    try:
        return process.environ().get("HOME") == str(home) and process.status() != "zombie"
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def test_a_search_runs_its_trials_side_by_side(user: User) -> None:
    (user.work / "space.yaml").write_text("rate: {float: [0.01, 0.1], log: true}\n")
    words = ["--space", "space.yaml", "--trials", "2", "--full", "--workers", "1"]
    words += ["--cpus-per-worker", "2", "--address", user.address, "--seed", "5", "--json"]
    words += ["--budget", "5", "--price", "1"]
    found = user.launch("tune", "train.py", *words, "--", str(user.pace))
    assert found.code == 0, found.err
    record = found.record
    one, other = record["trials"]
    assert (record["status"], one["status"], other["status"]) == ("done", "done", "done")
    assert {len(one["nodes"]), len(other["nodes"])} == {1}
    assert one["nodes"] != other["nodes"]
    assert other["started_s"] < one["started_s"] + one["time_s"]
    assert 0 < one["cost_usd"] + other["cost_usd"] < 5
    best = min(record["trials"], key=lambda trial: trial["values"][-1]["value"])
    assert record["best"]["run"] == best["run"]
    assert Path(best["model"]).stat().st_size > 0
    assert f"--rate {best['params']['rate']!r}" in record["again"]
