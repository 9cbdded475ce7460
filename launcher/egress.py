"""What it costs to bring data out of where they are stored, and where that number comes from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from launcher.worker.staging.manifest import Manifest, Source
from launcher.worker.staging.uris import scheme_of
from policies.schema import Node

EgressSource = Literal["option", "table", "assumed", "own"]

# List prices of data that leave a provider for the internet, first tier, in dollars per 10^9
# bytes: AWS us-east-1, GCP us-central1 (premium tier). To machines of the same region: nothing.
TABLE_DATE: Final = "2025-06"
INTERNET_USD_PER_GB: Final = {"s3": 0.09, "gs": 0.12, "gcs": 0.12}
# How the providers name their machine types: c5.2xlarge, n2-standard-8.
_TYPES: Final = {
    "s3": re.compile(r"[a-z0-9-]+\.[a-z0-9-]+"),
    "gs": re.compile(r"[a-z][0-9][a-z]?-[a-z0-9-]+"),
    "gcs": re.compile(r"[a-z][0-9][a-z]?-[a-z0-9-]+"),
}


@dataclass(frozen=True, slots=True)
class EgressPrice:
    """US dollars for 10^9 bytes, the mean over all data, with the source that a user is shown."""

    usd_per_gb: float
    source: EgressSource

    @property
    def usd_per_byte(self) -> float:
        """The same for one byte."""
        return self.usd_per_gb / 1e9


def egress_price(
    manifest: Manifest, nodes: Sequence[Node], option_usd_per_gb: float | None = None
) -> EgressPrice:
    """The price of a manifest's data on their way to some nodes.

    Args:
        option_usd_per_gb: `--data-price`, which overrides all else.
    """
    if option_usd_per_gb is not None:
        return EgressPrice(option_usd_per_gb, "option")
    prices = [_price(source, nodes) for source in manifest.sources]
    sizes = [sum(f.size or 0 for f in manifest.files_of(i)) for i in range(len(prices))]
    priced = zip(prices, sizes, strict=True)
    mean = sum(price.usd_per_gb * size for price, size in priced) / max(1, sum(sizes))
    order: tuple[EgressSource, ...] = ("table", "assumed", "own")
    return EgressPrice(mean, min((each.source for each in prices), key=order.index))


def _price(source: Source, nodes: Sequence[Node]) -> EgressPrice:
    scheme = scheme_of(source.uri)
    if source.is_local or "endpoint_override=" in source.uri:
        return EgressPrice(0.0, "own")
    if scheme not in INTERNET_USD_PER_GB:
        return EgressPrice(0.0, "assumed")
    if nodes and all(_TYPES[scheme].fullmatch(node.instance_type or "") for node in nodes):
        return EgressPrice(0.0, "assumed")  # the provider's own machines, in the same region
    return EgressPrice(INTERNET_USD_PER_GB[scheme], "table")
