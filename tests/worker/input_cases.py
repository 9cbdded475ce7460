"""Cases about what a script feeds to Keras, and how.

Each case is a script as users write it: a function of the Keras module (`keras` or `tf_keras`)
that trains something and returns what must agree for any number of workers, as nested dicts of
numbers, lists and arrays. A new case needs nothing but its function.
"""

import numpy as np
import tensorflow as tf
from case_tools import EPOCHS, compiled, curve, data, dataset, mlp, py_dataset


def fit_numpy(keras):
    x, y = data()
    model = compiled(mlp(keras), keras.optimizers.SGD(0.1, momentum=0.9))
    history = model.fit(
        x, y, epochs=EPOCHS, batch_size=48, validation_data=(x[:50], y[:50]), verbose=0
    )
    return curve(history, weights=[float(np.abs(w).sum()) for w in model.get_weights()])


def fit_validation_split(keras):
    x, y = data(517)
    model = compiled(mlp(keras))
    return curve(model.fit(x, y, epochs=EPOCHS, batch_size=48, validation_split=0.2, verbose=0))


def fit_tf_data(keras):
    x, y = data(517)
    model = compiled(mlp(keras))
    val = dataset(x[:100], y[:100], 33, shuffle=False)
    return curve(model.fit(dataset(x, y, 33), epochs=EPOCHS, validation_data=val, verbose=0))


def fit_py_dataset(keras):
    x, y = data()
    batches = py_dataset(keras, x, y, 40)
    model = compiled(mlp(keras))
    history = model.fit(
        batches, epochs=EPOCHS, validation_data=py_dataset(keras, x, y, 64), verbose=0
    )
    return curve(history, n_epochs=batches.n_epochs)


def fit_infinite(keras):
    x, y = data()
    model = compiled(mlp(keras))
    # Read ahead, the two iterators would draw the seeds of their passes in an order of their own.
    in_order = tf.data.Options()
    in_order.experimental_optimization.inject_prefetch = False
    ds = dataset(x, y, 32).repeat().with_options(in_order)
    return curve(
        model.fit(
            ds, epochs=EPOCHS, steps_per_epoch=7, validation_data=ds, validation_steps=2, verbose=0
        )
    )


def fit_ragged(keras):
    rng = np.random.default_rng(5)
    rows = [rng.integers(0, 9, n).tolist() for n in rng.integers(1, 6, 50)]
    ds = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(rows), np.arange(50) % 2)).batch(16)
    ds = ds.map(lambda r, t: ({"words": r.to_tensor()}, t))

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.embed, self.out = keras.layers.Embedding(9, 4), keras.layers.Dense(2, "softmax")

        def call(self, x):
            return self.out(tf.reduce_mean(self.embed(x["words"]), axis=1))

    model = compiled(Net())
    history = model.fit(ds, epochs=EPOCHS, verbose=0)
    return curve(history, predicted=model.predict(ds, verbose=0))


def fit_strings(keras):
    words = np.array([[f"word{i % 17}"] for i in range(60)], dtype=object)
    layer = keras.layers.StringLookup(vocabulary=[f"word{i}" for i in range(17)])
    i = keras.layers.Input((1,), dtype="string")
    h = keras.layers.Flatten()(keras.layers.Embedding(20, 4)(layer(i)))
    model = compiled(keras.Model(i, keras.layers.Dense(3, "softmax")(h)))
    ds = tf.data.Dataset.from_tensor_slices((words.astype(str), np.arange(60) % 3)).batch(16)
    return curve(model.fit(ds, epochs=EPOCHS, verbose=0))


def fit_sparse(keras):
    x, y = data(50)
    i = keras.layers.Input((6,), sparse=True)
    model = compiled(keras.Model(i, keras.layers.Dense(3, "softmax")(i)), keras.optimizers.SGD(0.1))
    ds = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x * (x > 0)), y)).batch(16)
    return curve(model.fit(ds, epochs=EPOCHS, verbose=0))


def fit_tiny_batches(keras):
    x, y = data(7)
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(4),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    compiled(model, keras.optimizers.SGD(0.05))
    history = model.fit(
        x, y, epochs=EPOCHS, batch_size=2, validation_data=(x[:3], y[:3]), verbose=0
    )
    one = compiled(mlp(keras)).fit(x[:1], y[:1], epochs=EPOCHS, verbose=0)
    return {
        "two": curve(history, predicted=model.predict(x, batch_size=1, verbose=0)),
        "one": curve(one),
    }


def fit_many_steps_per_execution(keras):
    x, y = data()
    model = compiled(mlp(keras), steps_per_execution=4)
    history = model.fit(x, y, epochs=EPOCHS, batch_size=30, validation_data=(x, y), verbose=0)
    return curve(history, predicted=model.predict(x, batch_size=20, verbose=0))


def fit_twice(keras):
    x, y = data()
    model = compiled(mlp(keras))
    first = curve(model.fit(x, y, epochs=1, batch_size=48, verbose=0))
    second = curve(model.fit(x, y, epochs=3, initial_epoch=1, batch_size=31, verbose=0))
    return {"first": first, "second": second}


def on_batch(keras):
    x, y = data(60)
    model = compiled(mlp(keras))
    trained = [model.train_on_batch(x[:30], y[:30]), model.train_on_batch(x[30:], y[30:])]
    return {
        "trained": trained,
        "tested": model.test_on_batch(x[:11], y[:11]),
        "predicted": model.predict_on_batch(x[:5]),
    }


def each_row_once(keras):
    """A model whose loss gradient counts the rows it saw: the weight moves by Σ x / B a step."""
    n = 103
    x = np.eye(n, dtype="float32")
    model = keras.Sequential(
        [
            keras.layers.Input((n,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(keras.optimizers.SGD(1.0), lambda t, p: -p)
    history = model.fit(x, np.zeros((n, 1)), epochs=1, batch_size=10, verbose=0)
    return curve(history, weights=model.get_weights()[0].ravel())


def predict_shapes(keras):
    x, _ = data(41)
    i = keras.layers.Input((6,))
    model = keras.Model(i, {"a": keras.layers.Dense(2)(i), "b": [keras.layers.Reshape((2, 3))(i)]})
    ds = tf.data.Dataset.from_tensor_slices(x).batch(8)
    out = model.predict(ds, verbose=0)
    return {
        "a": out["a"],
        "b": out["b"][0],
        "steps": model.predict(ds.repeat(), steps=3, verbose=0)["a"],
    }


def fit_eagerly(keras):
    x, y = data(80)
    model = compiled(mlp(keras), run_eagerly=True)
    history = model.fit(x, y, epochs=EPOCHS, batch_size=30, verbose=0)
    return curve(history, predicted=model.predict(x, verbose=0))


def fit_embedding(keras):
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 50, (120, 5)), rng.integers(0, 3, 120)
    model = keras.Sequential(
        [
            keras.layers.Embedding(50, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3, "softmax"),
        ]
    )
    return curve(compiled(model).fit(x, y, epochs=EPOCHS, batch_size=32, verbose=0))
