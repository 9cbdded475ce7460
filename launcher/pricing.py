"""What an hour of a node costs, and where that number comes from."""

import csv
import io
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path

from launcher.config import Environment
from launcher.errors import ClusterError, StorageError
from launcher.small_file import replace_file
from policies.schema import PriceSource

logger = logging.getLogger(__name__)

PRICE_LABEL = "launch/price-usd-per-hour"

# Public on-demand list prices of Linux machines: AWS us-east-1, GCP us-central1, Azure East US.
# Region, discounts and spot markets change them; a label on the node always wins.
TABLE_DATE = "2025-06"

# For a cloud machine that the table lacks. Near the upper end of the table per vCPU (c5, m5 and
# n2: 0.042 to 0.050), and between one T4 (0.3) and one A100 (3.4) per GPU: rather too dear than
# too cheap, because a budget must hold.
ASSUMED_USD_PER_CPU_H = 0.05
ASSUMED_USD_PER_GPU_H = 3.0

COLUMNS = ("instance_type", "cloud", "usd_per_h", "date", "region")  # of prices that were fetched

# What reading a file with odd entries raises: short rows, no numbers, endless fields.
_ODD = (ValueError, KeyError, TypeError, AttributeError, csv.Error)

# Labels that only a provider's machine carries.
_CLOUD_LABELS = (
    "ray.io/availability-region",
    "ray.io/availability-zone",
    "ray.io/market-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)


# How often a spot machine is taken back (assumed). AWS's Spot Instance Advisor means less than a
# thousandth an hour for most types; GPUs in demand have been seen to go at 0.1 an hour and more
# (Thorpe et al., Bamboo, NSDI'23). A label on the node says it better.
SPOT_LOSSES_PER_H = 0.02
LOSSES_LABEL = "launch/losses-per-hour"
_MARKET_LABELS = ("launch/market-type", "ray.io/market-type")


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides a node's price; `cpus` and `gpus` are all that it has, free or not."""

    name: str
    cpus: float
    gpus: float
    labels: Mapping[str, str]
    instance_type: str | None = None
    own: bool = False


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per hour, with the source that a user is shown."""

    usd_per_h: float
    source: PriceSource


def price_of(machine: Machine, option_usd_per_h: float | None = None) -> Price:
    """The price of a machine: `--price`, its label, the table, an assumption, or $0 if own.

    Args:
        machine: the node; `own` says that it is known to be the user's (an embedded Ray).
        option_usd_per_h: the explicit `--price`, which overrides every label.

    Raises:
        ClusterError: the node's price label isn't a non-negative number.
    """
    if option_usd_per_h is not None:
        return Price(option_usd_per_h, "option")
    if PRICE_LABEL in machine.labels:
        usd_per_h = _label_number(machine, PRICE_LABEL, "a price", "dollars per hour", "0.34")
        return Price(usd_per_h, "label")
    listed = table_usd_per_h().get((machine.instance_type or "").lower())
    if listed is not None:
        return Price(listed, "table")
    if machine.own or not is_cloud(machine):
        return Price(0.0, "own machine")
    return Price(assumed_usd_per_h(machine.cpus, machine.gpus), "assumed")


def losses_per_h(machine: Machine) -> float:
    """How often a machine's provider is expected to take such a one back.

    Raises:
        ClusterError: its label for that isn't a non-negative number.
    """
    if LOSSES_LABEL in machine.labels:
        return _label_number(machine, LOSSES_LABEL, "a rate", "losses an hour", "0.05")
    is_spot = any(machine.labels.get(name) == "spot" for name in _MARKET_LABELS)
    return SPOT_LOSSES_PER_H if is_spot else 0.0


def is_cloud(machine: Machine) -> bool:
    """Whether something says that a provider bills for this machine."""
    return machine.instance_type is not None or any(k in machine.labels for k in _CLOUD_LABELS)


def assumed_usd_per_h(cpus: float, gpus: float) -> float:
    """The assumed price of a machine that no label and no table names, in dollars per hour."""
    return cpus * ASSUMED_USD_PER_CPU_H + gpus * ASSUMED_USD_PER_GPU_H


@dataclass(frozen=True, slots=True)
class PriceTable:
    """On-demand dollars per hour by instance type in lower case, and what they rest on."""

    usd_per_h: Mapping[str, float]
    sources: tuple[str, ...]


@cache
def price_table() -> PriceTable:
    """The shipped table, with what `launch prices refresh` has fetched on this machine."""
    return read_tables(refreshed_path(Environment.read()))


def table_usd_per_h() -> Mapping[str, float]:
    """On-demand dollars per hour by instance type in lower case."""
    return price_table().usd_per_h


def refreshed_path(environment: Environment) -> Path:
    """Where prices that were fetched are kept."""
    return environment.state_dir / "prices.csv"


def read_tables(refreshed: Path) -> PriceTable:
    """The shipped table, and over it the fetched one, if there is one that can be read."""
    shipped = _rows((files("launcher") / "prices.csv").read_text(encoding="utf-8"))
    sources = [f"{len(shipped):,} list prices of AWS, Google Cloud and Azure as of {TABLE_DATE}"]
    usd_per_h = _usd_per_h(shipped)
    try:
        rows = _rows(refreshed.read_text(encoding="utf-8"))
        usd_per_h |= _usd_per_h(rows)
        fetched = Counter((row["cloud"], row["region"], row["date"]) for row in rows)
    except FileNotFoundError:
        return PriceTable(usd_per_h, tuple(sources))
    except (OSError, *_ODD) as error:
        logger.warning("%s cannot be read (%r): the shipped prices count", refreshed, error)
        return PriceTable(_usd_per_h(shipped), tuple(sources))
    for (cloud, region, at), n_prices in fetched.items():
        sources.append(f"{n_prices:,} of {cloud} in {region}, fetched on {at}: these win")
    return PriceTable(usd_per_h, tuple(sources))


def write_prices(
    path: Path, cloud: str, usd_per_h: Mapping[str, float], at: date, region: str
) -> None:
    """Keep a cloud's prices that were fetched, in place of those before; others' stay.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        rows = _rows_of_others(path, cloud)
        for kind, usd in usd_per_h.items():
            values = (kind, cloud, str(usd), at.isoformat(), region)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
        lines = io.StringIO(newline="")
        writer = csv.DictWriter(lines, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
        replace_file(path, lines.getvalue())
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}. Make it writable, or make room there."
        ) from error


def _usd_per_h(rows: Iterable[Mapping[str, str]]) -> dict[str, float]:
    """Prices by instance type; raises one of `_ODD` where one is no price."""
    found = {row["instance_type"].lower(): float(row["usd_per_h"]) for row in rows}
    for kind, usd_per_h in found.items():
        if not math.isfinite(usd_per_h) or usd_per_h < 0:
            raise ValueError(f"{kind} costs {usd_per_h}")
    return found


def _rows_of_others(path: Path, cloud: str) -> list[dict[str, str]]:
    """What the file holds of other clouds; nothing where it makes no sense."""
    try:
        rows = _rows(path.read_text(encoding="utf-8"))
        _usd_per_h(rows)
    except (FileNotFoundError, *_ODD):
        return []
    return [row for row in rows if row.get("cloud") != cloud]


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def _label_number(machine: Machine, label: str, what: str, unit: str, example: str) -> float:
    """The number in a label, which is not negative."""
    text = machine.labels[label]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ClusterError(
            f'Node {machine.name} has the label {label}="{text}", which is not {what}. '
            f'Give {unit} as a plain number, such as "{example}".'
        )
    return number
