"""Who hears of the steps of a script's own training loops."""

from typing import Any, Protocol

from launcher.worker.readings import Reading


class LoopWatcher(Protocol):
    """Hears of the steps of own loops.

    `picks_rows` says whether `rows` may return some.
    """

    picks_rows: bool

    def trained(self, reading: Reading | None, n_rows: int, step_s: float | None) -> None:
        """Gradients were applied; from any thread.

        Args:
            reading: the pass over a dataset; None where there was none, or several.
            n_rows: of the global batch; 0 where it isn't known.
            step_s: duration of the step; None where it isn't known.
        """

    def between(self) -> None:
        """Between two steps, on the script's thread; may end the script."""

    def wants_end(self) -> bool:
        """Whether loops inside of functions are to end."""

    def ended(self) -> None:
        """A pass that trained is over."""

    def warn(self, text: str) -> None:
        """Something that the user should know."""

    def rows(self, n_rows: int) -> tuple[int, int] | None:
        """Other rows to hand out than this rank's, of an element that is trained on."""

    def begins(self) -> None:
        """The script begins to read a dataset."""

    def wants_again(self) -> bool:
        """Whether the script is to get the last batch once more."""

    def arranged(self, dataset: Any) -> Any:
        """The dataset to read in a function instead of one that the script reads there."""


class Unwatched:
    """Nobody listens."""

    picks_rows = False

    def trained(self, reading: Reading | None, n_rows: int, step_s: float | None) -> None:
        """Nothing to do."""

    def between(self) -> None:
        """Nothing to do."""

    def wants_end(self) -> bool:
        """Never."""
        return False

    def ended(self) -> None:
        """Nothing to do."""

    def warn(self, text: str) -> None:
        """Nobody to tell."""

    def rows(self, n_rows: int) -> tuple[int, int] | None:  # noqa: ARG002
        """This rank's."""
        return None

    def begins(self) -> None:
        """Nothing to do."""

    def wants_again(self) -> bool:
        """Never."""
        return False

    def arranged(self, dataset: Any) -> Any:
        """The same."""
        return dataset
