"""What a Keras model tells that plans depend on."""

from typing import Any

import numpy as np


def item_bytes(variable: Any) -> int:
    """Of one element of a variable."""
    return int(np.dtype(getattr(variable.dtype, "as_numpy_dtype", variable.dtype)).itemsize)


def n_batch_norms(model: Any) -> int:
    """How many layers normalise over the batch."""
    return sum(map(_is_batch_norm, model._flatten_layers()))


def _is_batch_norm(layer: Any) -> bool:
    return "BatchNormalization" in type(layer).__name__ and bool(layer.trainable)


def random_layers(model: Any) -> tuple[str, ...]:
    """What makes a distributed run only statistically the same as one machine's."""
    found = set()
    for layer in model._flatten_layers():
        name = type(layer).__name__
        if "Dropout" in name or "Noise" in name or getattr(layer, "dropout", None):
            found.add("dropout")
        if name.startswith("Random") or "Augment" in name:
            found.add("augmentation")
        if getattr(layer, "compute_dtype", "float32") in ("float16", "bfloat16"):
            found.add("mixed precision")
    return tuple(sorted(found))
