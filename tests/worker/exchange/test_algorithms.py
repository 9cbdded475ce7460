import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.worker.exchange.algorithms.call import Call, Scratch, Vector, add_in_order, parts
from launcher.worker.exchange.algorithms.gather import gather
from launcher.worker.exchange.algorithms.one_shot import one_shot
from launcher.worker.exchange.algorithms.ring import ring
from launcher.worker.exchange.algorithms.two_level import two_level
from launcher.worker.exchange.algorithms.two_shot import two_shot
from tests.worker.exchange.fakes import FakeMailbox, Post, on_all_ranks

Algorithm = Callable[[Call, Vector, Vector], None]

SITES = {
    1: [(0,)],
    2: [(0,), (1,)],
    3: [(0, 2), (1,)],
    4: [(0, 1, 2), (3,)],
    5: [(3, 1), (0,), (2, 4)],
    6: [(0, 1, 2), (3, 4), (5,)],
}
FLAT: dict[str, Algorithm] = {"one_shot": one_shot, "two_shot": two_shot, "ring": ring}
DTYPES = ("float32", "float64", "int32", "int64")


def algorithm_of(name: str, n: int, sites: Sequence[Sequence[int]] | None = None) -> Algorithm:
    if name == "two_level":
        return functools.partial(two_level, sites=sites or SITES[n])
    return FLAT[name]


def vectors_of(n: int, size: int, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(size)
    if dtype.startswith("int"):
        return [rng.integers(-1000, 1000, size).astype(dtype) for _ in range(n)]
    return [
        (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4)).astype(dtype) for _ in range(n)
    ]


def summed(
    algorithm: Algorithm, vectors: Sequence[np.ndarray], segment_bytes: int = 64
) -> tuple[list[np.ndarray], Post]:
    def work(mailbox: FakeMailbox) -> np.ndarray:
        vector = vectors[mailbox.rank]
        total = np.full_like(vector, 77)
        algorithm(Call(mailbox, 3, Scratch(), segment_bytes), vector, total)
        return total

    return on_all_ranks(len(vectors), work)


@pytest.mark.parametrize("size", [0, 1, 5, 33, 1000])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("name", [*FLAT, "two_level"])
def test_every_rank_gets_the_same_bits(name: str, n: int, size: int) -> None:
    vectors = vectors_of(n, size, "float32")
    totals, _ = summed(algorithm_of(name, n), vectors)
    assert all(total.tobytes() == totals[0].tobytes() for total in totals)
    np.testing.assert_allclose(totals[0], np.sum(vectors, axis=0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*FLAT, "two_level"])
def test_all_dtypes_are_summed(name: str, dtype: str) -> None:
    vectors = vectors_of(4, 101, dtype)
    totals, _ = summed(algorithm_of(name, 4), vectors)
    assert totals[0].dtype == np.dtype(dtype)
    np.testing.assert_allclose(totals[0], np.sum(vectors, axis=0), rtol=1e-4, atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["two_level", *FLAT]),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.integers(0, 200),
    st.sampled_from(DTYPES),
    st.sampled_from([8, 24, 64, 1 << 20]),
)
def test_sums_are_right_for_any_sites_sizes_and_segments(
    name: str, site_by_rank: list[int], size: int, dtype: str, segment_bytes: int
) -> None:
    n = len(site_by_rank)
    sites = [
        tuple(r for r in range(n) if site_by_rank[r] == site) for site in sorted(set(site_by_rank))
    ]
    vectors = vectors_of(n, size, dtype)
    totals, _ = summed(algorithm_of(name, n, sites), vectors, segment_bytes)
    assert all(total.tobytes() == totals[0].tobytes() for total in totals)
    np.testing.assert_allclose(totals[0], np.sum(vectors, axis=0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["one_shot", "two_shot"])
def test_terms_are_added_in_the_order_of_ranks(name: str) -> None:
    vectors = vectors_of(5, 64, "float32")
    totals, _ = summed(FLAT[name], vectors)
    in_order = ((vectors[0] + vectors[1]) + vectors[2] + vectors[3]) + vectors[4]
    assert totals[2].tobytes() == in_order.tobytes()


@pytest.mark.parametrize(
    ("name", "sent_per_rank"),
    [("one_shot", 3 * 4800), ("two_shot", 2 * 3600), ("ring", 2 * 3600)],
)
def test_each_rank_sends_what_the_formula_says(name: str, sent_per_rank: int) -> None:
    _, post = summed(FLAT[name], vectors_of(4, 1200, "float32"))
    for rank in range(4):
        assert sum(size for source, _, size in post.sent if source == rank) == sent_per_rank


def test_only_neighbours_talk_in_a_ring() -> None:
    _, post = summed(ring, vectors_of(5, 100, "float32"))
    assert {(source, to) for source, to, _ in post.sent} == {(r, (r + 1) % 5) for r in range(5)}


def test_each_site_sends_the_vector_once_to_each_other_site() -> None:
    sites = [(0, 1, 2), (3, 4), (5,)]
    _, post = summed(algorithm_of("two_level", 6, sites), vectors_of(6, 100, "float64"))
    site_of = {rank: i for i, site in enumerate(sites) for rank in site}
    between = {(a, b): 0 for a in range(3) for b in range(3) if a != b}
    for source, to, size in post.sent:
        if site_of[source] != site_of[to]:
            between[site_of[source], site_of[to]] += size
    assert set(between.values()) == {800}


def test_two_sites_share_the_far_traffic_among_their_members() -> None:
    _, post = summed(algorithm_of("two_level", 4, [(0, 1), (2, 3)]), vectors_of(4, 100, "float32"))
    far = [
        sum(s for source, to, s in post.sent if source == r and to // 2 != r // 2) for r in range(4)
    ]
    assert far == [200, 200, 200, 200]


def test_sites_that_miss_a_rank_are_refused() -> None:
    call = Call(FakeMailbox(0, 3, Post()), 0, Scratch())
    with pytest.raises(ValueError, match="do not hold each of 3 ranks once"):
        two_level(call, np.zeros(2), np.zeros(2), sites=[(0, 1)])


def test_buffers_are_used_again() -> None:
    scratch = Scratch()
    first = scratch.array("a", 100, np.dtype("float32"))
    smaller = scratch.array("a", 40, np.dtype("float64"))
    assert np.shares_memory(first, smaller)
    assert not np.shares_memory(first, scratch.array("b", 100, np.dtype("float32")))


def test_a_call_number_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="call number 2147483648"):
        Call(FakeMailbox(0, 2, Post()), 1 << 31, Scratch())


def test_tags_of_all_calls_phases_and_segments_differ() -> None:
    mailbox = FakeMailbox(0, 2, Post())
    tags = {
        Call(mailbox, number, Scratch()).tag(phase, segment)
        for number in (0, 1, (1 << 31) - 1)
        for phase in (0, 1, 4095)
        for segment in (0, 1, (1 << 20) - 1)
    }
    assert len(tags) == 27
    assert max(tags) < 1 << 63


def test_a_tag_that_would_not_fit_is_refused() -> None:
    call = Call(FakeMailbox(0, 2, Post()), 1, Scratch())
    with pytest.raises(ValueError, match="no tag for phase 0 and segment 1048576"):
        call.tag(0, 1 << 20)


@given(st.integers(0, 50), st.integers(1, 9))
def test_parts_cover_everything_once(size: int, n_parts: int) -> None:
    cut = parts(size, n_parts)
    assert [i for part in cut for i in range(size)[part]] == list(range(size))
    assert max(p.stop - p.start for p in cut) - min(p.stop - p.start for p in cut) <= 1


def test_one_term_is_copied() -> None:
    total = np.zeros(3)
    add_in_order([np.arange(3.0)], total)
    assert total.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_rows_of_all_ranks_are_gathered_in_order(n: int) -> None:
    rows = [np.full((2 * rank, 3), rank, np.int32) for rank in range(n)]
    results, _ = on_all_ranks(
        n, lambda mailbox: gather(Call(mailbox, 9, Scratch()), rows[mailbox.rank])
    )
    for gathered in results:
        assert [array.shape for array in gathered] == [(2 * rank, 3) for rank in range(n)]
        assert all((array == rank).all() for rank, array in enumerate(gathered))


def test_rows_without_elements_are_gathered() -> None:
    results, _ = on_all_ranks(
        3, lambda mailbox: gather(Call(mailbox, 9, Scratch()), np.zeros((mailbox.rank, 0)))
    )
    assert [array.shape for array in results[1]] == [(0, 0), (1, 0), (2, 0)]
