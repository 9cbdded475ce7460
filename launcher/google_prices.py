"""Fetches Google Cloud's public list prices by its billing catalogue, through Google's client.

The catalogue has no prices of machine types, but of their parts: an hour of a vCPU, of a GiB of
memory, of a GPU, each by family. A type's price is the sum of its parts
(https://cloud.google.com/compute/all-pricing).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from launcher.errors import ClusterError, UsageError

COMPUTE_ENGINE = "services/6F81-5844-456A"


@dataclass(frozen=True, slots=True)
class Family:
    """Machine types that are sold alike: `NAME-SIZE`, where a size has so many vCPUs and GPUs.

    `sold_as` is how the catalogue begins the descriptions of vCPUs and memory, `gpu` that of GPUs.
    """

    sold_as: str
    gib_per_cpu: float
    cpus_by_size: Mapping[str, int]
    gpu: str | None = None
    gpus_by_size: Mapping[str, int] | None = None


def _sizes(*cpus: int) -> dict[str, int]:
    return {str(n): n for n in cpus}


FAMILIES = {
    "n1-standard": Family("N1 Predefined Instance", 3.75, _sizes(1, 2, 4, 8, 16, 32, 64, 96)),
    "e2-standard": Family("E2 Instance", 4.0, _sizes(2, 4, 8, 16, 32)),
    "n2-standard": Family("N2 Instance", 4.0, _sizes(2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
    "n2-highcpu": Family("N2 Instance", 1.0, _sizes(2, 4, 8, 16, 32, 48, 64, 80, 96)),
    "c2-standard": Family("Compute optimized", 4.0, _sizes(4, 8, 16, 30, 60)),
    "g2-standard": Family(
        "G2 Instance",
        4.0,
        _sizes(4, 8, 12, 16, 24, 32, 48, 96),
        "Nvidia L4 GPU",
        {"4": 1, "8": 1, "12": 1, "16": 1, "24": 2, "32": 1, "48": 4, "96": 8},
    ),
    "a2-highgpu": Family(
        "A2 Instance",
        85 / 12,
        {f"{n}g": 12 * n for n in (1, 2, 4, 8)},
        "Nvidia Tesla A100 GPU",
        {f"{n}g": n for n in (1, 2, 4, 8)},
    ),
}


class Catalogue(Protocol):
    """Google's catalogue: a page of what Compute Engine sells, from a token on."""

    def page(self, token: str) -> Mapping[str, Any]:
        """As the API's `services.skus.list` answers."""
        ...


class GoogleCatalogue:
    """Google's own.

    Raises:
        UsageError: Google's client library is not installed.
        ClusterError: there are no credentials.
    """

    def __init__(self) -> None:
        try:
            from google.auth.exceptions import DefaultCredentialsError
            from googleapiclient import discovery
        except ImportError:
            raise UsageError(
                "To fetch Google's prices this machine needs its client library: "
                "pip install google-api-python-client"
            ) from None
        try:
            service = discovery.build("cloudbilling", "v1", cache_discovery=False)
        except DefaultCredentialsError as error:
            raise ClusterError(
                "Google asks who you are: gcloud auth application-default login"
            ) from error
        self._skus = service.services().skus()

    def page(self, token: str) -> Mapping[str, Any]:
        """As the API answers."""
        words = {"pageToken": token} if token else {}
        answer: Mapping[str, Any] = self._skus.list(parent=COMPUTE_ENGINE, **words).execute()
        return answer


def fetch_google_prices(catalogue: Catalogue, region: str) -> dict[str, float]:
    """On-demand US dollars per hour by machine type, of a region.

    Raises:
        ClusterError: Google does not answer, or sells nothing that is known in this region.
    """
    try:
        usd_per_h = dict(_parts(catalogue, region))
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("google", "googleapiclient", "httplib2"):
            raise
        raise ClusterError(
            f"Google does not tell its prices: {error}. The project must have the Cloud Billing "
            "API enabled: gcloud services enable cloudbilling.googleapis.com"
        ) from error
    prices = {
        f"{name}-{size}": price
        for name, family in FAMILIES.items()
        for size in family.cpus_by_size
        if (price := type_usd_per_h(family, size, usd_per_h)) is not None
    }
    if not prices:
        raise ClusterError(
            f"Google lists no prices for the region {region}. Is it written as in us-central1?"
        )
    return prices


def type_usd_per_h(family: Family, size: str, usd_per_h: Mapping[str, float]) -> float | None:
    """What a machine type costs an hour; None where the price of a part is not known.

    Args:
        usd_per_h: the prices of parts, by what the catalogue calls them.
    """
    n_cpus = family.cpus_by_size[size]
    parts = [
        (f"{family.sold_as} Core", float(n_cpus)),
        (f"{family.sold_as} Ram", n_cpus * family.gib_per_cpu),
    ]
    if family.gpu is not None and family.gpus_by_size is not None:
        parts.append((family.gpu, float(family.gpus_by_size[size])))
    if any(part not in usd_per_h for part, _ in parts):
        return None
    return round(sum(usd_per_h[part] * amount for part, amount in parts), 5)


def _parts(catalogue: Catalogue, region: str) -> Iterator[tuple[str, float]]:
    """What is sold in a region on demand, by name, with US dollars for an hour of it."""
    token: str | None = ""
    while token is not None:
        answer = catalogue.page(token)
        for sku in answer.get("skus", ()):
            name, where, _ = str(sku["description"]).partition(" running in ")
            is_on_demand = sku["category"]["usageType"] == "OnDemand"
            if where and is_on_demand and region in sku["serviceRegions"]:
                yield name, _usd_per_h(sku)
        token = answer.get("nextPageToken") or None


def _usd_per_h(sku: Mapping[str, Any]) -> float:
    price = sku["pricingInfo"][-1]["pricingExpression"]["tieredRates"][-1]["unitPrice"]
    return float(price.get("units", 0)) + float(price.get("nanos", 0)) / 1e9
