"""What profiling a model's layers brings back; needs no TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What a layer takes, for one micro-batch.

    Attributes:
        name: of the layer.
        compute_s: forward and backward pass, measured, beyond what starting any pass takes.
        update_s: changing its weights, once a step.
        state_bytes: weights, their gradients and the optimizer's state.
        kept_bytes: its inputs and outputs, which the backward pass needs; a layer that computes in
            many steps, such as an LSTM, keeps more inside.
        cut_bytes: what goes to the next stage if the model is cut after this layer.
        uncut_because: why it cannot be cut there, where it cannot.
    """

    name: str
    compute_s: float
    update_s: float
    state_bytes: int
    kept_bytes: int
    cut_bytes: int
    uncut_because: str | None


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a model takes, for one micro-batch.

    Attributes:
        layers: in the order in which they are computed.
        pass_s: what a stage's forward and backward pass takes whatever it computes: that of the
            quickest layer alone.
    """

    layers: tuple[LayerCost, ...]
    pass_s: float


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """What training a script's first model in stages would take.

    Attributes:
        cost: of one micro-batch; None where the model is not to be split.
        micro_batches: of a batch.
        memory_bytes: that the model may take on this node; None where the system does not tell.
        differences: what makes the curve another one than one machine's.
        refusal: why the model is not to be split.
        is_only: whether the whole model was not measured, since it does not fit in memory.
    """

    cost: ModelCost | None = None
    micro_batches: int = 1
    memory_bytes: int | None = None
    differences: tuple[str, ...] = ()
    refusal: str | None = None
    is_only: bool = False

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` made JSON of."""
        cost = data["cost"]
        if cost is not None:
            layers = tuple(LayerCost(**layer) for layer in cost["layers"])
            cost = ModelCost(layers, cost["pass_s"])
        return cls(**{**data, "cost": cost, "differences": tuple(data["differences"])})

    def step_s(self, share: float) -> float:
        """A step of the whole model on one node, on a share of the batch."""
        assert self.cost is not None
        layers = self.cost.layers
        compute_s = self.micro_batches * sum(layer.compute_s for layer in layers)
        return self.cost.pass_s + share * compute_s + sum(layer.update_s for layer in layers)
