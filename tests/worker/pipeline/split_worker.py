"""A process that trains all cases in stages, for TensorFlow starts slowly.

Argument: the file that gets the results, as JSON.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from tests.worker.patience import be_patient


def main() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    from tests.worker.pipeline import layer_time_cases, refusal_cases, split_cases

    be_patient()
    results = {"refusals": refusal_cases.refusals(), "places": refusal_cases.places()}
    results["cost"] = layer_time_cases.cost()
    for make in split_cases.CASES:
        try:
            results[make.__name__] = split_cases.compared(make, Path.cwd())
        except Exception:  # noqa: BLE001 - a case's failure is its result
            results[make.__name__] = {"error": traceback.format_exc()}
    Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
