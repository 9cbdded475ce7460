"""A residual convolutional network that reads handwritten digits (scikit-learn's, enlarged).

A plain Keras script: run it with `python models/cnn.py`, or launch it unmodified. It has what
networks for images usually have: batch normalisation, skip connections, and small shifts of the
training images. 78,122 parameters; under a minute; about 99 % on digits that it has not seen.
"""

import argparse

import keras
from moving_digits import digit_images

layers = keras.layers


def build_model() -> keras.Model:
    """16 × 16 × 1 → 10 logits.

    Shapes: 16 × 16 × 16 → block → 8 × 8 × 32 → block → 4 × 4 × 64 → block → 64 → 10.
    """
    inputs = keras.Input((16, 16, 1))
    x = layers.RandomTranslation(0.08, 0.08, fill_mode="constant", seed=0)(inputs)
    x = layers.Conv2D(16, 3, padding="same")(x)
    for filters, strides in [(16, 1), (32, 2), (64, 2)]:
        x = residual_block(x, filters, strides)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x))


def residual_block(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    """Two convolutions, and a way around them: `(h, w, c)` → `(h / strides, …, filters)`."""
    around = x
    if strides > 1:
        around = layers.Conv2D(filters, 1, strides=strides)(x)
    for stride in (strides, 1):
        x = layers.BatchNormalization(momentum=0.9)(x)
        x = layers.Activation("relu")(x)
        x = layers.Conv2D(filters, 3, strides=stride, padding="same")(x)
    return layers.Add()([x, around])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(arguments.seed)

    images, digits, test_images, test_digits = digit_images()
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images, digits, batch_size=arguments.batch_size, epochs=arguments.epochs, verbose=2)
    results = model.evaluate(test_images, test_digits, verbose=0, return_dict=True)
    print("test: " + ", ".join(f"{name} {value:.4f}" for name, value in results.items()))


if __name__ == "__main__":
    main()
