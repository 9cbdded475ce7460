"""What a session asks of an engine when it keeps or restores where training stands."""

from typing import Any

from launcher.worker import state


class KeptState:
    """The answers of an engine whose ranks all have the whole model."""

    def collect(self, model: Any) -> None:
        """Before a checkpoint in a `fit`: brings rank 0 what it lacks; collective."""

    def model_state(self, model: Any) -> dict[str, Any]:
        """What a checkpoint keeps of a model, on rank 0."""
        return state.model_state(model)

    def positions(self, model: Any) -> dict[str, Any]:
        """What a checkpoint's position tells of single ranks: nothing where all are in step."""
        del model
        return {}

    def go_to(self, epoch: int, step: int) -> None:
        """An epoch begins, or goes on from a step: nothing to note where all are in step."""

    def finished_state(self, model: Any) -> dict[str, Any] | None:
        """Weights and optimizer state when a `fit` has ended; collective, None where not needed."""
        return state.model_state(model)

    def load_model_state(self, model: Any, kept: dict[str, Any]) -> None:
        """Goes on from what was kept.

        Raises:
            RecordError: the script's model is not the one that was kept.
        """
        state.load_model_state(model, kept)

    def agree(self, choice: bool) -> bool:
        """What this rank does about a choice: its own, where only rank 0 acts on it."""
        return choice

    def has_whole(self, model: Any) -> bool:
        """After the script's last line, on rank 0: whether it has all of a model's weights.

        Nothing is collective from then on.
        """
        del model
        return True
