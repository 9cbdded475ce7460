from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from launcher.budget import Meter, seconds_left
from policies.schema import Node
from tests.fakes import FakeClock, a_node

HOUR_S = 3600.0

prices = st.floats(0, 100, allow_nan=False)
durations = st.floats(0, 1e6, allow_nan=False)


def nodes(*usd_per_h: float) -> list[Node]:
    return [a_node(index, price) for index, price in enumerate(usd_per_h)]


def test_a_new_meter_has_spent_nothing() -> None:
    meter = Meter(FakeClock(123.0))
    assert (meter.spent_usd, meter.session_usd, meter.usd_per_h) == (0, 0, 0)


def test_a_node_costs_its_price_for_every_hour_held() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.hold(nodes(0.34))
    clock.sleep(2 * HOUR_S)
    assert meter.spent_usd == approx(0.68)


def test_a_node_counts_whole_and_once_however_often_it_is_held() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.hold([*nodes(1.0), *nodes(1.0)])
    clock.sleep(HOUR_S / 2)
    meter.hold(nodes(1.0))
    clock.sleep(HOUR_S / 2)
    assert meter.usd_per_h == 1.0
    assert meter.spent_usd == approx(1.0)


def test_a_node_counts_from_when_it_was_first_held() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    first, second = nodes(1.0, 2.0)
    meter.hold([first])
    clock.sleep(HOUR_S)
    meter.hold([first, second])
    clock.sleep(HOUR_S)
    assert meter.spent_usd == approx(1.0 * 2 + 2.0 * 1)


def test_keep_only_stops_counting_the_other_nodes() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    first, second = nodes(1.0, 2.0)
    meter.hold([first, second])
    clock.sleep(HOUR_S)
    meter.keep_only([second])
    clock.sleep(HOUR_S)
    assert meter.usd_per_h == 2.0
    assert meter.spent_usd == approx(1.0 + 4.0)


def test_keep_only_holds_no_node_that_was_not_held() -> None:
    meter = Meter(FakeClock())
    meter.keep_only(nodes(1.0))
    assert meter.usd_per_h == 0


def test_nothing_is_counted_after_release() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.hold(nodes(1.0, 2.0))
    clock.sleep(HOUR_S)
    meter.release_all()
    clock.sleep(HOUR_S)
    assert meter.spent_usd == approx(3.0)
    assert meter.usd_per_h == 0


def test_a_node_held_again_after_release_counts_on() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.hold(nodes(1.0))
    clock.sleep(HOUR_S)
    meter.release_all()
    clock.sleep(HOUR_S)
    meter.hold(nodes(1.0))
    clock.sleep(HOUR_S)
    assert meter.spent_usd == approx(2.0)


def test_money_of_earlier_stretches_is_spent_but_not_of_this_stretch() -> None:
    clock = FakeClock()
    meter = Meter(clock, earlier_usd=1.5)
    meter.hold(nodes(1.0))
    clock.sleep(HOUR_S)
    assert meter.spent_usd == approx(2.5)
    assert meter.session_usd == approx(1.0)


def test_a_budget_lasts_for_its_money_at_the_rate_of_all_nodes() -> None:
    meter = Meter(FakeClock())
    meter.hold(nodes(1.0, 2.0))
    assert seconds_left(meter, 6.0, None) == approx(2 * HOUR_S)


def test_what_was_spent_in_this_stretch_is_not_left() -> None:
    clock = FakeClock()
    meter = Meter(clock, earlier_usd=100.0)
    meter.hold(nodes(1.0))
    clock.sleep(HOUR_S)
    assert seconds_left(meter, 3.0, None) == approx(2 * HOUR_S)


def test_a_free_node_never_reaches_the_budget() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.hold(nodes(0.0))
    clock.sleep(1e6)
    assert seconds_left(meter, 0.01, None) == float("inf")


def test_without_budget_and_deadline_there_is_no_end() -> None:
    meter = Meter(FakeClock())
    meter.hold(nodes(1.0))
    assert seconds_left(meter, None, None) == float("inf")


def test_a_deadline_is_reached_whatever_the_nodes_cost() -> None:
    clock = FakeClock(100.0)
    meter = Meter(clock)
    assert seconds_left(meter, None, 160.0) == 60
    clock.sleep(61)
    assert seconds_left(meter, None, 160.0) == -1


def test_the_nearer_of_budget_and_deadline_counts() -> None:
    meter = Meter(FakeClock())
    meter.hold(nodes(1.0))
    assert seconds_left(meter, 1.0, 60.0) == 60
    assert seconds_left(meter, 1.0, 2 * HOUR_S) == approx(HOUR_S)


def test_an_overdrawn_budget_leaves_less_than_nothing() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.hold(nodes(1.0))
    clock.sleep(2 * HOUR_S)
    assert seconds_left(meter, 1.0, None) == approx(-HOUR_S)


steps = st.lists(
    st.tuples(st.sampled_from(["hold", "keep", "release"]), st.sets(st.integers(0, 3)), durations),
    max_size=12,
)


@given(st.lists(prices, min_size=4, max_size=4), steps)
def test_spending_is_never_negative_and_never_falls(
    usd_per_h: list[float], script: list[tuple[str, set[int], float]]
) -> None:
    clock = FakeClock()
    meter = Meter(clock)
    all_nodes, before_usd = nodes(*usd_per_h), 0.0
    for verb, indices, pause_s in script:
        chosen = [all_nodes[index] for index in indices]
        if verb == "hold":
            meter.hold(chosen)
        elif verb == "keep":
            meter.keep_only(chosen)
        else:
            meter.release_all()
        clock.sleep(pause_s)
        assert meter.usd_per_h >= 0
        assert meter.spent_usd >= before_usd * (1 - 1e-12)
        before_usd = meter.spent_usd


@given(st.lists(prices, min_size=1, max_size=6), durations)
def test_nodes_together_cost_what_they_cost_alone(usd_per_h: list[float], held_s: float) -> None:
    def spent_usd(held: list[Node]) -> float:
        clock = FakeClock()
        meter = Meter(clock)
        meter.hold(held)
        clock.sleep(held_s)
        return meter.spent_usd

    held = nodes(*usd_per_h)
    assert spent_usd(held) == approx(sum(spent_usd([node]) for node in held))


@given(st.floats(0.01, 100), st.floats(0.01, 100), durations)
def test_the_budget_is_spent_exactly_when_no_time_is_left(
    usd_per_h: float, budget_usd: float, held_s: float
) -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.hold(nodes(usd_per_h))
    clock.sleep(held_s)
    clock.now_s += seconds_left(meter, budget_usd, None)
    assert meter.session_usd == approx(budget_usd, abs=1e-9)


def test_machines_that_only_serve_the_nodes_count_until_all_is_released() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    meter.keep_up(0.1)
    meter.hold(nodes(0.34))
    assert meter.usd_per_h == approx(0.44)
    clock.sleep(HOUR_S)
    meter.keep_only([])
    assert meter.session_usd == approx(0.44)
    clock.sleep(HOUR_S)
    assert meter.session_usd == approx(0.54)
    assert seconds_left(meter, 0.64, None) == approx(HOUR_S)
    meter.release_all()
    clock.sleep(HOUR_S)
    assert meter.session_usd == approx(0.54)
