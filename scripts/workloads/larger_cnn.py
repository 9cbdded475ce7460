"""A larger CNN on 32 × 32 colour images: 600,000 parameters, 2.4 MB of gradients a step."""

import keras
from timed import fit, options

arguments = options(__doc__, batch=128)
layers = keras.layers
model = keras.Sequential(
    [
        layers.Input((32, 32, 3)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(128, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(224, activation="relu"),
        layers.Dense(10),
    ]
)
fit(model, (32, 32, 3), arguments)
