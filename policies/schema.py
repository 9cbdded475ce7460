"""The values that the launcher's stages hand to each other and that a run record holds.

Everything here is frozen and free of effects; field names are the keys of a run record.
Times are seconds, sizes bytes, money US dollars.
"""

from dataclasses import dataclass, field
from typing import Literal

from policies.workload import Exactness, Fit, Framework, KindSpeed, ModelLayers, StageKind, Workload

__all__ = [
    "DEFAULT_PATH",
    "Algorithm",
    "Asynchrony",
    "Basis",
    "Candidate",
    "CurvePoint",
    "DataAhead",
    "Decision",
    "Exactness",
    "Experience",
    "Fit",
    "Framework",
    "Interface",
    "Interval",
    "KindSpeed",
    "Limits",
    "Link",
    "ModelLayers",
    "Network",
    "Node",
    "NodeData",
    "NodeStart",
    "Objective",
    "Parallelism",
    "Plan",
    "PlanOptions",
    "Prediction",
    "PriceSource",
    "Situation",
    "StageKind",
    "StepsFactor",
    "Strategy",
    "Work",
    "Workload",
]

Strategy = Literal["allreduce", "direct", "decentralized", "pipeline"]
Parallelism = Literal["data", "model", "auto"]
Algorithm = Literal["one_shot", "two_shot", "ring", "two_level"]
Objective = Literal["time", "cost"]
PriceSource = Literal["label", "table", "option", "assumed", "own machine"]
Basis = Literal["measured", "predicted", "assumed"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the bounds of its 90 % interval."""

    mean: float
    low: float
    high: float

    def plus(self, constant: float) -> "Interval":
        """The interval of the quantity and a constant together."""
        return Interval(self.mean + constant, self.low + constant, self.high + constant)


@dataclass(frozen=True, slots=True)
class Node:
    """A machine in the Ray cluster.

    `kind` groups machines that compute alike (instance type, or CPUs and GPUs); `cpus` and
    `gpus` are what is free for training. `allowed_cpus` is what the operating system lets a
    process use, where that is less (a container's quota). `node_type` is its name in the
    configuration of an autoscaling cluster. A node that is not `is_up` can be started, and is
    then paid for `lingers_s` after its release. `losses_per_h` is how often its provider is
    expected to take such a node back. `site` is where it stands, by its label.
    """

    id: str
    ip: str
    cpus: float
    gpus: float
    instance_type: str | None
    price_usd_per_h: float
    price_source: PriceSource
    kind: str
    allowed_cpus: float | None = None
    node_type: str | None = None
    is_up: bool = True
    lingers_s: float = 0.0
    losses_per_h: float = 0.0
    site: str | None = None

    @property
    def usable_cpus(self) -> float:
        """The CPUs that training really gets."""
        return self.cpus if self.allowed_cpus is None else min(self.cpus, self.allowed_cpus)


@dataclass(frozen=True, slots=True)
class Link:
    """A directed pair of nodes as probed; `src == dst` is a node's loopback.

    `None` means "not known": the node did not answer within the probe's deadline.
    `loss` is the fraction of messages lost, in [0, 1]. `path` names the network that it runs
    over (see `Interface`). `other_bytes_per_s` is what others sent over it meanwhile: the
    bandwidth is what was left beside them.
    """

    src: str
    dst: str
    path: str
    rtt_s: float | None
    jitter_s: float | None
    loss: float | None
    bandwidth_bytes_per_s: float | None
    basis: Basis = "measured"
    other_bytes_per_s: float = 0.0


DEFAULT_PATH = "default"


@dataclass(frozen=True, slots=True)
class Interface:
    """An address of a node on a network.

    `path` is `DEFAULT_PATH` for the address that Ray uses, else the network, such as
    "10.98.0.0/24".
    """

    node: str
    ip: str
    path: str


@dataclass(frozen=True, slots=True)
class Network:
    """The network map: the links that were measured, one per directed pair and path.

    `interfaces` names further addresses of the nodes, where there are several networks.
    `sent_bytes` is what the probe put on the network, of at most `max_bytes`.
    """

    links: tuple[Link, ...]
    probed_at: str
    took_s: float
    silent: tuple[str, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    sent_bytes: int = 0
    max_bytes: int = 0

    def link(self, src: str, dst: str) -> Link | None:
        """The link with the highest bandwidth from `src` to `dst`, or None if not probed."""
        found = [link for link in self.links if link.src == src and link.dst == dst]
        return max(found, key=lambda link: link.bandwidth_bytes_per_s or 0.0, default=None)


@dataclass(frozen=True, slots=True)
class Asynchrony:
    """How far apart workers of `decentralized` may drift.

    `max_staleness` bounds the age of gradients that are applied, in steps (None: no bound). Every
    `transfer_every_steps` (0: never) who is behind takes a part `merge` of a better one's weights.
    With `own_data` the workers of a site share its own batches out, and every site has a worker.
    """

    max_staleness: int | None = 64
    transfer_every_steps: int = 100
    merge: float = 0.75
    own_data: bool = False


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What each worker of a plan holds, and how the workers talk.

    `path` is the network that they use (`direct` uses others beside it). `algorithm` is
    `direct`'s; `sites` are the groups of ranks that its two levels have; with `overlap` gradients
    leave while the backward pass still makes others. Under `sync_batchnorm` batch statistics are
    those of the global batch, at the price of two exchanges a layer; else each worker's own.
    `asynchrony` is `decentralized`'s. A `pipeline` has a stage on each node, cut before the layers
    of these numbers, and each batch goes through it in `micro_batches`.
    """

    cpus_per_worker: float
    gpus_per_worker: float = 0.0
    path: str = DEFAULT_PATH
    algorithm: Algorithm | None = None
    sites: tuple[tuple[int, ...], ...] = ()
    sync_batchnorm: bool = True
    overlap: bool = False
    asynchrony: Asynchrony | None = None
    cuts: tuple[int, ...] = ()
    micro_batches: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Workers, their nodes in rank (and ring) order, and the way gradients are exchanged.

    A node id that occurs k times holds k workers. Workers of one node are neighbours.
    """

    n_workers: int
    nodes: tuple[str, ...]
    strategy: Strategy
    options: PlanOptions


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan's remaining work is expected to take.

    `same_accuracy_s` is set where the plan changes the learning curve: the time until it is as
    good as exact training is after this work.
    """

    step_s: Interval
    time_s: Interval
    cost_usd: Interval
    same_accuracy_s: Interval | None = None


@dataclass(frozen=True, slots=True)
class StepsFactor:
    """How many times the steps of exact training a plan needs to the same accuracy."""

    steps: Interval
    basis: Basis


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan, its prediction, and the probability that it keeps budget and deadline.

    `steps_factor` is set where the plan changes the learning curve.
    """

    plan: Plan
    prediction: Prediction
    p_fits: float
    steps_factor: StepsFactor | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the request allows. None means no limit (or: choose freely).

    `sync_batchnorm` asks for exact batch statistics under `direct` too. At most `max_started` of
    the nodes that are not up may be started. `parallelism` says whether workers share the data, or
    the layers of the model. With `allow_approximate` plans may change the learning
    curve (`decentralized`, by `asynchrony`).
    """

    budget_usd: float | None = None
    deadline_s: float | None = None
    objective: Objective = "time"
    workers: int | None = None
    max_workers: int | None = None
    strategy: Strategy | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    explore: float = 0.02
    sync_batchnorm: bool = False
    max_started: int | None = None
    parallelism: Parallelism = "data"
    allow_approximate: bool = False
    asynchrony: Asynchrony = Asynchrony()


@dataclass(frozen=True, slots=True)
class Work:
    """Training still to do: `steps` of `global_batch` rows, over `epochs` (maybe partial)."""

    steps: int
    epochs: float
    global_batch: int
    validation_steps: int = 0


@dataclass(frozen=True, slots=True)
class NodeData:
    """How much of a run's data a node lacks."""

    node: str
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class DataAhead:
    """Data that must be on a plan's nodes before training: those not among `nodes` lack all.

    A node receives `bytes_per_s` (`basis` says where that is from); with `is_shared` all nodes
    together do. `usd_per_byte` is what the source's provider charges. `sites` tell all of it
    where each has data of its own, every node of theirs among their `nodes`.
    """

    n_bytes: int
    nodes: tuple[NodeData, ...]
    bytes_per_s: float
    basis: Basis
    is_shared: bool
    usd_per_byte: float
    sites: tuple["DataAhead", ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a decision rests on, besides experience.

    `upkeep_usd_per_h` is paid beside the nodes of any plan: for a head that only serves them.
    """

    nodes: tuple[Node, ...]
    network: Network | None
    workload: Workload
    work: Work
    limits: Limits
    spent_usd: float = 0.0
    spent_s: float = 0.0
    data: DataAhead | None = None
    upkeep_usd_per_h: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeStart:
    """Nodes of a type that were started: how long after they were asked for all had joined."""

    node_type: str
    took_s: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The loss at the end of an epoch, after so many steps: `metric` is "val_loss" or "loss"."""

    steps: int
    metric: str
    loss: float


@dataclass(frozen=True, slots=True)
class Experience:
    """One measured segment of a past run, as the policy learns from it.

    `node_starts` are the whole run's. `measured_at_s` is when the segment began, in seconds since
    1970. `evaluation_s` is what the end of an epoch took, evaluation and all; `checkpoint_s` what
    one checkpoint takes from training. `curve` is how the loss went down.
    """

    run: str
    nodes: tuple[Node, ...]
    network: Network | None
    workload: Workload
    plan: Plan
    global_batch: int
    steps: int
    step_s: float
    startup_s: float | None = None
    node_starts: tuple[NodeStart, ...] = ()
    measured_at_s: float | None = None
    evaluation_s: float | None = None
    checkpoint_s: float | None = None
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Candidates, the chosen plan, and the reason in one line.

    `p_fits` is the probability that the chosen plan keeps budget and deadline. `rival` is the
    best plan of as many workers that exchanges gradients in the other way, if there is one.
    """

    at_step: int
    reason: str
    policy: str
    seed: int
    history: tuple[str, ...]
    chosen: Plan
    candidates: tuple[Candidate, ...]
    p_fits: float
    notes: tuple[str, ...] = field(default=())
    rival: Candidate | None = None

    @property
    def candidate(self) -> Candidate:
        """The chosen plan's candidate."""
        return next(c for c in self.candidates if c.plan == self.chosen)
