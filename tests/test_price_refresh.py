"""Prices from AWS's price list: paged, filtered, kept, and preferred to the shipped ones."""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ClusterError, StorageError
from launcher.price_refresh import fetch_prices, price_row
from launcher.pricing import read_tables, write_prices


def product(kind: str | None, usd: str, unit: str = "Hrs") -> dict[str, Any]:
    """As AWS writes it."""
    dimension = {"unit": unit, "pricePerUnit": {"USD": usd}}
    term = {"priceDimensions": {"SKU.JRTCKXETXF.6YS6EN2CT7": dimension}}
    attributes = {"regionCode": "us-east-1"} | ({"instanceType": kind} if kind else {})
    return {"product": {"attributes": attributes}, "terms": {"OnDemand": {"SKU.JRT": term}}}


class FakePriceList:
    """Answers two products a page."""

    def __init__(self, products: Sequence[Mapping[str, Any]]) -> None:
        self._texts = [json.dumps(each) for each in products]
        self.filters: list[dict[str, str]] = []

    def get_products(
        self,
        *,
        ServiceCode: str,  # noqa: N803
        Filters: Sequence[Mapping[str, str]],  # noqa: N803
        **page: str,
    ) -> dict[str, Any]:
        assert ServiceCode == "AmazonEC2"
        assert {each["Type"] for each in Filters} == {"TERM_MATCH"}
        self.filters.append({each["Field"]: each["Value"] for each in Filters})
        at = int(page.get("NextToken", 0))
        answer: dict[str, Any] = {"PriceList": self._texts[at : at + 2]}
        return answer | ({"NextToken": str(at + 2)} if at + 2 < len(self._texts) else {})


def test_all_pages_of_a_region_are_fetched() -> None:
    kinds = ("c5.large", "m5.large", "a1.large")
    price_list = FakePriceList([product(kind, f"0.{n}") for n, kind in enumerate(kinds, 1)])
    assert fetch_prices(price_list, "eu-west-1") == {
        "a1.large": 0.3,
        "c5.large": 0.1,
        "m5.large": 0.2,
    }
    assert [each["regionCode"] for each in price_list.filters] == ["eu-west-1", "eu-west-1"]
    assert price_list.filters[0]["operatingSystem"] == "Linux"
    assert price_list.filters[0]["tenancy"] == "Shared"


@pytest.mark.parametrize(
    "listed",
    [
        product(None, "0.1"),
        product("c5.large", "0.0000000000"),
        product("c5.large", "12", unit="Quantity"),
        {"product": {"attributes": {"instanceType": "c5.large"}}, "terms": {}},
    ],
)
def test_what_is_no_price_of_an_hour_is_left_out(listed: dict[str, Any]) -> None:
    assert price_row(listed) is None


def test_a_region_without_prices_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"no prices for the region mars-1\. Is it written as"):
        fetch_prices(FakePriceList([]), "mars-1")


def test_credentials_that_aws_refuses_are_an_error() -> None:
    from botocore.exceptions import ClientError

    class Refusing(FakePriceList):
        def get_products(self, **words: Any) -> dict[str, Any]:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetProducts")

    with pytest.raises(
        ClusterError, match=r"does not tell its prices: .*AccessDenied.*\. Check you"
    ):
        fetch_prices(Refusing([]), "us-east-1")


def test_fetched_prices_win_and_shipped_ones_fill_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "state" / "prices.csv"
    write_prices(path, {"c5.2xlarge": 0.5, "new.large": 1.0}, date(2026, 11, 30), "eu-west-1")
    table = read_tables(path)
    assert table.usd_per_h["c5.2xlarge"] == 0.5
    assert table.usd_per_h["new.large"] == 1.0
    assert table.usd_per_h["m5.large"] == 0.096
    assert table.sources[-1].startswith("2 prices of AWS in eu-west-1, fetched on 2026-11-30")


def test_a_damaged_file_of_prices_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "prices.csv").write_text("instance_type,usd_per_h\nm5.large,dear\n")
    assert read_tables(tmp_path / "prices.csv").usd_per_h["m5.large"] == 0.096
    assert "the shipped prices count" in caplog.text


def test_prices_that_cannot_be_kept_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"prices\.csv cannot be written"):
        write_prices(tmp_path / "file" / "prices.csv", {}, date(2026, 11, 30), "x")
