"""Prices that AWS and Google list: paged, filtered, kept, and preferred to the shipped ones."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import ClusterError, StorageError, UsageError
from launcher.google_prices import FAMILIES, GoogleCatalogue, fetch_google_prices
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


# What parts cost in us-central1 when the shipped table was made.
PARTS = {
    "N1 Predefined Instance Core": 0.031611,
    "N1 Predefined Instance Ram": 0.004237,
    "E2 Instance Core": 0.02181159,
    "E2 Instance Ram": 0.00292353,
    "N2 Instance Core": 0.031611,
    "N2 Instance Ram": 0.004237,
    "Compute optimized Core": 0.03398,
    "Compute optimized Ram": 0.00455,
    "G2 Instance Core": 0.024988,
    "G2 Instance Ram": 0.002927,
    "Nvidia L4 GPU": 0.560040,
    "A2 Instance Core": 0.031611,
    "A2 Instance Ram": 0.004237,
    "Nvidia Tesla A100 GPU": 2.933908,
}


def sku(
    name: str, usd: float, usage: str = "OnDemand", region: str = "us-central1"
) -> dict[str, Any]:
    """As Google writes it."""
    units, nanos = divmod(round(usd * 1e9), 10**9)
    rate = {"startUsageAmount": 0, "unitPrice": {"units": str(units), "nanos": nanos}}
    return {
        "description": f"{name} running in Americas",
        "category": {"usageType": usage, "resourceFamily": "Compute"},
        "serviceRegions": [region, "us-west1"],
        "pricingInfo": [{"pricingExpression": {"usageUnit": "h", "tieredRates": [rate]}}],
    }


class FakeCatalogue:
    """Answers three things a page."""

    def __init__(self, *skus: dict[str, Any]) -> None:
        self._skus = skus

    def page(self, token: str) -> dict[str, Any]:
        at = int(token or 0)
        after = at + 3
        more = str(after) if after < len(self._skus) else ""
        return {"skus": list(self._skus[at:after]), "nextPageToken": more}


def test_googles_parts_add_up_to_what_the_shipped_table_says() -> None:
    others = [sku("N2 Instance Core", 9.0, "Preemptible"), sku("E2 Instance Ram", 9.0, region="x")]
    sold = [sku(name, usd) for name, usd in PARTS.items()]
    prices = fetch_google_prices(FakeCatalogue(*sold, *others), "us-central1")
    shipped = read_tables(Path("/nowhere")).usd_per_h
    known = {kind: usd for kind, usd in shipped.items() if kind.rpartition("-")[0] in FAMILIES}
    assert len(known) >= 20
    assert {kind: prices[kind] for kind in known} == pytest.approx(known, rel=1e-3)


def test_a_type_of_which_a_part_is_not_sold_has_no_price() -> None:
    sold = [sku(name, usd) for name, usd in PARTS.items() if name != "Nvidia L4 GPU"]
    prices = fetch_google_prices(FakeCatalogue(*sold), "us-central1")
    assert not any(kind.startswith("g2-") for kind in prices)
    assert "n2-standard-8" in prices


def test_a_region_in_which_google_sells_nothing_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"Google lists no prices for the region mars-1\. Is it"):
        fetch_google_prices(FakeCatalogue(sku("N2 Instance Core", 1.0)), "mars-1")


def test_fetched_prices_win_and_shipped_ones_fill_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "state" / "prices.csv"
    fetched = {"c5.2xlarge": 0.5, "new.large": 1.0}
    write_prices(path, "aws", fetched, date(2026, 11, 30), "eu-west-1")
    table = read_tables(path)
    assert table.usd_per_h["c5.2xlarge"] == 0.5
    assert table.usd_per_h["new.large"] == 1.0
    assert table.usd_per_h["m5.large"] == 0.096
    assert table.sources[-1] == "2 of aws in eu-west-1, fetched on 2026-11-30: these win"


def test_a_cloud_is_fetched_without_touching_another(tmp_path: Path) -> None:
    path, day = tmp_path / "prices.csv", date(2026, 11, 30)
    write_prices(path, "aws", {"a.large": 1.0, "b.large": 1.0}, day, "us-east-1")
    write_prices(path, "gcp", {"n2-standard-2": 2.0}, day, "us-central1")
    write_prices(path, "aws", {"a.large": 3.0}, day, "us-east-2")
    table = read_tables(path)
    assert [table.usd_per_h.get(kind) for kind in ("a.large", "b.large", "n2-standard-2")] == [
        3.0,
        None,
        2.0,
    ]
    assert len(table.sources) == 3


def test_a_damaged_file_of_prices_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "prices.csv").write_text("instance_type,usd_per_h\nm5.large,dear\n")
    assert read_tables(tmp_path / "prices.csv").usd_per_h["m5.large"] == 0.096
    assert "the shipped prices count" in caplog.text


def test_prices_that_cannot_be_kept_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"prices\.csv cannot be written"):
        write_prices(tmp_path / "file" / "prices.csv", "aws", {}, date(2026, 11, 30), "x")


def test_an_answer_of_google_that_is_an_error_is_told() -> None:
    error = type("HttpError", (Exception,), {"__module__": "googleapiclient.errors"})

    class Refusing(FakeCatalogue):
        def page(self, token: str) -> dict[str, Any]:
            raise error("403 Cloud Billing API has not been used")

    with pytest.raises(ClusterError, match=r"Google does not tell its prices: 403 .* gcloud servi"):
        fetch_google_prices(Refusing(), "us-central1")


def test_a_machine_without_googles_client_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "google.auth.exceptions", None)
    with pytest.raises(UsageError, match=r"needs its client library: pip install google-api-pyth"):
        GoogleCatalogue()


def test_google_without_credentials_is_told_how_to_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class DefaultCredentialsError(Exception):
        pass

    def build(*words: str, **options: bool) -> None:
        raise DefaultCredentialsError

    exceptions = SimpleNamespace(DefaultCredentialsError=DefaultCredentialsError)
    client = SimpleNamespace(discovery=SimpleNamespace(build=build))
    monkeypatch.setitem(sys.modules, "google.auth", SimpleNamespace(exceptions=exceptions))
    monkeypatch.setitem(sys.modules, "google.auth.exceptions", exceptions)
    monkeypatch.setitem(sys.modules, "googleapiclient", client)
    with pytest.raises(ClusterError, match=r"who you are: gcloud auth application-default login"):
        GoogleCatalogue()


@pytest.mark.parametrize(
    "row",
    ["m5.large,aws,nan,2026-11-30,x", "m5.large,aws,-1,2026-11-30,x", "m5.large", ",,,,", "a,b,c"],
)
def test_a_file_with_odd_entries_leaves_the_shipped_prices_and_is_replaced(
    tmp_path: Path, row: str
) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(f"instance_type,cloud,usd_per_h,date,region\n{row}\n")
    assert read_tables(path).usd_per_h["m5.large"] == 0.096
    write_prices(path, "aws", {"m5.large": 0.1}, date(2026, 11, 30), "eu-west-1")
    assert read_tables(path).usd_per_h["m5.large"] == 0.1
