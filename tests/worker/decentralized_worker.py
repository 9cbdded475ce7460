"""One process of a group that trains decentralized: trains some models as rank R of N.

Arguments: framework, number of workers, rank, ports, result file; sites of the ranks, separated by
commas, where each has data of its own.
"""

import os
import pickle
import sys
from pathlib import Path

import numpy as np

SECRET = b"secret of the tests' runs".ljust(32)
N_ROWS, N_COLUMNS, BATCH, EPOCHS = 480, 12, 48, 8


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_ROWS, N_COLUMNS)).astype(np.float32)
    y = (x @ rng.normal(size=N_COLUMNS) > 0).astype(np.float32)
    return x, y


def scaled(keras, rank):
    """An optimizer against underflow, whose scale differs from other ranks'."""
    inner = keras.optimizers.SGD(0.3, momentum=0.8)
    return keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=4.0 ** (4 * rank))


def dense(keras, n_hidden, optimizer=None):
    model = keras.Sequential(
        [
            keras.layers.Input((N_COLUMNS,)),
            keras.layers.Dense(n_hidden, activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return model


def train(keras, parallel, n_hidden, optimizer):
    x, y = data()
    model = dense(keras, n_hidden, optimizer)
    with_start = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: prepare(model))

    def prepare(model):
        parallel.prepare(model)  # as the session does

    history = model.fit(
        x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[with_start],
        validation_split=0.1,
    )  # fmt: skip
    figures = parallel.figures()
    return {
        "loss": history.history["loss"],
        "accuracy": model.evaluate(x, y, verbose=0)[1],
        "n_iterations": int(model.optimizer.iterations.numpy()),
        "rows": parallel.n_examples,
        "n_predictions": len(model.predict(x, verbose=0)),
        "n_steps": figures.n_steps,
        "exchange_loss": figures.loss,
        "n_percent": figures.n_percent,
        "sent_bytes": parallel.sent_bytes(),
    }


def train_at_site(keras, parallel, rank):
    """The site's rows lie on one side of zero in the first column; the first one's are fewer."""
    x, y = data()
    here = np.flatnonzero((x[:, 0] > 0) == (rank == 0))[: 96 if rank == 0 else 192]
    keras.utils.set_random_seed(1)
    model = dense(keras, 16)
    with_start = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: parallel.prepare(model))
    history = model.fit(
        x[here], y[here], batch_size=BATCH, epochs=2 * EPOCHS, verbose=0, callbacks=[with_start]
    )
    found = {"n_iterations": int(model.optimizer.iterations.numpy()), "rows": parallel.n_examples}
    parallel.settle()
    return found | {
        "loss": history.history["loss"],
        "accuracy": model.evaluate(x, y, verbose=0)[1],
        "weights": model.get_weights(),
        "positions": parallel.positions(model),
    }


def own_loop(keras):
    """What a script gets to hear that applies gradients by itself."""
    model = dense(keras, 4)
    try:
        model.optimizer.apply_gradients([(v * 0, v) for v in model.trainable_variables])
    except Exception as error:  # noqa: BLE001 - is the result
        return f"{type(error).__name__}: {error}"
    return "applied"


def two_models(keras):
    """What a script gets to hear whose train_step trains two models by themselves."""
    import tensorflow as tf

    class Pair(keras.Model):
        def train_step(self, data):
            x, _ = data
            for model, optimizer in parts:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(model(x))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return {"loss": loss}

        def call(self, x):
            return parts[0][0](x)

    parts = [(dense(keras, 4), keras.optimizers.SGD(0.1)) for _ in range(2)]
    pair = Pair()
    pair.compile(loss="mse")
    try:
        pair.fit(*data(), batch_size=BATCH, epochs=1, verbose=0)
    except Exception as error:  # noqa: BLE001 - is the result
        return f"{type(error).__name__}: {error}"
    return "trained"


def main():
    framework, _, rank, ports, out, *sites = sys.argv[1:]
    rank, sites = int(rank), tuple(",".join(sites).split(",")) if sites else ()
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if framework == "tf_keras":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    from launcher.worker.decentralized import new_decentralized
    from launcher.worker.job import Decentralized

    addresses = [[f"127.0.0.1:{port}"] for port in ports.split(",")]
    parallel = new_decentralized(Decentralized(SECRET, site_by_rank=sites), rank, addresses)
    keras = __import__(framework)
    parallel.install([framework])
    results = {}
    if sites:
        finish(parallel, train_at_site(keras, parallel, rank), out)
    for n_hidden in (16, 24):  # the second model has links of its own
        keras.utils.set_random_seed(1)
        optimizer = scaled(keras, rank) if n_hidden == 24 else None
        results[n_hidden] = train(keras, parallel, n_hidden, optimizer)
        parallel.reset()
    parallel.settle()
    results["own_loop"] = own_loop(keras)
    results["two_models"] = two_models(keras)
    finish(parallel, results, out)


def finish(parallel, results, out):
    parallel.exchange.close()
    Path(out).write_bytes(pickle.dumps(results))
    os._exit(0)  # collecting all those graphs would take seconds


if __name__ == "__main__":
    main()
