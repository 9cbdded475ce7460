"""What the layers of a small model take."""

from dataclasses import asdict

import keras
import numpy as np

from launcher.worker.pipeline.layer_times import measured_cost
from launcher.worker.pipeline.refusals import readable_graph


def cost():
    layers = [
        keras.layers.Dense(512, name="wide"),
        keras.layers.ReLU(name="relu"),
        keras.layers.Dense(2, name="narrow"),
    ]
    model = keras.Sequential([keras.layers.Input((256,)), *layers])
    model.compile("adam", "mse")
    x, y = np.ones((8, 256), "float32"), np.ones((8, 2), "float32")
    before = model.get_weights()
    found = asdict(measured_cost(readable_graph(model), [x], y))
    same = all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    return {**found, "weights_stayed": same}
