"""What the hosts of the lab train: real digits, enlarged and moved, and two models of them."""

from typing import Any

import numpy as np

SIDE = 16  # of an image; scikit-learn's digits have 8
N_COPIES = 40
N_HIDDEN = 960

Images = tuple[np.ndarray, np.ndarray]
"""Float32, shape `(n, 16, 16, 1)`, and labels, shape `(n,)`."""


def images(seed: int) -> tuple[Images, Images]:
    """Training and test data: 57,520 images and 359.

    Each image is twice as large as in scikit-learn; for training 40 copies of each are turned by
    up to 10 degrees and moved by up to two pixels each way.
    """
    from scripts.micro_clouds.perceptron import digits

    rng = np.random.default_rng(seed)
    training, test = digits(rng)
    x = np.concatenate([disturbed(enlarged(training.images), rng) for _ in range(N_COPIES)])
    y = np.tile(training.labels, N_COPIES)
    order = rng.permutation(len(y))
    return (x[order], y[order]), (enlarged(test.images), test.labels)


def enlarged(flat: np.ndarray) -> np.ndarray:
    """Images of twice the side, from shape `(n, 64)`."""
    from scipy import ndimage

    large = ndimage.zoom(flat.reshape(-1, 8, 8), (1, 2, 2), order=1)
    return np.asarray(large[..., np.newaxis], np.float32)


def disturbed(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All images turned and moved alike; each copy of them in its own way."""
    from scipy import ndimage

    turned = ndimage.rotate(
        x, rng.uniform(-10, 10), axes=(1, 2), reshape=False, order=1, mode="nearest"
    )
    return np.roll(turned, tuple(rng.integers(-2, 3, size=2)), axis=(1, 2))


def site_first(x: np.ndarray, y: np.ndarray, site: int) -> Images:
    """Data of which a half are of the site's own labels."""
    own = np.flatnonzero(y % 3 == site)
    order = np.arange(len(y))
    order[::2] = np.resize(own, len(order[::2]))
    return x[order], y[order]


def build(keras: Any, name: str) -> Any:
    """A perceptron of 1.18 M weights ("mlp"), or a convolutional network of 0.27 M ("cnn")."""
    layers = keras.layers
    if name == "mlp":
        hidden = [layers.Dense(N_HIDDEN, activation="relu") for _ in range(2)]
        body = [layers.Flatten(), *hidden]
    else:
        convolutions = [layers.Conv2D(n, 3, padding="same", activation="relu") for n in (16, 32)]
        body = [convolutions[0], layers.MaxPooling2D(), convolutions[1], layers.MaxPooling2D()]
        body += [layers.Flatten(), layers.Dense(512, activation="relu")]
    shape = (SIDE, SIDE, 1)
    return keras.Sequential([layers.Input(shape), *body, layers.Dense(10, activation="softmax")])
