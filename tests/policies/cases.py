"""Situations for the policy's tests: the measured lab cases, and random ones."""

from dataclasses import replace
from itertools import product

from hypothesis import strategies as st

from policies.schema import (
    Experience,
    Fit,
    KindSpeed,
    Limits,
    Link,
    Network,
    Node,
    Plan,
    PlanOptions,
    Situation,
    Work,
    Workload,
)

GBIT = 1.25e8


def node(
    name: str, cpus: float = 4.0, price: float = 0.3, kind: str = "c5", gpus: float = 0.0
) -> Node:
    number = sum(ord(c) * 7**i for i, c in enumerate(name)) % 250
    return Node(name, f"10.0.0.{number}", cpus, gpus, None, price, "label", kind)


def network(names, rtt_s=0.0005, bandwidth=GBIT) -> Network:
    """All pairs alike; `rtt_s` and `bandwidth` may be functions of the two names."""
    links = tuple(
        Link(
            src=a,
            dst=b,
            path="default",
            rtt_s=rtt_s(a, b) if callable(rtt_s) else rtt_s,
            jitter_s=0.0,
            loss=0.0,
            bandwidth_bytes_per_s=bandwidth(a, b) if callable(bandwidth) else bandwidth,
        )
        for a, b in product(names, names)
        if a != b
    )
    return Network(links, "2026-11-01T00:00:00Z", 1.0)


def workload(
    c0_s=0.010, c1_s=0.0005, cpus=4.0, payload=4_000_000, kinds=("c5",), batch=256, **changes
) -> Workload:
    speeds = tuple(KindSpeed(kind, c0_s, c1_s, cpus) for kind in kinds)
    made = Workload(
        "script-a", "keras", "exact", payload // 4, payload, 12, (Fit(batch, 100, 10),), speeds, 4.0
    )
    return replace(made, **changes)


def situation(nodes, net=None, work=None, limits=None, load=None, **changes) -> Situation:
    return replace(
        Situation(
            tuple(nodes),
            net,
            load or workload(),
            work or Work(steps=10_000, epochs=10, global_batch=256),
            limits or Limits(),
        ),
        **changes,
    )


# Four lab hosts with 0.45 of a core each, 1 Gbit/s. The times of a CNN and an MLP on one of them
# were measured under TensorFlow's strategy, that is, with much computing per row.
LAB = tuple(node(name, cpus=0.45, price=0.1, kind="lab") for name in "abcd")
CNN = workload(c0_s=0.011, c1_s=0.000969, cpus=0.45, payload=490_000, kinds=("lab",), batch=128)
MLP = workload(c0_s=0.0336, c1_s=0.00023, cpus=0.45, payload=14_700_000, kinds=("lab",), batch=128)


def lab(load=CNN, batch=128, rtt_s=0.0005, strategy="allreduce", **limits) -> Situation:
    work = Work(steps=15_000, epochs=10, global_batch=batch)
    return situation(LAB, network("abcd", rtt_s), work, Limits(strategy=strategy, **limits), load)


def plan_on(names, cpus=4.0) -> Plan:
    return Plan(len(names), tuple(names), "allreduce", PlanOptions(cpus))


def experience(case: Situation, names, step_s, run="brave-otter", **changes) -> Experience:
    cpus = min(n.cpus for n in case.nodes if n.id in names)
    made = Experience(
        run,
        case.nodes,
        case.network,
        case.workload,
        plan_on(names, cpus),
        case.work.global_batch,
        500,
        step_s,
    )
    return replace(made, **changes)


@st.composite
def situations(draw, max_nodes: int = 4) -> Situation:
    """Small clusters with uneven links, prices and two kinds of node."""
    names = "abcdefgh"[: draw(st.integers(1, max_nodes))]
    nodes = [
        node(
            name,
            cpus=draw(st.sampled_from([1.0, 2.0, 4.0, 8.0])),
            price=draw(st.sampled_from([0.0, 0.1, 0.34, 1.5])),
            kind=draw(st.sampled_from(["c5", "m6"])),
        )
        for name in names
    ]
    rtts = {p: draw(st.floats(1e-4, 0.1)) for p in product(names, names)}
    bandwidths = {p: draw(st.floats(1e6, 1e9)) for p in product(names, names)}
    net = network(names, lambda a, b: rtts[a, b], lambda a, b: bandwidths[a, b])
    load = workload(
        c0_s=draw(st.floats(0.001, 0.05)),
        c1_s=draw(st.floats(1e-5, 0.01)),
        payload=draw(st.integers(10_000, 50_000_000)),
        kinds=("c5", "m6"),
    )
    work = Work(draw(st.integers(10, 20_000)), draw(st.integers(1, 20)), 256)
    return situation(nodes, net, work, Limits(), load)
