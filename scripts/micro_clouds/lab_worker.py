"""One host of the comparison in the lab: trains a Keras model for a while, keeps its course.

Arguments: the run (`LabRun` as JSON), rank, and every rank's address, "ip:port".

It says "ready" after its first step, and reads when training began (monotonic, in seconds); says
"over" at the end, and tells its course as JSON after the next line that it reads.
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

from scripts.micro_clouds.lab_models import build, images, site_first  # noqa: E402
from scripts.micro_clouds.lab_runs import DIRECT, RING, RIVALS, LabRun  # noqa: E402

RING_PORTS = 100  # above those of the launcher's own exchange
THIN_STEP_BYTES = 125_000  # 10 Mbit/s for a tenth of a second
SECRET = b"of the benchmark of far sites".ljust(32)
GLOBAL_BATCH, N_LOOKS = 96, 30


def main() -> None:
    run, rank, addresses = LabRun(**json.loads(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    parallel = engine(run.method, rank, addresses.split(","))
    import keras

    parallel.install(["keras"])
    keras.utils.set_random_seed(run.seed)
    (x, y), test = images(run.seed)
    if run.skewed and not run.is_exact:
        x, y = site_first(x, y, rank // 2)
    model = build(keras, run.model)
    model.compile(keras.optimizers.SGD(run.rate), "sparse_categorical_crossentropy")
    course = recorder(keras, run, test, parallel)
    model.fit(x, y, batch_size=GLOBAL_BATCH, epochs=10_000, verbose=0, callbacks=[course])


def engine(method: str, rank: int, addresses: list[str]) -> Any:
    """What exchanges gradients."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if method == RING:
        ends = [address.rsplit(":", 1) for address in addresses]
        workers = [f"{ip}:{int(port) + RING_PORTS}" for ip, port in ends]
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        os.environ["TF_CONFIG"] = json.dumps(task)
    from launcher.worker.devices import set_up_devices

    set_up_devices(1)
    if method not in (RING, DIRECT):
        return decentralized(method, rank, [[address] for address in addresses])
    from launcher.worker.data_parallel import DataParallel

    if method == RING:
        from launcher.worker.exchange.collective import CollectiveExchange

        return DataParallel(CollectiveExchange.from_tf_config())
    from launcher.worker.exchange.algorithms.one_shot import one_shot
    from launcher.worker.exchange.direct import DirectExchange
    from launcher.worker.exchange.transport.mesh import open_mesh

    mesh = open_mesh(rank, [[address] for address in addresses], SECRET)
    return DataParallel(DirectExchange(mesh, one_shot))


def decentralized(method: str, rank: int, addresses: list[list[str]]) -> Any:
    """Our rule, with all of its techniques or all but one, or another's over the same links."""
    from launcher.worker.decentralized import Decentralized
    from launcher.worker.exchange.decentralized.links import Links
    from launcher.worker.exchange.decentralized.training import Training

    n = len(addresses)

    def open_links(size: int, hearer: Any, generation: int) -> Links:
        return Links(rank, addresses, SECRET, size, hearer, generation)

    rule = rival(method, n) if method in RIVALS else ours(method)
    follows_speed = method not in (*RIVALS, "equal-batches")
    return Decentralized(Training(rank, n, open_links, rule), range(n), follows_speed=follows_speed)


def ours(method: str) -> Any:
    """Our rule, without what the method's name says."""
    from launcher.worker.exchange.decentralized.dlion import Dlion, DlionOptions
    from launcher.worker.exchange.decentralized.transfer import TransferOptions

    options = DlionOptions(
        transfer=TransferOptions(every_steps=0) if method == "no-transfer" else TransferOptions(),
        prioritised=method != "no-priority",
        weighted=method != "no-weights",
    )

    def new_rule(rank: int, peers: Any, layout: Any, *, is_new: bool) -> Dlion:
        return Dlion(rank, peers, layout, options, is_new=is_new)

    return new_rule


def rival(method: str, n_workers: int) -> Any:
    """A rule to compare with."""
    from launcher.worker.exchange.decentralized.ako import Ako, n_partitions_for
    from launcher.worker.exchange.decentralized.gaia import Gaia, GaiaOptions
    from launcher.worker.exchange.decentralized.hop import Hop, ring_neighbours

    def new_rule(rank: int, peers: Any, layout: Any, *, is_new: bool) -> Any:
        del is_new
        if method == "gaia":
            return Gaia(rank, peers, layout, GaiaOptions(threshold=0.1))
        if method == "ako":
            return Ako(rank, peers, layout, n_partitions_for(layout.size, 1, THIN_STEP_BYTES))
        return Hop(rank, ring_neighbours(rank, n_workers), layout)

    return new_rule


def recorder(keras: Any, run: LabRun, test: Any, parallel: Any) -> Any:
    """Keeps weights now and then, from the driver's word on; looks at them at the end.

    More often at the beginning, where accuracy moves.
    """
    looks_s = [run.seconds * (i / N_LOOKS) ** 1.5 for i in range(N_LOOKS + 1)]

    class Recorder(keras.callbacks.Callback):
        began_s: float | None = None

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            if self.began_s is None:
                print("ready", flush=True)
                self.began_s = float(sys.stdin.readline())
                self.kept: list[tuple[float, int, Any]] = []
                self.steps: list[tuple[float, int]] = []
                return
            since_s = time.monotonic() - self.began_s
            self.steps.append((round(since_s, 4), n_examples(run, parallel)))
            if len(self.kept) <= N_LOOKS and since_s >= looks_s[len(self.kept)]:
                self.kept.append((since_s, len(self.steps), self.model.get_weights()))
            if since_s >= run.seconds:
                self.end()

        def end(self) -> None:
            sent = dict(sent_bytes(parallel))
            print("over", flush=True)
            sys.stdin.readline()
            rows = []
            for since_s, n_steps, weights in self.kept:
                self.model.set_weights(weights)
                guesses = np.argmax(self.model(test[0]), 1)
                rows.append((since_s, n_steps, float((guesses == test[1]).mean())))
            figures = parallel.figures() if not (run.is_exact or run.method in RIVALS) else None
            told = {
                "looks": rows,
                "steps": self.steps,
                "sent_bytes": sent,
                "n_weights": int(self.model.count_params()),
                "exchange": figures and asdict(figures),
            }
            print(json.dumps(told), flush=True)
            os._exit(0)

    return Recorder()


def n_examples(run: LabRun, parallel: Any) -> int:
    """Of this host's last step."""
    return GLOBAL_BATCH if run.is_exact else int(parallel.n_examples)


def sent_bytes(parallel: Any) -> dict[int, int]:
    """To each peer; nothing where it is reckoned by the number of steps."""
    found = getattr(parallel, "sent_bytes", None)
    return {} if found is None else found()


if __name__ == "__main__":
    main()
