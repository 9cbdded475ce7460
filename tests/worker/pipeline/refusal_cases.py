"""Models that cannot be split, and what a model tells of where it can be."""

import keras

from launcher.worker.pipeline.keras_graph import Graph
from launcher.worker.pipeline.refusals import UnsplittableError, readable_graph

layers = keras.layers


def plain(**compiled):
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3), layers.Dense(2)])
    return with_loss(model, **compiled)


def with_loss(model, optimizer="sgd", loss="mse", **compiled):
    model.compile(optimizer, loss, **compiled)
    return model


class Own(keras.Model):
    def call(self, x):
        return x


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


def own_step():
    inputs = keras.Input((4,))
    return with_loss(OwnStep(inputs, layers.Dense(2)(inputs)))


def masked_output():
    embedding = layers.Embedding(9, 3, mask_zero=True)
    inner = [layers.Input((5,)), embedding, layers.LSTM(2, return_sequences=True)]
    return with_loss(keras.Sequential(inner))


def stateful():
    inner = [layers.Input(batch_shape=(8, 5, 2)), layers.LSTM(2, stateful=True), layers.Dense(1)]
    return with_loss(keras.Sequential(inner))


SGD = keras.optimizers.SGD
REFUSED = {
    "subclassed": lambda: with_loss(Own()),
    "no input": lambda: with_loss(keras.Sequential([layers.Dense(2)])),
    "own step": own_step,
    "not compiled": lambda: keras.Sequential([layers.Input((4,)), layers.Dense(2)]),
    "global norm": lambda: plain(optimizer=SGD(global_clipnorm=1.0)),
    "averages": lambda: plain(optimizer=SGD(use_ema=True)),
    "scaled": lambda: plain(optimizer=keras.optimizers.LossScaleOptimizer(SGD())),
    "sum": lambda: plain(loss=keras.losses.MeanSquaredError(reduction="sum")),
    "ignored class": lambda: plain(loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=0)),
    "over the batch": lambda: plain(loss="dice"),
    "over the batch, too": lambda: plain(loss=keras.losses.Tversky()),
    "masked output": masked_output,
    "stateful": stateful,
    "no model": lambda: "model",
}


def refusals():
    """By case: what is said."""
    said = {}
    for name, make in REFUSED.items():
        try:
            readable_graph(make())
        except UnsplittableError as error:
            said[name] = str(error)
    return said


def places():
    """By model: why it cannot be cut, cut by cut."""
    mask = [layers.Input((5,)), layers.Embedding(9, 3, mask_zero=True), layers.LSTM(2)]
    lengths = [layers.Input((None,)), layers.Embedding(9, 3), layers.LSTM(2), layers.Dense(1)]
    inputs, twice = keras.Input((4,)), layers.Dense(4, name="twice")
    shared = keras.Model(inputs, layers.Dense(1)(twice(layers.ReLU()(twice(inputs)))))
    models = {
        "mask": keras.Sequential([*mask, layers.Dense(1)]),
        "lengths": keras.Sequential(lengths),
        "shared": shared,
    }
    graphs = {name: Graph(model) for name, model in models.items()}
    return {
        name: [graph.why_not(cut) for cut in range(1, len(graph.calls))]
        for name, graph in graphs.items()
    }
