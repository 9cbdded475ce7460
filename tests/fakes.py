"""Hand-written values and fakes that tests share."""

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ray

from launcher.config import Request
from launcher.record import (
    CheckpointRecord,
    ClusterRecord,
    DecisionRecord,
    Outcome,
    RunEvent,
    RunRecord,
    Segment,
    StepTime,
    new_record,
)
from launcher.standing import TrainingStatus
from launcher.worker.job import ORDER_NONE, Event
from policies.schema import (
    Candidate,
    Decision,
    Fit,
    Interval,
    KindSpeed,
    Link,
    Network,
    Node,
    Plan,
    PlanOptions,
    Prediction,
    Work,
    Workload,
)

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
NODE_IDS = tuple(f"{letter}{'0' * 55}" for letter in "3f7a9c")


class FakeClock:
    """A clock that moves only when told."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def a_request(storage: str = "/tmp/launch", **changes: object) -> Request:
    request = Request(script=Path("/project/train.py"), budget_usd=5.0, storage=storage, seed=7)
    return replace(request, **changes)  # type: ignore[arg-type]


def a_node(index: int, price_usd_per_h: float = 0.34) -> Node:
    return Node(
        id=NODE_IDS[index],
        ip=f"10.0.0.{index + 4}",
        cpus=8,
        gpus=0,
        instance_type="c5.2xlarge",
        price_usd_per_h=price_usd_per_h,
        price_source="label",
        kind="c5.2xlarge",
    )


def a_network(n_nodes: int = 4) -> Network:
    links = tuple(
        Link(
            src=NODE_IDS[i],
            dst=NODE_IDS[j],
            path="default",
            rtt_s=0.041 if 3 in (i, j) else 0.0004,
            jitter_s=0.0001,
            loss=0.0,
            bandwidth_bytes_per_s=22.5e6 if 3 in (i, j) else 600e6,
        )
        for i in range(n_nodes)
        for j in range(n_nodes)
        if i != j
    )
    return Network(links=links, probed_at="2026-11-30T12:00:00.000Z", took_s=2.1)


def a_workload() -> Workload:
    return Workload(
        fingerprint="f" * 16,
        framework="keras",
        exactness="exact",
        n_params=1_213_450,
        payload_bytes=4_853_800,
        n_tensors=8,
        fits=(Fit(global_batch=256, steps=1560, epochs=10),),
        node_kinds=(KindSpeed(kind="c5.2xlarge", c0_s=0.01, c1_s=0.0008, cpus=8),),
        setup_s=4.0,
    )


def a_plan(n: int) -> Plan:
    return Plan(n, NODE_IDS[:n], "allreduce", PlanOptions(cpus_per_worker=8))


def a_candidate(n: int, step_s: float, time_s: float, cost_usd: float) -> Candidate:
    def interval(mean: float) -> Interval:
        return Interval(mean, mean * 0.9, mean * 1.1)

    prediction = Prediction(interval(step_s), interval(time_s), interval(cost_usd))
    return Candidate(a_plan(n), prediction, p_fits=0.99)


def a_decision() -> Decision:
    return Decision(
        at_step=0,
        reason="3 workers: half the time of one for $0.13 more.",
        policy="prior",
        seed=7,
        history=(),
        chosen=a_plan(3),
        candidates=(
            a_candidate(1, 0.212, 3300, 0.31),
            a_candidate(2, 0.119, 1860, 0.36),
            a_candidate(3, 0.071, 1140, 0.44),
            a_candidate(4, 0.088, 1440, 0.56),
        ),
        p_fits=0.99,
    )


def a_record(name: str = "brave-otter", storage: str = "/tmp/launch") -> RunRecord:
    """A run that is done, with every part filled in."""
    request = a_request(storage, name=name)
    record = new_record(request, name, now=NOW, owner="host:1", versions={"keras": "3.15.1"})
    segment = Segment(
        plan=a_plan(3),
        started="2026-11-30T12:00:10.000Z",
        first_step_at="2026-11-30T12:00:22.000Z",
        ended="2026-11-30T12:18:52.000Z",
        steps=15_600,
        global_batch=256,
        step_s=StepTime(median=0.070, p90=0.081),
        cost_usd=0.43,
        end="done",
    )
    return replace(
        record,
        status="done",
        exit_code=0,
        cluster=ClusterRecord("10.0.0.4:6379", tuple(a_node(i) for i in range(4))),
        network=a_network(),
        workload=a_workload(),
        decisions=(DecisionRecord(a_decision(), Work(15_600, 10, 256)),),
        segments=(segment,),
        events=(RunEvent("2026-11-30T12:00:00.000Z", "warning", "a node is silent"),),
        checkpoints=(
            CheckpointRecord(
                "2026-11-30T12:10:00.000Z", {"fit": 0, "epoch": 4, "step": 0}, "checkpoints/4", 99
            ),
        ),
        outcome=Outcome(
            time_s=1132.0,
            cost_usd=0.43,
            steps=15_600,
            metrics={"loss": 0.21, "val_accuracy": 0.914},
            model=f"{storage}/runs/{name}/model.keras",
        ),
    )


class FakeTraining:
    """A segment that follows a script: what is reported when, in seconds on the clock.

    Args:
        clock: moves on by every wait for events.
        script: (second, event or call), in order of time.
        ends_at_s: when the workers end by themselves.
        stops_in_s: how long they take to stop when asked; None if they do not react.
    """

    def __init__(
        self,
        clock: FakeClock,
        script: Sequence[tuple[float, Event | Callable[[], object]]] = (),
        *,
        ends_at_s: float = math.inf,
        stops_in_s: float | None = 1.0,
        error: BaseException | None = None,
    ) -> None:
        self.plan, self.error = a_plan(1), error
        self.stopped_at_s: list[float] = []
        self.alone_s: list[float] = []
        self.aborted_at_s: list[float] = []
        self._clock, self._script = clock, list(script)
        self._ends_at_s, self._stops_in_s = ends_at_s, stops_in_s

    def is_running(self) -> bool:
        return self._clock.now_s < self._ends_at_s

    def events(self, timeout_s: float, alone_s: float) -> list[Event]:
        self.alone_s.append(alone_s)
        self._clock.sleep(timeout_s)
        found = []
        while self._script and self._script[0][0] <= self._clock.now_s:
            entry = self._script.pop(0)[1]
            if isinstance(entry, Event):
                found.append(entry)
            else:
                entry()
        return found

    def stop(self) -> None:
        self.stopped_at_s.append(self._clock.now_s)
        if self._stops_in_s is not None:
            self._ends_at_s = min(self._ends_at_s, self._clock.now_s + self._stops_in_s)

    def abort(self) -> None:
        self.aborted_at_s.append(self._clock.now_s)
        self._ends_at_s = self._clock.now_s


class Method:
    """What an actor's handle has for each of its methods."""

    def __init__(self, call: Callable[..., object]) -> None:
        self.remote = call


class _Handle:
    def __init__(self, target: object) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Method:
        return Method(getattr(self._target, name))


def actor(target: object) -> Any:
    """What Ray gives as the handle of an actor, of an object in this process."""
    return _Handle(target)


class FakeKeeper:
    """The handle of a keeper that answers at once, in this process."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.checkpoints: list[bytes] = []
        self.artifacts: bytes | None = None
        self.pieces: dict[str, bytes] = {}
        self.order, self.is_gone = ORDER_NONE, False
        self.tell = Method(self._tell)
        self.keep_checkpoint = Method(self._keep_checkpoint)
        self.keep_files = Method(self._keep_files)
        self.keep_model = Method(self._keep_model)
        self.keep_piece = Method(self._keep_piece)

    def _tell(self, events: list[Event]) -> int:
        if self.is_gone:
            raise ray.exceptions.RayActorError
        self.calls += [(event.kind, event.detail) for event in events]
        return self.order

    def _keep_piece(self, name: str, data: bytes) -> str:
        self.pieces[name] = self.pieces.get(name, b"") + data
        return "piece kept"

    def _keep_checkpoint(
        self, position: dict[str, int], data: bytes | str, files: str, took_s: float
    ) -> str:
        data = self.pieces.pop(data) if isinstance(data, str) else data
        self.checkpoints.append(data)
        return self._kept("checkpoint", position=position, bytes=len(data), files=files)

    def _keep_files(self, key: str, data: bytes, n_files: int, wait: bool) -> str:
        self.artifacts = data
        return self._kept("artifacts", files=n_files, bytes=len(data), key=key)

    def _keep_model(self, name: str, data: bytes | str) -> str:
        return self._kept("model", path=name, bytes=len(data))

    def _kept(self, kind: str, **detail: object) -> str:
        self.calls.append((kind, detail))
        return f"{kind} kept"


class FakeView:
    """Remembers what a segment showed."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.outputs: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.statuses: list[TrainingStatus] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def output(self, text: str, stream: str) -> None:
        self.outputs.append((stream, text))

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def training(self, status: TrainingStatus) -> None:
        self.statuses.append(status)


class FakeScreen(FakeView):
    """Remembers what a run showed and asked."""

    def __init__(self, answer: bool = False) -> None:
        super().__init__()
        self.questions: list[str] = []
        self.notes: list[str] = []
        self.records: list[RunRecord] = []
        self._answer = answer

    def cluster(self, cluster: object) -> None:
        """Not looked at."""

    def measured(self, measured: object, cluster: object) -> None:
        """Not looked at."""

    def decided(self, decision: object, situation: object) -> None:
        """Not looked at."""

    def note(self, text: str) -> None:
        self.notes.append(text)

    def confirm(self, question: str) -> bool:
        self.questions.append(question)
        return self._answer

    def ended(self, record: RunRecord) -> None:
        self.records.append(record)


def soon(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    """Wait until something holds that another thread brings about; whether it does."""
    ends_at_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < ends_at_s:
        time.sleep(0.01)
    return condition()


def an_event(kind: str, /, **detail: object) -> Event:
    return Event(kind, 0.0, detail)


def an_epoch(epoch: int, loss: float, **changes: object) -> Event:
    detail: dict[str, object] = {
        "fit": 0,
        "epoch": epoch,
        "epochs": 3,
        "steps": 10,
        "evaluation_s": 0.0,
        "logs": {"loss": loss},
    }
    return an_event("epoch", **detail | changes)


@contextlib.contextmanager
def script_folder() -> Iterator[Path]:
    """A script's own folder as working directory; what is copied beside it goes with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "script")
        folder.mkdir()
        with contextlib.chdir(folder):
            yield folder
