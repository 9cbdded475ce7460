"""A deep and wide perceptron, for models that one machine cannot hold: `--width` sets its size."""

import argparse

import keras
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024, help="of each of the eight layers")
    parser.add_argument("--steps", type=int, default=4, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    width, n_rows = arguments.width, arguments.batch_size * arguments.steps

    rng = np.random.default_rng(0)
    x = rng.random((n_rows, width), dtype=np.float32)
    y = x[:, :10].argmax(axis=1)
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(8)]
    model = keras.Sequential([keras.layers.Input((width,)), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    model.fit(x, y, batch_size=arguments.batch_size, epochs=arguments.epochs, verbose=2)


if __name__ == "__main__":
    main()
