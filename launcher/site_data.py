"""A run's data where each site has its own: every node gets those of its site."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from launcher.cluster import Cluster
from launcher.cluster_nodes import SITE_LABEL
from launcher.data import Data, noted
from launcher.data_words import SiteUri, site_uris
from launcher.errors import DataError, LauncherError, UsageError
from launcher.side_by_side import side_by_side
from launcher.stagers import RayStagers, Stagers
from launcher.stretch import Stretch
from launcher.worker.staging.manifest import Manifest, Source
from launcher.worker.staging.origins import list_sources
from launcher.worker.staging.uris import scheme_of
from launcher.worker.staging.wanted import DataPlace
from policies.schema import DataAhead, Node, NodeData
from policies.wording import size


class SiteStagers(Stagers, Protocol):
    """Brings data to the nodes of a site."""

    def listed(self, node: Node, uri: str) -> Manifest:
        """What is at a path of a node."""


class SiteData:
    """The data of one stretch of a run, by the site that has them.

    Args:
        stretch: what all parts of it share.
        data_by_site: each site's own.
        whole: all of them, as the record names them.
    """

    def __init__(self, stretch: Stretch, data_by_site: Mapping[str, Data], whole: Manifest) -> None:
        self._stretch, self._data_by_site, self._whole = stretch, dict(data_by_site), whole
        self._site_by_node: dict[str, str] = {}

    @classmethod
    def of(
        cls,
        stretch: Stretch,
        cluster: Cluster,
        new_stagers: Callable[[], SiteStagers] = RayStagers,
    ) -> "SiteData":
        """The data of a request that names them by site, each listed on a node of its site.

        Raises:
            UsageError: sites and nodes do not match.
            LauncherError: a site's data are not there, or may not be read.
        """
        own = site_uris(stretch.request.data)
        check_sites(stretch, own, (*cluster.nodes, *cluster.to_start))
        stretch.stage("looking at the data of each site")
        stagers = {each.site: new_stagers() for each in own}
        at = {each.site: [n for n in cluster.nodes if n.site == each.site] for each in own}
        manifests: dict[str, Manifest] = {}
        for each in own:
            try:
                manifests[each.site] = _listed(each, at[each.site], stagers[each.site])
            except LauncherError as error:
                raise UsageError(f"The data of {each.site}: {error}") from error
        whole = noted(stretch, whole_of(own, manifests))
        data_by_site = {
            site: Data(stretch, manifest, stagers[site], at[site], site=site, whole=whole)
            for site, manifest in manifests.items()
        }
        return cls(stretch, data_by_site, whole)

    @property
    def version(self) -> str:
        """Changes with every file of any site."""
        return self._whole.fingerprint

    def look(self, nodes: Sequence[Node]) -> None:
        """Ask what nodes have that were not asked before; blocks for seconds.

        Raises:
            DataError: there are no data for the site of one.
        """
        for error in self._without(nodes).values():
            raise error
        parts = self._by_site(nodes)
        side_by_side([partial(data.look, there) for data, there in parts])

    def ahead(self, nodes: Sequence[Node]) -> DataAhead:
        """What these nodes lack, how fast it comes and what it costs, by site. Never blocks."""
        sites = [
            _of_every(each, there)
            for data, there in self._by_site(nodes)
            if (each := data.ahead(there)) is not None
        ]
        return DataAhead(
            max(each.n_bytes for each in sites),
            (),
            min(each.bytes_per_s for each in sites),
            "measured" if all(each.basis == "measured" for each in sites) else "assumed",
            is_shared=False,
            usd_per_byte=max(each.usd_per_byte for each in sites),
            sites=tuple(sites),
        )

    def show_ahead(self, nodes: Sequence[Node]) -> None:
        """Ask these nodes, and say what is to be brought."""
        self.look(nodes)
        for data, there in self._by_site(nodes):
            data.show_ahead(there)

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

    def bring(self, nodes: Sequence[Node], *, is_shown: bool = True) -> Mapping[str, LauncherError]:
        """Bring to these nodes what is their site's; why some cannot have it, by node id.

        All sites at the same time. Blocks until all have the data or cannot.

        Raises:
            BudgetTooSmallError: money or time have run out meanwhile.
        """
        parts = self._by_site(nodes)
        side_by_side([partial(data.look, there) for data, there in parts])
        if is_shown:
            self._say(nodes)
        try:
            found = side_by_side(
                [partial(data.bring, there, is_shown=False) for data, there in parts]
            )
        finally:
            if is_shown:
                for data, _ in parts:
                    data.write_down()
        failed: dict[str, LauncherError] = dict(self._without(nodes))
        for each in found:
            failed |= each
        return failed

    def rest(self) -> None:
        """End the agents until they are needed again, so that training has the nodes' memory."""
        for data in self._data_by_site.values():
            data.rest()

    def places(self, node_ids: Sequence[str]) -> tuple[DataPlace, ...]:
        """Where each rank finds the data, by the node of each."""
        place_by_node: dict[str, DataPlace] = {}
        for site, data in self._data_by_site.items():
            there = [node for node in node_ids if self._site_by_node[node] == site]
            place_by_node |= zip(there, data.places(there), strict=True)
        return tuple(place_by_node[node] for node in node_ids)

    def sites(self, node_ids: Sequence[str]) -> tuple[str, ...]:
        """The site of each rank, by the node of each."""
        return tuple(self._site_by_node[node] for node in node_ids)

    def dismiss(self) -> None:
        """End what is going on; what has arrived stays for the next launch."""
        for data in self._data_by_site.values():
            data.dismiss()

    # ------------------------------------------------------------------ parts

    def _brought(self, nodes: Sequence[Node], *, is_shown: bool) -> Mapping[str, DataPlace]:
        for error in self.bring(nodes, is_shown=is_shown).values():
            raise error
        ids = list(dict.fromkeys(node.id for node in nodes))
        return dict(zip(ids, self._places_now(nodes, ids), strict=True))

    def _places_now(self, nodes: Sequence[Node], ids: Sequence[str]) -> list[DataPlace]:
        found: dict[str, DataPlace] = {}
        for data, there in self._by_site(nodes):
            found |= data.brought_beside(there)
        return [found[node] for node in ids]

    def _say(self, nodes: Sequence[Node]) -> None:
        """Say how much is to come."""
        missing = [each for site in self.ahead(nodes).sites for each in site.nodes]
        if n_bytes := sum(each.missing_bytes for each in missing):
            n_nodes = sum(1 for each in missing if each.missing_bytes)
            where = "a node" if n_nodes == 1 else f"{n_nodes:,} nodes, each of its site"
            self._stretch.stage(f"bringing {size(n_bytes)} of data to {where}")

    def _by_site(self, nodes: Sequence[Node]) -> list[tuple[Data, list[Node]]]:
        """The nodes of each site that has data."""
        there: dict[str, list[Node]] = defaultdict(list)
        for node in nodes:
            if node.site is not None and node.site in self._data_by_site:
                there[node.site].append(node)
                self._site_by_node[node.id] = node.site
        return [(self._data_by_site[site], at) for site, at in there.items()]

    def _without(self, nodes: Sequence[Node]) -> dict[str, DataError]:
        """Why nodes have no data, by id."""
        return {
            node.id: DataError(f"there are no data for {_where(node)}. Name them: --data SITE=URI")
            for node in nodes
            if node.site not in self._data_by_site
        }


AnyData = Data | SiteData


def check_sites(stretch: Stretch, own: Sequence[SiteUri], nodes: Sequence[Node]) -> None:
    """See that every site has nodes, every node has data, and every site may have a worker.

    Raises:
        UsageError: they do not match.
    """
    known = sorted({node.site for node in nodes if node.site is not None})
    named = {each.site: each for each in own}
    for site, each in named.items():
        if site not in known:
            there = f"the nodes' are {', '.join(known)}" if known else "no node has one"
            raise UsageError(
                f"--data {each.public}: no node has the label {SITE_LABEL}={site} ({there}). "
                f'Start nodes there with --labels="{SITE_LABEL}={site}".'
            )
    for node in nodes:
        if node.site not in named:
            raise UsageError(
                f"Node {node.ip or node.id} has no data: --data names none for {_where(node)}. "
                f"Name its own (--data SITE=URI), or leave the node out of the cluster."
            )
    request = stretch.request
    most = min(each for each in (request.workers, request.max_workers, len(nodes)) if each)
    if most < len(named):
        raise UsageError(
            f"{most} workers are fewer than the {len(named)} sites with data of their own, and "
            "each needs one. Ask for more workers, or name fewer sites."
        )


def _where(node: Node) -> str:
    if node.site is None:
        return f"a node without the label {SITE_LABEL}"
    return f"its site {node.site}"


def _listed(own: SiteUri, nodes: Sequence[Node], stagers: SiteStagers) -> Manifest:
    """What a site has: a path is one of its own nodes."""
    if scheme_of(own.uri):
        return list_sources((own.uri,))
    up = [node for node in nodes if node.is_up]
    if not up:
        raise UsageError(f"{own.uri} is a path of its nodes, and none of them is up. Name a URI.")
    return stagers.listed(up[0], own.uri)


def whole_of(own: Sequence[SiteUri], manifests: Mapping[str, Manifest]) -> Manifest:
    """The data of all sites, each under its site's name."""
    files = tuple(
        replace(file, path=f"{each.site}/{file.path}", source=index)
        for index, each in enumerate(own)
        for file in manifests[each.site].files
    )
    sources = tuple(Source(f"{each.site}={each.uri}", each.site) for each in own)
    return Manifest(sources, files)


def _of_every(ahead: DataAhead, nodes: Sequence[Node]) -> DataAhead:
    """With the nodes that were not asked yet: they are taken for lacking all."""
    known = {each.node for each in ahead.nodes}
    fresh = (NodeData(node.id, ahead.n_bytes) for node in nodes if node.id not in known)
    return replace(ahead, nodes=(*ahead.nodes, *fresh))
