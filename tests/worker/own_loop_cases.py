"""Cases about training loops of a script's own, with a tape and an optimizer.

Each case is a script as users write it: a function of the Keras module (`keras` or `tf_keras`)
that trains something and returns what must agree for any number of workers, as nested dicts of
numbers, lists and arrays. A new case needs nothing but its function.
"""

import numpy as np
import tensorflow as tf
from case_tools import (
    EPOCHS,
    compiled,
    cross_entropy,
    data,
    dataset,
    mlp,
    sequences,
    tagger,
    weights_of,
)


def own_eager(keras):
    x, y = data()
    model, loss_of = mlp(keras), cross_entropy(keras)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5)
    train, val = dataset(x, y, 48), dataset(x[:77], y[:77], 33, shuffle=False)
    hits = keras.metrics.SparseCategoricalAccuracy()
    mean, val_hits = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()
    curve = []
    for _ in range(EPOCHS):
        for _step, (xs, ys) in enumerate(train):
            with tf.GradientTape() as tape:
                p = model(xs, training=True)
                loss = loss_of(ys, p)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            hits.update_state(ys, p)
            mean.update_state(loss)
        by_hand = 0.0
        for xs, ys in val:
            p = model(xs, training=False)
            val_hits.update_state(ys, p)
            by_hand += float(loss_of(ys, p)) * len(xs)
        curve += [float(m.result()) for m in (hits, mean, val_hits)] + [by_hand]
        for metric in (hits, mean, val_hits):
            metric.reset_state()
    return {"curve": curve, "weights": weights_of(model)}


def own_function(keras):
    x, y = data()
    model, loss_of = mlp(keras), cross_entropy(keras)
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.3, use_ema=True, weight_decay=0.01)
    hits, mean = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean()

    @tf.function
    def train_step(xs, ys):
        with tf.GradientTape() as tape:
            p = model(xs, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(ys, p))
        weights = model.trainable_variables
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(list(zip(grads, weights, strict=True)))
        hits.update_state(ys, p)
        mean(loss)
        return {"loss": loss, "twice": 2.0 * loss}

    @tf.function
    def test_step(xs, ys):
        return loss_of(ys, model(xs, training=False))

    curve = []
    for _ in range(EPOCHS):
        for xs, ys in dataset(x, y, 48).take(5):
            found = train_step(xs, ys)
            curve += [float(found["loss"]), float(found["twice"])]
        curve += [float(hits.result()), float(mean.result())]
        curve += [float(test_step(xs, ys)) for xs, ys in dataset(x, y, 100, shuffle=False)]
        hits.reset_state()
    return {"curve": curve, "weights": weights_of(model)}


def own_epoch_in_function(keras):
    x, y = data()
    model, loss_of = mlp(keras), cross_entropy(keras)
    optimizer, mean = keras.optimizers.Adam(0.01), keras.metrics.Mean()
    optimizer.build(model.trainable_variables)
    ds = dataset(x, y, 40)

    def step(xs, ys):
        with tf.GradientTape() as tape:
            loss = loss_of(ys, model(xs, training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        mean.update_state(loss)

    @tf.function
    def captured():
        for xs, ys in ds:
            step(xs, ys)

    @tf.function
    def given(batches):
        for xs, ys in batches:
            step(xs, ys)

    @tf.function
    def validated():
        total = 0.0
        for xs, ys in ds:
            total += loss_of(ys, model(xs))
        return total

    @tf.function
    def several(iterator):
        for _ in tf.range(3):
            xs, ys = next(iterator)
            step(xs, ys)

    curve, iterator = [], iter(ds.repeat())
    for train in (captured, captured, lambda: given(ds), lambda: several(iterator)):
        train()
        curve += [float(mean.result()), float(validated())]
    return {"curve": curve, "weights": weights_of(model)}


def own_iterator(keras):
    x, y = data(50)
    model, loss_of = mlp(keras), cross_entropy(keras)
    optimizer, iterator = keras.optimizers.SGD(0.2), iter(dataset(x, y, 16).repeat())
    for _ in range(9):
        xs, ys = next(iterator)
        with tf.GradientTape() as tape:
            loss = loss_of(ys, model(xs))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return weights_of(model)


def own_gan(keras):
    x, _ = data(90)
    noise = np.random.default_rng(4).normal(size=(32, 4)).astype("float32")
    generator = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(6)])
    critic = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
    of_generator, of_critic = keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.05)

    @tf.function
    def step(real):
        with tf.GradientTape() as tape_g, tf.GradientTape() as tape_c:
            fake = critic(generator(noise, training=True), training=True)
            true = critic(real, training=True)
            loss_g = loss_of(tf.ones_like(fake), fake)
            loss_c = loss_of(tf.ones_like(true), true) + loss_of(tf.zeros_like(fake), fake)
        of_generator.apply_gradients(
            zip(tape_g.gradient(loss_g, generator.weights), generator.weights, strict=True)
        )
        of_critic.apply_gradients(
            zip(tape_c.gradient(loss_c, critic.weights), critic.weights, strict=True)
        )
        return loss_g, loss_c

    curve = []
    for _ in range(EPOCHS):
        for real in tf.data.Dataset.from_tensor_slices(x).batch(32):
            curve += map(float, step(real))
    return {"curve": curve, "weights": weights_of(generator, critic)}


def own_masked(keras):
    x, y = sequences()
    model, mean = tagger(keras), keras.metrics.Mean()
    loss_of, optimizer = keras.losses.BinaryCrossentropy(), keras.optimizers.Adam(0.01)
    if keras.__name__ == "keras":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)

    @tf.function
    def step(xs, ys):
        with tf.GradientTape() as tape:
            loss = loss_of(ys, model(xs, training=True))
            scaled = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        mean.update_state(loss)
        return loss

    curve = []
    for _ in range(EPOCHS):
        curve += [float(step(xs, ys)) for xs, ys in dataset(x, y, 16)]
        curve.append(float(mean.result()))
    return {"curve": curve, "weights": weights_of(model)}


def own_accumulated(keras):
    """Gradients of three batches, the last of them ragged, are added up before they are applied."""
    x, y = data(130)
    model, loss_of = mlp(keras), cross_entropy(keras)
    optimizer = keras.optimizers.SGD(0.1)
    weights = model.trainable_variables
    for _ in range(3):
        total = None
        for i, (xs, ys) in enumerate(dataset(x, y, 25)):
            with tf.GradientTape() as tape:
                loss = loss_of(ys, model(xs))
            grads = tape.gradient(loss, weights)
            total = grads if total is None else [a + b for a, b in zip(total, grads, strict=True)]
            if i % 3 == 2:
                optimizer.apply_gradients(zip(total, weights, strict=True))
                total = None
    return weights_of(model)


def own_tiny_batches(keras):
    x, y = data(7)
    model, loss_of = mlp(keras), cross_entropy(keras)
    optimizer, hits = keras.optimizers.Adam(0.05), keras.metrics.SparseCategoricalAccuracy()
    batches, curve = dataset(x, y, 2, shuffle=False), []
    for _ in range(3):
        for xs, ys in batches:
            with tf.GradientTape() as tape:
                p = model(xs)
                loss = loss_of(ys, p)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            hits.update_state(ys, p)
        curve.append(float(hits.result()))
    return {"curve": curve, "weights": weights_of(model)}


def own_batch_norm(keras):
    x, y = data(101)
    layers = [keras.layers.Input((6,)), keras.layers.Dense(5), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(3, "softmax")])
    model.layers[0].trainable = False
    loss_of, optimizer = cross_entropy(keras), keras.optimizers.SGD(0.1)

    @tf.function
    def step(xs, ys):
        with tf.GradientTape() as tape:
            loss = loss_of(ys, model(xs, training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    curve = [float(step(xs, ys)) for _ in range(2) for xs, ys in dataset(x * 3 + 5, y, 40)]
    return {"curve": curve, "weights": weights_of(model)}


def own_whole_batches(keras):
    """What cannot be shared out trains whole: arrays, pairs of datasets, train_on_batch."""
    x, y = data(60)
    results = {}
    for kind in ("arrays", "pairs", "unbatched"):
        model, loss_of = mlp(keras), cross_entropy(keras)
        optimizer = keras.optimizers.SGD(0.1)
        streams = {
            "arrays": [(x[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)],
            "pairs": zip(
                *(tf.data.Dataset.from_tensor_slices(each).batch(20) for each in (x, y)),
                strict=True,
            ),
            "unbatched": tf.data.Dataset.from_tensor_slices(
                (x.reshape(3, 20, 6), y.reshape(3, 20))
            ),
        }
        for xs, ys in streams[kind]:
            with tf.GradientTape() as tape:
                loss = loss_of(ys, model(xs))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        results[kind] = weights_of(model)
    model = compiled(mlp(keras))
    logs = [model.train_on_batch(*batch) for _ in range(2) for batch in dataset(x, y, 25)]
    results["on_batch"] = [np.asarray(logs), *weights_of(model)]
    return results
