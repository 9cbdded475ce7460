"""What scripts do with `fit`, to be trained in stages as on one machine.

A case is a script's lines; `cut` gives, by number of ranks, where its model is cut and how many
layers it has; `stops` after how many steps of a segment it is stopped and resumed.
"""

import random
from pathlib import Path

import keras
import numpy as np

layers = keras.layers
N_ROWS = 90  # batches of 32: the last one has 26 rows, which four micro-batches share


def seeded():
    random.seed(5)
    keras.utils.set_random_seed(5)


def plain(case):
    seeded()
    return case()


def numbers(n_features=6, n_classes=3):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(N_ROWS, n_features)).astype("float32")
    return x, (x[:, :n_classes] + rng.normal(scale=0.5, size=(N_ROWS, n_classes))).argmax(1)


def deep(optimizer, metrics=("accuracy",)):
    hidden = [layers.Dense(12, "tanh") for _ in range(4)]
    model = keras.Sequential([layers.Input((6,)), *hidden, layers.Dense(3, "softmax")])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=list(metrics))
    return model


class Looks(keras.callbacks.Callback):
    """Reads and uses the whole model in the middle of a `fit`, as people do."""

    def __init__(self, x):
        super().__init__()
        self.x, self.seen = x, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        norms = [float(np.abs(layer.kernel.numpy()).sum()) for layer in self.model.layers]
        predicted = self.model.predict(self.x[:5], verbose=0)
        called = np.asarray(self.model(self.x[:2]))
        rate = float(self.model.optimizer.learning_rate)
        self.seen += [*norms, *predicted.ravel(), *called.ravel(), rate]


def callbacks_and_validation():
    x, y = numbers()
    model = deep(keras.optimizers.Adam(0.02))
    looks = Looks(x)
    best = keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True)
    history = model.fit(
        x, y, batch_size=32, epochs=4, validation_split=0.2, verbose=0,
        class_weight={0: 1.0, 1: 2.0, 2: 0.5},
        callbacks=[
            looks,
            best,
            keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=1.0, factor=0.5),
            keras.callbacks.EarlyStopping("val_loss", patience=0, restore_best_weights=True),
            keras.callbacks.CSVLogger("log.csv"),
        ],
    )  # fmt: skip
    kept = keras.models.load_model("best.keras")
    model.save("after.keras")
    after = keras.models.load_model("after.keras")
    return {
        "history": history.history,
        "seen": looks.seen,
        "evaluated": model.evaluate(x, y, verbose=0),
        "predicted": model.predict(x, verbose=0),
        "weights": model.get_weights(),
        "best": kept.get_weights(),
        "again": after.fit(x, y, batch_size=45, epochs=1, shuffle=False, verbose=0).history,
        "log": Path("log.csv").read_text().count("\n"),
        "iterations": int(model.optimizer.iterations.numpy()),
    }


def several_fits():
    import tensorflow as tf

    x, y = numbers()
    model = deep(keras.optimizers.SGD(0.1, momentum=0.9))
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(90, seed=2).batch(32)
    first = model.fit(data, epochs=2, validation_data=(x[:40], y[:40]), verbose=0)
    between = model.evaluate(x, y, verbose=0)
    model.layers[0].trainable = False
    model.compile("rmsprop", "sparse_categorical_crossentropy", steps_per_execution=2)
    second = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return {
        "first": first.history,
        "between": between,
        "second": second.history,
        "weights": model.get_weights(),
        "evaluated": model.evaluate(x, y, verbose=0),
    }


def stopped_and_resumed():
    return several_fits()


stopped_and_resumed.stops = (4, 5)


def skips_many_inputs_and_outputs():
    word, number = keras.Input((5,), dtype="int32", name="word"), keras.Input((6,), name="number")
    words = layers.Flatten()(layers.Embedding(20, 3)(word))
    early = layers.Dense(1, name="early")(words)
    both = layers.Concatenate()([layers.Dense(4, "relu")(words), number])
    last = layers.Dense(3, "softmax", name="last")(layers.Dense(8, "relu")(both))
    model = keras.Model({"word": word, "number": number}, {"last": last, "early": early})
    schedule = keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.5)
    model.compile(
        keras.optimizers.Adam(schedule),
        loss={"last": "sparse_categorical_crossentropy", "early": "mse"},
        loss_weights={"last": 1.0, "early": 0.3},
        metrics={"last": ["accuracy"]},
    )
    x, y = numbers()
    given = {"word": np.random.default_rng(1).integers(20, size=(N_ROWS, 5)), "number": x}
    targets = {"last": y, "early": x[:, :1]}
    history = model.fit(given, targets, batch_size=32, epochs=2, verbose=0)
    return {
        "history": history.history,
        "evaluated": model.evaluate(given, targets, batch_size=16, verbose=0),
        "predicted": model.predict(given, verbose=0),
        "weights": model.get_weights(),
    }


def loaded_model_and_another():
    x, y = numbers()
    before = deep(keras.optimizers.Nadam(0.01))
    before.train_on_batch(x, y)
    before.save("trained.keras")
    model = keras.models.load_model("trained.keras")
    history = model.fit(x, y, batch_size=32, epochs=1, sample_weight=np.linspace(0, 2, N_ROWS))
    other = keras.Sequential([layers.Input((6,)), layers.Dense(3, "softmax")])
    other.compile("sgd", "sparse_categorical_crossentropy")
    alone = other.fit(x, y, batch_size=3, epochs=1, verbose=0)
    return {
        "history": history.history,
        "alone": alone.history,
        "weights": model.get_weights(),
    }


CASES = [
    callbacks_and_validation, several_fits, stopped_and_resumed, skips_many_inputs_and_outputs,
    loaded_model_and_another,
]  # fmt: skip
for _case in CASES:
    _case.cut = {2: ((2,), 5), 3: ((1, 3), 5)}
skips_many_inputs_and_outputs.cut = {2: ((4,), 7), 3: ((2, 5), 7)}
