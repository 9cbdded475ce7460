"""A small CNN on 16 × 16 images: 118,000 parameters, 0.5 MB of gradients a step."""

import keras
from timed import fit, options

arguments = options(__doc__, batch=512)
layers = keras.layers
model = keras.Sequential(
    [
        layers.Input((16, 16, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(96, activation="relu"),
        layers.Dense(10),
    ]
)
fit(model, (16, 16, 1), arguments)
