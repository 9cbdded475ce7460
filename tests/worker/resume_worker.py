"""A process that runs cases uninterrupted, and stopped and resumed, with one framework.

Arguments: framework, result file, names of cases with commas between.
"""

import gc
import os
import pickle
import random
import sys
import traceback
from pathlib import Path

import numpy as np

from launcher.worker import files, script, snapshot
from launcher.worker.channel import Channel
from launcher.worker.checkpoints import Checkpoints
from launcher.worker.data_parallel import DataParallel
from launcher.worker.exchange.alone import Alone
from launcher.worker.fits import watch
from launcher.worker.job import ORDER_CHECKPOINT, ORDER_STOP
from launcher.worker.script import Stopped
from launcher.worker.session import Session
from tests.fakes import FakeKeeper, script_folder
from tests.worker.patience import PATIENCE_S, be_patient
from tests.worker.resume_cases import CASES, CRASHES, STOPS


class CrashError(BaseException):
    """Stands for the end of a process."""


class Relay:
    """Hands what a framework does to the session of the segment that runs."""

    def __init__(self, parallel):
        self.parallel, self.session = parallel, None

    def begin(self, session, stop_after=None, keep_after=None, crash_after=None):
        self.session, self.n_steps = session, 0
        self.stop_after, self.keep_after, self.crash_after = stop_after, keep_after, crash_after

    def run_fit(self, call, train):
        return self.session.run_fit(call, train)

    def run_step(self, model, execute):
        from launcher.worker.fits import steps_per_execution

        def ordered():
            logs = execute()
            self.n_steps += steps_per_execution(model)
            if self.n_steps == self.stop_after:
                self.session.order(ORDER_STOP)
            if self.n_steps == self.keep_after:
                self.parallel.request(ORDER_CHECKPOINT)
            return logs

        logs = self.session.run_step(model, ordered)
        if self.n_steps == self.crash_after:
            raise CrashError
        return logs


def main():
    framework, out, names = sys.argv[1:4]
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    be_patient()
    parallel = DataParallel(Alone())
    keras = __import__(framework)
    parallel.install([framework])
    relay = Relay(parallel)
    watch(keras, relay)
    gc.freeze()  # or each segment's collection of garbage goes through all of TensorFlow
    results = {}
    for name, case in CASES.items():
        if name in names.split(","):
            for stops in ((), *STOPS[case]):
                results[name, stops] = attempt(stopped_and_resumed, keras, case, relay, stops)
            for crash in CRASHES.get(case, ()):
                found = attempt(crashed_and_resumed, keras, case, relay, crash)
                results[name, "crash", crash] = found
    Path(out).write_bytes(pickle.dumps(results))


def attempt(run, keras, case, relay, steps):
    try:
        return run(keras, case, relay, steps)
    except Exception:  # noqa: BLE001 - the test shows it
        return {"error": traceback.format_exc()}


def stopped_and_resumed(keras, case, relay, stops):
    """Run a case in as many segments as it takes; what came of it."""
    keeper, resume, n_steps, found = FakeKeeper(), None, 0, None
    for stop in (*stops, None):
        after = None if stop is None else stop - n_steps
        found = segment(keras, case, relay, keeper, resume, after)
        n_steps += relay.n_steps
        if stop is not None:
            assert found is None, f"did not stop after step {stop}"
            resume = snapshot.load(keeper.checkpoints[-1])
            assert resume["position"]["total_steps"] == stop
    return outcome(found, keeper, n_steps)


def crashed_and_resumed(keras, case, relay, steps):
    """Run a case until its process dies some steps after a checkpoint; go on from that."""
    keep_after, crash_after = steps
    keeper = FakeKeeper()
    found = segment(
        keras, case, relay, keeper, None, keep_after=keep_after, crash_after=crash_after
    )
    assert found is None
    resume = snapshot.load(keeper.checkpoints[-1])
    n_kept = resume["position"]["total_steps"]
    assert keep_after <= n_kept <= crash_after
    found = segment(keras, case, relay, keeper, resume)
    return outcome(found, keeper, n_kept + relay.n_steps)


def outcome(found, keeper, n_steps):
    histories, model = found
    return {
        "histories": [(h.history, h.epoch, h.params) for h in histories],
        "weights": [np.asarray(w) for w in model.get_weights()],
        "n_steps": n_steps,
        "warnings": [detail["text"] for kind, detail in keeper.calls if kind == "warning"],
    }


def segment(keras, case, relay, keeper, resume, stop_after=None, **ends):
    """One process's worth of a run; None if it was stopped or has died."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    random.seed(1)
    relay.parallel.reset()
    channel = Channel(keeper, lambda answer: answer)
    with script_folder() as folder:
        listing = files.listing(folder)
        if keeper.artifacts is not None and resume is not None:
            script.unpack(keeper.artifacts, folder)
        checkpoints = Checkpoints(channel, folder, listing, PATIENCE_S)
        session = Session(relay.parallel, channel, checkpoints, rank=0, resume=resume)
        relay.begin(session, stop_after, **ends)
        try:
            found = case(keras)
            session.finish()
        except (Stopped, CrashError):
            return None
        else:
            return found
        finally:
            channel.close()


if __name__ == "__main__":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    main()
