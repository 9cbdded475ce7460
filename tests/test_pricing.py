"""Prices: which source wins, and what is refused."""

import csv
import math
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import ClusterError
from launcher.pricing import (
    ASSUMED_USD_PER_CPU_H,
    ASSUMED_USD_PER_GPU_H,
    LOSSES_LABEL,
    PRICE_LABEL,
    SPOT_LOSSES_PER_H,
    TABLE_DATE,
    Machine,
    Price,
    assumed_usd_per_h,
    losses_per_h,
    price_of,
    table_usd_per_h,
)


def machine(
    labels: dict[str, str] | None = None, instance_type: str | None = None, own: bool = False
) -> Machine:
    return Machine("node-a", 8.0, 1.0, labels or {}, instance_type, own)


def test_an_explicit_price_overrides_label_and_table() -> None:
    labelled = machine({PRICE_LABEL: "0.9"}, "c5.2xlarge")
    assert price_of(labelled, 0.5) == Price(0.5, "option")


def test_an_explicit_price_of_zero_counts() -> None:
    assert price_of(machine({PRICE_LABEL: "0.9"}), 0.0) == Price(0.0, "option")


def test_a_label_comes_before_the_table() -> None:
    assert price_of(machine({PRICE_LABEL: "0.12"}, "c5.2xlarge")) == Price(0.12, "label")


def test_a_label_prices_an_own_machine() -> None:
    assert price_of(machine({PRICE_LABEL: "0.12"}, own=True)) == Price(0.12, "label")


def test_a_known_instance_type_costs_what_the_table_says() -> None:
    assert price_of(machine(instance_type="c5.2xlarge")) == Price(0.34, "table")
    assert price_of(machine(instance_type="standard_f8s_v2")) == Price(0.338, "table")


def test_an_unknown_cloud_machine_has_an_assumed_price() -> None:
    price = price_of(machine(instance_type="x9.huge"))
    assert price == Price(8 * ASSUMED_USD_PER_CPU_H + ASSUMED_USD_PER_GPU_H, "assumed")


def test_a_zone_label_marks_a_cloud_machine() -> None:
    assert price_of(machine({"ray.io/availability-zone": "us-east-1a"})).source == "assumed"


def test_a_machine_without_any_sign_of_a_cloud_is_an_own_machine() -> None:
    assert price_of(machine({"rack": "3"})) == Price(0.0, "own machine")
    assert price_of(machine({"ray.io/market-type": "spot"}, own=True)) == Price(0.0, "own machine")


@pytest.mark.parametrize("text", ["", "cheap", "$0.34", "-0.1", "nan", "inf", "0,34"])
def test_a_label_that_is_no_price_is_refused_with_node_and_value(text: str) -> None:
    with pytest.raises(ClusterError, match=f'node-a.*{PRICE_LABEL}="{text.replace("$", ".")}"'):
        price_of(machine({PRICE_LABEL: text}))


@given(st.floats(min_value=0, max_value=1e6, allow_nan=False))
def test_every_non_negative_label_is_taken_as_it_is(usd_per_h: float) -> None:
    assert price_of(machine({PRICE_LABEL: repr(usd_per_h)})) == Price(usd_per_h, "label")


@given(st.floats(0, 512), st.floats(0, 16), st.floats(0, 64))
def test_more_of_a_machine_is_never_assumed_cheaper(cpus: float, gpus: float, more: float) -> None:
    assert assumed_usd_per_h(cpus + more, gpus) >= assumed_usd_per_h(cpus, gpus)
    assert assumed_usd_per_h(cpus, gpus + more) >= assumed_usd_per_h(cpus, gpus)


def test_the_table_is_dated_and_its_rows_are_sound() -> None:
    rows = list(csv.DictReader((files("launcher") / "prices.csv").read_text().splitlines()))
    assert len(rows) == len(table_usd_per_h()) >= 60
    assert {row["cloud"] for row in rows} == {"aws", "gcp", "azure"}
    assert all(0 < price < 200 and math.isfinite(price) for price in table_usd_per_h().values())
    assert len(TABLE_DATE) == len("2025-06")


@pytest.mark.parametrize(
    ("labels", "rate"),
    [
        ({}, 0.0),
        ({"launch/market-type": "on-demand"}, 0.0),
        ({"launch/market-type": "spot"}, SPOT_LOSSES_PER_H),
        ({"ray.io/market-type": "spot"}, SPOT_LOSSES_PER_H),
        ({"ray.io/market-type": "spot", LOSSES_LABEL: "0.1"}, 0.1),
        ({LOSSES_LABEL: "0"}, 0.0),
    ],
)
def test_a_spot_machine_may_be_taken_back(labels: dict[str, str], rate: float) -> None:
    assert losses_per_h(Machine("a", 8, 0, labels)) == rate


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(ClusterError, match=f'label {LOSSES_LABEL}="often", which is not a rate'):
        losses_per_h(Machine("a", 8, 0, {LOSSES_LABEL: "often"}))
