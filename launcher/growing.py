"""Measures a stretch's cluster, and lets it grow by the nodes that a plan needs."""

from collections.abc import Sequence
from dataclasses import replace

from launcher.budget import seconds_left
from launcher.cluster import Cluster
from launcher.prepare import Measured, measure
from launcher.scaling import Grown, Scaling
from launcher.site_data import AnyData
from launcher.stretch import Stretch
from launcher.worker.job import Job
from policies.schema import Node


class Growing:
    """The cluster of one stretch, as it is measured and grows.

    Args:
        job: as all segments share it.
        data: of the run.
        scaling: starts the nodes; made for the stretch where left out.
    """

    def __init__(
        self, stretch: Stretch, job: Job, data: AnyData, scaling: Scaling | None = None
    ) -> None:
        self._stretch, self._job, self._data = stretch, job, data
        self._scaling = scaling or Scaling(stretch.run, stretch.meter, stretch, self._left_s)

    def first(self, cluster: Cluster) -> Cluster:
        """The cluster with at least one node that is up.

        Raises:
            ClusterError: there is none, and none came.
        """
        return self._noted(self._scaling.first(cluster, is_dry_run=self._stretch.request.dry_run))

    def measured(self, cluster: Cluster) -> tuple[Cluster, Measured]:
        """The part of the cluster that is fit to train, with what was measured on it."""
        stretch = self._stretch
        measured = measure(
            cluster,
            stretch.request,
            self._job,
            stretch.shipped,
            stretch.environment,
            stretch.meter,
            stretch.stage,
            self._data.brought,
        )
        record = stretch.book.record
        stretch.book.write(replace(record, network=measured.network, workload=measured.workload))
        for line in measured.checkup.lines(cluster.nodes):
            stretch.warn(line)
        cluster = measured.checkup.fit_part(cluster)
        stretch.note_cluster(cluster)
        stretch.screen.measured(measured, cluster)
        self._data.show_ahead(cluster.nodes)
        return cluster, measured

    def grown(self, cluster: Cluster, wanted: Sequence[Node]) -> tuple[Cluster, Measured]:
        """The cluster with these nodes, or those of them that came, measured as any other.

        Nothing more can be started in it: what did not come now is no candidate any more.
        """
        cluster = self._noted(self._scaling.grown(cluster, wanted))
        done = replace(cluster, autoscaling=None, to_start=(), n_to_start=0)
        return self.measured(done)

    def settle(self) -> None:
        """Ask for no nodes any more; those that the run uses stay by their use."""
        self._scaling.settle()

    def _noted(self, grown: Grown) -> Cluster:
        """Write down how long nodes took to start, for later decisions."""
        if grown.starts:
            book = self._stretch.book
            starts = (*book.record.node_starts, *grown.starts)
            book.write(replace(book.record, node_starts=starts))
        return grown.cluster

    def _left_s(self) -> float:
        allowance = self._stretch.allowance
        return seconds_left(self._stretch.meter, allowance.budget_usd, allowance.deadline_at_s)
