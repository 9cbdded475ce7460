"""Data, models and results that the cases share; `keras` is `keras` or `tf_keras`."""

import math

import numpy as np
import tensorflow as tf

EPOCHS = 2


def data(n_rows=257, n_features=6, n_classes=3):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(n_rows, n_features)).astype("float32")
    y = (x[:, :n_classes] + rng.normal(scale=0.5, size=(n_rows, n_classes))).argmax(1)
    return x, y.astype("int64")


def mlp(keras, n_features=6, n_classes=3, **dense):
    return keras.Sequential(
        [
            keras.layers.Input((n_features,)),
            keras.layers.Dense(8, "tanh", **dense),
            keras.layers.Dense(n_classes, "softmax"),
        ]
    )


def compiled(model, optimizer="adam", loss="sparse_categorical_crossentropy", **kwargs):
    model.compile(optimizer, loss, metrics=kwargs.pop("metrics", ["accuracy"]), **kwargs)
    return model


def curve(history, **more):
    return {**{k: [float(v) for v in vs] for k, vs in history.history.items()}, **more}


def dataset(x, y, batch, shuffle=True):
    ds = tf.data.Dataset.from_tensor_slices((x, y))
    return (ds.shuffle(64) if shuffle else ds).batch(batch)


def py_dataset(keras, x, y, batch):
    base = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence

    class Batches(base):
        n_epochs = 0

        def __len__(self):
            return math.ceil(len(x) / batch)

        def __getitem__(self, i):
            return x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch]

        def on_epoch_end(self):
            self.n_epochs += 1

    return Batches()


def subclassed(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.one = keras.layers.Dense(8, "tanh")
            self.two = keras.layers.Dense(3, "softmax")

        def call(self, x, training=False):
            return self.two(self.one(x))

    return Net()


def custom_model(keras, decorate=lambda f: f):
    class Custom(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.mean = keras.metrics.Mean(name="my_loss")
            self.hits = keras.metrics.SparseCategoricalAccuracy(name="hits")

        @property
        def metrics(self):
            return [self.mean, self.hits]

        @decorate
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, p))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.mean.update_state(loss)
            self.hits.update_state(y, p)
            return {m.name: m.result() for m in self.metrics} | {"last": loss}

        def test_step(self, batch):
            x, y = batch
            p = self(x, training=False)
            self.mean.update_state(
                tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, p))
            )
            self.hits.update_state(y, p)
            return {m.name: m.result() for m in self.metrics}

    i = keras.layers.Input((6,))
    return Custom(i, keras.layers.Dense(3, "softmax")(keras.layers.Dense(8, "tanh")(i)))


def sequences(n_rows=61, length=7):
    rng = np.random.default_rng(3)
    x = rng.integers(1, 20, (n_rows, length))
    x[np.arange(length)[None] >= rng.integers(1, length + 1, n_rows)[:, None]] = 0
    x[-20:, 1:] = 0
    return x, (x % 3 == 1).astype("float32")[..., None]


def tagger(keras):
    """A small recurrent model over `sequences`, with an embedding and masks."""
    return keras.Sequential(
        [
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.LSTM(5, return_sequences=True),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )


def weights_of(*models):
    return [np.asarray(w).ravel() for model in models for w in model.get_weights()]


def cross_entropy(keras):
    return keras.losses.SparseCategoricalCrossentropy()
