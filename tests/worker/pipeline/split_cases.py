"""Models that are trained in stages, and how their curves are compared with plain Keras's.

A case is a function that returns a compiled model, its inputs, its targets, and the number of
stages; `weights` in its result are sample weights.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np

from launcher.worker.pipeline.part import Batch, Part
from launcher.worker.pipeline.refusals import differences, readable_graph
from launcher.worker.pipeline.stage import Stage
from launcher.worker.pipeline.weights import collect, drop_others, stage_variables
from tests.worker.exchange.fakes import FakeMailbox, Post
from tests.worker.exchange.transport.meshes import open_meshes

layers = keras.layers
EPOCHS, BATCH, N_ROWS = 3, 32, 90  # the last batch has 26 rows, which four micro-batches share


def deep_mlp():
    l2 = keras.regularizers.L2(1e-3)
    hidden = [layers.Dense(12, "tanh", kernel_regularizer=l2) for _ in range(5)]
    model = keras.Sequential([layers.Input((6,)), *hidden, layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = numbers()
    return {"model": model, "inputs": [x], "targets": y, "n_stages": 3}


def weighted_rows():
    case = deep_mlp()
    model = case["model"]
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        weighted_metrics=["accuracy"],
    )
    return {**case, "weights": np.linspace(0, 2, N_ROWS).astype("float32"), "n_stages": 2}


def skips_across_cuts():
    inputs = keras.Input((8, 8, 1))
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(4, 3, padding="same", activity_regularizer="l2")(first)
    x = layers.Add()([keras.ops.tanh(x), first])
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(x * 2.0)
    x = layers.Concatenate()([x, first, inputs])
    outputs = layers.Dense(10)(layers.Flatten()(x))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.9)
    model.compile(keras.optimizers.SGD(schedule), loss, metrics=["accuracy"])
    x, y = numbers(n_features=64, n_classes=10)
    return {"model": model, "inputs": [x.reshape(-1, 8, 8, 1)], "targets": y, "n_stages": 4}


def many_inputs_and_outputs():
    word, number = keras.Input((5,), dtype="int32", name="word"), keras.Input((6,), name="number")
    words = layers.Flatten()(layers.Embedding(20, 3)(word))
    early = layers.Dense(1, name="early")(words)
    both = layers.Concatenate()([layers.Dense(4, "relu")(words), number])
    last = layers.Dense(3, "softmax", name="last")(layers.Dense(8, "relu")(both))
    model = keras.Model({"word": word, "number": number}, {"last": last, "early": early})
    model.compile(
        "rmsprop",
        loss={"last": "sparse_categorical_crossentropy", "early": "mse"},
        loss_weights={"last": 1.0, "early": 0.3},
        metrics={"last": ["accuracy"]},
    )
    x, y = numbers()
    words = np.random.default_rng(1).integers(20, size=(N_ROWS, 5))
    by_name = {"word": words, "number": x}
    inputs = [by_name[tensor.name] for tensor in model.inputs]
    targets = {"last": y, "early": x[:, :1]}
    return {"model": model, "inputs": inputs, "fed": by_name, "targets": targets, "n_stages": 3}


def conv_lstm():
    inputs = keras.Input((3, 6, 6, 1))
    x = inputs
    for _ in range(2):
        x = layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True)(x)
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    x, y = numbers(n_features=108)
    return {"model": model, "inputs": [x.reshape(-1, 3, 6, 6, 1)], "targets": y, "n_stages": 2}


def half_precision():
    with_half = {"dtype": "mixed_bfloat16"}
    hidden = [layers.Dense(12, "tanh", **with_half) for _ in range(3)]
    model = keras.Sequential([layers.Input((6,)), *hidden, layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    x, y = numbers()
    return {"model": model, "inputs": [x], "targets": y, "n_stages": 2, "tolerance": 1e-2}


def batch_norm_and_dropout():
    inner = [layers.Dense(12), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.1)]
    model = keras.Sequential([layers.Input((6,)), *inner, layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    x, y = numbers()
    return {"model": model, "inputs": [x], "targets": y, "n_stages": 2, "tolerance": 0.2}


def numbers(n_features=6, n_classes=3):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(N_ROWS, n_features)).astype("float32")
    return x, (x[:, :n_classes] + rng.normal(scale=0.5, size=(N_ROWS, n_classes))).argmax(1)


CASES = [
    deep_mlp, weighted_rows, skips_across_cuts, many_inputs_and_outputs, conv_lstm,
    half_precision, batch_norm_and_dropout,
]  # fmt: skip


def compared(make, folder: Path):
    """How a case trains as one model, and in stages: curves, weights, and a model saved."""
    plain, split = fresh(make), [fresh(make) for _ in range(fresh(make)["n_stages"])]
    expected = plain["model"].fit(
        plain.get("fed", plain["inputs"]),
        plain["targets"],
        sample_weight=plain.get("weights"),
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
    )
    graph = readable_graph(split[0]["model"])
    cuts = even_cuts(graph, len(split))
    found, post = trained_in_stages(split, cuts)
    whole = split[0]["model"]
    whole.save(folder / f"{make.__name__}.keras")
    loaded = keras.models.load_model(folder / f"{make.__name__}.keras")
    weights = [model.get_weights() for model in (plain["model"], loaded)]
    return {
        "tolerance": plain.get("tolerance", 1e-5),
        "expected": {k: [float(v) for v in vs] for k, vs in expected.history.items()},
        "found": found,
        "weights_differ_by": max(float(abs(a - b).max()) for a, b in zip(*weights, strict=True)),
        "differences": differences(graph),
        "sent": len(post.sent),
        "n_variables": len(stage_variables(graph, cuts[0], len(graph.calls))),
        "cuts": cuts,
    }


def fresh(make):
    keras.utils.set_random_seed(3)
    return make()


def even_cuts(graph, n_stages):
    """Cuts that leave about equally many calls in each stage, in order, where it can be cut."""
    allowed = [cut for cut in range(1, len(graph.calls)) if graph.why_not(cut) is None]
    wanted = [len(graph.calls) * k / n_stages for k in range(1, n_stages)]
    cuts = []
    for place in wanted:
        left = [cut for cut in allowed if not cuts or cut > cuts[-1]]
        cuts.append(min(left, key=lambda cut: abs(cut - place)))
    return cuts


def trained_in_stages(cases, cuts):
    """The curve of a model of which each rank trains one stage."""
    post, n = Post(), len(cases)
    curves = on_mailboxes([FakeMailbox(rank, n, post) for rank in range(n)], cases, cuts)
    assert not post.messages
    return curves[-1], post


def over_tcp():
    """Curves of a model in stages over real connections, and of the same over none."""
    cases = [fresh(deep_mlp) for _ in range(6)]
    cuts = even_cuts(readable_graph(cases[0]["model"]), 3)
    with open_meshes(3) as meshes:
        curves = on_mailboxes(meshes, cases[:3], cuts)
    return {"tcp": curves[-1], "queue": trained_in_stages(cases[3:], cuts)[0]}


def on_mailboxes(mailboxes, cases, cuts):
    """Each rank's curve, all trained at the same time."""
    with ThreadPoolExecutor(len(cases)) as pool:
        futures = [
            pool.submit(stage_curve, mailbox, case, cuts)
            for mailbox, case in zip(mailboxes, cases, strict=True)
        ]
        return [future.result(timeout=120) for future in futures]


def stage_curve(mailbox, case, cuts):
    graph = readable_graph(case["model"])
    bounds = [0, *cuts, len(graph.calls)]
    own = bounds[mailbox.rank], bounds[mailbox.rank + 1]
    drop_others(graph, *own)
    stage = Stage(graph, *own)
    part = Part(mailbox, stage, n_micro_batches=4)
    curve = {}
    for _ in range(EPOCHS):
        case["model"].reset_metrics()
        for start in range(0, N_ROWS, BATCH):
            part.train_on_batch(batch_of(case, slice(start, start + BATCH)))
        if stage.is_last:
            for name, value in case["model"].get_metrics_result().items():
                curve.setdefault(name, []).append(float(value))
    collect(mailbox, graph, cuts, step=0)
    return curve


def batch_of(case, rows):
    targets, weights = case["targets"], case.get("weights")
    if isinstance(targets, dict):
        targets = {name: values[rows] for name, values in targets.items()}
    else:
        targets = targets[rows]
    inputs = [values[rows] for values in case["inputs"]]
    return Batch(inputs, targets, None if weights is None else weights[rows])
