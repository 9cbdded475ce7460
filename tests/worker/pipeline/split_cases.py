"""Models that are trained in stages, and how their curves are compared with plain Keras's.

A case is a function that returns a compiled model, its inputs, its targets, and the number of
stages. `weights` are sample weights, `fed` is what `fit` is given where that is not the list of
inputs; `network` says that the stages talk over real connections, `evaluated` that the model is
evaluated after training.
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
from tests.worker.patience import PATIENCE_S

layers = keras.layers
EPOCHS, BATCH, N_ROWS = 2, 32, 90  # the last batch has 26 rows, which four micro-batches share


def deep_mlp():
    l2 = keras.regularizers.L2(1e-3)
    hidden = [layers.Dense(12, "tanh", kernel_regularizer=l2) for _ in range(5)]
    model = keras.Sequential([layers.Input((6,)), *hidden, layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = numbers()
    more = {"network": True, "evaluated": True}
    return {"model": model, "inputs": [x], "targets": y, "n_stages": 3, **more}


def weighted_rows():
    case = deep_mlp()
    model = case["model"]
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "sparse_categorical_crossentropy",
        weighted_metrics=["accuracy"],
    )
    case |= {"n_stages": 2, "network": False, "evaluated": False}
    return {**case, "weights": np.linspace(0, 2, N_ROWS).astype("float32")}


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
    data = {"inputs": inputs, "fed": by_name, "targets": targets}
    return {"model": model, **data, "n_stages": 3, "evaluated": True}


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
    expected = plain_curve(plain)
    graph = readable_graph(split[0]["model"])
    cuts = even_cuts(graph, len(split))
    found, n_sent = trained_in_stages(split, cuts)
    split[0]["model"].save(folder / f"{make.__name__}.keras")
    loaded = keras.models.load_model(folder / f"{make.__name__}.keras")
    weights = [model.get_weights() for model in (plain["model"], loaded)]
    return {
        "tolerance": plain.get("tolerance", 1e-5),
        "expected": expected,
        "found": found,
        "weights_differ_by": max(float(abs(a - b).max()) for a, b in zip(*weights, strict=True)),
        "differences": differences(graph),
        "n_sent": n_sent,
        "n_variables": len(stage_variables(graph, cuts[0], len(graph.calls))),
        "cuts": cuts,
    }


def plain_curve(case):
    """The curve of the model that `fit` trains."""
    data = case.get("fed", case["inputs"]), case["targets"]
    fitted = case["model"].fit(
        *data, BATCH, EPOCHS, sample_weight=case.get("weights"), shuffle=False, verbose=0
    )
    curve = {name: [float(value) for value in values] for name, values in fitted.history.items()}
    if case.get("evaluated"):
        results = case["model"].evaluate(*data, BATCH, verbose=0, return_dict=True)
        curve |= {f"test_{name}": [float(value)] for name, value in results.items()}
    return curve


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
    """The curve of a model of which each rank trains one stage, and how many messages it took."""
    post, n = Post(), len(cases)
    if cases[0].get("network"):
        with open_meshes(n) as meshes:
            return on_mailboxes(meshes, cases, cuts)[-1], None
    curves = on_mailboxes([FakeMailbox(rank, n, post) for rank in range(n)], cases, cuts)
    assert not post.messages
    return curves[-1], len(post.sent)


def on_mailboxes(mailboxes, cases, cuts):
    """Each rank's curve, all trained at the same time."""
    with ThreadPoolExecutor(len(cases)) as pool:
        futures = [
            pool.submit(stage_curve, mailbox, case, cuts)
            for mailbox, case in zip(mailboxes, cases, strict=True)
        ]
        return [future.result(timeout=PATIENCE_S) for future in futures]


def stage_curve(mailbox, case, cuts):
    graph = readable_graph(case["model"])
    bounds = [0, *cuts, len(graph.calls)]
    own = bounds[mailbox.rank], bounds[mailbox.rank + 1]
    drop_others(graph, *own)
    stage = Stage(graph, *own)
    part = Part(mailbox, stage, n_micro_batches=4)
    curve = {}
    for _ in range(EPOCHS):
        for name, value in epoch_results(case, stage, part.train_on_batch):
            curve.setdefault(name, []).append(value)
    if case.get("evaluated"):
        for name, value in epoch_results(case, stage, part.test_on_batch):
            curve[f"test_{name}"] = [value]
    collect(mailbox, graph, cuts, step=0)
    return curve


def epoch_results(case, stage, take_part):
    """What the last stage counted of an epoch; nothing at the others."""
    case["model"].reset_metrics()
    for start in range(0, N_ROWS, BATCH):
        take_part(batch_of(case, slice(start, start + BATCH)))
    results = case["model"].get_metrics_result() if stage.is_last else {}
    return [(name, float(value)) for name, value in results.items()]


def batch_of(case, rows):
    targets, weights = case["targets"], case.get("weights")
    if isinstance(targets, dict):
        targets = {name: values[rows] for name, values in targets.items()}
    else:
        targets = targets[rows]
    inputs = [values[rows] for values in case["inputs"]]
    return Batch(inputs, targets, None if weights is None else weights[rows])
