"""A small convolutional network that reads handwritten digits (scikit-learn's, 8 × 8 pixels).

A plain Keras script: run it with `python models/digits.py`, or launch it unmodified.
"""

import argparse

import keras
from sklearn.datasets import load_digits


def build_model() -> keras.Model:
    """Two convolutions and a dense layer: 8 × 8 × 1 → 10 classes; 85,066 parameters."""
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    arguments = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16.0

    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        images,
        labels,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_split=0.2,
        verbose=2,
    )


if __name__ == "__main__":
    main()
