"""Profiles scripts with loops of their own in one process; writes what was measured.

Arguments: result file.
"""

import contextlib
import gc
import os
import pickle
import sys
import traceback
from pathlib import Path


class End(BaseException):
    """Enough is known."""


def end():
    raise End


def main() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    from launcher.worker.data_parallel import DataParallel
    from launcher.worker.echo import Echo

    echo = Echo()
    parallel = DataParallel(echo)
    parallel.install(["keras"])
    sys.path.insert(0, str(Path(__file__).parent))
    import own_profile_cases

    from launcher.worker import own_loop_profile

    own_loop_profile.MEASURE_S = 0.3
    gc.freeze()  # or each case's collection of garbage goes through all of TensorFlow
    results = {}
    for name in own_profile_cases.NAMES:
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        try:
            results[name] = measured(getattr(own_profile_cases, name), keras, parallel, echo)
        except Exception:  # noqa: BLE001 - a case's failure is its result
            results[name] = traceback.format_exc()
    Path(sys.argv[1]).write_bytes(pickle.dumps(results))
    os._exit(0)


def measured(case, keras, parallel, echo):
    from launcher.worker.own_loop import OwnLoops
    from launcher.worker.own_loop_profile import OwnLoopProfile

    echo.world_size, echo.has_other_sums = 1, False
    parallel._own = OwnLoops(parallel)
    watcher = parallel.own.watcher = OwnLoopProfile(parallel, echo, end)
    with contextlib.suppress(End):
        case(keras)
    return watcher.measurement(import_s=0.0, started_s=0.0)


if __name__ == "__main__":
    main()
