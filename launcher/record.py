"""The run record: what a run was asked, measured, predicted, decided and took.

One JSON document per run, `STORAGE/runs/RUN/run.json`, replaced atomically by its one writer at
each event. `docs/records.md` explains every key. No environment variable is ever in it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from launcher.codec import Codec
from launcher.config import Request
from launcher.errors import RecordError
from launcher.worker.staging.uris import public_uri
from policies.schema import (
    Candidate,
    CurvePoint,
    DataAhead,
    Decision,
    Experience,
    Network,
    Node,
    NodeStart,
    Plan,
    Situation,
    Work,
    Workload,
)

SCHEMA = 1
Status = Literal["running", "done", "budget", "deadline", "interrupted", "failed"]
ShownStatus = Status | Literal["lost", "detached"]


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The cluster that a run joined or started."""

    address: str
    nodes: tuple[Node, ...]
    embedded: bool = False
    how: str = ""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision, with what was left to do and already spent when it was made."""

    decision: Decision
    work: Work | None = None
    spent_usd: float = 0.0
    spent_s: float = 0.0
    data: DataAhead | None = None


@dataclass(frozen=True, slots=True)
class StepTime:
    """Measured step times of a segment, in seconds; `mean` leaves the slowest few out.

    Records of earlier versions have no mean.
    """

    median: float
    p90: float
    mean: float | None = None

    @property
    def typical_s(self) -> float:
        """What a step takes in the long run."""
        return self.median if self.mean is None else self.mean


@dataclass(frozen=True, slots=True)
class PathRecord:
    """What workers on one node sent those on another over one network, of several.

    `src` and `dst` are None where one row stands for all pairs. `busy_s` is how long the network
    was busy with it, `bytes_per_s` what it carried meanwhile, lately; `n_down` how often it broke.
    """

    src: str | None
    dst: str | None
    path: str
    sent_bytes: int
    busy_s: float
    bytes_per_s: float | None
    n_down: int


@dataclass(frozen=True, slots=True)
class DriftRecord:
    """How far apart the workers of `decentralized` were, as the first one saw it.

    Ages of gradients that it applied, in steps; `n_dropped` were too old, and `n_transfers` times
    it took over or merged another one's weights.
    """

    mean_staleness: float
    oldest: int
    n_dropped: int
    n_transfers: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of training under one plan. `end` says why it ended, None while it runs.

    `started`, `first_step_at` and `ended` are ISO-8601 in UTC; `cost_usd` counts all nodes held.
    `evaluation_s` is what the end of an epoch took, evaluation and all, in the median;
    `checkpoint_s` what one checkpoint took from training: its pause, and what steps took longer.
    """

    plan: Plan
    started: str
    first_step_at: str | None = None
    ended: str | None = None
    steps: int = 0
    global_batch: int | None = None
    step_s: StepTime | None = None
    cost_usd: float = 0.0
    end: str | None = None
    paths: tuple[PathRecord, ...] = ()
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    drift: DriftRecord | None = None


@dataclass(frozen=True, slots=True)
class DataNodeRecord:
    """How the data came to a node: how many bytes over the network, and how long it took."""

    node: str
    fetched_bytes: int
    took_s: float


@dataclass(frozen=True, slots=True)
class DataRecord:
    """The run's data: where from (without passwords), how much, and on which nodes they are.

    `usd_per_gb` is what their provider charges on their way out, `price_source` where that is
    from (`option`, `table`, `assumed`, `own`), `cost_usd` what came together.
    """

    sources: tuple[str, ...]
    n_files: int
    n_bytes: int
    fingerprint: str
    usd_per_gb: float = 0.0
    price_source: str = "own"
    cost_usd: float = 0.0
    nodes: tuple[DataNodeRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened, such as a warning or a retry."""

    at: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """Where training can go on: the `fit` call, the epoch and the step in it, from 0.

    `path` is relative to the run's folder in storage.
    """

    at: str
    position: Mapping[str, Any]
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run took, start-up and earlier segments included.

    `metrics` are those of the last epoch; `model` and `artifacts` are paths for people.
    """

    time_s: float
    cost_usd: float
    steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    model: str | None = None
    artifacts: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run, from its request to its outcome.

    `term` counts its drivers; `detached` says whether the last one runs without a terminal.
    """

    schema: int
    run: str
    status: Status
    exit_code: int | None
    created: str
    owner: str
    heartbeat_at: str
    versions: Mapping[str, str]
    storage: str
    request: Request
    term: int = 1
    detached: bool = False
    cluster: ClusterRecord | None = None
    node_starts: tuple[NodeStart, ...] = ()
    network: Network | None = None
    workload: Workload | None = None
    decisions: tuple[DecisionRecord, ...] = ()
    segments: tuple[Segment, ...] = ()
    events: tuple[RunEvent, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    outcome: Outcome | None = None
    data: DataRecord | None = None

    @property
    def decision(self) -> Decision | None:
        """The decision in force: the last one."""
        return self.decisions[-1].decision if self.decisions else None

    @property
    def cost_usd(self) -> float:
        """What the run has cost so far."""
        if self.outcome is not None:
            return self.outcome.cost_usd
        return sum(segment.cost_usd for segment in self.segments)

    def decided(self, decision: Decision, situation: Situation) -> "RunRecord":
        """With one more decision, to be saved before it is acted upon."""
        entry = DecisionRecord(
            decision, situation.work, situation.spent_usd, situation.spent_s, situation.data
        )
        return replace(self, decisions=(*self.decisions, entry))

    def happened(self, kind: str, detail: str, now: datetime) -> "RunRecord":
        """With one more event."""
        return replace(self, events=(*self.events, RunEvent(timestamp(now), kind, detail)))

    def beaten(self, now: datetime) -> "RunRecord":
        """With a fresh heartbeat: the writer lives."""
        return replace(self, heartbeat_at=timestamp(now))

    def situation(self, index: int = -1) -> Situation | None:
        """What a decision rested on, rebuilt from the record; None if not known."""
        if not self.decisions or self.cluster is None or self.workload is None:
            return None
        if not self.workload.fits:
            return None
        entry = self.decisions[index]
        work = entry.work or _all_work(self.workload)
        return Situation(
            nodes=self.cluster.nodes,
            network=self.network,
            workload=self.workload,
            work=work,
            limits=self.request.limits,
            spent_usd=entry.spent_usd,
            spent_s=entry.spent_s,
            data=entry.data,
        )

    def experiences(self) -> tuple[Experience, ...]:
        """What the policy can learn from: the measured segments."""
        if self.cluster is None or self.workload is None:
            return ()
        return tuple(
            Experience(
                run=self.run,
                nodes=self.cluster.nodes,
                network=self.network,
                workload=self.workload,
                plan=segment.plan,
                global_batch=segment.global_batch or self.workload.fits[0].global_batch,
                steps=segment.steps,
                step_s=segment.step_s.typical_s,
                startup_s=_startup_s(segment),
                node_starts=self.node_starts,
                measured_at_s=parse_timestamp(segment.started).timestamp(),
                evaluation_s=segment.evaluation_s,
                checkpoint_s=segment.checkpoint_s,
                curve=segment.curve,
            )
            for segment in self.segments
            if segment.step_s is not None and segment.steps > 0 and self.workload.fits
        )


CODEC = Codec(
    flat={
        Candidate: frozenset({"plan", "prediction"}),
        DecisionRecord: frozenset({"decision"}),
    }
)


def dump_record(record: RunRecord) -> str:
    """The record as a JSON document; for half a character, as of odd file names, there is a `?`."""
    text = json.dumps(CODEC.encode(record), indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="replace").decode()


def load_record(document: str | bytes, path: str) -> RunRecord:
    """Read a record; `path` is for messages.

    Raises:
        RecordError: the document is damaged, or of a later schema.
    """
    remedy = f"Delete or move {path} if the run is of no use any more."
    try:
        data = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is damaged: {error}. {remedy}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int):
        raise RecordError(f"{path} is damaged: it is not a run record. {remedy}")
    if schema > SCHEMA:
        raise RecordError(
            f"{path} has schema version {schema}, and this launcher reads up to {SCHEMA}. "
            "Update the launcher."
        )
    try:
        record = CODEC.decode(RunRecord, data)
        _check(record)
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is damaged: {error}. {remedy}") from error
    return record


def _check(record: RunRecord) -> None:
    """Raise ValueError for a moment that is none, or a choice among no candidates."""
    begun = [segment.started for segment in record.segments]
    first_steps = [s.first_step_at for s in record.segments if s.first_step_at is not None]
    for moment in (record.created, record.heartbeat_at, *begun, *first_steps):
        parse_timestamp(moment)
    for number, each in enumerate(record.decisions, start=1):
        if all(each.decision.chosen != candidate.plan for candidate in each.decision.candidates):
            raise ValueError(f"decision {number} chose none of its candidates")


def timestamp(moment: datetime) -> str:
    """A moment as ISO-8601 in UTC, such as 2026-11-30T02:58:10.123Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_timestamp(text: str) -> datetime:
    """The moment that `timestamp` wrote; one without a zone is in UTC."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _startup_s(segment: Segment) -> float | None:
    if segment.first_step_at is None:
        return None
    begin, first = parse_timestamp(segment.started), parse_timestamp(segment.first_step_at)
    return (first - begin).total_seconds()


def _all_work(workload: Workload) -> Work:
    """The first fit from its start, for records of decisions without their work."""
    fit = workload.fits[0]
    return Work(fit.steps * fit.epochs, fit.epochs, fit.global_batch, fit.validation_steps)


def new_record(
    request: Request,
    name: str,
    *,
    now: datetime,
    owner: str,
    versions: Mapping[str, str],
    detached: bool = False,
) -> RunRecord:
    """The record of a run that begins now; what URIs hold of passwords stays out of it."""
    request = replace(request, data=tuple(public_uri(uri) for uri in request.data))
    return RunRecord(
        schema=SCHEMA,
        run=name,
        status="running",
        exit_code=None,
        created=timestamp(now),
        owner=owner,
        heartbeat_at=timestamp(now),
        versions=versions,
        storage=request.storage,
        request=request,
        detached=detached,
    )
