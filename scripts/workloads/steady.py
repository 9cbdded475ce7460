"""About a minute of steady training: 0.5 M parameters, the same curve every time.

Its activations are smooth, so what rounding does to a weight does not grow from step to step.
Prints each step as it ends and each epoch's loss in full, so that a run that was disturbed can
be laid beside one that was not.
"""

import argparse

import keras
import numpy as np


class Told(keras.callbacks.Callback):
    """Prints a line a step, and one an epoch."""

    epoch = 0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:  # noqa: ARG002
        """Note which epoch it is."""
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002
        """Print the step."""
        print(f"step {self.epoch} {batch}", flush=True)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Print the loss."""
        print(f"epoch {epoch} loss {logs['loss']!r}", flush=True)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--steps", type=int, default=40, help="steps of an epoch")
arguments = parser.parse_args()
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(arguments.steps * 240, 512)).astype("float32")
y = np.tanh(x[:, :8] @ rng.normal(size=(8, 4)).astype("float32"))
layers = keras.layers
model = keras.Sequential(
    [
        layers.Input((512,)),
        layers.Dense(512, activation="tanh"),
        layers.Dense(512, activation="tanh"),
        layers.Dense(4),
    ]
)
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
model.fit(x, y, batch_size=240, epochs=arguments.epochs, verbose=0, callbacks=[Told()])
