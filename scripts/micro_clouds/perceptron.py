"""A small model on scikit-learn's digits, in NumPy alone."""

from dataclasses import dataclass

import numpy as np

from launcher.worker.exchange.decentralized.layout import Layout

N_CLASSES = 10


@dataclass(frozen=True, slots=True)
class Data:
    """Images and labels.

    Attributes:
        images: float32, shape `(n, d)`.
        labels: shape `(n,)`.
    """

    images: np.ndarray
    labels: np.ndarray


def digits(rng: np.random.Generator) -> tuple[Data, Data]:
    """Training and test data: 1,438 and 359 images."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    images, labels = (images[order] / 8.0 - 1.0).astype(np.float32), labels[order]
    cut = len(images) // 5
    return Data(images[cut:], labels[cut:]), Data(images[:cut], labels[:cut])


class Perceptron:
    """One hidden layer under momentum; weights as a flat vector.

    Args:
        n_inputs: per image.
        n_hidden: units.
        rate: the learning rate.
        momentum: of the descent.
        seed: of the first weights; equal on all workers.
    """

    def __init__(
        self, n_inputs: int, n_hidden: int, rate: float, momentum: float = 0.0, seed: int = 0
    ) -> None:
        self._shapes = [(n_inputs, n_hidden), (n_hidden,), (n_hidden, N_CLASSES), (N_CLASSES,)]
        self.layout = Layout([int(np.prod(shape)) for shape in self._shapes])
        self._rate, self._momentum = np.float32(rate), np.float32(momentum)
        rng = np.random.default_rng(seed)
        scales = [np.sqrt(2 / n_inputs), 0.0, np.sqrt(1 / n_hidden), 0.0]
        parts = [
            scale * rng.normal(size=shape)
            for scale, shape in zip(scales, self._shapes, strict=True)
        ]
        self._weights = np.concatenate([part.ravel() for part in parts]).astype(np.float32)
        self._velocity = np.zeros_like(self._weights)

    def apply(self, gradient: np.ndarray) -> None:
        """A step of descent with momentum."""
        self._velocity *= self._momentum
        self._velocity += gradient
        self._weights -= self._rate * self._velocity

    def read(self) -> np.ndarray:
        """A copy of the weights."""
        return self._weights.copy()

    def write(self, weights: np.ndarray) -> None:
        """Sets the weights."""
        self._weights[:] = weights

    def gradient(self, data: Data) -> tuple[np.ndarray, float]:
        """The mean gradient over some examples, and their mean loss."""
        w1, b1, w2, b2 = self._parts()
        hidden = np.maximum(data.images @ w1 + b1, 0)
        chances, n = _softmax(hidden @ w2 + b2), len(data.labels)
        rows = np.arange(n)
        loss = -float(np.log(chances[rows, data.labels] + 1e-9).mean())
        chances[rows, data.labels] -= 1
        up = chances / n
        down = (up @ w2.T) * (hidden > 0)
        parts = [data.images.T @ down, down.sum(0), hidden.T @ up, up.sum(0)]
        return np.concatenate([part.ravel() for part in parts]), loss

    def accuracy(self, data: Data) -> float:
        """The part of some examples that is told right."""
        w1, b1, w2, b2 = self._parts()
        scores = np.maximum(data.images @ w1 + b1, 0) @ w2 + b2
        return float((scores.argmax(1) == data.labels).mean())

    def _parts(self) -> list[np.ndarray]:
        flat = self.layout.split(self._weights)
        return [part.reshape(shape) for part, shape in zip(flat, self._shapes, strict=True)]


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))
