"""What the engine asks a generation of Keras."""

from typing import Any, Protocol


class Framework(Protocol):
    """What a generation of Keras tells about a model."""

    model_class: type
    """Of all its models."""

    def is_model(self, model: Any) -> bool:
        """Whether the model is of this framework."""
        ...

    def parts(self, model: Any) -> list[Any]:
        """The layers and models that a model is made of."""
        ...

    def state_variables(self, model: Any) -> list[Any]:
        """Weights and optimizer state, random seeds excluded; empty where nothing is built."""
        ...

    def moving_statistics(self, model: Any) -> list[Any]:
        """The moving averages of batch normalisation."""
        ...

    def fold_rank(self, model: Any, rank: int) -> None:
        """Makes the random layers of this rank differ from other ranks'; idempotent."""
        ...
