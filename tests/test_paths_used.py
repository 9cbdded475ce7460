import io
from dataclasses import replace

from rich.console import Console

from launcher.codec import Codec
from launcher.paths_used import MAX_PAIR_ROWS, paths_used, print_paths
from launcher.record import PathRecord, Segment, dump_record, load_record
from policies.schema import DEFAULT_PATH, Interface, Network, Plan, PlanOptions
from tests.fakes import NODE_IDS, a_network, a_plan, a_record

RAIL = "10.98.0.0/24"


def with_rail(n: int = 3) -> Network:
    found = tuple(Interface(NODE_IDS[i], f"10.98.0.{i + 1}", RAIL) for i in range(n))
    return replace(a_network(), interfaces=found)


def a_use(src: int, dst: int, path: int, **changes: object) -> dict[str, object]:
    use = {"sent_bytes": 1000, "busy_s": 2.0, "bytes_per_s": 500.0, "n_down": 0}
    return {"src": src, "dst": dst, "path": path} | use | changes


def direct(nodes: tuple[str, ...]) -> Plan:
    return Plan(len(nodes), nodes, "direct", PlanOptions(1.0))


def test_each_pair_of_nodes_has_a_row_for_each_network() -> None:
    a, b, *_ = NODE_IDS
    uses = [a_use(0, 1, 0), a_use(0, 1, 1, n_down=2, bytes_per_s=None), a_use(1, 0, 0)]
    assert paths_used(uses, direct((a, b)), with_rail()) == (
        PathRecord(a, b, DEFAULT_PATH, 1000, 2.0, 500.0, 0),
        PathRecord(a, b, RAIL, 1000, 2.0, None, 2),
        PathRecord(b, a, DEFAULT_PATH, 1000, 2.0, 500.0, 0),
    )


def test_workers_of_one_node_are_counted_together() -> None:
    a, b, *_ = NODE_IDS
    uses = [a_use(0, 2, 1), a_use(1, 2, 1, busy_s=3.0, n_down=1)]
    (row,) = paths_used(uses, direct((a, a, b)), with_rail())
    assert row == PathRecord(a, b, RAIL, 2000, 3.0, 1000.0, 1)


def test_the_record_stays_small_however_many_workers_there_are() -> None:
    nodes = tuple(f"{i:056x}" for i in range(40))
    network = replace(
        a_network(),
        interfaces=tuple(Interface(n, f"10.98.0.{i}", RAIL) for i, n in enumerate(nodes)),
    )
    uses = [a_use(i, j, p) for i in range(40) for j in range(40) for p in (0, 1) if i != j]
    rows = paths_used(uses, direct(nodes), network)
    n_pairs = 40 * 39
    assert n_pairs > MAX_PAIR_ROWS
    assert rows == tuple(
        PathRecord(None, None, path, 1000 * n_pairs, 2.0 * n_pairs, 500.0, 0)
        for path in (DEFAULT_PATH, RAIL)
    )


def a_segment() -> Segment:
    a, b, *_ = NODE_IDS
    rows = (
        PathRecord(a, b, DEFAULT_PATH, 12_300_000, 1.5, 12e6, 0),
        PathRecord(b, a, RAIL, 2_000, 0.0, None, 3),
        PathRecord(None, None, RAIL, 2_000, 0.1, None, 0),
    )
    return Segment(a_plan(2), "2026-11-30T00:00:00Z", paths=rows)


def printed(*segments: Segment) -> list[str]:
    console = Console(file=io.StringIO(), width=100, highlight=False, markup=False)
    print_paths(console, segments, {NODE_IDS[0]: "a", NODE_IDS[1]: "b"})
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_what_was_used_is_shown_per_pair_and_network() -> None:
    _, title, head, *rows = printed(a_segment())
    assert title == "networks used"
    assert head.split() == ["from", "to", "network", "sent", "busy", "rate", "broke"]
    assert " ".join(rows[0].split()) == "1 a b Ray's own 12.3 MB 1.5 s 96 Mbit/s never"
    assert " ".join(rows[1].split()) == f"1 b a {RAIL} 2,000 B – – 3 ×"
    assert rows[2].split()[:3] == ["1", "all", "all"]


def test_one_network_needs_no_table() -> None:
    assert printed(replace(a_segment(), paths=())) == []


def test_a_record_holds_what_was_used_and_older_ones_are_read() -> None:
    record = replace(a_record(), segments=(a_segment(),))
    assert load_record(dump_record(record), "run.json").segments == record.segments
    older = Codec().encode(a_segment())
    del older["paths"]
    assert Codec().decode(Segment, older).paths == ()
