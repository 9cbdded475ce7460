"""Several workers that die some steps after a checkpoint, and others that go on from it."""

import contextlib

import case_tools as scripts
import numpy as np

from launcher.worker import files, snapshot
from launcher.worker.channel import Channel
from launcher.worker.checkpoints import Checkpoints
from launcher.worker.fits import watch
from launcher.worker.job import ORDER_CHECKPOINT
from launcher.worker.session import Session
from tests.fakes import FakeKeeper, script_folder
from tests.worker.patience import PATIENCE_S

KEEP_AFTER, CRASH_AFTER = 8, 11  # of 15 steps in 3 epochs


class CrashError(BaseException):
    """Stands for the end of a process."""


class Relay:
    """Hands what a framework does to a session, or to nobody."""

    session = None

    def run_fit(self, call, train):
        return self.session.run_fit(call, train) if self.session else train()

    def run_step(self, model, execute):
        return self.session.run_step(model, execute) if self.session else execute()


relay = Relay()
watched = set()


def crash_in_mid_epoch(keras, engine):
    """The curve after a crash, from a checkpoint in mid-epoch, and without one."""
    if keras not in watched:
        watch(keras, relay)
        watched.add(keras)
    keeper = FakeKeeper() if engine.rank == 0 else None
    whole = _run(keras, engine, None, None)
    with contextlib.suppress(CrashError):
        _run(keras, engine, keeper, None, crashes=True)
    kept = snapshot.load(_from_rank_0(engine, keeper.checkpoints[-1] if keeper else b""))
    assert kept["position"]["total_steps"] >= KEEP_AFTER
    resumed = _run(keras, engine, None, kept)
    return {"whole": whole, "resumed": resumed}


def _run(keras, engine, keeper, resume, crashes=False):
    """One process's worth of a run."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(2)
    channel = Channel(keeper, lambda answer: answer)
    with script_folder() as folder:
        checkpoints = Checkpoints(channel, folder, files.listing(folder), PATIENCE_S)
        session = Session(engine.parallel, channel, checkpoints, rank=engine.rank, resume=resume)
        relay.session = session
        try:
            return _train(keras, engine, crashes)
        finally:
            relay.session = None
            channel.close()


def _train(keras, engine, crashes):
    x, y = scripts.data(150)
    n_steps = 0

    class Fate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            nonlocal n_steps
            n_steps += 1
            if crashes and n_steps == KEEP_AFTER - 1 and engine.rank == 0:
                engine.parallel.request(ORDER_CHECKPOINT)
            if crashes and n_steps == CRASH_AFTER:
                raise CrashError

    model = scripts.compiled(scripts.mlp(keras))
    plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5)
    history = model.fit(
        x,
        y,
        batch_size=32,
        epochs=3,
        validation_data=(x, y),
        verbose=0,
        callbacks=[plateau, Fate()],
    )
    return scripts.curve(history, weights=model.get_weights())


def _from_rank_0(engine, content):
    """The bytes that rank 0 has, on every rank."""
    sums = engine.parallel.exchange.sum_arrays
    (length,) = sums([np.array([len(content)], np.float64)], "length")
    mine = np.zeros(int(length[0]), np.float64)
    if content:
        mine[:] = np.frombuffer(content, np.uint8)
    (shared,) = sums([mine], "checkpoint")
    return shared.astype(np.uint8).tobytes()
