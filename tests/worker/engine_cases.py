"""Cases about the engine itself; each is a function of the Keras module and an `Engine`."""

import functools
import hashlib
import threading
import time
from dataclasses import dataclass
from typing import Any

import case_tools as scripts
import input_cases
import model_cases
import numpy as np
import tensorflow as tf
from crash_cases import crash_in_mid_epoch

from launcher.errors import ScriptError


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine under test, as the session sees it."""

    parallel: Any
    rank: int
    n: int

    def callback(self, keras, after_batch=lambda: None):
        parallel = self.parallel

        class Session(keras.callbacks.Callback):
            def on_train_begin(self, logs=None):
                parallel.prepare(self.model)

            def on_train_batch_end(self, batch, logs=None):
                after_batch()

            def on_epoch_end(self, epoch, logs=None):
                parallel.check_data()

        return Session()


def streams(keras, kind):
    """Fresh training data of a kind, with fresh seeds, and the arguments of `fit`."""
    keras.utils.set_random_seed(2)
    x, y = scripts.data(100)
    if kind == "arrays":
        return {"x": x, "y": y, "batch_size": 24}
    if kind == "batch_shuffled":
        return {"x": x, "y": y, "batch_size": 24, "shuffle": "batch"}
    if kind == "dataset":
        return {"x": scripts.dataset(x, y, 24)}
    if kind == "augmented":
        ds = scripts.dataset(x, y, 24)
        return {"x": ds.map(lambda a, b: (a + tf.random.normal(tf.shape(a)), b))}
    if kind == "unknown_length":
        return {"x": scripts.dataset(x, y, 24).filter(lambda a, b: tf.reduce_all(b >= 0))}
    if kind == "infinite":
        return {"x": scripts.dataset(x, y, 24).repeat(), "steps_per_epoch": 5}
    return {"x": scripts.py_dataset(keras, x, y, 24)}


def replay_goes_on(keras, engine):
    """Hashes after each batch, from epoch 2 step 2 on: uninterrupted and after a replay."""
    results = {}
    kinds = ["arrays", "batch_shuffled", "dataset", "augmented", "unknown_length", "infinite", "py"]
    for kind in kinds:
        seen = {}
        for run in ("whole", "replayed"):
            arguments, hashes = streams(keras, kind), []
            model = scripts.compiled(scripts.mlp(keras))
            if run == "replayed":
                engine.parallel.replay(2, 2)
            callback = engine.callback(
                keras, lambda h=hashes: h.append(engine.parallel.data_hash())
            )
            first = 2 if run == "replayed" else 0
            model.fit(**arguments, epochs=4, initial_epoch=first, verbose=0, callbacks=[callback])
            ends = getattr(arguments["x"], "n_epochs", None)
            seen[run] = (hashes[12:] if run == "whole" else hashes, ends)
        results[kind] = seen
    return results


def request_is_agreed(keras, engine):
    """Rank 0 asks from another thread; what all ranks read after each step."""
    x, y = scripts.data(200)
    read, parallel = [], engine.parallel

    def after_batch():
        read.append(parallel.agreed())
        if engine.rank == 0 and len(read) == 3:
            thread = threading.Thread(target=parallel.request, args=(2,))
            thread.start()
            thread.join()

    callback = engine.callback(keras, after_batch)
    scripts.compiled(scripts.mlp(keras)).fit(x, y, batch_size=20, verbose=0, callbacks=[callback])
    return read


def message(call):
    try:
        call()
    except ScriptError as error:
        return str(error)
    return "nothing raised"


def unseeded_data(keras, engine):
    x, y = scripts.data(60)
    x = x[np.random.default_rng().permutation(60)]
    model = scripts.compiled(scripts.mlp(keras))
    callbacks = [engine.callback(keras, engine.parallel.check_data)]
    return message(lambda: model.fit(x, y, verbose=0, callbacks=callbacks))


def python_generator(keras, engine):
    x, y = scripts.data(60)

    def batches():
        while True:
            yield x, y

    model = scripts.compiled(scripts.mlp(keras))
    return message(lambda: model.fit(batches(), steps_per_epoch=2, verbose=0))


def own_loop_stops(keras, engine):
    """Rank 0 asks to stop in loops of a script's own; the steps made, and whether lines follow."""
    from launcher.worker.job import ORDER_STOP
    from launcher.worker.own_loop_session import OwnLoopSession
    from launcher.worker.own_loop_watcher import Unwatched
    from launcher.worker.script import Stopped

    x, y = scripts.data(600)
    ds, loss_of, seen = scripts.dataset(x, y, 20), scripts.cross_entropy(keras), {}

    class Asking(OwnLoopSession):
        def trained(self, reading, n_rows, step_s):
            super().trained(reading, n_rows, step_s)
            if engine.rank == 0 and self._n_steps == 4:
                engine.parallel.request(ORDER_STOP)

    for kind in ("eager", "function"):
        model, kept = scripts.mlp(keras), []
        optimizer = keras.optimizers.SGD(0.1)
        if kind == "function" and hasattr(optimizer, "build"):
            optimizer.build(model.trainable_variables)

        def train(model=model, optimizer=optimizer):
            for xs, ys in ds:
                with tf.GradientTape() as tape:
                    loss = loss_of(ys, model(xs))
                weights = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        keep_results = functools.partial(kept.append, "results")
        engine.parallel.own.watcher = Asking(
            engine.parallel, Silent(), Silent(), kept.append, keep_results
        )
        try:
            (tf.function(train) if kind == "function" else train)()
            kept.append("went on")
        except Stopped:
            steps = optimizer.iterations
            seen[kind] = [int(steps.numpy()), kept]
        engine.parallel.reset()
    engine.parallel.own.watcher = Unwatched()
    return seen


class Silent:
    """A channel without a driver, or notes on what a worker does that nobody reads."""

    def emit(self, kind, **detail):
        pass

    def enter(self, phase):
        pass

    def tick(self):
        pass


def unequal_shares(keras, engine):
    """The same cases with other shares, one of them so small that its rank mostly idles."""
    results = {}
    for shares in ([3.0, 1.0, 1.5][: engine.n], [1.0, 0.004, 0.02][: engine.n]):
        engine.parallel.shares = tuple(shares)
        for name in ("fit_batch_norm", "fit_masked", "fit_metrics", "predict_shapes"):
            keras.utils.set_random_seed(1)
            results.setdefault(name, []).append(
                getattr(input_cases if name == "predict_shapes" else model_cases, name)(keras)
            )
    engine.parallel.shares = (1.0,) * engine.n
    return results


def slices_follow_speed(keras, engine):
    """Curves with slices that follow speed and with equal ones; rank 0's part of each batch.

    Rank 0 needs twice as much time for a row as the others, from step 30 on four times.
    """
    x, y = scripts.data(24 * 60)
    parallel, parts, n_steps = engine.parallel, [], 0

    class Slow(scripts.mlp(keras).__class__):
        is_slow = True

        def train_step(self, data):
            def work(rows):
                slow = 1.0 if engine.rank else 2.0 if n_steps < 30 else 4.0
                time.sleep(1e-3 * slow * len(rows))

            if self.is_slow:
                tf.numpy_function(work, [data[0]], [])
            return super().train_step(data)

    def after_batch():
        nonlocal n_steps
        n_steps += 1
        if engine.rank == 0:
            parts.append(float(parallel.state.weight.numpy()))

    curves = {}
    parallel.shares = (1.0,) * engine.n
    for name, is_slow in (("following", True), ("equal", False)):
        keras.utils.set_random_seed(1)
        model = Slow(scripts.mlp(keras).layers)
        model.is_slow = is_slow
        scripts.compiled(model)
        fitted = model.fit(
            *(x, y), batch_size=24, verbose=0, callbacks=[engine.callback(keras, after_batch)]
        )
        curves[name] = scripts.curve(fitted, predicted=model.predict(x[:50], verbose=0))
        parallel.reset()
        parallel.shares = (1.0,) * engine.n
    return {"curves": curves, "parts": parts[:60]}


def different_weights(keras, engine):
    """Ranks start from different weights; after preparing, and after training."""
    x, y = scripts.data(60)
    results = []
    for lazy in (False, True):
        keras.utils.set_random_seed(10 + engine.rank)
        model = scripts.subclassed(keras) if lazy else scripts.mlp(keras)
        keras.utils.set_random_seed(3)
        scripts.compiled(model).fit(x, y, verbose=0, callbacks=[engine.callback(keras)])
        results.append([np.abs(w).sum() for w in model.get_weights()])
    return results


def epoch_weights(keras, engine):
    """Digests of weights and optimizer state after every epoch, for several kinds of models."""
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            arrays = [*self.model.get_weights(), *(v.numpy() for v in variables(optimizer))]
            parts = [np.ascontiguousarray(array).tobytes() for array in arrays]
            seen.append(hashlib.sha256(b"".join(parts)).hexdigest())

    x, y = scripts.data(101)
    tokens, marks = scripts.sequences()
    dense, wordy = scripts.mlp(keras), scripts.tagger(keras)
    for model, inputs, targets in ((dense, x, y), (wordy, tokens, marks)):
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.5)
        loss = "sparse_categorical_crossentropy" if model is dense else "binary_crossentropy"
        scripts.compiled(model, optimizer, loss)
        model.fit(inputs, targets, batch_size=23, epochs=3, verbose=0, callbacks=[Watch()])
    return seen


def dropout_masks(keras, engine):
    """What a dropout layer lets through on each rank, prepared once and twice."""
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dropout(0.5)])
    engine.parallel.prepare(model)
    first = np.asarray(model(np.ones((2, 64), "float32"), training=True)).ravel()
    engine.parallel.prepare(model)
    second = np.asarray(model(np.ones((2, 64), "float32"), training=True)).ravel()
    return [first, second]


def local_batch_norm(keras, engine):
    """Per-worker moments; the moving averages are combined at each epoch's end."""
    engine.parallel.sync_batchnorm = False
    x, y = scripts.data(65)
    norm = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential([keras.layers.Input((6,)), norm, keras.layers.Dense(3, "softmax")])
    scripts.compiled(model)
    history = model.fit(x, y, batch_size=32, epochs=2, validation_data=(x, y), verbose=0)
    engine.parallel.sync_batchnorm = True
    return [history.history["val_loss"], *[w.tolist() for w in norm.get_weights()[2:]]]


def stop_in_mid_epoch(keras, engine):
    """Epoch logs after stopping at epoch 1, step 3 and going on, and without a stop."""
    x, y = scripts.data(150)
    parallel, kept, n_steps = engine.parallel, {}, 0

    def keep(model):
        if n_steps == 8:
            kept["weights"] = model.get_weights()
            kept["optimizer"] = [v.numpy() for v in variables(model.optimizer)]
            kept["metrics"] = parallel.metric_state(model)

    def after_batch():
        nonlocal n_steps
        n_steps += 1
        keep(model)

    keras.utils.set_random_seed(2)
    model = scripts.compiled(scripts.mlp(keras))
    callbacks = [engine.callback(keras, after_batch)]
    whole = model.fit(x, y, batch_size=32, epochs=3, verbose=0, callbacks=callbacks)
    keras.utils.set_random_seed(2)
    model = scripts.compiled(scripts.mlp(keras))
    parallel.replay(1, 3)

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            model.set_weights(kept["weights"])
            model.optimizer.build(model.trainable_variables)
            for variable, value in zip(variables(model.optimizer), kept["optimizer"], strict=True):
                variable.assign(value)

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                parallel.load_metric_state(model, kept["metrics"])

    rest = model.fit(
        x, y, batch_size=32, epochs=3, initial_epoch=1, verbose=0, callbacks=[Restore()]
    )
    return {
        "whole": {k: v[1:] for k, v in scripts.curve(whole).items()},
        "resumed": scripts.curve(rest),
    }


def variables(optimizer):
    found = optimizer.variables
    return found() if callable(found) else found


def jit_is_off(keras, engine):
    x, y = scripts.data(40)
    model = scripts.compiled(scripts.mlp(keras), jit_compile=True)
    return scripts.curve(model.fit(x, y, verbose=0))


N_WORKERS_BY_CASE = {
    replay_goes_on: {1, 2},
    stop_in_mid_epoch: {1, 2},
    crash_in_mid_epoch: {2},
    request_is_agreed: {1, 2, 3},
    unseeded_data: {2, 3},
    python_generator: {2, 3},
    own_loop_stops: {1, 2, 3},
    unequal_shares: {2, 3},
    different_weights: {2, 3},
    epoch_weights: {2, 3, 4},
    slices_follow_speed: {2, 3},
    dropout_masks: {2, 3},
    local_batch_norm: {2, 3},
    jit_is_off: {2},
}


def cases(n):
    """The cases for a number of workers, by name."""
    return {case.__name__: case for case, ns in N_WORKERS_BY_CASE.items() if n in ns}
