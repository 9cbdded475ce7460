"""The policy's view of what profiling a model's layers brought back."""

from collections.abc import Sequence

from launcher.worker.pipeline.costs import LayerProfile
from policies.pipeline import Part
from policies.schema import ModelLayers, Node, StageKind


def model_layers(
    profiles: Sequence[LayerProfile | None], nodes: Sequence[Node]
) -> ModelLayers | None:
    """A model's layers, as measured on nodes of several kinds.

    Args:
        profiles: one per kind; None where layers were not to be measured.
        nodes: on which they were measured, in the same order.
    """
    pairs = [(p, node) for p, node in zip(profiles, nodes, strict=True) if p is not None]
    if not pairs:
        return None
    first = pairs[0][0]
    if first.cost is None:
        kinds = tuple(StageKind(node.kind, 1.0, p.memory_bytes) for p, node in pairs)
        return ModelLayers(kinds=kinds, refusal=first.refusal)
    measured = [(p, node) for p, node in pairs if p.cost is not None]
    whole_s = first.step_s(1.0)
    return ModelLayers(
        parts=tuple(
            Part(
                each.name,
                each.compute_s,
                each.update_s,
                each.state_bytes,
                each.kept_bytes,
                each.cut_bytes,
                each.uncut_because,
            )
            for each in first.cost.layers
        ),
        pass_s=first.cost.pass_s,
        micro_batches=first.micro_batches,
        kinds=tuple(
            StageKind(node.kind, p.step_s(1.0) / whole_s, p.memory_bytes) for p, node in measured
        ),
        differences=first.differences,
    )
