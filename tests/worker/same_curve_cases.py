"""What must come out the same for any number of workers: plain scripts, as users write them.

A case is a function of the Keras module (`keras` or `tf_keras`) that trains something and
returns what must agree, as a dict of numbers, lists and arrays. Add one by adding a function
to `CASES`.
"""

import math
import os
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

EPOCHS = 2


def data(n_rows=257, n_features=6, n_classes=3):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(n_rows, n_features)).astype("float32")
    y = (x[:, :n_classes] + rng.normal(scale=0.5, size=(n_rows, n_classes))).argmax(1)
    return x, y.astype("int64")


def mlp(K, n_features=6, n_classes=3, **dense):
    return K.Sequential(
        [
            K.layers.Input((n_features,)),
            K.layers.Dense(8, "tanh", **dense),
            K.layers.Dense(n_classes, "softmax"),
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


def fit_numpy(K):
    x, y = data()
    model = compiled(mlp(K), K.optimizers.SGD(0.1, momentum=0.9))
    history = model.fit(
        x, y, epochs=EPOCHS, batch_size=48, validation_data=(x[:50], y[:50]), verbose=0
    )
    return curve(history, weights=[float(np.abs(w).sum()) for w in model.get_weights()])


def fit_validation_split(K):
    x, y = data(517)
    model = compiled(mlp(K))
    return curve(model.fit(x, y, epochs=EPOCHS, batch_size=48, validation_split=0.2, verbose=0))


def fit_tf_data(K):
    x, y = data(517)
    model = compiled(mlp(K))
    val = dataset(x[:100], y[:100], 33, shuffle=False)
    return curve(model.fit(dataset(x, y, 33), epochs=EPOCHS, validation_data=val, verbose=0))


def py_dataset(K, x, y, batch):
    base = getattr(K.utils, "PyDataset", None) or K.utils.Sequence

    class Batches(base):
        n_epochs = 0

        def __len__(self):
            return math.ceil(len(x) / batch)

        def __getitem__(self, i):
            return x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch]

        def on_epoch_end(self):
            self.n_epochs += 1

    return Batches()


def fit_py_dataset(K):
    x, y = data()
    batches = py_dataset(K, x, y, 40)
    model = compiled(mlp(K))
    history = model.fit(batches, epochs=EPOCHS, validation_data=py_dataset(K, x, y, 64), verbose=0)
    return curve(history, n_epochs=batches.n_epochs)


def fit_infinite(K):
    x, y = data()
    model = compiled(mlp(K))
    ds = dataset(x, y, 32).repeat()
    return curve(
        model.fit(
            ds, epochs=EPOCHS, steps_per_epoch=7, validation_data=ds, validation_steps=2, verbose=0
        )
    )


def fit_functional_many(K):
    x, y = data()
    a, b = K.layers.Input((6,), name="a"), K.layers.Input((3,), name="b")
    h = K.layers.Concatenate()([K.layers.Dense(8, "relu")(a), b])
    outs = [K.layers.Dense(3, "softmax", name="p")(h), K.layers.Dense(1, name="q")(h)]
    model = K.Model([a, b], outs)
    model.compile(
        "adam",
        ["sparse_categorical_crossentropy", "mse"],
        loss_weights=[1.0, 0.3],
        metrics=[["accuracy"], ["mae"]],
    )
    inputs, targets = {"a": x, "b": x[:, :3]}, [y, x[:, :1]]
    history = model.fit(
        inputs,
        targets,
        epochs=EPOCHS,
        batch_size=50,
        verbose=0,
        sample_weight=[np.linspace(0, 2, len(x)), np.linspace(1, 3, len(x))],
    )
    p, q = model.predict(inputs, batch_size=30, verbose=0)
    return curve(
        history, p=p, q=q, evaluated=model.evaluate(inputs, targets, batch_size=41, verbose=0)
    )


def subclassed(K):
    class Net(K.Model):
        def __init__(self):
            super().__init__()
            self.one = K.layers.Dense(8, "tanh")
            self.two = K.layers.Dense(3, "softmax")

        def call(self, x, training=False):
            return self.two(self.one(x))

    return Net()


def fit_subclassed(K):
    x, y = data()
    model = compiled(subclassed(K))
    history = model.fit(x, y, epochs=EPOCHS, batch_size=48, verbose=0)
    return curve(history, predicted=model.predict(x[:70], verbose=0))


def custom_model(K, decorate=lambda f: f):
    class Custom(K.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.mean = K.metrics.Mean(name="my_loss")
            self.hits = K.metrics.SparseCategoricalAccuracy(name="hits")

        @property
        def metrics(self):
            return [self.mean, self.hits]

        @decorate
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                p = self(x, training=True)
                loss = tf.reduce_mean(K.losses.sparse_categorical_crossentropy(y, p))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            self.mean.update_state(loss)
            self.hits.update_state(y, p)
            return {m.name: m.result() for m in self.metrics} | {"last": loss}

        def test_step(self, batch):
            x, y = batch
            p = self(x, training=False)
            self.mean.update_state(tf.reduce_mean(K.losses.sparse_categorical_crossentropy(y, p)))
            self.hits.update_state(y, p)
            return {m.name: m.result() for m in self.metrics}

    i = K.layers.Input((6,))
    return Custom(i, K.layers.Dense(3, "softmax")(K.layers.Dense(8, "tanh")(i)))


def fit_custom_step(K):
    x, y = data()
    model = custom_model(K)
    model.compile(optimizer=K.optimizers.Adam(0.01))
    return curve(
        model.fit(x, y, epochs=EPOCHS, batch_size=48, validation_data=(x[:77], y[:77]), verbose=0)
    )


def fit_custom_tf_function(K):
    x, y = data(240)
    model = custom_model(K, tf.function)
    model.compile(optimizer=K.optimizers.Adam(0.01))
    return curve(model.fit(x, y, epochs=EPOCHS, batch_size=48, verbose=0))


def sequences(n_rows=61, length=7):
    rng = np.random.default_rng(3)
    x = rng.integers(1, 20, (n_rows, length))
    x[np.arange(length)[None] >= rng.integers(1, length + 1, n_rows)[:, None]] = 0
    x[-20:, 1:] = 0
    return x, (x % 3 == 1).astype("float32")[..., None]


def fit_masked(K):
    x, y = sequences()
    model = K.Sequential(
        [
            K.layers.Embedding(20, 4, mask_zero=True),
            K.layers.LSTM(5, return_sequences=True),
            K.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"], weighted_metrics=["mse"])
    history = model.fit(
        x, y, epochs=EPOCHS, batch_size=16, validation_data=(x[-30:], y[-30:]), verbose=0
    )
    return curve(history, evaluated=model.evaluate(x, y, batch_size=9, verbose=0))


def fit_masked_all(K):
    x, y = sequences(24)
    x[5:12] = 0
    x[16:] = 0
    model = K.Sequential(
        [K.layers.Embedding(20, 4, mask_zero=True), K.layers.Dense(3, "tanh"), K.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    return curve(model.fit(x[:20], y[:20], epochs=EPOCHS, batch_size=10, shuffle=False, verbose=0))


def fit_weights(K):
    x, y = data()
    sgd, weights = K.optimizers.SGD(0.1), np.linspace(0, 3, 257)
    model = compiled(mlp(K), sgd, weighted_metrics=["accuracy"])
    first = curve(
        model.fit(x, y, epochs=1, batch_size=48, class_weight={0: 1.0, 1: 4.0, 2: 0.2}, verbose=0)
    )
    second = curve(model.fit(x, y, epochs=1, batch_size=48, sample_weight=weights, verbose=0))
    return {"class": first, "sample": second}


def fit_reductions(K):
    x, y = data()
    weights, results = np.linspace(0, 3, 257), {}
    kinds = ["sum", "sum_over_batch_size"]
    kinds += ["mean_with_sample_weight"] if K.__name__ == "keras" else []
    for kind in kinds:
        K.utils.set_random_seed(4)
        model = compiled(
            mlp(K, kernel_regularizer="l2"),
            K.optimizers.SGD(0.002),
            K.losses.SparseCategoricalCrossentropy(reduction=kind),
        )
        history = model.fit(x, y, epochs=1, batch_size=48, sample_weight=weights, verbose=0)
        results[kind] = curve(history, evaluated=model.evaluate(x, y, batch_size=60, verbose=0))
    return results


def fit_regularized(K):
    x, y = data()
    model = compiled(mlp(K, kernel_regularizer="l2", activity_regularizer="l1"))
    return curve(model.fit(x, y, epochs=EPOCHS, batch_size=48, verbose=0))


def fit_batch_norm(K):
    x, y = data(133)
    model = K.Sequential(
        [
            K.layers.Input((6,)),
            K.layers.Dense(8),
            K.layers.BatchNormalization(momentum=0.8),
            K.layers.Activation("relu"),
            K.layers.Dense(3, "softmax"),
        ]
    )
    compiled(model, K.optimizers.SGD(0.1))
    history = model.fit(
        x * 3 + 30, y, epochs=EPOCHS, batch_size=33, validation_data=(x * 3 + 30, y), verbose=0
    )
    return curve(history, moving=[w.tolist() for w in model.layers[1].get_weights()])


def fit_batch_norm_images(K):
    x, y = data(70, 48)
    model = K.Sequential(
        [
            K.layers.Input((4, 4, 3)),
            K.layers.Conv2D(4, 3),
            K.layers.BatchNormalization(momentum=0.8),
            K.layers.BatchNormalization(momentum=0.8, center=False, scale=False),
            K.layers.GlobalAveragePooling2D(),
            K.layers.Dense(3, "softmax"),
        ]
    )
    compiled(model, K.optimizers.SGD(0.1))
    history = model.fit(
        x.reshape(-1, 4, 4, 3),
        y,
        epochs=EPOCHS,
        batch_size=32,
        validation_data=(x.reshape(-1, 4, 4, 3), y),
        verbose=0,
    )
    return curve(history, moving=[w.tolist() for w in model.layers[1].get_weights()])


def fit_batch_norm_masked(K):
    x, y = sequences(40)
    model = K.Sequential(
        [
            K.layers.Embedding(20, 4, mask_zero=True),
            K.layers.BatchNormalization(momentum=0.8),
            K.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return curve(model.fit(x, y, epochs=EPOCHS, batch_size=16, validation_data=(x, y), verbose=0))


def fit_tiny_batches(K):
    x, y = data(7)
    model = K.Sequential(
        [
            K.layers.Input((6,)),
            K.layers.Dense(4),
            K.layers.BatchNormalization(),
            K.layers.Dense(3, "softmax"),
        ]
    )
    compiled(model, K.optimizers.SGD(0.05))
    history = model.fit(
        x, y, epochs=EPOCHS, batch_size=2, validation_data=(x[:3], y[:3]), verbose=0
    )
    one = compiled(mlp(K)).fit(x[:1], y[:1], epochs=EPOCHS, verbose=0)
    return {
        "two": curve(history, predicted=model.predict(x, batch_size=1, verbose=0)),
        "one": curve(one),
    }


def fit_twice(K):
    x, y = data()
    model = compiled(mlp(K))
    first = curve(model.fit(x, y, epochs=1, batch_size=48, verbose=0))
    second = curve(model.fit(x, y, epochs=3, initial_epoch=1, batch_size=31, verbose=0))
    return {"first": first, "second": second}


def fit_callbacks(K):
    x, y = data()
    folder, rates, c = Path(tempfile.mkdtemp()), [], K.callbacks

    class Rates(c.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    suffix = ".keras"
    callbacks = [
        c.EarlyStopping("val_loss", patience=1, min_delta=0.05),
        c.ModelCheckpoint(str(folder / f"best{suffix}"), save_best_only=True),
        c.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.1),
        c.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        c.CSVLogger(str(folder / "log.csv")),
        c.TensorBoard(str(folder / "board")),
        c.BackupAndRestore(str(folder / "backup")),
        Rates(),
    ]
    model = compiled(mlp(K))
    history = model.fit(
        x, y, epochs=6, batch_size=48, validation_data=(x, y), callbacks=callbacks, verbose=0
    )
    best = K.models.load_model(str(folder / f"best{suffix}"))
    log = np.genfromtxt(folder / "log.csv", delimiter=",", names=True)
    return curve(history, rates=rates, csv=log["loss"], best=best.predict(x[:9], verbose=0))


def fit_clipped(K):
    x, y = data()
    results = {}
    for clip in ("clipnorm", "global_clipnorm", "clipvalue"):
        K.utils.set_random_seed(5)
        model = compiled(mlp(K), K.optimizers.Adam(0.05, **{clip: 0.05}, use_ema=True))
        results[clip] = curve(model.fit(x, y, epochs=1, batch_size=48, verbose=0))
    return results


def fit_many_steps_per_execution(K):
    x, y = data()
    model = compiled(mlp(K), steps_per_execution=4)
    history = model.fit(x, y, epochs=EPOCHS, batch_size=30, validation_data=(x, y), verbose=0)
    return curve(history, predicted=model.predict(x, batch_size=20, verbose=0))


def fit_eagerly(K):
    x, y = data(80)
    model = compiled(mlp(K), run_eagerly=True)
    history = model.fit(x, y, epochs=EPOCHS, batch_size=30, verbose=0)
    return curve(history, predicted=model.predict(x, verbose=0))


def fit_metrics(K):
    x, y = data()
    binary = (y == 1).astype("float32")
    model = K.Sequential(
        [K.layers.Input((6,)), K.layers.Dense(4, "tanh"), K.layers.Dense(1, "sigmoid")]
    )
    m = K.metrics
    compiled(
        model,
        loss="binary_crossentropy",
        metrics=[
            m.AUC(),
            m.Precision(),
            m.Recall(),
            m.MeanSquaredError(),
            m.RootMeanSquaredError(),
            lambda t, p: tf.reduce_mean(p),
        ],
    )
    history = model.fit(
        x, binary, epochs=EPOCHS, batch_size=48, validation_data=(x, binary), verbose=0
    )
    return {str(i): v for i, v in enumerate(curve(history).values())}


def fit_embedding(K):
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 50, (120, 5)), rng.integers(0, 3, 120)
    model = K.Sequential(
        [K.layers.Embedding(50, 4), K.layers.GlobalAveragePooling1D(), K.layers.Dense(3, "softmax")]
    )
    return curve(compiled(model).fit(x, y, epochs=EPOCHS, batch_size=32, verbose=0))


def fit_two_optimizers(K):
    x, _ = data(90)

    class Pair(K.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = K.layers.Dense(6), K.layers.Dense(6)
            self.opt_one, self.opt_two = K.optimizers.Adam(0.01), K.optimizers.SGD(0.01)
            self.built = True

        def call(self, x):
            return self.one(x)

        def train_step(self, x):
            losses = []
            for layer, optimizer in ((self.one, self.opt_one), (self.two, self.opt_two)):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(layer(x) - x))
                grads = tape.gradient(loss, layer.trainable_weights)
                optimizer.apply_gradients(zip(grads, layer.trainable_weights))
                losses.append(loss)
            return {"one": losses[0], "two": losses[1]}

    model = Pair()
    model.compile()
    model.one.build((None, 6)), model.two.build((None, 6))
    ds = tf.data.Dataset.from_tensor_slices(x).batch(32)
    return curve(model.fit(ds, epochs=EPOCHS, verbose=0))


def fit_ragged(K):
    rng = np.random.default_rng(5)
    rows = [rng.integers(0, 9, n).tolist() for n in rng.integers(1, 6, 50)]
    ds = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(rows), np.arange(50) % 2)).batch(16)
    ds = ds.map(lambda r, t: ({"words": r.to_tensor()}, t))

    class Net(K.Model):
        def __init__(self):
            super().__init__()
            self.embed, self.out = K.layers.Embedding(9, 4), K.layers.Dense(2, "softmax")

        def call(self, x):
            return self.out(tf.reduce_mean(self.embed(x["words"]), axis=1))

    model = compiled(Net())
    history = model.fit(ds, epochs=EPOCHS, verbose=0)
    return curve(history, predicted=model.predict(ds, verbose=0))


def fit_strings(K):
    words = np.array([[f"word{i % 17}"] for i in range(60)], dtype=object)
    layer = K.layers.StringLookup(vocabulary=[f"word{i}" for i in range(17)])
    i = K.layers.Input((1,), dtype="string")
    h = K.layers.Flatten()(K.layers.Embedding(20, 4)(layer(i)))
    model = compiled(K.Model(i, K.layers.Dense(3, "softmax")(h)))
    ds = tf.data.Dataset.from_tensor_slices((words.astype(str), np.arange(60) % 3)).batch(16)
    return curve(model.fit(ds, epochs=EPOCHS, verbose=0))


def fit_sparse(K):
    x, y = data(50)
    i = K.layers.Input((6,), sparse=True)
    model = compiled(K.Model(i, K.layers.Dense(3, "softmax")(i)), K.optimizers.SGD(0.1))
    ds = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x * (x > 0)), y)).batch(16)
    return curve(model.fit(ds, epochs=EPOCHS, verbose=0))


def statistical(K):
    """Losses over seeds of what need not be the same bit by bit."""
    x, y = data(256)
    results = {}
    for seed in range(3):
        K.utils.set_random_seed(seed)
        layers = [
            K.layers.Input((6,)),
            K.layers.Dropout(0.3),
            K.layers.Dense(16, "relu"),
            K.layers.GaussianNoise(0.3),
            K.layers.Dense(3, "softmax"),
        ]
        noisy = compiled(K.Sequential(layers), K.optimizers.SGD(0.2))
        history = noisy.fit(x, y, epochs=4, batch_size=32, verbose=0)
        results.setdefault("noise", []).append(history.history["loss"][-1])
        K.utils.set_random_seed(seed)
        policy = K.mixed_precision.Policy("mixed_bfloat16")
        layers = [
            K.layers.Input((6,)),
            K.layers.Dense(16, "relu", dtype=policy),
            K.layers.Dense(3, "softmax", dtype="float32"),
        ]
        coarse = compiled(K.Sequential(layers), K.optimizers.SGD(0.2))
        history = coarse.fit(x, y, epochs=4, batch_size=32, verbose=0)
        results.setdefault("bfloat16", []).append(history.history["loss"][-1])
    return results


def on_batch(K):
    x, y = data(60)
    model = compiled(mlp(K))
    trained = [model.train_on_batch(x[:30], y[:30]), model.train_on_batch(x[30:], y[30:])]
    return {
        "trained": trained,
        "tested": model.test_on_batch(x[:11], y[:11]),
        "predicted": model.predict_on_batch(x[:5]),
    }


def each_row_once(K):
    """A model whose loss gradient counts the rows it saw: the weight moves by Σ x / B a step."""
    n = 103
    x = np.eye(n, dtype="float32")
    model = K.Sequential(
        [K.layers.Input((n,)), K.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(K.optimizers.SGD(1.0), lambda t, p: -p)
    history = model.fit(x, np.zeros((n, 1)), epochs=1, batch_size=10, verbose=0)
    return curve(history, weights=model.get_weights()[0].ravel())


def predict_shapes(K):
    x, _ = data(41)
    i = K.layers.Input((6,))
    model = K.Model(i, {"a": K.layers.Dense(2)(i), "b": [K.layers.Reshape((2, 3))(i)]})
    ds = tf.data.Dataset.from_tensor_slices(x).batch(8)
    out = model.predict(ds, verbose=0)
    return {
        "a": out["a"],
        "b": out["b"][0],
        "steps": model.predict(ds.repeat(), steps=3, verbose=0)["a"],
    }


CASES = {
    name: value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and (
        name.startswith("fit_")
        or name in {"on_batch", "each_row_once", "predict_shapes", "statistical"}
    )
}
