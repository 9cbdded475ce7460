"""Small and large models of every kind, for measuring steps: each on noise of its own shape."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

layers = keras.layers
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model and its data.

    Attributes:
        make: builds the model, whose last layer gives `classes` logits.
        shape: of one example.
        vocabulary: examples are integers below it; 0 where they are floats.
    """

    make: Callable[[], Any]
    shape: tuple[int, ...]
    vocabulary: int = 0
    classes: int = 10

    def data(self, n_rows: int) -> Arrays:
        """Examples and labels."""
        rng = np.random.default_rng(0)
        labels = rng.integers(self.classes, size=n_rows)
        if self.vocabulary:
            return rng.integers(self.vocabulary, size=(n_rows, *self.shape)), labels
        return rng.random((n_rows, *self.shape), dtype=np.float32), labels


def _mlp(inputs: int, *hidden: int) -> Callable[[], Any]:
    def make() -> Any:
        dense = [layers.Dense(width, activation="relu") for width in hidden]
        return keras.Sequential([layers.Input((inputs,)), *dense, layers.Dense(10)])

    return make


def _small_cnn() -> Any:
    return keras.Sequential(
        [
            layers.Input((16, 16, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(96, activation="relu"),
            layers.Dense(10),
        ]
    )


def _large_cnn() -> Any:
    """10 million parameters, most of them after the convolutions."""
    return keras.Sequential(
        [
            layers.Input((32, 32, 3)),
            layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(128, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(1200, activation="relu"),
            layers.Dense(10),
        ]
    )


def _lstm() -> Any:
    return keras.Sequential(
        [layers.Input((24, 32)), layers.LSTM(96), layers.Dense(64), layers.Dense(10)]
    )


def _conv_lstm() -> Any:
    return keras.Sequential(
        [
            layers.Input((6, 12, 12, 1)),
            layers.ConvLSTM2D(16, 3, padding="same"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def _embedding() -> Any:
    """Its table's gradient holds only the rows that a batch looked up."""
    return keras.Sequential(
        [
            layers.Input((20,), dtype="int32"),
            layers.Embedding(20_000, 48),
            layers.GlobalAveragePooling1D(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def _deep_mlp() -> Any:
    return _mlp(128, *([192] * 12))()


ZOO = {
    "tiny_mlp": Entry(_mlp(64, 96, 48), (64,)),
    "deep_mlp": Entry(_deep_mlp, (128,)),
    "wide_mlp": Entry(_mlp(784, 1024, 1024), (784,)),
    "small_cnn": Entry(_small_cnn, (16, 16, 1)),
    "large_cnn": Entry(_large_cnn, (32, 32, 3)),
    "lstm": Entry(_lstm, (24, 32)),
    "conv_lstm": Entry(_conv_lstm, (6, 12, 12, 1)),
    "embedding": Entry(_embedding, (20,), vocabulary=20_000),
}
