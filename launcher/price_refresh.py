"""Fetches AWS's public list prices by its price list service, through boto3."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from launcher.errors import ClusterError, UsageError

# The price list service itself is only in a few regions; it tells the prices of all.
HOME_REGION = "us-east-1"
# What of a machine type's many prices is meant: Linux, on a shared host, in use, nothing added.
WANTED = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


class PriceList(Protocol):
    """Boto3's client of AWS's price list, as far as it is used."""

    def get_products(
        self,
        *,
        ServiceCode: str,  # noqa: N803 - AWS's own words
        Filters: Sequence[Mapping[str, str]],  # noqa: N803
        **page: str,
    ) -> Mapping[str, Any]:
        """A page of products."""
        ...


def aws_price_list() -> PriceList:
    """AWS's own.

    Raises:
        UsageError: boto3 is not installed.
    """
    try:
        import boto3
    except ImportError:
        raise UsageError(
            "To fetch AWS's prices this machine needs boto3: pip install boto3"
        ) from None
    client: PriceList = boto3.client("pricing", region_name=HOME_REGION)
    return client


def fetch_prices(price_list: PriceList, region: str) -> dict[str, float]:
    """On-demand US dollars per hour by instance type, of a region.

    Raises:
        ClusterError: AWS does not answer, or knows no such region.
    """
    try:
        products = list(_products(price_list, region))
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("botocore", "boto3"):
            raise
        raise ClusterError(
            f"AWS does not tell its prices: {error}. Check your credentials with `aws sts "
            "get-caller-identity`; they must allow pricing:GetProducts."
        ) from error
    prices = dict(row for product in products if (row := price_row(product)) is not None)
    if not prices:
        raise ClusterError(
            f"AWS lists no prices for the region {region}. Is it written as in us-east-1?"
        )
    return dict(sorted(prices.items()))


def price_row(product: Mapping[str, Any]) -> tuple[str, float] | None:
    """A product's instance type and US dollars per hour; None where it has no such price."""
    kind = product.get("product", {}).get("attributes", {}).get("instanceType")
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd_per_h = float(dimension["pricePerUnit"].get("USD", 0.0))
            if kind and dimension["unit"] == "Hrs" and usd_per_h > 0:
                return str(kind), usd_per_h
    return None


def _products(price_list: PriceList, region: str) -> Iterator[Mapping[str, Any]]:
    wanted = {**WANTED, "regionCode": region}
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    page: dict[str, str] = {}
    while True:
        answer = price_list.get_products(ServiceCode="AmazonEC2", Filters=filters, **page)
        yield from map(json.loads, answer["PriceList"])
        if not answer.get("NextToken"):
            return
        page = {"NextToken": answer["NextToken"]}
