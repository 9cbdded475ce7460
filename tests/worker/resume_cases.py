"""Small scripts that are stopped and resumed; each is a function of the Keras module.

A case returns the histories of its fits and its model; it runs in a folder of its own.
"""

import csv
from pathlib import Path

import numpy as np

N_ROWS, BATCH, STEPS = 60, 12, 5


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N_ROWS, 6)).astype("float32")
    return x, (x @ rng.normal(size=(6, 1)) + 0.1).astype("float32")


def network(keras, *layers, optimizer=None, **options):
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(8, "tanh"), *layers])
    model.add(keras.layers.Dense(1))
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse", metrics=["mae"], **options)
    return model


def arrays(keras):
    model = network(keras)
    x, y = data()
    history = model.fit(x, y, batch_size=BATCH, epochs=3, validation_data=data(1), verbose=0)
    return [history], model


def dataset(keras):
    import tensorflow as tf

    model = network(keras)
    rows = tf.data.Dataset.from_tensor_slices(data()).shuffle(N_ROWS).batch(BATCH)
    return [model.fit(rows, epochs=3, verbose=0)], model


def schedule(keras):
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.9)
    model = network(keras, optimizer=keras.optimizers.Adam(rate))
    return [model.fit(*data(), batch_size=BATCH, epochs=3, verbose=0)], model


def several_steps(keras):
    model = network(keras, steps_per_execution=5)
    return [model.fit(*data(), batch_size=BATCH, epochs=3, verbose=0)], model


def normalised(keras):
    model = network(keras, keras.layers.BatchNormalization())
    x, y = data()
    return [model.fit(x, y, batch_size=BATCH, epochs=3, validation_split=0.2, verbose=0)], model


def two_fits(keras):
    model = network(keras)
    first = model.fit(*data(), batch_size=BATCH, epochs=1, verbose=0)
    assert len(first.history["loss"]) == len(first.epoch) == 1
    second = model.fit(*data(1), batch_size=BATCH, initial_epoch=1, epochs=3, verbose=0)
    return [first, second], model


def two_models(keras):
    """The second model learns what the first one says."""
    teacher, pupil = network(keras), network(keras)
    x, y = data()
    first = teacher.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
    said = teacher.predict(x, verbose=0)
    second = pupil.fit(x, said, batch_size=BATCH, epochs=2, verbose=0)
    return [first, second], pupil


def callbacks(keras):
    model = network(keras)
    watched = [
        keras.callbacks.EarlyStopping(
            "val_loss", patience=2, min_delta=10.0, restore_best_weights=True
        ),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=10.0, factor=0.5),
        keras.callbacks.ModelCheckpoint(
            f"best.{suffix(keras)}", monitor="loss", save_best_only=True
        ),
        keras.callbacks.CSVLogger("log.csv"),
    ]
    history = model.fit(
        *data(), batch_size=BATCH, epochs=9, validation_data=data(1), callbacks=watched, verbose=0
    )
    rows = list(csv.DictReader(Path("log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in history.epoch]
    kept = [float(row["loss"]) for row in rows]
    assert np.allclose(kept, history.history["loss"], rtol=1e-6)
    assert Path(f"best.{suffix(keras)}").exists()
    return [history], model


def suffix(keras):
    return "keras" if keras.__name__ == "keras" else "h5"


def plateau(keras):
    """Rates that follow the loss, kept files every few batches, and both again in a second fit."""
    model = network(keras, optimizer=keras.optimizers.SGD(0.02, momentum=0.9))
    path = str(Path.cwd() / f"kept.{suffix(keras)}")  # gone with this process's folder
    watched = [
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5),
        keras.callbacks.ModelCheckpoint(path, save_freq=3),
    ]
    options = {"batch_size": BATCH, "callbacks": watched, "verbose": 0}
    first = model.fit(*data(), epochs=2, **options)
    second = model.fit(*data(1), initial_epoch=2, epochs=5, **options)
    assert watched[1].filepath == path
    assert Path(path).exists()
    return [first, second], model


def averaged(keras):
    """An optimizer with more state than usual: moving averages of the weights."""
    optimizer = keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.5, global_clipnorm=1.0)
    model = network(keras, optimizer=optimizer)
    return [model.fit(*data(), batch_size=BATCH, epochs=3, verbose=0)], model


def backup(keras):
    model = network(keras)
    watched = [keras.callbacks.BackupAndRestore("backup")]
    return [model.fit(*data(), batch_size=BATCH, epochs=3, callbacks=watched, verbose=0)], model


def scheduler(keras):
    model = network(keras, optimizer=keras.optimizers.SGD(0.02, momentum=0.9))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    return [model.fit(*data(), batch_size=BATCH, epochs=3, callbacks=[halve], verbose=0)], model


def own_callback(keras):
    """A callback with state of its own, which the script reads after the fit."""
    losses = []

    class Keep(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.n_batches, self.losses, self.best = 0, losses, np.zeros(2)

        def on_train_batch_end(self, batch, logs=None):
            self.n_batches += 1
            self.best = self.best + batch

        def on_epoch_end(self, epoch, logs=None):
            self.losses.append(logs["loss"])

    keep, model = Keep(), network(keras)
    history = model.fit(*data(), batch_size=BATCH, epochs=3, callbacks=[keep], verbose=0)
    assert losses == history.history["loss"]
    assert keep.n_batches == 3 * STEPS
    assert keep.best.tolist() == [30.0, 30.0]
    return [history], model


def sequence(keras):
    """A PyDataset that draws from NumPy's global generator, batch by batch and epoch by epoch."""
    base = keras.utils.PyDataset if keras.__name__ == "keras" else keras.utils.Sequence

    class Noisy(base):
        def __init__(self):
            super().__init__()
            self.x, self.y = data()
            self.order = np.arange(N_ROWS)

        def __len__(self):
            return STEPS

        def __getitem__(self, index):
            rows = self.order[index * BATCH : (index + 1) * BATCH]
            noise = np.random.normal(size=(BATCH, 6)).astype("float32")
            return self.x[rows] + noise, self.y[rows]

        def on_epoch_end(self):
            np.random.shuffle(self.order)

    model = network(keras)
    return [model.fit(Noisy(), epochs=3, shuffle=False, verbose=0)], model


def dropout(keras):
    model = network(keras, keras.layers.Dropout(0.3))
    return [model.fit(*data(), batch_size=BATCH, epochs=3, verbose=0)], model


def adversarial(keras):
    """Two optimizers, of which Keras knows none, in a model that cannot be called."""

    class Adversarial(keras.Model):
        def __init__(self):
            super().__init__()
            self.maker = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
            self.judge = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])

        def train_step(self, batch):
            import tensorflow as tf

            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.judge(y) - self.judge(self.maker(x)))
            weights = self.judge.trainable_variables
            self.optimizers[0].apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.judge(self.maker(x)) - y)
            weights = self.maker.trainable_variables
            self.optimizers[1].apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
            return {"loss": loss}

    model = Adversarial()
    model.compile()
    model.optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)]
    return [model.fit(*data(), batch_size=BATCH, epochs=2, verbose=0)], model


# Steps of the whole script after which each case is stopped; of several, one after the other.
STOPS = {
    arrays: ((3,), (5,), (2, 7), (15,)),
    dataset: ((8,),),
    schedule: ((8,),),
    several_steps: ((5,),),
    normalised: ((7,),),
    two_fits: ((3,), (5,), (12,)),
    two_models: ((5, 10),),
    callbacks: ((5,), (8,), (12,)),
    plateau: ((8,), (7, 18)),
    averaged: ((8,),),
    backup: ((5,), (8,)),
    scheduler: ((5,), (8,)),
    own_callback: ((8,),),
    sequence: ((3,), (2, 7)),
    dropout: ((8,),),
    adversarial: ((3,),),
}
# Steps after which a checkpoint is taken, and after which the process dies without a word.
CRASHES = {
    arrays: ((8, 14),),
    two_fits: ((3, 9), (12, 14)),
    callbacks: ((8, 9), (12, 14)),
    plateau: ((12, 16),),
    own_callback: ((7, 9),),
    sequence: ((7, 9),),
}
CASES = {case.__name__: case for case in STOPS}
# Legacy Keras draws masks from a generator of TensorFlow's whose state cannot be read.
NOT_EXACT = {("tf_keras", "dropout")}
