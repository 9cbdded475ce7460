"""What the workloads share: their options, and a line an epoch with its time a step."""

import argparse
import time

import keras
import numpy as np


def options(description: str, batch: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch-size", type=int, default=batch)
    parser.add_argument("--steps", type=int, default=20, help="steps of an epoch")
    parser.add_argument("--epochs", type=int, default=50)
    return parser.parse_args()


class StepTimes(keras.callbacks.Callback):
    """Prints the mean step of each epoch, the first step (which waits for the epoch) left out."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
        """Note when the epoch's first and latest steps ended."""
        now_s = time.perf_counter()
        if batch == 0:
            self.first_s = now_s
        self.last_s, self.batch = now_s, batch

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Print the line."""
        step_ms = 1e3 * (self.last_s - self.first_s) / max(1, self.batch)
        print(f"epoch {epoch} step {step_ms:.3f} ms loss {logs['loss']:.5f}", flush=True)


def fit(model: keras.Model, shape: tuple[int, ...], arguments: argparse.Namespace) -> None:
    """Train on noise of the given input shape, with labels that a fixed projection gives."""
    rng = np.random.default_rng(0)
    n_rows = arguments.batch_size * arguments.steps
    x = rng.random((n_rows, *shape), dtype=np.float32)
    labels = (x.reshape(n_rows, -1)[:, :10]).argmax(axis=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    model.fit(
        x,
        labels,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        verbose=0,
        callbacks=[StepTimes()],
    )
