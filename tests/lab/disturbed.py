"""A training run on the lab's hosts that can be watched, disturbed, and looked at afterwards."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.lab.lab import Lab

ROOT = Path(__file__).parents[2]
SCRIPT = "scripts/workloads/steady.py"
DRIVER = "h1"
USD_PER_H = 0.36  # of a node: 0.0001 dollars a second
STEP = re.compile(r"step (\d+) (\d+)")
EPOCH = re.compile(r"epoch (\d+) loss (\S+)")
# Processes that hold a cluster for a run; Ray's own daemons and idle workers are not among them.
HELD = ("RayTrainWorker", "TrainController", "ray::Keeper", "ray::Sentry", SCRIPT)

HELD_CPUS = """
    import json, sys, ray
    ray.init(address="auto", log_to_driver=False)
    from ray._private.state import available_resources_per_node
    free = {id: each.get("CPU", 0) for id, each in available_resources_per_node().items()}
    alive = [n for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] in sys.argv[1:]]
    print(json.dumps(sum(n["Resources"].get("CPU", 0) - free.get(n["NodeID"], 0) for n in alive)))
"""


@dataclass(slots=True)
class Seen:
    """What came out of a run's drivers, as it came."""

    moments: list[float] = field(default_factory=list)  # monotonic seconds of each step's line
    steps: list[tuple[int, int]] = field(default_factory=list)  # epoch and step
    loss_by_epoch: dict[int, list[float]] = field(default_factory=dict)  # each time it was said
    lines: list[str] = field(default_factory=list)
    heard_s: list[float] = field(default_factory=list)  # monotonic seconds of each line

    def take(self, line: str) -> None:
        """Note a line of output."""
        self.lines.append(line)
        self.heard_s.append(time.monotonic())
        if found := STEP.fullmatch(line):
            self.steps.append((int(found[1]), int(found[2])))
            self.moments.append(self.heard_s[-1])
        elif found := EPOCH.fullmatch(line):
            self.loss_by_epoch.setdefault(int(found[1]), []).append(float(found[2]))

    def pause_s(self, since_s: float) -> float:
        """The longest time without a step that ended after a moment; 0 if none did."""
        gaps = zip(self.moments, self.moments[1:], strict=False)
        return max((b - a for a, b in gaps if b > since_s), default=0.0)

    def keep(self, path: Path) -> None:
        """Write all lines down, each with the seconds since the first."""
        began_s = self.heard_s[0] if self.heard_s else 0.0
        stamped = zip(self.heard_s, self.lines, strict=True)
        path.write_text("".join(f"{at_s - began_s:7.2f}  {line}\n" for at_s, line in stamped))

    @property
    def steps_again(self) -> int:
        """How many steps were made more than once."""
        return len(self.steps) - len(set(self.steps))


class DisturbedRun:
    """`launch` on the lab's cluster, its drivers one after another.

    Args:
        name: of the run.
        words: further options of `launch`.
    """

    def __init__(self, lab: Lab, name: str, words: Sequence[str] = ()) -> None:
        self.lab, self.name, self._words = lab, name, tuple(words)
        self.seen = Seen()
        self.process: subprocess.Popen[str] | None = None
        self.exit_code: int | None = None
        self._reader: threading.Thread | None = None
        self._seen_record: dict[str, Any] = {}

    def start(self) -> None:
        """Start the first driver."""
        options = ["--yes", "--name", self.name, "--price", str(USD_PER_H), *self._words]
        self._drive([SCRIPT, "--address", self.lab.ray_address, *options])

    def resume(self, *words: str) -> None:
        """Go on with another driver."""
        self._drive(["resume", self.name, *words])

    def _drive(self, words: Sequence[str]) -> None:
        self._close_output()
        self.process = self.lab.popen(
            DRIVER,
            ["launch", *words],
            cwd=str(ROOT),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _close_output(self) -> None:
        """Take in what an ended driver still said."""
        if self.process is not None and self.process.stdout is not None:
            assert self._reader is not None
            self._reader.join(10)
            self.process.stdout.close()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.seen.take(line.rstrip("\n"))

    def wait_for_steps(self, count: int, limit_s: float) -> None:
        """Until so many steps have been made, however often.

        Raises:
            RuntimeError: the driver ended before, or it took too long.
        """
        ends_at_s = time.monotonic() + limit_s
        while len(self.seen.steps) < count:
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"the driver ended before step {count}:\n{self.tail()}")
            if time.monotonic() > ends_at_s:
                raise RuntimeError(f"no step {count} within {limit_s} s:\n{self.tail()}")
            time.sleep(0.05)

    def wait(self, limit_s: float) -> int:
        """Until the driver has ended; it is killed when that takes too long.

        Returns:
            Its exit code; -9 where it was killed.
        """
        assert self.process is not None
        try:
            self.exit_code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill_driver()
            self.exit_code = -9
        assert self._reader is not None
        self._reader.join(10)
        return self.exit_code

    def close(self) -> None:
        """End the driver, if there is one."""
        if self.process is not None:
            self.kill_driver()
            self._close_output()

    def kill_driver(self) -> None:
        """`kill -9`."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def tail(self) -> str:
        """The last lines that were said."""
        return "\n".join(self.seen.lines[-30:])

    # ------------------------------------------------------------------ what is left of it

    def keep_logs(self, folder: Path) -> None:
        """Copy what the drivers logged."""
        for log in self.lab.outside(DRIVER, "/tmp/home/.launch/logs").glob("*/launch.log"):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, folder / f"{log.parent.name}.log")

    @property
    def folder(self) -> Path:
        """The run's folder in storage, as seen from outside; what is mounted there included."""
        root = Path(f"/proc/{self.lab.host(DRIVER).pid}/root")
        return root / "tmp/home/launch/runs" / self.name

    @property
    def record(self) -> dict[str, Any]:
        """The run's record as it stands."""
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return found

    def hosts_in_use(self) -> list[str]:
        """The hosts of the plan that runs, in rank order; as last seen while storage is gone."""
        with suppress(FileNotFoundError):
            self._seen_record = self.record
        record = self._seen_record
        ip_by_node = {node["id"]: node["ip"] for node in record["cluster"]["nodes"]}
        host_by_ip = {self.lab.ip(name): name for name in self.lab.names}
        return [host_by_ip[ip_by_node[node]] for node in record["segments"][-1]["plan"]["nodes"]]

    def overrun_usd(self, budget_usd: float | None) -> float:
        """What the record says that was spent beyond the budget."""
        if budget_usd is None or not (self.folder / "run.json").exists():
            return 0.0
        if (outcome := self.record["outcome"]) is None:
            return 0.0
        return max(0.0, float(outcome["cost_usd"]) - budget_usd)


def training_pids(lab: Lab, name: str) -> list[int]:
    """The processes that train on a host, by the host's own numbers."""
    listed = lab.run(name, ["ps", "-eo", "pid,args"], timeout_s=30).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "RayTrainWorker" in line]


def left_behind(lab: Lab, hosts: Sequence[str], limit_s: float) -> list[str]:
    """What still holds the cluster after a while: processes, and CPUs by Ray's own account."""
    ends_at_s = time.monotonic() + limit_s
    while True:
        left = [f"{name}: {line}" for name in hosts for line in _held_processes(lab, name)]
        if not left and (held := _held_cpus(lab, hosts)):
            left = [f"{held:g} CPUs by Ray's account"]
        if not left or time.monotonic() > ends_at_s:
            return left
        time.sleep(1)


def _held_processes(lab: Lab, name: str) -> list[str]:
    listed = lab.run(name, ["ps", "-eo", "pid,stat,args"], timeout_s=30).stdout
    lines = [line.strip() for line in listed.splitlines() if any(h in line for h in HELD)]
    return [line[:160] for line in lines if not line.split()[1].startswith("Z")]


def _held_cpus(lab: Lab, hosts: Sequence[str]) -> float:
    """CPUs of these hosts that Ray has given to someone."""
    command = ["python", "-c", dedent(HELD_CPUS), *(lab.ip(name) for name in hosts)]
    done = lab.run(DRIVER, command, timeout_s=60)
    return float(done.stdout) if done.returncode == 0 else float("nan")


@contextmanager
def disturbed_run(lab: Lab, name: str, words: Sequence[str] = ()) -> Iterator[DisturbedRun]:
    """A run whose driver is gone when the `with` ends."""
    run = DisturbedRun(lab, name, words)
    run.start()
    try:
        yield run
    finally:
        run.close()
