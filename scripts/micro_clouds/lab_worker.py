"""One host of the comparison in the lab: trains a Keras model for a while, keeps its course.

Arguments: method ("ring", "one_shot", "decentralized", "gaia", "ako", or "hop"), rank, hosts,
seconds, learning rate, "skewed" or "even" data.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

PORT, RING_PORT = 7600, 7700
THIN_STEP_BYTES = 125_000  # 10 Mbit/s for a tenth of a second
SECRET = b"of the benchmark of far sites".ljust(32)
GLOBAL_BATCH, N_HIDDEN, N_LOOKS, N_COPIES = 96, 960, 24, 40


def main() -> None:
    method, rank, hosts, seconds, rate, skewed = sys.argv[1:7]
    parallel = engine(method, int(rank), hosts.split(","))
    import keras

    parallel.install(["keras"])
    keras.utils.set_random_seed(1)
    (x, y), test = images()
    if method not in ("ring", "one_shot") and skewed == "skewed":
        x, y = site_first(x, y, int(rank) // 2)
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(N_HIDDEN, activation="relu"),
            keras.layers.Dense(N_HIDDEN, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(float(rate)), "sparse_categorical_crossentropy")
    course = recorder(keras, float(seconds), test, method, parallel)
    model.fit(x, y, batch_size=GLOBAL_BATCH, epochs=10_000, verbose=0, callbacks=[course])


def engine(method: str, rank: int, hosts: list[str]) -> Any:
    """What exchanges gradients."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if method == "ring":
        workers = [f"{host}:{RING_PORT}" for host in hosts]
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        os.environ["TF_CONFIG"] = json.dumps(task)
    from launcher.worker.devices import set_up_devices

    set_up_devices(1)
    addresses = [[f"{host}:{PORT}"] for host in hosts]
    if method == "decentralized":
        from launcher.worker.decentralized import new_decentralized
        from launcher.worker.job import Decentralized

        return new_decentralized(Decentralized(SECRET), rank, addresses)
    if method in ("gaia", "ako", "hop"):
        return rival(method, rank, addresses)
    from launcher.worker.data_parallel import DataParallel

    if method == "ring":
        from launcher.worker.exchange.collective import CollectiveExchange

        return DataParallel(CollectiveExchange.from_tf_config())
    from launcher.worker.exchange.algorithms.one_shot import one_shot
    from launcher.worker.exchange.direct import DirectExchange
    from launcher.worker.exchange.transport.mesh import open_mesh

    return DataParallel(DirectExchange(open_mesh(rank, addresses, SECRET), one_shot))


def rival(method: str, rank: int, addresses: list[list[str]]) -> Any:
    """A rule to compare with, over the same links."""
    from launcher.worker.decentralized import Decentralized
    from launcher.worker.exchange.decentralized.ako import Ako, n_partitions_for
    from launcher.worker.exchange.decentralized.gaia import Gaia, GaiaOptions
    from launcher.worker.exchange.decentralized.hop import Hop, ring_neighbours
    from launcher.worker.exchange.decentralized.links import Links
    from launcher.worker.exchange.decentralized.training import Training

    n = len(addresses)

    def new_rule(rank: int, peers: Any, layout: Any, *, is_new: bool) -> Any:
        del is_new
        if method == "gaia":
            return Gaia(rank, peers, layout, GaiaOptions(threshold=0.1))
        if method == "ako":
            return Ako(rank, peers, layout, n_partitions_for(layout.size, 1, THIN_STEP_BYTES))
        return Hop(rank, ring_neighbours(rank, n), layout)

    def open_links(size: int, hearer: Any, generation: int) -> Links:
        return Links(rank, addresses, SECRET, size, hearer, generation)

    return Decentralized(Training(rank, n, open_links, new_rule), n, follows_speed=False)


def images() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Digits, moved by a pixel each way for training: 57,480 and 360 images."""
    from scripts.micro_clouds.perceptron import digits

    rng = np.random.default_rng(0)
    training, test = digits(rng)
    whole = training.images.reshape(-1, 8, 8)
    moved = [
        np.roll(whole, tuple(rng.integers(-1, 2, size=2)), axis=(1, 2)).reshape(-1, 64)
        for _ in range(N_COPIES)
    ]
    x, y = np.concatenate(moved), np.tile(training.labels, N_COPIES)
    order = rng.permutation(len(y))
    return (x[order], y[order]), (test.images, test.labels)


def site_first(x: np.ndarray, y: np.ndarray, site: int) -> tuple[np.ndarray, np.ndarray]:
    """Data of which a half are of the site's own labels."""
    own = np.flatnonzero(y % 3 == site)
    order = np.arange(len(y))
    order[::2] = np.resize(own, len(order[::2]))
    return x[order], y[order]


def recorder(keras: Any, seconds: float, test: Any, method: str, parallel: Any) -> Any:
    """Keeps weights now and then, from the driver's word on; looks at them at the end."""

    class Recorder(keras.callbacks.Callback):
        began_s: float | None = None
        n_steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            now_s = time.monotonic()
            if self.began_s is None:
                print("ready", flush=True)
                sys.stdin.readline()
                self.began_s = time.monotonic()
                self.kept: list[tuple[float, int, Any]] = []
                return
            self.n_steps += 1
            since_s = now_s - self.began_s
            if since_s >= len(self.kept) * seconds / N_LOOKS:
                self.kept.append((since_s, self.n_steps, self.model.get_weights()))
            if since_s >= seconds:
                self.end()

        def end(self) -> None:
            print("over", flush=True)
            sys.stdin.readline()
            rows = []
            for since_s, n_steps, weights in self.kept:
                self.model.set_weights(weights)
                guesses = np.argmax(self.model(test[0]), 1)
                rows.append((since_s, n_steps, float((guesses == test[1]).mean())))
            figures: dict[str, Any] = {"course": rows}
            if method == "decentralized":
                figures["exchange"] = asdict(parallel.figures())
            print(json.dumps(figures), flush=True)
            os._exit(0)

    return Recorder()


if __name__ == "__main__":
    main()
