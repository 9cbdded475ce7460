from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.constants import CONSTANTS
from policies.cost_model import step_parts, step_time_s
from policies.links import links_between
from policies.paths import paths_between
from policies.schema import KindSpeed, Plan, PlanOptions
from tests.policies.cases import CNN, lab, network, node, plan_on, situation, situations, workload

ALGORITHMS = ("one_shot", "two_shot", "ring", "two_level")
MB = 1_000_000

SHARED = CONSTANTS.shared_interface


def direct_on(names, algorithm="one_shot", sites=(), cpus=4.0, *, overlap=False) -> Plan:
    options = PlanOptions(cpus, algorithm=algorithm, sites=sites, overlap=overlap)
    return Plan(len(names), tuple(names), "direct", options)


def halves(names):
    """Ranks in two sites, where there are as many."""
    middle = (len(names) + 1) // 2
    ranks = tuple(range(len(names)))
    return tuple(site for site in (ranks[:middle], ranks[middle:]) if site)


def parts(case, plan):
    links = paths_between(case.nodes, case.network).links_of(plan)
    return step_parts(plan, case.nodes, links, case.workload, case.work.global_batch)


def full_speed_s(found):
    """The transfer without what TCP's windows add."""
    return found.transfer_s - found.windows_s


def equal_hosts(names, rtt_s=0.020, bandwidth=1e8, payload=4 * MB):
    nodes = [node(x) for x in dict.fromkeys(names)]
    return situation(nodes, network(names, rtt_s, bandwidth), load=workload(payload=payload))


@pytest.mark.parametrize(
    ("algorithm", "latencies", "payloads"),
    [("one_shot", 1, 3 * SHARED), ("two_shot", 2, 1.5 * SHARED), ("ring", 6, 1.5)],
)
def test_equal_links_take_what_the_formulas_say(algorithm, latencies, payloads):
    found = parts(equal_hosts("abcd"), direct_on("abcd", algorithm))
    assert found.latency_s == pytest.approx(latencies * 0.010)
    assert full_speed_s(found) == pytest.approx(payloads * 4e6 / 1e8)
    assert (found.strategy, found.algorithm) == ("direct", algorithm)


def test_two_levels_take_what_their_formula_says():
    """Two sites of two: 2·l + 2·(m-1)/m·S/b + L + S/(m·B), as each pair has its own pipe."""
    near = lambda a, b: (a in "ab") == (b in "ab")  # noqa: E731
    net = network(
        "abcd", lambda a, b: 0.002 if near(a, b) else 0.040, lambda a, b: 1e8 if near(a, b) else 1e7
    )
    case = situation([node(x) for x in "abcd"], net, load=workload(payload=4 * MB))
    found = parts(case, direct_on("abcd", "two_level", ((0, 1), (2, 3))))
    assert found.latency_s == pytest.approx(2 * 0.001 + 0.020)
    assert full_speed_s(found) == pytest.approx(2 * 0.5 * 4e6 / 1e8 + 0.5 * 4e6 / 1e7)


def test_sites_of_unequal_size_share_what_both_own():
    """One against three: the lone one owns all and sends a third to each."""
    case = equal_hosts("abcd")
    found = parts(case, direct_on("abcd", "two_level", ((0,), (1, 2, 3))))
    assert found.latency_s == pytest.approx(3 * 0.010)
    assert full_speed_s(found) == pytest.approx((2 * 2 / 3 + 1) * SHARED * 4e6 / 1e8)


def test_software_is_counted_per_message_and_byte_and_slowed_on_part_of_a_core():
    case, k = equal_hosts("abcd"), CONSTANTS
    found = parts(case, direct_on("abcd"))
    core_s = k.direct_sum_cpu_s + (3 + 12e6 / 2**20) * k.direct_message_cpu_s
    core_s += 12e6 * (k.direct_byte_cpu_s + k.direct_add_cpu_s) + 4e6 * k.direct_pack_cpu_s
    assert found.software_s == pytest.approx(core_s)
    assert parts(case, direct_on("abcd", cpus=0.5)).software_s == pytest.approx(2 * core_s)


def test_an_interface_is_shared_by_all_that_its_node_sends():
    """A far pair of 10 MB/s each: three of them go beside each other, over 100 MB/s."""
    wide = network("abcde", 0.020, lambda a, b: 1e8 if {a, b} == {"a", "e"} else 1e7)
    case = situation([node(x) for x in "abcde"], wide, load=workload(payload=4 * MB))
    only_a = full_speed_s(parts(case, direct_on("abcd")))
    assert only_a == pytest.approx(3 * SHARED * 4e6 / 1e7)  # b, c, d are known for 10 MB/s
    wide = network("abcde", 0.020, lambda a, b: 1e8 if "e" in (a, b) else 1e7)
    case = replace(case, network=wide)
    assert full_speed_s(parts(case, direct_on("abcd"))) == pytest.approx(4e6 / 1e7)


def test_workers_of_one_node_share_its_interface():
    case = equal_hosts("ab")
    found = parts(case, direct_on("aabb", cpus=1.0))
    assert full_speed_s(found) == pytest.approx(2 * 2 * 4e6 / 1e8)
    assert found.latency_s == pytest.approx(0.010)


def test_the_interface_does_not_depend_on_which_nodes_are_asked_for():
    nodes = [node(x) for x in "abc"]
    net = network("abc", 0.001, lambda a, b: 1e8 if "c" in (a, b) else 1e7)
    some, every = links_between(nodes[:2], net), links_between(nodes, net)
    assert np.array_equal(some.nic_s_per_byte, every.nic_s_per_byte[:, :2])
    assert every.nic_s_per_byte == pytest.approx(1e-8)
    assert links_between(nodes, None).nic_s_per_byte == pytest.approx(8e-9)


def test_no_link_in_doubt_is_left_out_of_account():
    case = equal_hosts("abc")
    links = [
        replace(x, jitter_s=0.04) if {x.src, x.dst} == {"a", "c"} else x for x in case.network.links
    ]
    doubtful = replace(case, network=replace(case.network, links=tuple(links)))
    assert parts(case, direct_on("abc")).doubt_s == 0.0
    assert parts(doubtful, direct_on("abc")).doubt_s > 0.0


def test_gradients_of_gpus_come_to_the_cpu_and_go_back():
    case = equal_hosts("ab", payload=60 * MB)
    plan = direct_on("ab")
    with_gpus = replace(plan, options=replace(plan.options, gpus_per_worker=1.0))
    copies_s = parts(case, with_gpus).software_s - parts(case, plan).software_s
    assert copies_s == pytest.approx(2 * 60e6 / CONSTANTS.gpu_copy_bytes_per_s)


def test_buckets_hide_transfer_behind_computing_at_the_price_of_more_sums():
    case, k = equal_hosts("abcd", bandwidth=1e8), CONSTANTS
    whole, buckets = (parts(case, direct_on("abcd", overlap=x)) for x in (False, True))
    price_s = (k.n_buckets - 1) * (k.bucket_cpu_s + 3 * k.direct_message_cpu_s)
    hidden_s = min(k.hidden_transfer * 12e6 / 1e8, k.hiding_compute * whole.compute_s)
    assert (whole.hidden_s, buckets.hidden_s) == (0.0, pytest.approx(hidden_s - price_s))
    assert whole.total_s - buckets.total_s == pytest.approx(hidden_s - price_s)


def test_latency_and_software_are_never_hidden():
    case = equal_hosts("ab", rtt_s=0.1, bandwidth=1e12, payload=1000)
    found = parts(case, direct_on("ab", overlap=True))
    assert found.hidden_s == 0.0
    assert found.exchange_s == pytest.approx(found.latency_s + found.transfer_s + found.software_s)


def test_slices_follow_speed_so_that_a_slow_node_helps():
    load = workload(
        node_kinds=(KindSpeed("c5", 0.01, 0.001, 4.0), KindSpeed("old", 0.01, 0.004, 4.0))
    )
    case = situation([node("a"), node("b", kind="old")], network("ab"), load=load)
    # 204.8 and 51.2 rows, in whole ones, instead of 128 each.
    assert parts(case, direct_on("ab")).compute_s == pytest.approx(0.01 + 0.004 * 52)
    assert parts(case, plan_on("ab")).compute_s == pytest.approx(0.01 + 0.004 * 128)


@pytest.mark.parametrize(("batch", "rtt_s"), [(128, 0.010), (128, 0.050)])
def test_four_far_workers_beat_one_where_an_all_reduce_does_not(batch, rtt_s):
    """As measured at 50 ms: 105 ms directly, 293 ms in a ring, 135 ms alone."""
    case = lab(CNN, batch, rtt_s)
    one_s = step_time_s(plan_on("a", 0.45), case)
    direct_s = step_time_s(direct_on("abcd", cpus=0.45), case)
    ring_s = step_time_s(plan_on("abcd", 0.45), case)
    assert direct_s < one_s
    assert ring_s > (one_s if rtt_s == 0.050 else direct_s)


def test_one_shot_beats_two_shot_as_far_as_its_latency_outweighs_its_bytes():
    """L > (n-1)(n-2)/n · S/B: 0.2 MB for 4 workers at 100 Mbit/s and 25 ms one way."""
    for payload, faster in ((100_000, "one_shot"), (400_000, "two_shot")):
        case = equal_hosts("abcd", 0.050, 1.25e7, payload)
        step_s = {x: step_time_s(direct_on("abcd", x), case) for x in ("one_shot", "two_shot")}
        assert min(step_s, key=lambda x: step_s[x]) == faster


@given(situations(), st.floats(1.0, 10.0), st.sampled_from(ALGORITHMS), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_bigger_payload_is_never_faster(case, factor, algorithm, overlap):
    names = [n.id for n in case.nodes]
    plan = direct_on(names, algorithm, halves(names), 1.0, overlap=overlap)
    payload = round(case.workload.payload_bytes * factor)
    bigger = replace(case, workload=replace(case.workload, payload_bytes=payload))
    assert step_time_s(plan, bigger) >= step_time_s(plan, case)


@given(situations(), st.floats(1.0, 10.0), st.floats(1.0, 10.0), st.data())
@settings(max_examples=60, deadline=None)
def test_a_farther_or_narrower_link_is_never_faster(case, farther, narrower, data):
    if len(case.nodes) == 1:
        return
    names = [n.id for n in case.nodes]
    algorithm, overlap = data.draw(st.sampled_from(ALGORITHMS)), data.draw(st.booleans())
    plan = direct_on(names, algorithm, halves(names), 1.0, overlap=overlap)
    at = data.draw(st.integers(0, len(case.network.links) - 1))
    links = list(case.network.links)
    links[at] = replace(
        links[at],
        rtt_s=links[at].rtt_s * farther,
        bandwidth_bytes_per_s=links[at].bandwidth_bytes_per_s / narrower,
    )
    worse = replace(case, network=replace(case.network, links=tuple(links)))
    assert step_time_s(plan, worse) >= step_time_s(plan, case) * (1 - 1e-9)


@given(situations(), st.sampled_from(["one_shot", "two_shot"]), st.randoms())
@settings(max_examples=20, deadline=None)
def test_the_order_of_ranks_matters_to_rings_and_sites_alone(case, algorithm, random):
    names = [n.id for n in case.nodes]
    shuffled = random.sample(names, len(names))
    there = step_time_s(direct_on(names, algorithm, cpus=1.0), case)
    assert step_time_s(direct_on(shuffled, algorithm, cpus=1.0), case) == pytest.approx(there)
