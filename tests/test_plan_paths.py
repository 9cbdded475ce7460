from dataclasses import replace

import pytest

from launcher.plan_paths import paths_of, uses_nccl
from policies.schema import DEFAULT_PATH, Interface, Link, Network, Plan, PlanOptions

FAST, SLOW, PARTIAL = "10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24"
MBIT = {DEFAULT_PATH: 10_000, FAST: 6_000, SLOW: 1_000, PARTIAL: 10_000}


def a_network() -> Network:
    nodes = "ab"
    on = dict.fromkeys((FAST, SLOW), nodes) | {PARTIAL: "a"}
    links = [
        Link(src, dst, path, 1e-4, 0.0, 0.0, MBIT[path] * 1e6 / 8)
        for path in (DEFAULT_PATH, FAST, SLOW)
        for src, dst in (("a", "b"), ("b", "a"))
    ]
    interfaces = [Interface(node, "10.0.0.1", path) for path in on for node in on[path]]
    return Network(tuple(links), "2026-11-30T00:00:00Z", 1.0, interfaces=tuple(interfaces))


def plan_of(strategy: str, gpus: float = 0.0, path: str = DEFAULT_PATH) -> Plan:
    return Plan(2, ("a", "b"), strategy, PlanOptions(1.0, gpus, path))  # type: ignore[arg-type]


def test_the_own_exchange_has_every_network() -> None:
    assert paths_of(plan_of("direct"), a_network()) == (DEFAULT_PATH, FAST, SLOW, PARTIAL)


def test_tensorflows_ring_has_the_plans_network_only() -> None:
    assert paths_of(plan_of("allreduce"), a_network()) == (DEFAULT_PATH,)
    assert paths_of(plan_of("allreduce", path=SLOW), a_network()) == (SLOW,)


def test_nccl_has_networks_of_like_speed_that_all_nodes_are_on() -> None:
    assert paths_of(plan_of("allreduce", 1.0), a_network()) == (DEFAULT_PATH, FAST)
    assert paths_of(plan_of("allreduce", 1.0, SLOW), a_network()) == (SLOW, FAST)


@pytest.mark.parametrize("plan", [plan_of("direct"), plan_of("allreduce", 1.0)])
def test_without_a_map_there_is_one_network(plan: Plan) -> None:
    assert paths_of(plan, None) == (DEFAULT_PATH,)
    assert paths_of(plan, replace(a_network(), interfaces=())) == (DEFAULT_PATH,)


def test_nccl_needs_gpus_and_company() -> None:
    assert uses_nccl(plan_of("allreduce", 1.0))
    alone = Plan(1, ("a",), "allreduce", PlanOptions(1.0, 1.0))
    assert not any(map(uses_nccl, (plan_of("allreduce"), plan_of("direct", 1.0), alone)))
