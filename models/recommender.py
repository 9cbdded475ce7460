"""A recommender with embeddings: how would this user rate this item?

A plain Keras script: run it with `python models/recommender.py`, or launch it unmodified.

scikit-learn brings no ratings of films, so the default data are real ratings of another kind: its
handwritten digits, where each of 1,797 writings (a user) "rates" each of 64 places on the paper (an
item) with its ink, from 0 to 16. A fifth of these 115,008 ratings is held back and must be guessed
from the others, which it does within 3.0 (root mean square) where ratings deviate by 6.0.
`--ratings FILE` reads lines of user, item and rating instead, such as MovieLens's `u.data`.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

layers = keras.layers


def build_model(n_users: int, n_items: int, width: int = 32) -> keras.Model:
    """A user's and an item's number, each `(1,)` → a rating `(1,)`, in deviations from the mean.

    The product of both embeddings says how well they match, a small perceptron what the product
    cannot, and each user and item has a bias. With 1,797 users and 64 items: embeddings
    (1797 + 64)·(32 + 1) = 61,413, perceptron 64·64 + 64 and 64 + 1 parameters: 65,638 in all.
    """
    user = keras.Input((1,), dtype="int32", name="user")
    item = keras.Input((1,), dtype="int32", name="item")
    user_vector = layers.Flatten()(layers.Embedding(n_users, width)(user))
    item_vector = layers.Flatten()(layers.Embedding(n_items, width)(item))
    user_bias = layers.Flatten()(layers.Embedding(n_users, 1)(user))
    item_bias = layers.Flatten()(layers.Embedding(n_items, 1)(item))
    match = layers.Dot(axes=-1)([user_vector, item_vector])
    both = layers.Concatenate()([user_vector, item_vector])
    deep = layers.Dense(1)(layers.Dense(64, activation="relu")(both))
    return keras.Model([user, item], layers.Add()([match, deep, user_bias, item_bias]))


def digit_ratings() -> np.ndarray:
    """Rows of user, item, rating: `(115008, 3)`."""
    ink = load_digits().data
    users, items = np.indices(ink.shape)
    return np.column_stack([users.ravel(), items.ravel(), ink.ravel()])


def file_ratings(path: str) -> np.ndarray:
    """Rows of user, item, rating, users and items numbered from 0."""
    rows = np.loadtxt(path, usecols=(0, 1, 2))
    for column in (0, 1):
        rows[:, column] = np.unique(rows[:, column], return_inverse=True)[1]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratings", help="a file with a user, an item and a rating a line")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(arguments.seed)

    rows = file_ratings(arguments.ratings) if arguments.ratings else digit_ratings()
    rows = np.random.default_rng(0).permutation(rows)
    users, items = rows[:, :1].astype("int32"), rows[:, 1:2].astype("int32")
    n_train = len(rows) * 4 // 5
    mean, deviation = rows[:n_train, 2].mean(), rows[:n_train, 2].std()
    ratings = ((rows[:, 2:] - mean) / deviation).astype("float32")

    model = build_model(int(users.max()) + 1, int(items.max()) + 1)
    model.compile(keras.optimizers.Adam(2e-3), keras.losses.MeanSquaredError())
    model.fit(
        [users[:n_train], items[:n_train]],
        ratings[:n_train],
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        verbose=2,
    )
    test = [users[n_train:], items[n_train:]]
    error = model.evaluate(test, ratings[n_train:], batch_size=4096, verbose=0) ** 0.5 * deviation
    print(f"test: root mean square error {error:.3f}, of ratings that deviate by {deviation:.3f}")


if __name__ == "__main__":
    main()
