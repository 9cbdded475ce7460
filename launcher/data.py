"""A run's data: listed once, brought to the nodes that are to train, counted and noted."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from launcher import data_text
from launcher.cluster import Cluster
from launcher.data_rates import ASSUMED_BYTES_PER_S, DataRates
from launcher.data_transfer import DataTransfer
from launcher.data_words import shared_uris
from launcher.egress import EgressPrice, egress_price
from launcher.errors import DataError, LauncherError
from launcher.record import DataRecord
from launcher.stagers import LocalStagers, RayStagers, Stagers
from launcher.stretch import Stretch
from launcher.worker.staging.cache import RECENT_S
from launcher.worker.staging.manifest import Manifest
from launcher.worker.staging.origins import list_sources
from launcher.worker.staging.uris import WEB, scheme_of
from launcher.worker.staging.wanted import DataPlace, Look, Wanted
from policies.schema import DataAhead, Node, NodeData

logger = logging.getLogger(__name__)

SURE_S: Final = RECENT_S / 2  # an unused copy is not given up for so long


class Data:
    """The data of one stretch of a run; does nothing where there are none.

    Args:
        manifest: what they are; None: there are none.
        stagers: bring them.
        nodes: candidates, by which the provider's price is told.
        clock: monotonic seconds.
        site: whose own data they are; None: all nodes share them.
        whole: all data of the run, as the record names them, where these are a site's.
    """

    def __init__(
        self,
        stretch: Stretch,
        manifest: Manifest | None,
        stagers: Stagers,
        nodes: Sequence[Node] = (),
        clock: Callable[[], float] = time.monotonic,
        *,
        site: str | None = None,
        whole: Manifest | None = None,
    ) -> None:
        self._stretch, self._manifest, self._stagers = stretch, manifest, stagers
        self._clock, self._site, self._whole = clock, site, whole or manifest
        self._nodes = tuple(nodes)
        self._rates = DataRates(stretch.environment.state_dir / "data-rates.json")
        self._look_by_node: dict[str, Look] = {}
        self._is_relayed = False  # some node lacked, or lacks, what the driver's machine has
        self._place_by_node: dict[str, DataPlace] = {}
        self._brought_at_s: dict[str, float] = {}
        self._in_use: frozenset[str] = frozenset()
        self._unwritten: list[DataTransfer] = []
        self._rate: float | None = None
        self._lock = threading.Lock()
        self._price = EgressPrice(0.0, "own")
        if manifest is not None:
            self._price = egress_price(manifest, nodes, stretch.request.data_price_usd_per_gb)
            self._rate = self._rates.of(manifest)

    @classmethod
    def of(cls, stretch: Stretch, manifest: Manifest | None, cluster: Cluster) -> "Data":
        """The data in a cluster."""
        stagers: Stagers = LocalStagers() if cluster.embedded else RayStagers()
        return cls(stretch, manifest, stagers, (*cluster.nodes, *cluster.to_start))

    @property
    def version(self) -> str:
        """Changes with every file; empty where there are no data."""
        return "" if self._manifest is None else self._manifest.fingerprint

    def look(self, nodes: Sequence[Node]) -> None:
        """Ask what nodes have that were not asked before; blocks for seconds."""
        if self._manifest is not None:
            with self._lock:
                self._look([node for node in nodes if node.is_up], self._manifest)

    def ahead(self, nodes: Sequence[Node]) -> DataAhead | None:
        """What these nodes lack, how fast it comes and what it costs; None: there are no data.

        Nodes that were not asked are taken for lacking all. Never blocks.
        """
        manifest, looks = self._manifest, self._look_by_node
        if manifest is None:
            return None
        known = tuple(node.id for node in nodes if node.id in looks)
        return DataAhead(
            manifest.n_bytes,
            tuple(NodeData(node, looks[node].missing_bytes) for node in known),
            self._rate or ASSUMED_BYTES_PER_S,
            "measured" if self._rate is not None else "assumed",
            self._is_shared(manifest),
            self._price.usd_per_byte,
        )

    def show_ahead(self, nodes: Sequence[Node]) -> None:
        """Ask these nodes, and say what is to be brought."""
        self.look(nodes)
        ahead = self.ahead(nodes)
        if ahead is not None and ahead.nodes:
            self._stretch.note(data_text.ahead_text(ahead, self._price, self._site))

    def brought(self, nodes: Sequence[Node]) -> Mapping[str, DataPlace]:
        """Where the data are on these nodes, after they have been brought to all of them.

        Raises:
            LauncherError: a node cannot have them.
            BudgetTooSmallError: money or time have run out meanwhile.
        """
        return self._brought(nodes, is_shown=True)

    def brought_beside(self, nodes: Sequence[Node]) -> Mapping[str, DataPlace]:
        """The same on another thread while training goes on: nothing is shown or written down."""
        return self._brought(nodes, is_shown=False)

    def _brought(self, nodes: Sequence[Node], *, is_shown: bool) -> Mapping[str, DataPlace]:
        for error in self.bring(nodes, is_shown=is_shown).values():
            raise error
        if self._manifest is None:
            return {}
        return {node.id: self._place_by_node[node.id] for node in nodes}

    def bring(self, nodes: Sequence[Node], *, is_shown: bool = True) -> Mapping[str, LauncherError]:
        """Bring the data to these nodes; why some cannot have them, by node id.

        Blocks until all have them or cannot.

        Raises:
            BudgetTooSmallError: money or time have run out meanwhile.
        """
        with self._lock:
            new = {node.id: node for node in nodes if not self._has(node.id)}
            if self._manifest is None or not new:
                return {}
            self._stretch.meter.hold(new.values())
            self._look([*new.values()], self._manifest)
            elsewhere = self._elsewhere(new, self._manifest)
            new = {node: each for node, each in new.items() if node not in elsewhere}
            transfer = DataTransfer(
                self._stretch,
                self._wanted(self._manifest),
                self._stagers,
                {node: self._look_by_node[node] for node in new},
                new,
                self._price,
                self._clock,
                is_shown=is_shown,
            )
            try:
                return {**elsewhere, **transfer.carried_out()}
            finally:
                self._take_in(transfer, self._manifest)
                if is_shown:
                    self.write_down()

    def rest(self) -> None:
        """End the agents until they are needed again, so that training has the nodes' memory."""
        with self._lock:
            self._stagers.dismiss()

    def places(self, node_ids: Sequence[str]) -> tuple[DataPlace, ...]:
        """Where each rank finds the data, by the node of each."""
        if self._manifest is None:
            return ()
        self._in_use = frozenset(node_ids)
        return tuple(self._place_by_node[node] for node in node_ids)

    def sites(self, node_ids: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - see `SiteData`
        """None: all share the same data."""
        return ()

    def dismiss(self) -> None:
        """End what is going on; what has arrived stays for the next launch."""
        self._stagers.dismiss()
        self.write_down()

    def write_down(self) -> None:
        """Put what was brought into the record; on the driver's main thread."""
        manifest = self._whole
        transfers, self._unwritten = self._unwritten, []
        if not transfers or manifest is None:
            return
        book = self._stretch.book
        known = book.record.data
        noted = DataRecord(
            tuple(source.public for source in manifest.sources),
            len(manifest.files),
            manifest.n_bytes,
            manifest.fingerprint,
            self._price.usd_per_gb,
            self._price.source,
            (known.cost_usd if known else 0.0) + sum(each.cost_usd for each in transfers),
            (*(known.nodes if known else ()), *(r for each in transfers for r in each.records())),
        )
        book.write(replace(book.record, data=noted))

    # ------------------------------------------------------------------ parts

    def _has(self, node_id: str) -> bool:
        """Whether a node has the data for sure: an idle one may give its copy up for others'."""
        brought_at_s = self._brought_at_s.get(node_id)
        if brought_at_s is None:
            return False
        return node_id in self._in_use or self._clock() - brought_at_s < SURE_S

    def _look(self, nodes: Sequence[Node], manifest: Manifest) -> None:
        """Ask nodes that were not asked; those that cannot tell have nothing."""
        new = [node for node in nodes if node.id not in self._look_by_node]
        if not new:
            return
        local = frozenset(i for i, source in enumerate(manifest.sources) if source.is_local)
        for node_id, answer in self._stagers.look(new, self._wanted(manifest)).items():
            look = Look(manifest.n_bytes, local) if isinstance(answer, LauncherError) else answer
            if isinstance(answer, LauncherError):
                logger.info("%s cannot say what data it has: %s", node_id, answer)
            self._look_by_node[node_id] = look
            self._is_relayed = self._is_relayed or bool(look.absent)

    def _wanted(self, manifest: Manifest) -> Wanted:
        """What a node is to have."""
        request = self._stretch.request
        return Wanted(manifest, request.cache, request.cache_size_bytes)

    def _is_shared(self, manifest: Manifest) -> bool:
        """Whether all nodes read through one machine."""
        is_web = any(scheme_of(each.uri) in WEB for each in manifest.sources)
        return is_web or self._is_relayed

    def _take_in(self, transfer: DataTransfer, manifest: Manifest) -> None:
        """Know what nodes have now, and how fast it came."""
        rate = transfer.rate_bytes_per_s(is_shared=self._is_shared(manifest))
        if rate is not None:
            self._rate = rate
            self._rates.remember(manifest, rate)
        self._place_by_node |= transfer.places
        for node_id in transfer.places:
            self._look_by_node[node_id] = Look(0)
            self._brought_at_s[node_id] = self._clock()
        self._unwritten.append(transfer)

    def _elsewhere(self, nodes: Mapping[str, Node], manifest: Manifest) -> dict[str, LauncherError]:
        """Why nodes of a site cannot have its data: no other machine has paths of the site."""
        if self._site is None:
            return {}
        uri, first = manifest.sources[0].public, self._nodes[0].ip if self._nodes else "another"
        return {
            node: DataError(
                f"{uri} on {each.ip} is not what it is on {first}, of the same site {self._site}. "
                "Mount it on every node there, or copy it with its dates (rsync -a)."
            )
            for node, each in nodes.items()
            if self._look_by_node[node].absent
        }


def listed(stretch: Stretch) -> Manifest | None:
    """List the data that all nodes of a run are to have; None: there are none.

    Raises:
        LauncherError: they are not there, or may not be read.
    """
    uris = shared_uris(stretch.request.data)
    if not uris:
        return None
    stretch.stage("looking at the data")
    return noted(stretch, list_sources(uris))


def noted(stretch: Stretch, manifest: Manifest) -> Manifest:
    """Say what the data are, and whether they have changed."""
    known = stretch.book.record.data
    if known is not None and known.fingerprint != manifest.fingerprint:
        stretch.warn("The data have changed since this run began: it goes on with the new ones.")
    stretch.note(data_text.found_text(manifest))
    return manifest
