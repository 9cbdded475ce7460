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

MOVING_MNIST = "http://www.cs.toronto.edu/~nitish/unsupervised_video/mnist_test_seq.npy"
SHIFT = 1 / 16  # of an image's height and width, at most, in training
STRIPS = 4  # an image is read as a sequence of so many strips, from top to bottom


def build_classifier(
    shape: tuple[int, ...] = (16, 16, 1),
    n_classes: int = 10,
    filters: int = 24,
    l2: float = 1e-4,
    dropout: float = 0.3,
) -> keras.Model:
    """Says what an image, or an image sequence, shows.

    Convolutions see each frame; two ConvLSTM layers go through the frames in time. An image has no
    time: after the convolutions its rows are cut into four strips, and these are the frames. So
    what a strip shows is judged by what the strips above it showed. In training, an image is
    shifted by up to a sixteenth of its size.

    The default, for images of 16 × 16 × 1, has 187,602 parameters:

        layer           output            parameters
        Conv2D 3 × 3    16 × 16 × 24      9·1·24 + 24              =    240
        Conv2D 3 × 3    16 × 16 × 24      9·24·24 + 24             =  5,208
        MaxPooling2D    8 × 8 × 24
        Reshape         4 × 2 × 8 × 24    four strips of two rows
        ConvLSTM2D      4 × 2 × 8 × 24    4·(9·(24 + 24)·24 + 24)  = 41,568
        Dropout
        ConvLSTM2D      4 × 2 × 8 × 24    4·(9·(24 + 24)·24 + 24)  = 41,568
        Flatten         1536
        Dropout
        Dense           64                1536·64 + 64             = 98,368
        Dropout
        Dense           10                64·10 + 10               =    650

    A sequence keeps its frames and has one convolution; it is pooled to a quarter of its height and
    width, and of the second ConvLSTM layer only what it gives after the last frame goes on. For
    8 × 24 × 24 × 1 that is 6 × 6 × 24 = 864 numbers to the dense layer, and 139,386 parameters.

    Args:
        shape: `(height, width, channels)` of an image, its height a multiple of 8 and its width
            of 2; or `(frames, height, width, channels)` of a sequence.
        n_classes: how many things there are to tell apart.
        filters: channels of each convolution and ConvLSTM layer.
        l2: weight of the squared weights in the loss.
        dropout: share of activations left out after the ConvLSTM and dense layers.

    Returns:
        A model with `n_classes` logits as its output.
    """
    regularizer = keras.regularizers.L2(l2)
    is_image = len(shape) == 3
    see = _image_frames if is_image else _sequence_frames
    inputs = keras.Input(shape)
    x = see(inputs, filters, regularizer)
    x = _conv_lstm(filters, regularizer, return_sequences=True)(x)
    x = layers.Dropout(dropout)(x)
    x = _conv_lstm(filters, regularizer, return_sequences=is_image)(x)
    x = layers.Flatten()(x)
    x = layers.Dropout(dropout)(x)
    x = layers.Dense(64, activation="relu", kernel_regularizer=regularizer)(x)
    x = layers.Dropout(dropout)(x)
    return keras.Model(inputs, layers.Dense(n_classes)(x), name="dconvlstm")


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


@dataclass(frozen=True, slots=True)
class Data:
    """What a model learns from, and what it is tested on: each `(examples, answers)`.

    Attributes:
        n_classes: of the answers; 0 where the answers are frames.
    """

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    n_classes: int = 10

    def first(self, n_examples: int | None) -> "Data":
        """The first so many of each part; all of them for None."""
        train, test = (tuple(x[:n_examples] for x in part) for part in (self.train, self.test))
        return Data(train, test, self.n_classes)


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


def compiled_model(data: Data, arguments: argparse.Namespace) -> keras.Model:
    """The network for these data, ready for training."""
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
    steps = arguments.epochs * math.ceil(len(data.train[0]) / arguments.batch_size)
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
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and dropout")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    data = LOADERS[arguments.data]().first(arguments.examples)
    model = compiled_model(data, arguments)
    model.summary()
    model.fit(*data.train, batch_size=arguments.batch_size, epochs=arguments.epochs, verbose=2)
    results = model.evaluate(*data.test, verbose=0, return_dict=True)
    print("test: " + ", ".join(f"{name} {value:.4f}" for name, value in results.items()))


if __name__ == "__main__":
    main()
