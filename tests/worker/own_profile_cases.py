"""Scripts with loops of their own, to be profiled."""

import time

import numpy as np
import tensorflow as tf
from case_tools import compiled, cross_entropy, data, dataset, mlp

NAMES = (
    *("eager", "in_function", "whole_pass_in_function", "of_sums", "masked_by_hand"),
    *("with_noise", "of_arrays", "on_batch", "short"),
)
ROW_S = 1e-3


def slow(x):
    """Takes a time for each row."""
    return tf.ensure_shape(
        tf.numpy_function(lambda rows: (time.sleep(ROW_S * len(rows)), rows)[1], [x], x.dtype),
        x.shape,
    )


def trained(keras, loss_of, *, decorate=lambda f: f, passes=50, model=None):
    x, y = data(130)
    model, optimizer = model or mlp(keras), keras.optimizers.Adam(0.01)

    @decorate
    def step(xs, ys):
        with tf.GradientTape() as tape:
            loss = loss_of(ys, model(slow(xs), training=True))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    epochs = passes
    for _ in range(epochs):
        for xs, ys in dataset(x, y, 40):
            step(xs, ys)


def eager(keras):
    trained(keras, cross_entropy(keras))


def in_function(keras):
    trained(keras, cross_entropy(keras), decorate=tf.function)


def whole_pass_in_function(keras):
    x, y = data(130)
    model, optimizer, ds = mlp(keras), keras.optimizers.Adam(0.01), dataset(x, y, 40)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train():
        for xs, ys in ds:
            with tf.GradientTape() as tape:
                loss = cross_entropy(keras)(ys, model(slow(xs), training=True))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    for _ in range(50):
        train()


def of_sums(keras):
    of_rows = keras.losses.sparse_categorical_crossentropy
    trained(keras, lambda y, p: tf.reduce_sum(of_rows(y, p)), decorate=tf.function)


def masked_by_hand(keras):
    of_rows = keras.losses.sparse_categorical_crossentropy

    def loss_of(y, p):
        mask = tf.cast(y > 0, tf.float32)
        return tf.reduce_sum(of_rows(y, p) * mask) / tf.reduce_sum(mask)

    trained(keras, loss_of, decorate=tf.function)


def with_noise(keras):
    layers = mlp(keras).layers
    model = keras.Sequential([keras.layers.Input((6,)), layers[0], keras.layers.Dropout(0.5)])
    model.add(layers[1])
    trained(keras, cross_entropy(keras), model=model)


def of_arrays(keras):
    x, y = data(60)
    model, optimizer = mlp(keras), keras.optimizers.SGD(0.1)
    for _ in range(2000):
        with tf.GradientTape() as tape:
            loss = cross_entropy(keras)(y, model(x))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


def on_batch(keras):
    x, y = data(60)
    model = compiled(mlp(keras))
    while True:
        for xs, ys in dataset(np.array(x), y, 25):
            model.train_on_batch(xs, ys)


def short(keras):
    trained(keras, cross_entropy(keras), passes=1)
