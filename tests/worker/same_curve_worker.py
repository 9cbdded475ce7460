"""One process of a group: runs cases as rank R of N, or as plain Keras without the engine.

Arguments: framework, number of workers (0 = plain Keras), rank, ports, result file, cases
("scripts" stands for all of scripts), exchange ("collective", or the name of an algorithm of the
direct exchange, with "+overlap" where gradients leave in buckets during the backward pass), shares
of the ranks.
"""

import gc
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path

from tests.worker.patience import PATIENCE_S, be_patient


def main() -> None:
    framework, n, rank, ports, out, names, exchange, shares = sys.argv[1:9]
    n, rank = int(n), int(rank)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if framework == "tf_keras":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    addresses = [f"127.0.0.1:{port}" for port in ports.split(",")]
    if n > 1 and exchange == "collective":
        workers = addresses
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    shares = [float(share) for share in shares.split(",")] if shares else None
    be_patient()
    parallel = _engine(n, exchange, rank, addresses, shares)
    keras = __import__(framework)
    if parallel is not None:
        parallel.install([framework])
    sys.path.insert(0, str(Path(__file__).parent))
    import engine_cases
    import input_cases
    import model_cases
    import own_loop_cases

    gc.freeze()  # or each case's collection of garbage goes through all of TensorFlow
    results = {}
    engine = engine_cases.Engine(parallel, rank, n)
    modules = [input_cases, model_cases, own_loop_cases]
    script_cases = {k: v for m in modules for k, v in vars(m).items() if _is_case(m, v)}
    own_cases, wanted = engine_cases.cases(n), set(names.split(","))
    for name, case in {**script_cases, **own_cases}.items():
        if name not in wanted and ("scripts" not in wanted or name in own_cases):
            continue
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        begun = time.monotonic()
        try:
            arguments = (keras, engine) if name in own_cases else (keras,)
            results[name] = case(*arguments)
        except Exception:  # noqa: BLE001 - a case's failure is its result
            results[name] = {"error": traceback.format_exc()}
        print(f"{name} {time.monotonic() - begun:.2f} s", flush=True)
        if parallel is not None:
            parallel.reset()
    Path(out).write_bytes(pickle.dumps(results))
    if n > 1:
        import numpy as np

        parallel.exchange.sum_arrays([np.zeros(1)], "end")
    os._exit(0)  # collecting all those graphs would take seconds


def _is_case(module, value):
    return getattr(value, "__module__", None) == module.__name__


def _engine(n, exchange, rank, addresses, shares):
    if n == 0:
        return None
    from launcher.worker.data_parallel import DataParallel

    return DataParallel(_exchange(n, exchange, rank, addresses), shares=shares)


def _exchange(n, exchange, rank, addresses):
    if n == 1:
        from launcher.worker.exchange.alone import Alone

        return Alone()
    if exchange == "collective":
        from launcher.worker.exchange.collective import CollectiveExchange

        return CollectiveExchange.from_tf_config()
    import importlib

    from launcher.worker.exchange.direct import DirectExchange
    from launcher.worker.exchange.transport.mesh import open_mesh

    exchange, _, overlap = exchange.partition("+")
    algorithms = importlib.import_module(f"launcher.worker.exchange.algorithms.{exchange}")
    secret = b"secret of the tests' runs".ljust(32)
    paths = [[address] for address in addresses]
    mesh = open_mesh(rank, paths, secret, timeout_s=PATIENCE_S)
    bucket_bytes = 1 if overlap else None
    return DirectExchange(mesh, getattr(algorithms, exchange), bucket_bytes=bucket_bytes)


if __name__ == "__main__":
    main()
