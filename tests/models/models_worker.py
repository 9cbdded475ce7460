"""A process that runs every model's script and builders once, for TensorFlow starts slowly.

Argument: the file that gets what they printed and counted, as JSON.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

MODELS = Path(__file__).parents[2] / "models"

EPOCH = ["--epochs", "1"]
SHORT = {  # by name: the script, and arguments that make it short
    "digits": ("digits", EPOCH),
    "mlp": ("mlp", ["--epochs", "15"]),
    "cnn": ("cnn", EPOCH),
    "lstm": ("lstm", [*EPOCH, "--stride", "64"]),
    "recommender": ("recommender", [*EPOCH, "--batch-size", "1024"]),
    "file": ("recommender", [*EPOCH, "--ratings", "u.data"]),
    "dconvlstm": ("dconvlstm", [*EPOCH, "--examples", "256", "--filters", "4"]),
    "clips": (
        "dconvlstm",
        [*EPOCH, "--data", "moving-digits", "--examples", "64", "--filters", "4"],
    ),
    "pairs": (
        "dconvlstm",
        [*EPOCH, "--data", "moving-pairs", "--examples", "32", "--filters", "4"],
    ),
}


def main() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.path.insert(0, str(MODELS))
    ratings = [f"{7 * u}\t{3 * i}\t{(u + i) % 5 + 1}\t0\n" for u in range(9) for i in range(4)]
    Path("u.data").write_text("".join(ratings))
    results = {name: printed(script, words) for name, (script, words) in SHORT.items()}
    results["parameters"] = parameters()
    results["downloads"] = downloads()
    Path(sys.argv[1]).write_text(json.dumps(results))


def printed(script: str, words: list[str]) -> str:
    """What a script prints that is run with these arguments."""
    sys.argv[1:], own = words, sys.argv[1:]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(MODELS / f"{script}.py"), run_name="__main__")
    except Exception:  # noqa: BLE001 - a script's failure is its result
        return traceback.format_exc()
    finally:
        sys.argv[1:] = own
    return out.getvalue()


def parameters() -> dict[str, int]:
    """How many parameters each builder's default has."""
    import cnn
    import dconvlstm
    import lstm
    import mlp
    import recommender

    models = {
        "classifier of images": dconvlstm.build_classifier(),
        "classifier of sequences": dconvlstm.build_classifier((8, 24, 24, 1)),
        "predictor": dconvlstm.build_predictor(),
        "mlp": mlp.build_model(),
        "cnn": cnn.build_model(),
        "lstm": lstm.build_model(len(set(lstm.description()))),
        "recommender": recommender.build_model(1797, 64),
    }
    return {name: model.count_params() for name, model in models.items()}


def downloads() -> dict[str, list[tuple[int, ...]]]:
    """Shapes that come of the public data sets, here of files like theirs with few examples."""
    import dconvlstm
    import keras
    import numpy as np

    def images(n: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full((n, 32, 32, 3), 255, np.uint8), np.zeros((n, 1), np.uint8)

    np.save("clips.npy", np.full((20, 10, 64, 64), 255, np.uint8))
    keras.utils.get_file = lambda origin: "clips.npy"
    keras.datasets.cifar10.load_data = lambda: (images(4), images(2))
    found = {}
    for name in ("cifar10", "moving-mnist"):
        data = dconvlstm.LOADERS[name]()
        assert data.train[0].max() == 1.0
        found[name] = [part.shape for part in (*data.train, *data.test)]
    return found


if __name__ == "__main__":
    main()
