"""How a model is cut into stages on different nodes, and how long a step of that pipeline takes.

A step's batch goes through the stages in micro-batches. Each stage does one forward pass and one
backward pass in turn (1F1B: PipeDream-Flush, Narayanan et al., 2021), so that stage k of n holds
at most n − k micro-batches at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Part:
    """One of a model's layers, in the order in which they are computed.

    Attributes:
        name: of the layer.
        compute_s: forward and backward pass of one micro-batch, on a node of speed 1.
        update_s: changing its weights once a step, on such a node.
        state_bytes: weights, their gradients, and the optimizer's state.
        kept_bytes: what a micro-batch's forward pass keeps for its backward pass.
        cut_bytes: what goes to the next stage per micro-batch, if the model is cut after this
            layer: its output, and whatever else is used later.
        uncut_because: why the model cannot be cut after this layer, where it cannot.
    """

    name: str
    compute_s: float
    update_s: float
    state_bytes: int
    kept_bytes: int
    cut_bytes: int
    uncut_because: str | None = None


@dataclass(frozen=True, slots=True)
class StageNode:
    """A node that takes a stage.

    Attributes:
        slowness: how many times as long as a node of speed 1 it computes.
        memory_bytes: what a stage may hold; None where it is not known.
        message_s: what a message over a cut and the one that comes back take of its time.
        byte_s: and what each of their bytes does.
    """

    slowness: float = 1.0
    memory_bytes: int | None = None
    message_s: float = 0.0
    byte_s: float = 0.0

    def handover_s(self, n_bytes: int) -> float:
        """What it does for a micro-batch at one of its cuts, there and back."""
        return self.message_s + n_bytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Hop:
    """The link from a stage to the next one, alike in both directions."""

    latency_s: float
    bytes_per_s: float

    def transfer_s(self, n_bytes: int) -> float:
        """Time that a message occupies the link."""
        return n_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive layers on one node.

    Attributes:
        first: number of its first layer.
        stop: number after its last layer.
        compute_s: forward and backward pass of one micro-batch on its node, messages included.
        update_s: changing its weights once a step.
        memory_bytes: state, and what all micro-batches keep that it holds at a time.
        sent_bytes: to the next stage per micro-batch; as much comes back.
    """

    first: int
    stop: int
    compute_s: float
    update_s: float
    memory_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Split:
    """A model cut into stages.

    Attributes:
        stages: in order.
        period_s: between two micro-batches, once the pipeline is full.
        trip_s: of one micro-batch through all stages and back.
        step_s: of a whole batch.
    """

    stages: tuple[Stage, ...]
    period_s: float
    trip_s: float
    step_s: float

    @property
    def cuts(self) -> tuple[int, ...]:
        """The numbers of the layers before which the model is cut."""
        return tuple(stage.first for stage in self.stages[1:])


@dataclass(frozen=True, slots=True)
class NoSplit:
    """There is no way to cut the model into so many stages."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Rest:
    """The stages from some layer to the last one, and how long they take together."""

    stages: tuple[Stage, ...]
    period_s: float
    trip_s: float


def best_split(
    parts: Sequence[Part],
    nodes: Sequence[StageNode],
    hops: Sequence[Hop],
    n_micro_batches: int,
    pass_s: float = 0.0,
) -> Split | NoSplit:
    """Cuts a model into as many stages as there are nodes, so that a step is as short as can be.

    A step takes (m − 1) · period + trip, and the first stage's new weights, which are the last ones
    to be ready. The period is that of the slowest stage or link; or, over far links, a stage waits
    until one of the n − k micro-batches that it may hold has come back. Of splits that take equally
    long, the one that sends least is chosen. Exact, see `_rests`.

    Args:
        parts: the layers, in order.
        nodes: one for each stage, in order.
        hops: the links between them: one less.
        n_micro_batches: of a step.
        pass_s: what both passes of a micro-batch through a stage take beyond its layers, on a
            node of speed 1.
    """
    if len(hops) != len(nodes) - 1:
        raise ValueError(f"{len(nodes)} stages have {len(nodes) - 1} links, not {len(hops)}")
    if obstacle := _too_few_cuts(parts, len(nodes)):
        return obstacle
    sums = _Sums(parts, pass_s)
    rests = _rests(sums, nodes, hops, n_micro_batches)
    if not rests:
        return _too_large(sums, nodes)
    return min(
        (_finished(rest, n_micro_batches) for rest in rests),
        key=lambda split: (split.step_s, sum(stage.sent_bytes for stage in split.stages)),
    )


def _rests(
    sums: "_Sums", nodes: Sequence[StageNode], hops: Sequence[Hop], n_micro_batches: int
) -> list[_Rest]:
    """The ways to cut the whole model that no other beats in both period and trip.

    From the last stage to the first: for each layer at which a stage may begin, those ways to cut
    what follows are kept that no other beats. Takes O(layers² · stages) times the few that remain.
    """
    rests: dict[int, list[_Rest]] = {len(sums.parts): [_Rest((), 0.0, 0.0)]}
    for n_behind, node in enumerate(reversed(nodes)):
        hop = hops[len(nodes) - 1 - n_behind] if n_behind else None
        in_flight = min(n_behind + 1, n_micro_batches)
        starts = [0] if n_behind == len(nodes) - 1 else sums.starts
        rests = {
            start: found
            for start in starts
            if (found := _rests_from(start, rests, sums, node, hop, in_flight, n_micro_batches))
        }
    return rests.get(0, [])


class _Sums:
    """Sums over any stretch of layers, and where a stretch may begin."""

    def __init__(self, parts: Sequence[Part], pass_s: float) -> None:
        self.parts, self._pass_s = parts, pass_s
        self._compute_s = [0.0, *accumulate(part.compute_s for part in parts)]
        self._update_s = [0.0, *accumulate(part.update_s for part in parts)]
        self._state_bytes = [0, *accumulate(part.state_bytes for part in parts)]
        self._kept_bytes = [0, *accumulate(part.kept_bytes for part in parts)]
        self.starts = [i for i in range(1, len(parts)) if parts[i - 1].uncut_because is None]

    def stage(self, first: int, stop: int, node: StageNode, in_flight: int) -> Stage:
        """A stage of these layers on a node."""
        state = self._state_bytes[stop] - self._state_bytes[first]
        kept = self._kept_bytes[stop] - self._kept_bytes[first]
        layers_s = self._compute_s[stop] - self._compute_s[first]
        sent = self.parts[stop - 1].cut_bytes if stop < len(self.parts) else 0
        compute_s = (self._pass_s + layers_s) * node.slowness
        if first:
            compute_s += node.handover_s(self.parts[first - 1].cut_bytes)
        if stop < len(self.parts):
            compute_s += node.handover_s(sent)
        update_s = (self._update_s[stop] - self._update_s[first]) * node.slowness
        return Stage(first, stop, compute_s, update_s, state + in_flight * kept, sent)


def _rests_from(
    start: int,
    rests: dict[int, list[_Rest]],
    sums: _Sums,
    node: StageNode,
    hop: Hop | None,
    in_flight: int,
    n_micro_batches: int,
) -> list[_Rest]:
    """What may follow from layer `start`, if a stage on this node comes before each of `rests`."""
    found = []
    for stop in sorted(stop for stop in rests if stop > start):
        stage = sums.stage(start, stop, node, in_flight)
        if node.memory_bytes is not None and stage.memory_bytes > node.memory_bytes:
            break  # more layers hold more
        found += [_with_stage(stage, rest, hop, in_flight) for rest in rests[stop]]
    return _unbeaten(found, n_micro_batches) if start else found


def _with_stage(stage: Stage, rest: _Rest, hop: Hop | None, in_flight: int) -> _Rest:
    transfer_s = hop.transfer_s(stage.sent_bytes) if hop else 0.0
    way_s = 2.0 * (hop.latency_s + transfer_s) if hop else 0.0
    trip_s = rest.trip_s + way_s + stage.compute_s
    period_s = max(rest.period_s, stage.compute_s, transfer_s, trip_s / in_flight)
    return _Rest((stage, *rest.stages), period_s, trip_s)


def _unbeaten(rests: list[_Rest], n_micro_batches: int) -> list[_Rest]:
    """Those that no other beats in both period and trip; the one that sends least among equals."""
    if n_micro_batches == 1:  # then the period does not count
        rests = [_Rest(rest.stages, 0.0, rest.trip_s) for rest in rests]
    best: list[_Rest] = []
    for rest in sorted(rests, key=lambda r: (r.trip_s, r.period_s, _sent_bytes(r))):
        if not best or rest.period_s < best[-1].period_s:
            best.append(rest)
    return best


def _sent_bytes(rest: _Rest) -> int:
    return sum(stage.sent_bytes for stage in rest.stages)


def _finished(rest: _Rest, n_micro_batches: int) -> Split:
    full_s = (n_micro_batches - 1) * rest.period_s
    step_s = full_s + rest.trip_s + rest.stages[0].update_s
    return Split(rest.stages, rest.period_s, rest.trip_s, step_s)


def _too_few_cuts(parts: Sequence[Part], n_stages: int) -> NoSplit | None:
    """Whether there are too few places to cut at, and what stands in the way."""
    n_cuts = sum(part.uncut_because is None for part in parts[:-1])
    if n_cuts >= n_stages - 1:
        return None
    reasons = dict.fromkeys(part.uncut_because for part in parts[:-1] if part.uncut_because)
    why = "; ".join(reason for reason in reasons if reason) or "it has no more layers"
    return NoSplit(f"it can be cut into {n_cuts + 1} stages, not {n_stages}: {why}")


def _too_large(sums: _Sums, nodes: Sequence[StageNode]) -> NoSplit:
    needed = sums.stage(0, len(sums.parts), StageNode(), 1).memory_bytes
    limits = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    return NoSplit(
        f"it needs {needed / 1e6:,.0f} MB, and no cut lets each stage fit in its node's memory "
        f"({', '.join(f'{limit / 1e6:,.0f}' for limit in limits)} MB)"
    )
