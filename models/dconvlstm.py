"""DConvLSTM: a convolutional network with ConvLSTM layers, L2 regularisation and dropout.

It classifies images and image sequences, and predicts what comes next in sequences. A plain Keras
script: run it with `python models/dconvlstm.py`, or launch it unmodified. `docs/dconvlstm.md` tells
where the network comes from, and what it reached.

    --data          what                                                             the question
    digits          scikit-learn's handwritten digits, enlarged to 16 × 16 pixels    which digit?
    moving-digits   clips of such a digit that moves behind noise                    which digit?
    moving-pairs    clips of two such digits                                         what is next?
    cifar10         Keras downloads it, 170 MB                                       which object?
    moving-mnist    Keras downloads it, 820 MB                                       what is next?
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
from moving_digits import digit_images, moving_digits, moving_pairs

layers = keras.layers
Part = tuple[np.ndarray, ...]

MOVING_MNIST = "http://www.cs.toronto.edu/~nitish/unsupervised_video/mnist_test_seq.npy"
SHIFT = 1 / 16  # of an image's height and width, at most, in training
STRIPS = 4  # an image is read as a sequence of so many strips, from top to bottom


def build_classifier(
    shape: tuple[int, ...] = (16, 16, 1), n_classes: int = 10, **size: float
) -> keras.Model:
    """Says what an image `(height, width, channels)` or a sequence of them shows.

    Args:
        shape: of an example.
        n_classes: how many things there are to tell apart.
        size: `filters`, `l2` and `dropout`, as of the two builders below.

    Returns:
        A model with `n_classes` logits as its output.
    """
    build = build_image_classifier if len(shape) == 3 else build_sequence_classifier
    return build(shape, n_classes, **size)


def build_image_classifier(
    shape: tuple[int, ...] = (16, 16, 1),
    n_classes: int = 10,
    filters: int = 24,
    l2: float = 1e-4,
    dropout: float = 0.3,
) -> keras.Model:
    """Convolutions see the image; two ConvLSTM layers go through its strips, top to bottom.

    An image has no time: after the convolutions its rows are cut into four strips, and these are
    the frames. So what a strip shows is judged by what the strips above it showed. In training, an
    image is shifted by up to a sixteenth of its size. The default has 187,602 parameters:

        layer           output            parameters
        Conv2D 3 × 3    16 × 16 × 24      9·1·24 + 24              =    240
        Conv2D 3 × 3    16 × 16 × 24      9·24·24 + 24             =  5,208
        MaxPooling2D    8 × 8 × 24
        Reshape         4 × 2 × 8 × 24    four strips of two rows
        ConvLSTM2D      4 × 2 × 8 × 24    4·(9·(24 + 24)·24 + 24)  = 41,568
        Dropout
        ConvLSTM2D      4 × 2 × 8 × 24    4·(9·(24 + 24)·24 + 24)  = 41,568
        Flatten         1536
        Dropout, Dense  64                1536·64 + 64             = 98,368
        Dropout, Dense  10                64·10 + 10               =    650

    Args:
        shape: `(height, width, channels)`; the height is a multiple of 8, the width of 2.
        n_classes: how many things there are to tell apart.
        filters: channels of each convolution and ConvLSTM layer.
        l2: weight of the squared weights in the loss.
        dropout: share of activations left out after the ConvLSTM and dense layers.
    """
    regularizer = keras.regularizers.L2(l2)
    inputs = keras.Input(shape)
    x = _image_frames(inputs, filters, regularizer)
    x = _conv_lstm(filters, regularizer, return_sequences=True)(x)
    x = layers.Dropout(dropout)(x)
    x = _conv_lstm(filters, regularizer, return_sequences=True)(x)
    return keras.Model(inputs, _logits(x, n_classes, regularizer, dropout), name="dconvlstm")


def build_sequence_classifier(
    shape: tuple[int, ...] = (8, 24, 24, 1),
    n_classes: int = 10,
    filters: int = 24,
    l2: float = 1e-4,
    dropout: float = 0.3,
) -> keras.Model:
    """A convolution sees each frame; two ConvLSTM layers go through the frames in time.

    What the second gives after the last frame goes on. The default has 139,386 parameters:

        layer           output            parameters
        Conv3D 3 × 3    8 × 24 × 24 × 24  9·1·24 + 24              =    240
        MaxPooling3D    8 × 6 × 6 × 24    in height and width only
        ConvLSTM2D      8 × 6 × 6 × 24    4·(9·(24 + 24)·24 + 24)  = 41,568
        Dropout
        ConvLSTM2D      6 × 6 × 24        4·(9·(24 + 24)·24 + 24)  = 41,568
        Flatten         864
        Dropout, Dense  64                864·64 + 64              = 55,360
        Dropout, Dense  10                64·10 + 10               =    650

    Args:
        shape: `(frames, height, width, channels)`.
        n_classes: how many things there are to tell apart.
        filters: channels of each convolution and ConvLSTM layer.
        l2: weight of the squared weights in the loss.
        dropout: share of activations left out after the ConvLSTM and dense layers.
    """
    regularizer = keras.regularizers.L2(l2)
    inputs = keras.Input(shape)
    x = _sequence_frames(inputs, filters, regularizer)
    x = _conv_lstm(filters, regularizer, return_sequences=True)(x)
    x = layers.Dropout(dropout)(x)
    x = _conv_lstm(filters, regularizer, return_sequences=False)(x)
    return keras.Model(inputs, _logits(x, n_classes, regularizer, dropout), name="dconvlstm")


def build_predictor(
    shape: tuple[int, ...] = (9, 32, 32, 1),
    filters: int = 24,
    l2: float = 1e-5,
    dropout: float = 0.1,
) -> keras.Model:
    """Guesses, at each frame of a sequence, the next one.

    The default, for 9 frames of 32 × 32 × 1, has 83,602 parameters (any number of frames has):

        layer           output              parameters
        Conv3D 3 × 3    9 × 32 × 32 × 24    9·1·24 + 24              =    240
        MaxPooling3D    9 × 16 × 16 × 24    in height and width only
        ConvLSTM2D      9 × 16 × 16 × 24    4·(9·(24 + 24)·24 + 24)  = 41,568
        Dropout
        ConvLSTM2D      9 × 16 × 16 × 24    4·(9·(24 + 24)·24 + 24)  = 41,568
        UpSampling3D    9 × 32 × 32 × 24    in height and width only
        Concatenate     9 × 32 × 32 × 25    with the frame itself, which knows where edges are
        Conv3D 3 × 3    9 × 32 × 32 × 1     9·25·1 + 1               =    226

    Args:
        shape: `(frames, height, width, channels)`; height and width are even.
        filters: channels of the convolution and of each ConvLSTM layer.
        l2: weight of the squared weights in the loss.
        dropout: share of activations left out between the ConvLSTM layers.

    Returns:
        A model whose output t is the guess at frame t + 1, as the logit of each pixel's ink.
    """
    regularizer = keras.regularizers.L2(l2)
    inputs = keras.Input(shape)
    x = _sequence_frames(inputs, filters, regularizer, pool=2)
    x = _conv_lstm(filters, regularizer, return_sequences=True)(x)
    x = layers.Dropout(dropout)(x)
    x = _conv_lstm(filters, regularizer, return_sequences=True)(x)
    x = layers.UpSampling3D((1, 2, 2))(x)
    x = layers.Concatenate()([x, inputs])
    outputs = layers.Conv3D(shape[-1], (1, 3, 3), padding="same")(x)
    return keras.Model(inputs, outputs, name="dconvlstm_predictor")


def _image_frames(
    image: keras.KerasTensor, filters: int, regularizer: keras.Regularizer
) -> keras.KerasTensor:
    """An image's features as a sequence of strips: `(STRIPS, rows, columns, filters)`."""
    x = layers.RandomTranslation(SHIFT, SHIFT, fill_mode="constant")(image)
    for _ in range(2):
        convolution = layers.Conv2D(
            filters, 3, padding="same", activation="relu", kernel_regularizer=regularizer
        )
        x = convolution(x)
    x = layers.MaxPooling2D(2)(x)
    _, height, width, _ = x.shape
    return layers.Reshape((STRIPS, height // STRIPS, width, filters))(x)


def _sequence_frames(
    frames: keras.KerasTensor, filters: int, regularizer: keras.Regularizer, pool: int = 4
) -> keras.KerasTensor:
    """Each frame's features: `(frames, height / pool, width / pool, filters)`."""
    convolution = layers.Conv3D(
        filters, (1, 3, 3), padding="same", activation="relu", kernel_regularizer=regularizer
    )
    return layers.MaxPooling3D((1, pool, pool))(convolution(frames))


def _conv_lstm(
    filters: int, regularizer: keras.Regularizer, *, return_sequences: bool
) -> keras.Layer:
    return layers.ConvLSTM2D(
        filters,
        3,
        padding="same",
        return_sequences=return_sequences,
        kernel_regularizer=regularizer,
        recurrent_regularizer=regularizer,
    )


def _logits(
    x: keras.KerasTensor, n_classes: int, regularizer: keras.Regularizer, dropout: float
) -> keras.KerasTensor:
    """What the dense layers make of all that was seen."""
    x = layers.Dropout(dropout)(layers.Flatten()(x))
    x = layers.Dense(64, activation="relu", kernel_regularizer=regularizer)(x)
    return layers.Dense(n_classes)(layers.Dropout(dropout)(x))


@dataclass(frozen=True, slots=True)
class Data:
    """What a model learns from, and what it is tested on: each `(examples, answers)`.

    Attributes:
        n_classes: of the answers; 0 where the answers are frames.
    """

    train: Part
    test: Part
    n_classes: int = 10

    def first(self, n_examples: int | None) -> "Data":
        """The first so many of each part; all of them for None."""
        train, test = (tuple(x[:n_examples] for x in part) for part in (self.train, self.test))
        return Data(train, test, self.n_classes)

    def split(self, share: float) -> "tuple[Part, Part | None]":
        """The part to train on, and the last share of it to choose by; None if that is nothing."""
        n_held = round(share * len(self.train[0]))
        if not n_held:
            return self.train, None
        held, kept = (
            tuple(x[where] for x in self.train)
            for where in (slice(-n_held, None), slice(None, -n_held))
        )
        return kept, held


def load_digit_images() -> Data:
    images, digits, test_images, test_digits = digit_images()
    return Data((images, digits), (test_images, test_digits))


def load_moving_digits() -> Data:
    clips, digits, test_clips, test_digits = moving_digits()
    return Data((clips, digits), (test_clips, test_digits))


def load_moving_pairs() -> Data:
    clips, test_clips = moving_pairs()
    return Data(_with_next_frames(clips), _with_next_frames(test_clips), n_classes=0)


def load_cifar10() -> Data:
    (images, kinds), (test_images, test_kinds) = keras.datasets.cifar10.load_data()
    return Data(
        (images.astype("float32") / 255.0, kinds[:, 0]),
        (test_images.astype("float32") / 255.0, test_kinds[:, 0]),
    )


def load_moving_mnist() -> Data:
    """2,000 of its 10,000 clips of 20 frames, at half their height and width of 64 pixels."""
    clips = np.load(keras.utils.get_file(origin=MOVING_MNIST), mmap_mode="r")
    clips = clips[:, :2000, ::2, ::2].swapaxes(0, 1)[..., np.newaxis].astype("float32") / 255.0
    n_train = len(clips) * 9 // 10
    train, test = _with_next_frames(clips[:n_train]), _with_next_frames(clips[n_train:])
    return Data(train, test, n_classes=0)


def _with_next_frames(clips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return clips[:, :-1], clips[:, 1:]


LOADERS: dict[str, Callable[[], Data]] = {
    "digits": load_digit_images,
    "moving-digits": load_moving_digits,
    "moving-pairs": load_moving_pairs,
    "cifar10": load_cifar10,
    "moving-mnist": load_moving_mnist,
}


def compiled_model(data: Data, n_examples: int, arguments: argparse.Namespace) -> keras.Model:
    """The network for these data, ready for training on so many examples."""
    shape = data.train[0].shape[1:]
    size = {"filters": arguments.filters, "l2": arguments.l2, "dropout": arguments.dropout}
    chosen = {name: value for name, value in size.items() if value is not None}
    if data.n_classes:
        model = build_classifier(shape, data.n_classes, **chosen)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = ["accuracy"]
    else:
        model = build_predictor(shape, **chosen)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        metrics = []
    steps = arguments.epochs * math.ceil(n_examples / arguments.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(arguments.learning_rate, steps)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=metrics)
    return model


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=LOADERS, default="digits")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="at the start")
    parser.add_argument("--filters", type=int, help="channels of each layer")
    parser.add_argument("--l2", type=float, help="weight of the squared weights in the loss")
    parser.add_argument("--dropout", type=float, help="share of activations left out")
    parser.add_argument("--examples", type=int, help="train and test on the first so many only")
    parser.add_argument(
        "--validation", type=float, default=0.1, help="share of what is trained on, to choose by"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and dropout")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    data = LOADERS[arguments.data]().first(arguments.examples)
    train, validation = data.split(arguments.validation)
    model = compiled_model(data, len(train[0]), arguments)
    model.summary()
    model.fit(
        *train,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=validation,
        verbose=2,
    )
    results = model.evaluate(*data.test, verbose=0, return_dict=True)
    print("test: " + ", ".join(f"{name} {value:.4f}" for name, value in results.items()))


if __name__ == "__main__":
    main()
