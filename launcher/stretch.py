"""What all parts of one stretch of a run share: the request, the record, money, the screen."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from launcher.book import Book, now
from launcher.budget import Meter
from launcher.cluster import Cluster
from launcher.config import Environment, Request
from launcher.interrupts import Interrupts
from launcher.prepare import Measured
from launcher.record import ClusterRecord, RunRecord
from launcher.rescue import Rescue
from launcher.runs import RunStore
from launcher.standing import View
from launcher.storage import Storage
from launcher.stored import Shipped
from launcher.supervise import Allowance
from policies.schema import Decision, Node, Situation


class Screen(View, Protocol):
    """What a run shows and asks."""

    def cluster(self, cluster: Cluster) -> None:
        """Show which cluster it is, and its nodes."""

    def measured(self, measured: Measured, cluster: Cluster) -> None:
        """Show network and script."""

    def decided(self, decision: Decision, situation: Situation) -> None:
        """Show the candidates and the reason."""

    def note(self, text: str) -> None:
        """Say in a line what happened, or was decided."""

    def confirm(self, question: str) -> bool:
        """Ask the person at the terminal."""

    def ended(self, record: RunRecord) -> None:
        """Show the outcome."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One stretch of a run, from connecting to a cluster until its nodes are released.

    Attributes:
        log_dir: where noise goes.
        began_s: on the meter's clock.
    """

    request: Request
    environment: Environment
    screen: Screen
    log_dir: Path
    shipped: Shipped
    store: RunStore
    book: Book
    meter: Meter
    interrupts: Interrupts
    allowance: Allowance
    began_s: float

    @property
    def run(self) -> str:
        """The run's name."""
        return self.book.record.run

    @property
    def folder(self) -> Storage:
        """The run's folder in storage."""
        return self.store.folder(self.run)

    @property
    def rescue(self) -> Rescue:
        """Takes what storage does not."""
        name = f"launch-rescued-{self.run}"
        kept = self.environment.state_dir / "rescued" / self.run
        return Rescue(self.folder, (kept, Path(tempfile.gettempdir()) / name))

    @property
    def spent_s(self) -> float:
        """Seconds since this stretch began."""
        return self.meter.clock() - self.began_s

    def stage(self, text: str) -> None:
        """Say what is going on, and note when it began."""
        self.screen.stage(text)
        self.happened("stage", text)

    def warn(self, text: str) -> None:
        """Say that something is not as it should be, and note it."""
        self.screen.warn(text)
        self.happened("warning", text)

    def note(self, text: str) -> None:
        """Say in a line what happened, and note it."""
        self.screen.note(text)
        self.happened("note", text)

    def happened(self, kind: str, detail: str) -> None:
        """Note an event in the record."""
        self.book.write(self.book.record.happened(kind, detail, now()))

    def note_cluster(self, cluster: Cluster) -> None:
        """Write down the cluster with all nodes that were candidates at any time."""
        before = self.book.record.cluster
        nodes = {node.id: node for node in before.nodes} if before is not None else {}
        if not self.book.record.segments:
            nodes = {}
        nodes |= {node.id: node for node in cluster.nodes}
        noted = ClusterRecord(cluster.address, tuple(nodes.values()), cluster.embedded, cluster.how)
        self.book.write(replace(self.book.record, cluster=noted))

    def note_measured(self, measured: Measured) -> None:
        """Write down network and workload as they are known now."""
        record = self.book.record
        self.book.write(replace(record, network=measured.network, workload=measured.workload))

    def note_to_start(self, decision: Decision, nodes: Sequence[Node]) -> None:
        """Write down the nodes that a decision counts on and that are yet to be started."""
        named = {node for candidate in decision.candidates for node in candidate.plan.nodes}
        new = tuple(node for node in nodes if not node.is_up and node.id in named)
        record, cluster = self.book.record, self.book.record.cluster
        if new and cluster is not None:
            up = tuple(node for node in cluster.nodes if node.is_up)
            noted = replace(cluster, nodes=(*up, *new))
            self.book.write(replace(record, cluster=noted))
