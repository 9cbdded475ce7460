"""Cutting a model into stages."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pipeline import Hop, NoSplit, Part, Split, StageNode, best_split

FAST = Hop(latency_s=0.0, bytes_per_s=1e12)
MB = 1_000_000


def part(compute_s=1.0, cut_bytes=1, state=0, kept=0, uncut_because=None, update_s=0.0):
    return Part("layer", compute_s, update_s, state, kept, cut_bytes, uncut_because)


def split(parts, nodes, hop=FAST, n_micro=4):
    found = best_split(parts, nodes, [hop] * (len(nodes) - 1), n_micro)
    assert isinstance(found, Split), found
    return found


def test_alike_layers_are_shared_out_evenly():
    found = split([part()] * 6, [StageNode()] * 3)
    assert found.cuts == (2, 4)
    assert found.period_s == pytest.approx(2.0)
    assert found.step_s == pytest.approx(3 * 2.0 + 6.0)  # the pipeline fills, then one each 2 s


def test_one_node_takes_the_whole_model():
    found = split([part(2.0), part(3.0)], [StageNode()])
    assert (found.cuts, found.step_s) == ((), 20.0)


def test_each_stage_pays_for_its_passes():
    found = best_split([part()] * 4, [StageNode(), StageNode(slowness=2.0)], [FAST], 3, pass_s=0.5)
    assert isinstance(found, Split)
    assert [stage.compute_s for stage in found.stages] == [3.5, 3.0]
    assert found.step_s == pytest.approx(2 * 3.5 + 6.5)


def test_each_stage_pays_for_messages_over_its_cuts():
    node = StageNode(message_s=0.1, byte_s=0.01)
    parts = [part(cut_bytes=10), part(cut_bytes=20), part()]
    found = split(parts, [node] * 3)
    assert [stage.compute_s for stage in found.stages] == pytest.approx([1.2, 1.5, 1.3])


def test_a_step_ends_with_the_first_stages_new_weights():
    found = split([part(update_s=0.25)] * 4, [StageNode()] * 2)
    assert found.step_s == pytest.approx(3 * 2.0 + 4.0 + 2 * 0.25)


def test_a_slow_node_gets_fewer_layers():
    assert split([part()] * 6, [StageNode(slowness=2.0), StageNode()]).cuts == (2,)


def test_the_cut_goes_where_little_is_sent():
    sizes = [10 * MB, 10 * MB, 1 * MB, 10 * MB, 10 * MB, 0]
    parts = [part(0.1, size) for size in sizes]
    slow = Hop(latency_s=0.0, bytes_per_s=10 * MB)
    assert split(parts, [StageNode()] * 2, slow).cuts == (3,)
    off_middle = [part(0.1, size) for size in (1 * MB, 10 * MB, 10 * MB, 10 * MB, 10 * MB, 0)]
    assert split(off_middle, [StageNode()] * 2, slow).cuts == (1,)
    assert split(off_middle, [StageNode()] * 2, FAST).cuts == (3,)


def test_of_equally_fast_cuts_the_one_that_sends_least_is_taken():
    parts = [part(1.0, 5), part(0.0, 2), part(0.0, 9), part(1.0, 0)]
    hop = Hop(0.0, float("inf"))
    assert split(parts, [StageNode()] * 2, hop).cuts == (2,)


def test_far_links_bound_the_pace_by_the_micro_batches_that_are_on_their_way():
    found = split([part(), part()], [StageNode()] * 2, Hop(10.0, 1e12))
    assert found.trip_s == pytest.approx(22.0)
    assert found.period_s == pytest.approx(11.0)  # the first stage may hold two at a time


def test_each_stage_fits_its_nodes_memory():
    parts = [part(state=4 * MB), part(state=1 * MB), part(state=1 * MB), part(state=1 * MB)]
    assert split(parts, [StageNode()] * 2).cuts == (2,)
    limits = [StageNode(memory_bytes=4 * MB), StageNode(memory_bytes=3 * MB)]
    found = split(parts, limits)
    assert found.cuts == (1,)
    assert [stage.memory_bytes for stage in found.stages] == [4 * MB, 3 * MB]


def test_early_stages_hold_more_micro_batches():
    found = split([part(kept=10)] * 3, [StageNode()] * 3)
    assert [stage.memory_bytes for stage in found.stages] == [30, 20, 10]
    assert [
        s.memory_bytes for s in split([part(kept=10)] * 3, [StageNode()] * 3, n_micro=1).stages
    ] == [10] * 3


def test_what_fits_nowhere_is_refused():
    parts = [part(state=5 * MB), part(state=5 * MB)]
    found = best_split(parts, [StageNode(memory_bytes=4 * MB)] * 2, [FAST], 4)
    assert isinstance(found, NoSplit)
    assert found.reason.startswith("it needs 10 MB") and "(4, 4 MB)" in found.reason


def test_where_it_cannot_be_cut_it_is_not():
    parts = [part(), part(uncut_because="a mask"), part(), part()]
    assert split(parts, [StageNode()] * 3).cuts == (1, 3)
    found = best_split(parts, [StageNode()] * 4, [FAST] * 3, 4)
    assert found == NoSplit("it can be cut into 3 stages, not 4: a mask")
    short = best_split([part()] * 2, [StageNode()] * 3, [FAST] * 2, 4)
    assert short == NoSplit("it can be cut into 2 stages, not 3: it has no more layers")


def test_there_is_a_link_less_than_stages():
    with pytest.raises(ValueError, match="2 stages have 1 links, not 2"):
        best_split([part()] * 2, [StageNode()] * 2, [FAST] * 2, 4)


some_parts = st.lists(
    st.builds(
        Part,
        st.just("layer"),
        st.floats(0.0, 2.0),
        st.floats(0.0, 1.0),
        st.integers(0, 50),
        st.integers(0, 5),
        st.integers(0, 40),
        st.sampled_from([None, None, "no"]),
    ),
    min_size=2,
    max_size=6,
)


@given(
    some_parts,
    st.lists(st.builds(StageNode, st.floats(0.5, 3.0), st.just(120)), min_size=2, max_size=3),
    st.builds(Hop, st.floats(0.0, 1.0), st.floats(1.0, 100.0)),
    st.integers(1, 5),
)
def test_no_other_cuts_are_faster(parts, nodes, hop, n_micro):
    hops = [hop] * (len(nodes) - 1)
    found = best_split(parts, nodes, hops, n_micro)
    places = [i for i in range(1, len(parts)) if parts[i - 1].uncut_because is None]
    tried = []
    for cuts in combinations(places, len(nodes) - 1):
        allowed = [
            p if i + 1 in cuts else replace(p, uncut_because="no") for i, p in enumerate(parts)
        ]
        only = best_split(allowed, nodes, hops, n_micro)
        tried += [only.step_s] if isinstance(only, Split) else []
    if isinstance(found, Split):
        assert found.step_s <= min(tried) + 1e-9
    else:
        assert not tried
