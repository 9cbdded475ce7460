"""One of several processes that train scripts' models in stages, each case as a script would.

Arguments: framework, number of ranks, rank, ports, result file. The first rank runs all cases with
plain Keras before.
"""

import os
import pickle
import sys
import traceback
from pathlib import Path

from tests.worker.patience import PATIENCE_S, be_patient

SECRET = b"secret of the test".ljust(32)


def main():
    _, n, rank, ports, out = sys.argv[1:6]
    n, rank = int(n), int(rank)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    be_patient()
    os.chdir(Path(out).parent)
    Path(str(rank)).mkdir()
    os.chdir(str(rank))
    from launcher.worker import checkpoints, spool
    from launcher.worker.pipeline import weights
    from tests.worker.pipeline import stages_cases

    # As large models are treated.
    spool.FROM_BYTES, weights.IN_FLIGHT_BYTES, checkpoints.PIECE_BYTES = 0, 0, 1000

    results = {}
    if rank == 0:  # before Keras is changed
        results["plain"] = results_of(stages_cases.plain, stages_cases.CASES)
    results["stages"] = results_of(Ranks(n, rank, ports.split(",")).run, stages_cases.CASES)
    Path(out).write_bytes(pickle.dumps(results))


def results_of(run, cases):
    """What each case brings; its error is a result, too."""
    results = {}
    for case in cases:
        try:
            results[case.__name__] = run(case)
        except Exception:  # noqa: BLE001 - see above
            results[case.__name__] = {"error": traceback.format_exc()}
    return results


class Ranks:
    """This rank's engine and sessions, as a worker has them."""

    def __init__(self, n, rank, ports):
        from launcher.worker.exchange.transport.mesh import open_mesh

        addresses = [[f"127.0.0.1:{port}"] for port in ports]
        self.rank, self.n = rank, n
        self.mesh = open_mesh(rank, addresses, SECRET, timeout_s=PATIENCE_S)
        self.parallel = None
        self.session = None

    def run_fit(self, call, train):
        return self.session.run_fit(call, train)

    def run_step(self, model, execute):
        logs = self.session.run_step(model, execute)
        self.n_steps += 1
        if self.n_steps == self.stop_after and self.rank == 0:
            from launcher.worker.job import ORDER_STOP

            self.session.order(ORDER_STOP)
        return logs

    def run(self, case):
        """What a case brings: uninterrupted, and stopped and resumed if it says where."""
        from launcher.worker import snapshot

        kept, found = None, None
        for stop_after in (*getattr(case, "stops", ()), None):
            resume = None if kept is None else snapshot.load(kept)
            found, kept = self.segment(case, stop_after, resume)
        return found

    def segment(self, case, stop_after, resume):
        import keras

        from launcher.worker import files
        from launcher.worker.channel import Channel
        from launcher.worker.checkpoints import Checkpoints
        from launcher.worker.script import Stopped
        from launcher.worker.session import Session
        from tests.fakes import FakeKeeper
        from tests.worker.pipeline.stages_cases import seeded

        keras.backend.clear_session()
        keeper = FakeKeeper()
        channel = Channel(keeper, lambda answer: answer)
        checkpoints = Checkpoints(channel, Path.cwd(), files.listing(Path.cwd()), PATIENCE_S)
        self._engine(case)
        self.session = Session(self.parallel, channel, checkpoints, rank=self.rank, resume=resume)
        self.n_steps, self.stop_after = 0, stop_after
        seeded()
        try:
            found = case()
            self.session.finish()
        except Stopped:
            kept = keeper.checkpoints[-1] if self.rank == 0 else None
            return None, self._shared(kept)
        models = [detail for kind, detail in keeper.calls if kind == "model"]
        return {**found, "kept_models": len(models)}, None

    def _engine(self, case):
        """One engine for all cases: Keras is patched once; the cuts are the case's."""
        import keras

        from launcher.worker.fits import watch
        from launcher.worker.job import Stages
        from launcher.worker.model_parallel import ModelParallel

        cuts, n_layers = case.cut[self.n]
        stages = Stages(cuts, n_layers, 4, SECRET)
        if self.parallel is None:
            self.parallel = ModelParallel(self.mesh, stages)
            self.parallel.install(["keras"])
            watch(keras, self)
        self.parallel._stages = stages
        self.parallel._split.clear()
        self.parallel._fitted, self.parallel._has_ended = None, False
        self.parallel.reset()

    def _shared(self, data):
        """Rank 0's bytes on all ranks, as the object store would bring them."""
        import numpy as np

        notices = self.parallel._notices
        size = int(notices.tell(0, [float(len(data or b""))]).wait()[0])
        padded = np.frombuffer((data or b"\0" * size).ljust(-(-size // 8) * 8, b"\0"), np.float64)
        return notices.tell(0, padded).wait().tobytes()[:size]


if __name__ == "__main__":
    main()
