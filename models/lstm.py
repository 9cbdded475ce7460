"""A recurrent network that learns to write, letter by letter (scikit-learn's own descriptions).

A plain Keras script: run it with `python models/lstm.py`, or launch it unmodified. The text is what
scikit-learn says about its built-in data sets, some 15,000 characters of English; the last tenth is
held back for the test. Learns which character comes next; after 15 epochs, in under a minute, it
guesses 3 of 10 right in sentences that it has not seen.
"""

import argparse

import keras
import numpy as np
from sklearn import datasets

layers = keras.layers

WINDOW = 64  # characters of an example


def description() -> str:
    """The descriptions of scikit-learn's built-in data sets, one after another."""
    named = ["breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine"]
    return "\n".join(getattr(datasets, f"load_{name}")().DESCR for name in named)


def build_model(n_characters: int) -> keras.Model:
    """64 characters as numbers → for each, the logits of the next: `(64,)` → `(64, characters)`.

    With the text's 85 characters: Embedding 85·32 = 2,720, LSTM 4·((32 + 128)·128 + 128) = 82,432,
    Dense 128·85 + 85 = 10,965 parameters, 96,117 in all.
    """
    return keras.Sequential(
        [
            layers.Input((WINDOW,), dtype="int32"),
            layers.Embedding(n_characters, 32),
            layers.LSTM(128, return_sequences=True),
            layers.Dropout(0.2),
            layers.Dense(n_characters),
        ]
    )


def windows(codes: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Stretches of the text, and the same stretches one character on: each `(n, 64)`."""
    starts = np.arange(0, len(codes) - WINDOW, stride)
    rows = codes[starts[:, np.newaxis] + np.arange(WINDOW + 1)]
    return rows[:, :-1], rows[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--stride", type=int, default=8, help="characters between two examples")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(arguments.seed)

    text = description()
    characters = sorted(set(text))
    codes = np.array([characters.index(character) for character in text], "int32")
    n_train = len(codes) * 9 // 10

    model = build_model(len(characters))
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        *windows(codes[:n_train], arguments.stride),
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        verbose=2,
    )
    results = model.evaluate(*windows(codes[n_train:], WINDOW), verbose=0, return_dict=True)
    print("test: " + ", ".join(f"{name} {value:.4f}" for name, value in results.items()))


if __name__ == "__main__":
    main()
