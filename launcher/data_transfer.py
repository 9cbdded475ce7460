"""Brings data to some nodes, all at the same time; watches progress, money and time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from launcher import data_text
from launcher.budget import seconds_left
from launcher.data_rates import MIN_BYTES
from launcher.egress import EgressPrice
from launcher.errors import BudgetTooSmallError, DataError, LauncherError
from launcher.record import DataNodeRecord
from launcher.stagers import Stagers
from launcher.stretch import Stretch
from launcher.worker.staging.origin import DataDeniedError
from launcher.worker.staging.wanted import DataPlace, Look, Report, Wanted
from policies.schema import Node
from policies.wording import size

POLL_S: Final = 1.0
STALLED_S: Final = 300.0  # nothing has come anywhere for so long
SHOW_EVERY_S: Final = 2.0
SHOW_PLAIN_EVERY_S: Final = 30.0  # where each is a line of its own


@dataclass(slots=True)
class _Site:
    """A node on its way to the data."""

    node: Node
    look: Look
    report: Report = field(default_factory=Report)
    ended_at_s: float | None = None
    error: LauncherError | None = None
    is_relayed: bool = False


class DataTransfer:
    """One transfer, from asking the nodes to begin until all have the data or cannot.

    Args:
        wanted: what each node is to have.
        looks: what each has, by node id.
        price: of what leaves the source.
        clock: monotonic seconds.
        is_shown: whether people are told how far it is.
    """

    def __init__(
        self,
        stretch: Stretch,
        wanted: Wanted,
        stagers: Stagers,
        looks: Mapping[str, Look],
        nodes: Mapping[str, Node],
        price: EgressPrice,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_shown: bool = True,
    ) -> None:
        self._stretch, self._wanted, self._stagers = stretch, wanted, stagers
        self._sites = {node: _Site(nodes[node], look) for node, look in looks.items()}
        self._price, self._clock, self._is_shown = price, clock, is_shown
        self._first_by_count: dict[int, tuple[str, str]] = {}  # files → an ip, its digest
        self._began_s = self._shown_at_s = self._came_at_s = clock()
        self._n_there = 0
        self.cost_usd = 0.0

    def carried_out(self) -> Mapping[str, LauncherError]:
        """Blocks until all is done; why nodes cannot have the data, by node id.

        Raises:
            BudgetTooSmallError: money or time have run out.
        """
        if n_bytes := sum(site.look.missing_bytes for site in self._sites.values()):
            where = "" if len(self._sites) == 1 else f" to {len(self._sites):,} nodes"
            if self._is_shown:
                self._stretch.stage(f"bringing {size(n_bytes)} of data{where}")
        if any(site.look.absent for site in self._sites.values()):
            self._serve()
        for site in self._sites.values():
            self._begin(site, site.look.absent)
        while left := [node for node, site in self._sites.items() if site.ended_at_s is None]:
            for node, report in self._stagers.reports(left, POLL_S).items():
                self._take(self._sites[node], report)
            self._watch()
        return {node: site.error for node, site in self._sites.items() if site.error is not None}

    @property
    def places(self) -> dict[str, DataPlace]:
        """Where the data are, on the nodes that have them."""
        found = {node: site.report.place for node, site in self._sites.items() if not site.error}
        return {node: place for node, place in found.items() if place is not None}

    def records(self) -> tuple[DataNodeRecord, ...]:
        """What came to which node."""
        return tuple(
            DataNodeRecord(node, site.report.fetched_bytes, self._took_s(site))
            for node, site in self._sites.items()
        )

    def rate_bytes_per_s(self, *, is_shared: bool) -> float | None:
        """What a node received, or all together where they share one way; None: too little came."""
        sites = [each for each in self._sites.values() if each.report.fetched_bytes >= MIN_BYTES]
        if not sites:
            return None
        if is_shared:
            longest_s = max(self._took_s(each) for each in sites)
            return sum(each.report.fetched_bytes for each in sites) / longest_s
        return median(each.report.fetched_bytes / self._took_s(each) for each in sites)

    def _took_s(self, site: _Site) -> float:
        ended_at_s = self._clock() if site.ended_at_s is None else site.ended_at_s
        return max(ended_at_s - self._began_s, 1e-3)

    def _serve(self) -> None:
        self._stagers.serve(self._wanted.manifest, self._stretch.environment.credentials)

    def _begin(self, site: _Site, through_driver: frozenset[int]) -> None:
        self._stagers.begin(site.node, replace(self._wanted, through_driver=through_driver))

    # ------------------------------------------------------------------ while it goes on

    def _take(self, site: _Site, report: Report) -> None:
        """Count what has come, and see whether it is over."""
        self._pay(max(0, report.fetched_bytes - site.report.fetched_bytes))
        site.report = report
        if not report.is_over:
            return
        if isinstance(report.error, DataDeniedError) and not site.is_relayed:
            self._relay(site, report.error)
            return
        site.error, site.ended_at_s = report.error, self._clock()
        if report.error is None:
            self._compare(site)

    def _pay(self, n_bytes: int) -> None:
        usd = n_bytes * self._price.usd_per_byte
        self.cost_usd += usd
        self._stretch.meter.add(usd)

    def _relay(self, site: _Site, error: DataDeniedError) -> None:
        """The node may not read, and this machine may: read for it."""
        self._stretch.screen.warn(
            f"{site.node.ip} reads through this machine, for it may not: {error}"
        )
        site.is_relayed, site.report = True, Report()
        self._serve()
        self._begin(site, frozenset(range(len(self._wanted.manifest.sources))))

    def _compare(self, site: _Site) -> None:
        """See that two copies of the same files are the same."""
        report = site.report
        if not report.n_copied:
            return
        ip, digest = self._first_by_count.setdefault(report.n_copied, (site.node.ip, report.digest))
        if digest != report.digest:
            folder = report.place.folder if report.place is not None else ""
            site.error = DataError(
                f"The data on {site.node.ip} differ from those on {ip}, though they are the same "
                f"by name, size and date. Delete {folder} on both, and launch again."
            )

    def _watch(self) -> None:
        now_s = self._clock()
        reports = [site.report for site in self._sites.values()]
        n_there = sum(each.there_bytes for each in reports)
        is_waiting = any(each.is_waiting for each in reports)
        if n_there != self._n_there or is_waiting:
            self._n_there, self._came_at_s = n_there, now_s
        self._check_means(n_there, len(reports))
        if now_s - self._came_at_s > STALLED_S:
            self._give_up(now_s)
        every_s = SHOW_EVERY_S if self._stretch.request.stderr_is_tty else SHOW_PLAIN_EVERY_S
        if self._is_shown and now_s - self._shown_at_s >= every_s:
            self._shown_at_s = now_s
            self._stretch.screen.stage(self._progress(reports, now_s))

    def _progress(self, reports: Sequence[Report], now_s: float) -> str:
        fetched = sum(each.fetched_bytes for each in reports)
        rate = fetched / max(now_s - self._began_s, 1e-3)
        return data_text.progress_text(reports, self._wanted.manifest.n_bytes, rate or None)

    def _give_up(self, now_s: float) -> None:
        for site in self._sites.values():
            if site.ended_at_s is None:
                site.ended_at_s = now_s
                site.error = DataError(
                    f"No data have come to {site.node.ip} for {STALLED_S / 60:.0f} minutes. What "
                    "came before is kept. See the source's server and the way to it."
                )

    def _check_means(self, n_there: int, n_nodes: int) -> None:
        """See that there is money and time left.

        Raises:
            BudgetTooSmallError: there is none.
        """
        stretch, allowance = self._stretch, self._stretch.allowance
        left_s = seconds_left(stretch.meter, allowance.budget_usd, allowance.deadline_at_s)
        budget_usd = allowance.budget_usd
        is_spent = budget_usd is not None and stretch.meter.session_usd >= budget_usd
        if left_s > 0 and not is_spent:
            return
        self._stagers.dismiss()
        is_late = seconds_left(stretch.meter, None, allowance.deadline_at_s) <= 0
        limit = "deadline" if is_late else "budget"
        raise BudgetTooSmallError(
            f"The {limit} was reached while data were brought: {size(n_there)} of "
            f"{size(n_nodes * self._wanted.manifest.n_bytes)} are there, and stay in the nodes' "
            f"caches. Raise --{limit} and launch again: it goes on from there."
        )
