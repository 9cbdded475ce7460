"""A screen for measuring alone: shows what is going on, and keeps what a decision rests on."""

from launcher.cluster import Cluster
from launcher.prepare import Measured
from launcher.progress import Progress, Status
from launcher.record import RunRecord
from policies.schema import Decision, Situation


class MeasuringScreen:
    """Shows stages and warnings; tables and results are left to who asked."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.situation: Situation | None = None

    def stage(self, text: str) -> None:
        """Say what is going on."""
        self._progress.stage(text)

    def output(self, text: str, stream: str) -> None:
        """What the script prints is not shown."""

    def warn(self, text: str) -> None:
        """Say that something is not as it should be."""
        self._progress.line(f"launch: warning: {' '.join(text.split())}")

    def note(self, text: str) -> None:
        """Say in a line what happened."""
        self._progress.line(f"launch: {' '.join(text.split())}")

    def training(self, status: Status) -> None:
        """Nothing is trained."""

    def cluster(self, cluster: Cluster) -> None:
        """The nodes stand in the situation."""

    def measured(self, measured: Measured, cluster: Cluster) -> None:
        """So do network and script."""

    def decided(self, decision: Decision, situation: Situation) -> None:  # noqa: ARG002
        """Keep what was measured."""
        self.situation = situation

    def confirm(self, question: str) -> bool:  # noqa: ARG002
        """Nobody is asked."""
        return True

    def ended(self, record: RunRecord) -> None:
        """Nothing has begun."""
