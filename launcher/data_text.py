"""What people read of a run's data."""

from collections.abc import Collection

from rich.text import Text

from launcher import figures as f
from launcher.egress import TABLE_DATE, EgressPrice
from launcher.layout import labelled
from launcher.record import DataRecord
from launcher.worker.staging.manifest import Manifest
from launcher.worker.staging.wanted import Report
from policies.schema import DataAhead
from policies.wording import dollars, size

_MAX_SOURCES = 3


def found_text(manifest: Manifest) -> str:
    """What the data are."""
    names = [source.public for source in manifest.sources]
    more = [f"{len(names) - _MAX_SOURCES} more"] if len(names) > _MAX_SOURCES else []
    files = _files(len(manifest.files))
    unknown = " at least" if any(each.size is None for each in manifest.files) else ""
    return (
        f"data: {', '.join([*names[:_MAX_SOURCES], *more])} · {files} · "
        f"{size(manifest.n_bytes)}{unknown}"
    )


def ahead_text(ahead: DataAhead, price: EgressPrice, site: str | None = None) -> str:
    """What each node still needs, how fast that comes and what it costs.

    Args:
        ahead: of the nodes in question.
        price: of what leaves the source.
        site: whose own data they are; None: all nodes share them.
    """
    name = "data" if site is None else f"data of {site}"
    lacking = [each.missing_bytes for each in ahead.nodes if each.missing_bytes]
    n_nodes = len(ahead.nodes)
    if not lacking:
        return f"{name}: there on {'the node' if n_nodes == 1 else f'all {n_nodes:,} nodes'}"
    where = "to bring" if n_nodes == 1 else f"to bring to each of {len(lacking):,} nodes"
    together = ", to all together" if ahead.is_shared and len(lacking) > 1 else ""
    text = f"{name}: {size(max(lacking))} {where} · {rate_text(ahead.bytes_per_s)}{together}"
    text += f" ({ahead.basis})"
    if price.usd_per_gb or price.source == "table":
        basis = f"table of {TABLE_DATE}" if price.source == "table" else price.source
        text += f" · {dollars(price.usd_per_gb)}/GB on the way out ({basis})"
    return text


def brought_text(data: DataRecord, width: int) -> Text:
    """The data of a run that has ended, or goes on."""
    pieces = [", ".join(data.sources[:_MAX_SOURCES]), _files(data.n_files), size(data.n_bytes)]
    came = [each for each in data.nodes if each.fetched_bytes]
    if came:
        n_nodes = len({each.node for each in came})
        where = f"{n_nodes:,} node{'' if n_nodes == 1 else 's'}"
        took_s = max(each.took_s for each in came)
        n_bytes = sum(each.fetched_bytes for each in came)
        pieces.append(f"{size(n_bytes)} brought to {where} in {f.clock_text(took_s)}")
    if data.cost_usd:
        pieces.append(f"{dollars(data.cost_usd)} on the way out ({data.price_source})")
    return labelled("data", pieces, "measured" if came else "", width)


def progress_text(reports: Collection[Report], n_bytes: int, rate_bytes_per_s: float | None) -> str:
    """How far all nodes are together."""
    there = sum(each.there_bytes for each in reports)
    total = n_bytes * len(reports)
    nodes = "" if len(reports) == 1 else f" on {len(reports):,} nodes"
    if reports and all(each.is_waiting or each.is_over for each in reports):
        return f"waiting for another launch that brings the same data{nodes}"
    text = f"bringing data: {size(there)} of {size(total)}{nodes}"
    if rate_bytes_per_s:
        left_s = max(0.0, (total - there) / rate_bytes_per_s)
        text += f" · {rate_text(rate_bytes_per_s)} · {f.clock_text(left_s)} left"
    return text


def _files(n_files: int) -> str:
    return f"{n_files:,} file{'' if n_files == 1 else 's'}"


def rate_text(bytes_per_s: float) -> str:
    """Bytes per second, as downloads are counted."""
    return f"{size(round(bytes_per_s))}/s"
