"""Compare places to train at: what a run takes here, and on clusters that are not up yet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import yaml

from launcher.cluster_book import Entry
from launcher.cluster_file import ClusterFile
from launcher.cluster_nodes import kind_of
from launcher.data_rates import ASSUMED_BYTES_PER_S
from launcher.egress import EgressSource, egress_price
from launcher.errors import UsageError
from launcher.node_types import Autoscaling, autoscaling_of, n_may_start, nodes_to_start
from launcher.planned_types import PlannedType, usd_per_h
from launcher.sites import expected_up_s
from launcher.worker.staging.manifest import Manifest
from launcher.worker.staging.uris import WEB, scheme_of
from policies.candidates import pools
from policies.cost_model import speed_of
from policies.data.sweep import shipped_prior
from policies.data_ahead import bringing_s, egress_usd
from policies.recommend import NoPlanError, recommend
from policies.schema import (
    Candidate,
    DataAhead,
    Experience,
    Interval,
    Limits,
    Node,
    Situation,
    Work,
    Workload,
)

Basis = Literal["measured", "predicted", "assumed"]
HERE: Final = "local"
S_PER_H: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Start:
    """What it takes until a place is there: seconds, dollars, and its price from then on."""

    s: float = 0.0
    usd: float = 0.0
    basis: Basis = "assumed"
    upkeep_usd_per_h: float = 0.0


@dataclass(frozen=True, slots=True)
class Bringing:
    """What it takes to bring the data to a plan's nodes."""

    s: float
    basis: Basis
    usd: float
    price_source: EgressSource


@dataclass(frozen=True, slots=True)
class Offer:
    """What a run takes at a place; without `best`, `why_not` says why it cannot be told.

    Attributes:
        best: the plan that would be chosen; its time begins when the place is there.
        what: the plan's nodes, in words.
        idle_usd_per_h: of machines that are up from the start and not in the plan.
    """

    name: str
    start: Start = Start()
    best: Candidate | None = None
    what: str = ""
    step_basis: Basis = "predicted"
    bringing: Bringing | None = None
    idle_usd_per_h: float = 0.0
    why_not: str = ""

    @property
    def time_s(self) -> Interval | None:
        """From the command to the results, with its 90 % interval."""
        return None if self.best is None else self.best.prediction.time_s.plus(self.start.s)

    @property
    def cost_usd(self) -> Interval | None:
        """All that is counted against a budget."""
        return None if self.best is None else self.best.prediction.cost_usd.plus(self.start.usd)


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be done, wherever it is done.

    Attributes:
        workload: as measured here, and on other kinds of nodes by earlier runs of the script.
        manifest: of the run's data; None: there are none.
        data_rate: at which they came last, in bytes per second; None: not known.
    """

    workload: Workload
    work: Work
    limits: Limits
    seed: int
    experience: Sequence[Experience] = ()
    manifest: Manifest | None = None
    data_rate: float | None = None
    data_price_usd_per_gb: float | None = None


def offer_here(situation: Situation, question: Question) -> Offer:
    """What the run takes on the cluster that was measured."""
    asked = replace(
        situation, limits=replace(question.limits, max_started=situation.limits.max_started)
    )
    return _offer(HERE, Start(basis="measured"), asked, question, ())


def offer_of(file: ClusterFile, question: Question, entry: Entry | None) -> Offer:
    """What the run takes on a cluster from a file.

    Args:
        entry: what was noted when it was brought up from here, if it was.
    """
    name = str(file.path)
    if file.is_local or not file.types:
        return Offer(
            name,
            why_not="its file does not say how large its machines are: bring it up "
            f"(launch up {name}), and there: launch SCRIPT --dry-run",
        )
    nodes, n_to_start = cluster_nodes(file)
    fit = [node for node in nodes if is_known(node, question)]
    left_out = {node.node_type or node.kind for node in nodes} - {
        node.node_type or node.kind for node in fit
    }
    if not fit:
        return Offer(name, why_not=f"{', '.join(sorted(left_out))}: the script has not run on any")
    start = start_of(file, entry)
    situation = Situation(
        nodes=tuple(fit),
        network=None,
        workload=question.workload,
        work=question.work,
        limits=replace(question.limits, max_started=n_to_start),
        spent_usd=start.usd,
        spent_s=start.s,
        data=data_ahead(question, fit),
        upkeep_usd_per_h=start.upkeep_usd_per_h,
    )
    return _offer(name, start, situation, question, [node for node in fit if node.is_up])


def start_of(file: ClusterFile, entry: Entry | None) -> Start:
    """What a cluster takes to come up, unless it is up already."""
    if entry is not None and entry.ended_at is None:
        return Start(basis="measured")
    up_s, basis = expected_up_s(entry)
    serving = [each for each in file.types if each.is_head and not each.cpus and not each.gpus]
    rate = usd_per_h(file.types)
    return Start(
        up_s,
        rate * up_s / S_PER_H,
        basis,
        sum(each.price.usd_per_h for each in serving),
    )


def cluster_nodes(file: ClusterFile) -> tuple[tuple[Node, ...], int]:
    """The nodes that a cluster would have from the start, those it may start, and how many."""
    words = yaml.safe_load(Path(file.path).read_text(encoding="utf-8"))
    known = autoscaling_of(words)
    described = {
        node.node_type: node
        for node in (nodes_to_start(_unlimited(known), (), None) if known else ())
    }
    found: list[Node] = []
    for each in file.types:
        like = described.get(each.name)
        made = _node(each) if like is None else replace(like, is_up=True, lingers_s=0.0)
        found += [replace(made, id=f"{each.name} {i + 1}") for i in range(each.n_from_start)]
    training = [node for node in found if node.cpus > 0]
    if known is None:
        return tuple(training), 0
    n_more = n_may_start(known, len(found))
    return (*training, *nodes_to_start(known, found, None)), n_more


def _unlimited(known: Autoscaling) -> Autoscaling:
    """The same types, one node of each."""
    return replace(known, max_nodes=len(known.types) + 1)


def _node(each: PlannedType) -> Node:
    return Node(
        id=each.name,
        ip="",
        cpus=each.cpus,
        gpus=each.gpus,
        instance_type=each.instance_type,
        price_usd_per_h=each.price.usd_per_h,
        price_source=each.price.source,
        kind=each.instance_type or kind_of(each.cpus, each.gpus),
        node_type=each.name,
    )


def is_known(node: Node, question: Question) -> bool:
    """Whether the script's speed on a node can be told: a GPU's not from that of CPUs."""
    if node.gpus <= 0 or question.limits.gpus_per_worker == 0:
        return True
    return any(speed.gpus > 0 for speed in question.workload.node_kinds)


def data_ahead(question: Question, nodes: Sequence[Node]) -> DataAhead | None:
    """The data that every node there lacks."""
    manifest = question.manifest
    if manifest is None:
        return None
    price = egress_price(manifest, nodes, question.data_price_usd_per_gb)
    is_web = any(scheme_of(each.uri) in WEB for each in manifest.sources)
    is_shared = is_web or any(each.is_local for each in manifest.sources)
    rate = question.data_rate
    return DataAhead(
        manifest.n_bytes,
        (),
        rate or ASSUMED_BYTES_PER_S,
        "assumed" if rate is None else "measured",
        is_shared,
        price.usd_per_byte,
    )


def _offer(
    name: str, start: Start, situation: Situation, question: Question, up: Sequence[Node]
) -> Offer:
    if not pools(situation.nodes, situation.limits):
        return Offer(name, start, why_not="none of its machines has room for such a worker")
    try:
        decision = recommend(situation, question.experience, question.seed, prior=shipped_prior())
    except NoPlanError as error:
        return Offer(name, start, why_not=str(error).rstrip("."))
    best = next(each for each in decision.candidates if each.plan == decision.chosen)
    held = {node.id: node for node in situation.nodes if node.id in set(best.plan.nodes)}
    is_known_kind = all(speed_of(node, situation.workload)[1] for node in held.values())
    return Offer(
        name,
        start,
        best,
        what_text(best, list(held.values())),
        "predicted" if is_known_kind else "assumed",
        _bringing(best, situation, question),
        sum(node.price_usd_per_h for node in up if node.id not in held),
    )


def _bringing(best: Candidate, situation: Situation, question: Question) -> Bringing | None:
    data, manifest = situation.data, question.manifest
    if data is None or manifest is None:
        return None
    price = egress_price(manifest, situation.nodes, question.data_price_usd_per_gb)
    seconds, _ = bringing_s(best.plan, data)
    basis: Basis = "measured" if data.basis == "measured" else "assumed"
    return Bringing(seconds, basis, egress_usd(best.plan, data), price.source)


def what_text(best: Candidate, held: Sequence[Node]) -> str:
    """A plan's nodes in words: `2 × cpu (c5.2xlarge)`."""
    counts: dict[str, int] = {}
    for node in held:
        kind = node.instance_type or node.kind
        word = f"{node.node_type} ({kind})" if node.node_type not in (None, kind) else kind
        counts[word] = counts.get(word, 0) + 1
    nodes = ", ".join(f"{n} × {word}" for word, n in counts.items())
    n_workers = best.plan.n_workers
    return nodes if n_workers == len(held) else f"{nodes}, {n_workers} workers"


def best_of(offers: Sequence[Offer], objective: Literal["time", "cost"]) -> Offer | None:
    """The fastest place, or the cheapest; None where none can be told."""
    told = [each for each in offers if each.best is not None]

    def measure(offer: Offer) -> tuple[float, float]:
        time, cost = offer.time_s, offer.cost_usd
        assert time is not None
        assert cost is not None
        return (time.mean, cost.mean) if objective == "time" else (cost.mean, time.mean)

    return min(told, key=measure, default=None)


def places(text: str) -> tuple[str, ...]:
    """The places that `--on` names.

    Raises:
        UsageError: none, or one twice.
    """
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise UsageError(
            "--on names no place. Give for example --on local,cluster.yaml: this machine (or the "
            "cluster that it is part of) and cluster files."
        )
    for word in found:
        if found.count(word) > 1:
            raise UsageError(f"--on names {word} twice. Leave one of them out.")
    return found
