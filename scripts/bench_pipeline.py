"""A model in stages on several hosts against the same model on one, in the lab.

Eight wide layers, whose weights are many and whose activations are few, on hosts of 0.45 of a core.
Time a step, predicted and measured, and how much memory training takes on each host. Needs root;
run it on a quiet machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

from ranks import ranks  # noqa: E402 - beside this file

CPUS, RTT_S, RATE_BYTES_PER_S = 0.45, 0.0005, 125e6
HOSTS = (1, 2, 4)
WIDTH, N_LAYERS, BATCH, N_MICRO_BATCHES = 1024, 8, 256, 8
N_STEPS, N_FIRST = 10, 2  # the first ones compile
GOAL_ERROR, GOAL_MEMORY, GOAL_SPEED_UP = 0.15, 0.5, 2.0
PORT = 7500
SECRET = b"secret of the benchmark".ljust(32)


@dataclass(frozen=True, slots=True)
class Result:
    """What training on some hosts took.

    Attributes:
        n_hosts: how many.
        cuts: the layers before which the model was cut.
        predicted_s: a step's time, from what its layers took on one host.
        step_s: measured; the median.
        memory_bytes: by host: what training added to the process's memory at most.
    """

    n_hosts: int
    cuts: Sequence[int]
    predicted_s: float
    step_s: float
    memory_bytes: Sequence[int]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="one and two hosts only")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hosts", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.profile:
        profile()
        return 0
    if options.rank is not None:
        Rank(options.rank, options.hosts.split(",")).run()
        return 0
    results = [measured(n_hosts) for n_hosts in (HOSTS[:2] if options.quick else HOSTS)]
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results]) + "\n")
    return print_goals(results)


def measured(n_hosts: int) -> Result:
    """Trains on so many hosts, and prints a line of it."""
    from tests.lab.lab import Lab

    def command(rank: int, hosts: str) -> list[str]:
        return [sys.executable, __file__, "--rank", str(rank), "--hosts", hosts]

    with (
        Lab(n_hosts, rtt_s=RTT_S, rate_bytes_per_s=RATE_BYTES_PER_S) as lab,
        ranks(lab, command) as ask,
    ):
        ask("are you ready?", "ready")
        for name in lab.names:
            lab.set_cpu(name, CPUS)
        result = Result(**json.loads(ask("train", "{")))
    megabytes = ", ".join(f"{n_bytes / 1e6:.0f}" for n_bytes in result.memory_bytes)
    times = f"predicted {result.predicted_s * 1e3:.0f} ms, took {result.step_s * 1e3:.0f} ms a step"
    print(f"{n_hosts} hosts, cut at {list(result.cuts)}: {times}; {megabytes} MB", flush=True)
    return result


def print_goals(results: Sequence[Result]) -> int:
    one, most = results[0], results[-1]
    error = max(abs(r.predicted_s / r.step_s - 1.0) for r in results if r.cuts)
    memory = max(most.memory_bytes) / one.memory_bytes[0]
    speed_up = one.step_s / most.step_s
    goals = [
        ("prediction_error", error, GOAL_ERROR, error <= GOAL_ERROR),
        ("memory_share", memory, GOAL_MEMORY, memory <= GOAL_MEMORY),
        ("speed_up", speed_up, GOAL_SPEED_UP, speed_up >= GOAL_SPEED_UP),
    ]
    for name, value, target, met in goals:
        print(f"goal {name}: {value:.2f} (target {target}) {'met' if met else 'missed'}")
    return 0 if all(met for *_, met in goals) else 1


class Rank:
    """One host's process; rank 0 does as it is told on standard input, and leads the others.

    Args:
        rank: its number.
        hosts: all hosts' addresses.
    """

    def __init__(self, rank: int, hosts: Sequence[str]) -> None:
        start_tensorflow()
        from launcher.worker.exchange.transport.mesh import open_mesh

        self.is_first, self.before = rank == 0, resident_bytes()
        self.mailbox = open_mesh(rank, [[f"{host}:{PORT}"] for host in hosts], SECRET)

    def run(self) -> None:
        """Splits the model as its layers' times say, trains it, and tells what that took."""
        n_hosts = self.mailbox.world_size
        if self.is_first:
            print("ready", flush=True)
            input()
        cuts, predicted_s = [0] * (n_hosts - 1), 0.0
        if self.is_first:
            cuts, predicted_s = split_of(profile_in_own_process(), n_hosts)
        cuts = [int(cut) for cut in self.shared(np.array(cuts, np.int64), tag=1)]
        step_s = self.trained_step_s(cuts)
        memory = self.gathered(resident_bytes("VmHWM") - self.before, tag=2)
        if self.is_first:
            result = Result(n_hosts, cuts, predicted_s, step_s, memory)
            print(json.dumps(asdict(result)), flush=True)

    def trained_step_s(self, cuts: Sequence[int]) -> float:
        """The median time of a step, in stages or, on one host, with Keras's `fit`."""
        model, (x, y) = new_model(), data()
        if not cuts:
            return fitted_step_s(model, x, y)
        from launcher.worker.pipeline.part import Batch, Part
        from launcher.worker.pipeline.refusals import readable_graph
        from launcher.worker.pipeline.stage import Stage
        from launcher.worker.pipeline.weights import drop_others

        graph = readable_graph(model)
        own = list(pairwise([0, *cuts, len(graph.calls)]))[self.mailbox.rank]
        drop_others(graph, *own)
        part = Part(Tagged(self.mailbox), Stage(graph, *own), N_MICRO_BATCHES)
        times = []
        for _ in range(N_STEPS):
            begun = time.perf_counter()
            part.train_on_batch(Batch([x], y))
            times.append(time.perf_counter() - begun)
        return statistics.median(times[N_FIRST:])

    def shared(self, values: Any, tag: int) -> Any:
        """Rank 0's values, on all ranks."""
        if self.is_first:
            others = range(1, self.mailbox.world_size)
            for pending in [self.mailbox.send(rank, tag, values) for rank in others]:
                pending.wait()
        else:
            self.mailbox.receive(0, tag, values).wait()
        return values

    def gathered(self, value: int, tag: int) -> list[int]:
        """Every rank's value, on rank 0."""
        if not self.is_first:
            self.mailbox.send(0, tag, np.array([value], np.int64)).wait()
            return []
        values = np.full(self.mailbox.world_size, value, np.int64)
        for rank in range(1, self.mailbox.world_size):
            self.mailbox.receive(rank, tag, values[rank : rank + 1]).wait()
        return [int(value) for value in values]


class Tagged:
    """A mailbox for one purpose: its tags are told apart from all others'."""

    def __init__(self, mailbox: Any, mark: int = 1 << 61) -> None:
        self.rank, self.world_size = mailbox.rank, mailbox.world_size
        self._mailbox, self._mark = mailbox, mark

    def send(self, to: int, tag: int, data: Any) -> Any:
        """Send with a tag of this purpose."""
        return self._mailbox.send(to, self._mark | tag, data)

    def receive(self, source: int, tag: int, into: Any) -> Any:
        """Receive what was sent with a tag of this purpose."""
        return self._mailbox.receive(source, self._mark | tag, into)


def start_tensorflow() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from launcher.worker.devices import set_up_devices

    set_up_devices(1)


def new_model() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(N_LAYERS)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    return model


def data() -> tuple[Any, Any]:
    """One batch."""
    x = np.random.default_rng(0).random((BATCH, WIDTH), np.float32)
    return x, np.arange(BATCH) % 10


def fitted_step_s(model: Any, x: Any, y: Any) -> float:
    """The median time of a step of `fit` on one host."""
    times = []
    for _ in range(N_STEPS):
        begun = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, verbose=0)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[N_FIRST:])


def profile_in_own_process() -> dict[str, Any]:
    """What a micro-batch takes, measured by a process whose memory does not count here."""
    command = [sys.executable, __file__, "--profile"]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def profile() -> None:
    """Prints what each layer takes for a micro-batch on this host."""
    start_tensorflow()
    from launcher.worker.pipeline.layer_times import measured_cost
    from launcher.worker.pipeline.refusals import readable_graph

    x, y = data()
    rows = slice(BATCH // N_MICRO_BATCHES)
    print(json.dumps(asdict(measured_cost(readable_graph(new_model()), [x[rows]], y[rows]))))


def split_of(cost: dict[str, Any], n_hosts: int) -> tuple[list[int], float]:
    """Where to cut, and the time of a step that is to be expected."""
    from policies.constants import CONSTANTS as K
    from policies.pipeline import Hop, NoSplit, Part, StageNode, best_split

    byte_s = (K.direct_byte_cpu_s + K.direct_pack_cpu_s) / CPUS
    node = StageNode(message_s=K.direct_message_cpu_s / CPUS, byte_s=byte_s)
    hops = [Hop(RTT_S / 2, RATE_BYTES_PER_S)] * (n_hosts - 1)
    layers = [Part(**layer) for layer in cost["layers"]]
    split = best_split(layers, [node] * n_hosts, hops, N_MICRO_BATCHES, cost["pass_s"])
    if isinstance(split, NoSplit):
        raise SystemExit(f"no split: {split.reason}")
    return list(split.cuts), split.step_s


def resident_bytes(name: str = "VmRSS") -> int:
    """This process's memory now, or (`VmHWM`) at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    sys.exit(main())
