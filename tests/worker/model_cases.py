"""Cases about models, losses, metrics, optimizers and callbacks.

Each case is a script as users write it: a function of the Keras module (`keras` or `tf_keras`)
that trains something and returns what must agree for any number of workers, as nested dicts of
numbers, lists and arrays. A new case needs nothing but its function.
"""

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf
from case_tools import (
    EPOCHS,
    compiled,
    curve,
    custom_model,
    data,
    mlp,
    sequences,
    subclassed,
    tagger,
)


def fit_functional_many(keras):
    x, y = data()
    a, b = keras.layers.Input((6,), name="a"), keras.layers.Input((3,), name="b")
    h = keras.layers.Concatenate()([keras.layers.Dense(8, "relu")(a), b])
    outs = [keras.layers.Dense(3, "softmax", name="p")(h), keras.layers.Dense(1, name="q")(h)]
    model = keras.Model([a, b], outs)
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


def fit_subclassed(keras):
    x, y = data()
    model = compiled(subclassed(keras))
    history = model.fit(x, y, epochs=EPOCHS, batch_size=48, verbose=0)
    return curve(history, predicted=model.predict(x[:70], verbose=0))


def fit_custom_step(keras):
    x, y = data()
    model = custom_model(keras)
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    return curve(
        model.fit(x, y, epochs=EPOCHS, batch_size=48, validation_data=(x[:77], y[:77]), verbose=0)
    )


def fit_custom_tf_function(keras):
    x, y = data(240)
    model = custom_model(keras, tf.function)
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    return curve(model.fit(x, y, epochs=EPOCHS, batch_size=48, verbose=0))


def fit_masked(keras):
    x, y = sequences()
    model = tagger(keras)
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"], weighted_metrics=["mse"])
    history = model.fit(
        x, y, epochs=EPOCHS, batch_size=16, validation_data=(x[-30:], y[-30:]), verbose=0
    )
    return curve(history, evaluated=model.evaluate(x, y, batch_size=9, verbose=0))


def fit_masked_all(keras):
    x, y = sequences(24)
    x[5:12] = 0
    x[16:] = 0
    model = keras.Sequential(
        [
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.Dense(3, "tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return curve(model.fit(x[:20], y[:20], epochs=EPOCHS, batch_size=10, shuffle=False, verbose=0))


def fit_weights(keras):
    x, y = data()
    sgd, weights = keras.optimizers.SGD(0.1), np.linspace(0, 3, 257)
    model = compiled(mlp(keras), sgd, weighted_metrics=["accuracy"])
    first = curve(
        model.fit(x, y, epochs=1, batch_size=48, class_weight={0: 1.0, 1: 4.0, 2: 0.2}, verbose=0)
    )
    second = curve(model.fit(x, y, epochs=1, batch_size=48, sample_weight=weights, verbose=0))
    return {"class": first, "sample": second}


def fit_reductions(keras):
    x, y = data()
    weights, results = np.linspace(0, 3, 257), {}
    kinds = ["sum", "sum_over_batch_size"]
    kinds += ["mean_with_sample_weight"] if keras.__name__ == "keras" else []
    for kind in kinds:
        keras.utils.set_random_seed(4)
        model = compiled(
            mlp(keras, kernel_regularizer="l2"),
            keras.optimizers.SGD(0.002),
            keras.losses.SparseCategoricalCrossentropy(reduction=kind),
        )
        history = model.fit(x, y, epochs=1, batch_size=48, sample_weight=weights, verbose=0)
        results[kind] = curve(history, evaluated=model.evaluate(x, y, batch_size=60, verbose=0))
    return results


def fit_regularized(keras):
    x, y = data()
    model = compiled(mlp(keras, kernel_regularizer="l2", activity_regularizer="l1"))
    return curve(model.fit(x, y, epochs=EPOCHS, batch_size=48, verbose=0))


def fit_batch_norm(keras):
    x, y = data(133)
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Activation("relu"),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    compiled(model, keras.optimizers.SGD(0.1))
    history = model.fit(
        x * 3 + 30, y, epochs=EPOCHS, batch_size=33, validation_data=(x * 3 + 30, y), verbose=0
    )
    return curve(history, moving=[w.tolist() for w in model.layers[1].get_weights()])


def fit_batch_norm_images(keras):
    x, y = data(70, 48)
    model = keras.Sequential(
        [
            keras.layers.Input((4, 4, 3)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.BatchNormalization(momentum=0.8, center=False, scale=False),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    compiled(model, keras.optimizers.SGD(0.1))
    history = model.fit(
        x.reshape(-1, 4, 4, 3),
        y,
        epochs=EPOCHS,
        batch_size=32,
        validation_data=(x.reshape(-1, 4, 4, 3), y),
        verbose=0,
    )
    return curve(history, moving=[w.tolist() for w in model.layers[1].get_weights()])


def fit_batch_norm_masked(keras):
    x, y = sequences(40)
    model = keras.Sequential(
        [
            keras.layers.Embedding(20, 4, mask_zero=True),
            keras.layers.BatchNormalization(momentum=0.8),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return curve(model.fit(x, y, epochs=EPOCHS, batch_size=16, validation_data=(x, y), verbose=0))


def fit_callbacks(keras):
    x, y = data()
    folder, rates, c = Path(tempfile.mkdtemp()), [], keras.callbacks

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
    model = compiled(mlp(keras))
    history = model.fit(
        x, y, epochs=6, batch_size=48, validation_data=(x, y), callbacks=callbacks, verbose=0
    )
    best = keras.models.load_model(str(folder / f"best{suffix}"))
    log = np.genfromtxt(folder / "log.csv", delimiter=",", names=True)
    return curve(history, rates=rates, csv=log["loss"], best=best.predict(x[:9], verbose=0))


def fit_clipped(keras):
    x, y = data()
    results = {}
    for clip in ("clipnorm", "global_clipnorm", "clipvalue"):
        keras.utils.set_random_seed(5)
        model = compiled(mlp(keras), keras.optimizers.Adam(0.05, **{clip: 0.05}, use_ema=True))
        results[clip] = curve(model.fit(x, y, epochs=1, batch_size=48, verbose=0))
    return results


def fit_frozen(keras):
    """A frozen layer, weight decay, several steps an execution, and compilation asked for."""
    x, y = data()
    model = mlp(keras)
    model.layers[0].trainable = False
    optimizer = keras.optimizers.Adam(0.05, weight_decay=0.02)
    compiled(model, optimizer, jit_compile=True, steps_per_execution=2)
    history = model.fit(x, y, epochs=EPOCHS, batch_size=48, verbose=0)
    return curve(history, weights=[float(np.abs(w).sum()) for w in model.get_weights()])


def fit_metrics(keras):
    x, y = data()
    binary = (y == 1).astype("float32")
    model = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "sigmoid")]
    )
    m = keras.metrics
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


def fit_two_optimizers(keras):
    x, _ = data(90)

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = keras.layers.Dense(6), keras.layers.Dense(6)
            self.opt_one, self.opt_two = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01)
            self.built = True

        def call(self, x):
            return self.one(x)

        def train_step(self, x):
            losses = []
            for layer, optimizer in ((self.one, self.opt_one), (self.two, self.opt_two)):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(layer(x) - x))
                grads = tape.gradient(loss, layer.trainable_weights)
                optimizer.apply_gradients(zip(grads, layer.trainable_weights, strict=True))
                losses.append(loss)
            return {"one": losses[0], "two": losses[1]}

    model = Pair()
    model.compile()
    model.one.build((None, 6)), model.two.build((None, 6))
    ds = tf.data.Dataset.from_tensor_slices(x).batch(32)
    return curve(model.fit(ds, epochs=EPOCHS, verbose=0))


def statistical(keras):
    """Losses over seeds of what need not be the same bit by bit."""
    x, y = data(256)
    results = {}
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        layers = [
            keras.layers.Input((6,)),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(16, "relu"),
            keras.layers.GaussianNoise(0.3),
            keras.layers.Dense(3, "softmax"),
        ]
        noisy = compiled(keras.Sequential(layers), keras.optimizers.SGD(0.2))
        history = noisy.fit(x, y, epochs=4, batch_size=32, verbose=0)
        results.setdefault("noise", []).append(history.history["loss"][-1])
        keras.utils.set_random_seed(seed)
        policy = keras.mixed_precision.Policy("mixed_bfloat16")
        layers = [
            keras.layers.Input((6,)),
            keras.layers.Dense(16, "relu", dtype=policy),
            keras.layers.Dense(3, "softmax", dtype="float32"),
        ]
        coarse = compiled(keras.Sequential(layers), keras.optimizers.SGD(0.2))
        history = coarse.fit(x, y, epochs=4, batch_size=32, verbose=0)
        results.setdefault("bfloat16", []).append(history.history["loss"][-1])
    return results


def fit_loss_scaled(keras):
    x, y = data(120)
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(0.01, clipnorm=0.1))
    model = compiled(mlp(keras), optimizer)
    results = {"scaled": curve(model.fit(x, y, epochs=EPOCHS, batch_size=32, verbose=0))}
    if keras.__name__ == "keras":
        keras.utils.set_random_seed(6)
        accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        model = compiled(mlp(keras), accumulating)
        history = model.fit(x, y, epochs=EPOCHS, batch_size=32, verbose=0)
        results["accumulated"] = curve(history, weights=model.get_weights()[0].ravel())
    return results
