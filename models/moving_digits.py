"""Images and image sequences made from scikit-learn's 1,797 real handwritten digits."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SIZE = 16  # pixels of an enlarged digit's side
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def enlarged_digits() -> tuple[np.ndarray, np.ndarray]:
    """All digits, twice as wide and high.

    Returns:
        Images `(1797, 16, 16, 1)` from 0 (paper) to 1 (ink), and the digits they show `(1797,)`.
    """
    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8).astype("float32") / 16.0
    return _doubled(_doubled(images, axis=1), axis=2)[..., np.newaxis], digits


def _doubled(images: np.ndarray, axis: int) -> np.ndarray:
    """Twice as many pixels along an axis, linear between the old ones' centres."""
    size = images.shape[axis]
    at = (np.arange(2 * size) + 0.5) / 2 - 0.5
    low = np.clip(np.floor(at).astype(int), 0, size - 1)
    high = np.clip(low + 1, 0, size - 1)
    shape = [1] * images.ndim
    shape[axis] = 2 * size
    weight = np.clip(at - low, 0.0, 1.0).astype("float32").reshape(shape)
    return images.take(low, axis) * (1 - weight) + images.take(high, axis) * weight


def digit_images(seed: int = 0) -> Split:
    """Enlarged digits, a fifth of each kind held back for the test.

    Returns:
        Training images, training digits, test images, test digits.
    """
    images, digits = enlarged_digits()
    parts = train_test_split(images, digits, test_size=0.2, stratify=digits, random_state=seed)
    train_images, test_images, train_digits, test_digits = parts
    return train_images, train_digits, test_images, test_digits


def moving_digits(
    n_clips: int = 1500, n_frames: int = 8, size: int = 24, noise: float = 0.3, seed: int = 0
) -> Split:
    """Clips of one digit that moves about and bounces off the edges, a fifth for the test.

    No image of a digit is in both parts. The noise differs from frame to frame, so what a digit
    is shows better in several frames than in one.

    Args:
        n_clips: in both parts together.
        n_frames: of each clip.
        size: pixels of a frame's side, at least 17.
        noise: standard deviation of what is added to each pixel.
        seed: of the choice of digits, of their ways and of the noise.

    Returns:
        Training clips `(n, frames, size, size, 1)`, training digits `(n,)`, and both of the test.
    """
    train_images, train_digits, test_images, test_digits = digit_images(seed)
    rng = np.random.default_rng(seed)
    n_test = n_clips // 5

    def clips(images: np.ndarray, digits: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = rng.integers(len(images), size=n)
        frames = _bouncing(images[chosen], n_frames, size, rng)
        frames += noise * rng.standard_normal(frames.shape, dtype="float32")
        return frames, digits[chosen]

    return *clips(train_images, train_digits, n_clips - n_test), *clips(
        test_images, test_digits, n_test
    )


def moving_pairs(
    n_clips: int = 500, n_frames: int = 10, size: int = 32, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Clips of two digits that cross each other's way, as in Moving MNIST; a fifth for the test.

    Returns:
        Training and test clips, each `(n, frames, size, size, 1)` from 0 to 1.
    """
    train_images, _, test_images, _ = digit_images(seed)
    rng = np.random.default_rng(seed)
    n_test = n_clips // 5

    def clips(images: np.ndarray, n: int) -> np.ndarray:
        one, other = (
            _bouncing(images[rng.integers(len(images), size=n)], n_frames, size, rng)
            for _ in range(2)
        )
        return np.maximum(one, other)

    return clips(train_images, n_clips - n_test), clips(test_images, n_test)


def _bouncing(images: np.ndarray, n_frames: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Each image on a way of its own: `(n, height, width, 1)` to `(n, frames, size, size, 1)`."""
    n = len(images)
    room = size - SIZE
    start = rng.uniform(0, room, size=(n, 2))
    speed = rng.uniform(-3, 3, size=(n, 2))  # pixels a frame
    clips = np.zeros((n, n_frames, size, size, 1), "float32")
    for frame in range(n_frames):
        corners = _reflected(start + frame * speed, room).round().astype(int)
        for clip, image, (top, left) in zip(clips, images, corners, strict=True):
            clip[frame, top : top + SIZE, left : left + SIZE] = image
    return clips


def _reflected(position: np.ndarray, room: int) -> np.ndarray:
    """Where what started inside 0 … room is after bouncing off both ends."""
    return room - np.abs(position % (2 * room) - room)
