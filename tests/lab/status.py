"""Show a standing lab: its hosts, and how its links are set."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.lab.cpu_quota import quota
from tests.lab.host import Host
from tests.lab.network import LinkState
from tests.lab.standing import Standing

MBIT = 125_000


def print_status(standing: Standing) -> None:
    """Hosts, Ray's address, and links."""
    console = Console(highlight=False)
    links = standing.attach().links()
    console.print(_hosts(standing, {k.src: k.nic_bytes_per_s for k in links}))
    if links:
        console.print(_links(links))
    if standing.ray_address:
        console.print(f"ray at {standing.ray_address}, head on h1: scripts/lab launch SCRIPT")


def _hosts(standing: Standing, nics: dict[str, float]) -> Table:
    table = Table("host", "address", "cores", "interface", "price", "home, from outside", box=None)
    prices = standing.plan.prices_usd_per_h
    for number, host in enumerate(standing.hosts):
        price = f"${prices[number]:g}/h" if prices else "–"
        cores = _cores(host) if Path(host.namespace).exists() else "crashed"
        nic = _rate(nics.get(host.name, 0.0))
        table.add_row(host.name, host.addresses[0], cores, nic, price, str(host.home))
    return table


def _cores(host: Host) -> str:
    cpus = quota(host.group)
    return "all" if cpus is None else f"{cpus:g}"


def _links(links: tuple[LinkState, ...]) -> Table:
    """One row for the links that are set alike, the most common first."""
    names_by_row: dict[tuple[str, ...], list[str]] = {}
    for link in links:
        names_by_row.setdefault(_values(link), []).append(f"{link.src}>{link.dst}")
    table = Table("links", "one way", "jitter", "loss", "rate", "", box=None)
    for row, names in sorted(names_by_row.items(), key=lambda item: -len(item[1])):
        shown = names if len(names) <= 6 or len(names_by_row) > 1 else ["all"]
        table.add_row(" ".join(shown), *row)
    return table


def _values(link: LinkState) -> tuple[str, ...]:
    return (
        f"{link.delay_s * 1e3:g} ms",
        f"± {link.jitter_s * 1e3:g} ms" if link.jitter_s else "–",
        f"{link.loss:.3g}" if link.loss else "–",
        _rate(link.rate_bytes_per_s),
        "" if link.alive and not link.cut else "cut",
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / MBIT:g} Mbit/s" if bytes_per_s else "no limit"
