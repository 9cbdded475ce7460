"""What others send, told from what the probe itself put on the interfaces."""

import pytest

from launcher.other_traffic import other_traffic
from launcher.probe_routes import Route
from launcher.worker.greeting import Endpoint
from launcher.worker.interfaces import Counters
from launcher.worker.traffic import Traffic
from policies.schema import DEFAULT_PATH

MB = 1_000_000
ENDS = {name: Endpoint(f"10.0.0.{i}", 1, 2, "", "eth0") for i, name in enumerate("abc", 1)}
THERE = Route("a", "b")


def others_bytes_per_s(
    route: Route, own_bytes: int, carried: dict[str, Counters], took_s: float = 2.0
) -> float:
    """What others did over a route during a probe that made one transfer from a to b."""
    sent = {"a": {b"there": own_bytes}, "b": {}, "c": {}}
    accounts = {n: Traffic(sent[n], {"eth0": count}, took_s) for n, count in carried.items()}
    found = other_traffic(accounts, [(THERE, b"there")], {DEFAULT_PATH: ENDS})
    return found.over(route, ENDS)


@pytest.mark.parametrize("sent_bytes", [40 * MB, 43 * MB])
def test_headers_and_acknowledgements_of_ours_are_not_others(sent_bytes: int) -> None:
    carried = {"a": Counters(MB, sent_bytes), "b": Counters(sent_bytes, MB)}
    assert others_bytes_per_s(THERE, 40 * MB, carried) == 0.0
    assert others_bytes_per_s(THERE.back, 40 * MB, carried) == 0.0


def test_what_others_receive_at_its_end_counts_for_a_route() -> None:
    carried = {"a": Counters(MB, 40 * MB), "b": Counters(60 * MB, MB)}
    assert others_bytes_per_s(THERE, 40 * MB, carried) == 10 * MB
    assert others_bytes_per_s(THERE.back, 40 * MB, carried) == 0.0


def test_what_others_send_at_its_start_counts_for_a_route() -> None:
    carried = {"c": Counters(0, 30 * MB), "a": Counters(0, 0)}
    assert others_bytes_per_s(Route("c", "a"), 0, carried) == 15 * MB


def test_chatter_is_not_worth_a_word() -> None:
    assert others_bytes_per_s(Route("c", "a"), 0, {"c": Counters(0, 200_000)}) == 0.0


def test_without_an_account_nothing_is_said_of_others() -> None:
    assert others_bytes_per_s(THERE, 40 * MB, {}) == 0.0
