"""The transport between real hosts: what only a network that breaks can show."""

import contextlib
import json
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.lab.lab import Lab, SecondNetwork
from tests.lab.requirement import missing
from tests.worker.exchange.transport.meshes import ROOT, Worker, worker_command

pytestmark = [
    pytest.mark.lab,
    pytest.mark.alone,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

PORT = 18_740
NOTICED_S = 5.0
BACK_S = 10.0
RAIL_BYTES_PER_S = 12.5e6


@contextlib.contextmanager
def workers_in(lab: Lab, n_paths: int = 1) -> Iterator[list[Worker]]:
    """A rank on each host, with its mesh open."""
    addresses = [[f"{lab.ip(name, p)}:{PORT + p}" for p in range(n_paths)] for name in lab.names]
    secret = secrets.token_bytes(32)
    workers = [
        start(lab, name, worker_command(r, addresses, secret)) for r, name in enumerate(lab.names)
    ]
    try:
        for worker in workers:
            assert worker.answer() == "open"
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()


def start(lab: Lab, name: str, command: Sequence[str]) -> Worker:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return Worker(lab.popen(name, command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, **pipes))


def figures_of(worker: Worker) -> list[dict[str, Any]]:
    worker.tell("figures")
    return list(json.loads(worker.answer()))


def noticed_s(loss: Sequence[Any], cut_s: float) -> float:
    """How long after the cut a loss was noticed, as far as possible as the one counts who listened.

    By that, time in which the machine held all of them up does not count.

    Args:
        loss: a worker's answer.
        cut_s: when the cut was made, after the worker had begun to wait.
    """
    waited_s, *_, reason = loss
    silent_s = re.search(r"no sign of life for ([\d.]+) s", reason)
    return waited_s - cut_s if silent_s is None else float(silent_s[1])


def test_a_host_that_is_cut_off_is_noticed_within_five_seconds_by_all() -> None:
    with Lab(3) as lab, workers_in(lab) as workers:
        begun_s = time.monotonic()
        for rank, worker in enumerate(workers):
            worker.tell(f"receive {(rank + 1) % 3} 7")
        lab.cut_host("h2")
        cut_s = time.monotonic() - begun_s
        losses = [json.loads(worker.answer()) for worker in workers]
    assert [losses[0][2], losses[2][2]] == [1, 1]
    assert losses[1][2] in {0, 2}
    assert all(noticed_s(loss, cut_s) <= NOTICED_S for loss in losses)


def test_packets_that_vanish_in_one_direction_are_noticed_within_five_seconds() -> None:
    with Lab(2) as lab, workers_in(lab) as workers:
        begun_s = time.monotonic()
        for rank, worker in enumerate(workers):
            worker.tell(f"receive {1 - rank} 7")
        lab.cut("h1>h2")
        cut_s = time.monotonic() - begun_s
        losses = [json.loads(worker.answer()) for worker in workers]
    assert all(kind == "PeerLostError" for _, kind, *_ in losses)
    assert all(noticed_s(loss, cut_s) <= NOTICED_S for loss in losses)


def test_a_rail_that_is_cut_loses_nothing_and_is_used_again_in_time() -> None:
    rails = SecondNetwork(("h1", "h2"), 0.0005, RAIL_BYTES_PER_S)
    lab_options = {"rate_bytes_per_s": RAIL_BYTES_PER_S, "second_network": rails}
    with Lab(2, **lab_options) as lab, workers_in(lab, 2) as workers:
        workers[0].tell("pour 1 150")
        workers[1].tell("drink 0 150")
        pause(1.0)
        lab.cut("h1-h2", network=1)
        pause(4.0)
        lab.mend("h1-h2", network=1)
        assert [worker.answer() for worker in workers] == ["poured", "150 right"]
        mended_s = time.monotonic()
        while not (second := figures_of(workers[0])[1])["up"]:
            assert time.monotonic() - mended_s < BACK_S
            pause(0.1)
        assert second["n_reconnects"] >= 1
        assert second["n_down"] >= 1
        used_bytes = second["sent_bytes"]
        workers[0].tell("pour 1 20")
        workers[1].tell("drink 0 20")
        assert [worker.answer() for worker in workers] == ["poured", "20 right"]
        assert figures_of(workers[0])[1]["sent_bytes"] - used_bytes > 0.3 * 20 * (1 << 20)


def pause(seconds: float) -> None:
    """Lets things take their course."""
    threading.Event().wait(seconds)
