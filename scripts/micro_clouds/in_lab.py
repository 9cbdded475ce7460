"""The comparison on real hosts with real links, in the lab."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.micro_clouds.lab_course import LabCourse, from_told
from scripts.micro_clouds.lab_runs import KILLED, SLOWED, LabRun
from scripts.micro_clouds.settings import MBIT, QUOTAS, SITES

WORKER = Path(__file__).with_name("lab_worker.py")
PORT = 7600
NEAR_RTT_S, NEAR_RATE = 0.0005, 1000 * MBIT
FAR = {  # RTT in seconds and Mbit/s between sites
    "hard": {(0, 1): (0.08, 10), (1, 2): (0.08, 10), (0, 2): (0.08, 10)},
    "mixed": {(0, 1): (0.03, 50), (1, 2): (0.05, 25), (0, 2): (0.08, 10)},
}
SLOWED_RANK, KILLED_RANK = 0, 2
SLOWED_AT, KILLED_AT = 1 / 2, 1 / 3  # of the run


class HostFailedError(RuntimeError):
    """A host's process has ended too early."""


def train_in_lab(run: LabRun, log: Path) -> LabCourse:
    """One run on six hosts.

    Args:
        run: what to run.
        log: file for what the hosts say.

    Raises:
        HostFailedError: see the log.
    """
    from tests.lab.lab import Lab

    with (
        Lab(sum(SITES), rtt_s=NEAR_RTT_S, rate_bytes_per_s=NEAR_RATE) as lab,
        log.open("w") as file,
    ):
        set_links(lab, run.links)
        hosts = Hosts(lab, run, file)
        try:
            return hosts.train()
        finally:
            hosts.end()


class Hosts:
    """The processes of one run.

    Args:
        lab: with its links.
        run: what to run.
        log: takes what they say.
    """

    def __init__(self, lab: Any, run: LabRun, log: Any) -> None:
        self._lab, self._run, self._log = lab, run, log
        self._processes = [self._start(rank) for rank in range(len(lab.names))]

    def train(self) -> LabCourse:
        """Runs it, from start to end."""
        self._wait_for("ready", self._processes)
        for rank in range(len(self._processes)):
            self._throttle(rank)
        began_s = time.monotonic()
        self._tell(self._processes, began_s)
        back_s = self._disturb(began_s)
        told = self._processes[:1] if self._run.is_exact else self._processes
        self._wait_for("over", told)
        for name in self._lab.names:
            self._lab.set_cpu(name, 1.0)
        self._tell(told, began_s)
        lines = [process.stdout.readline() for process in told]
        if not all(lines):
            raise HostFailedError("a host ended before it told its course")
        return from_told(self._run, lines, back_s)

    def end(self) -> None:
        """Ends whatever still runs."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _disturb(self, began_s: float) -> float | None:
        """What happens to a host in mid-run; when it was back, in seconds since the beginning."""
        if self._run.method == SLOWED:
            sleep_until(began_s + SLOWED_AT * self._run.seconds)
            self._throttle(SLOWED_RANK, QUOTAS[SLOWED_RANK] / 5)
        if self._run.method != KILLED:
            return None
        sleep_until(began_s + KILLED_AT * self._run.seconds)
        self._processes[KILLED_RANK].kill()
        self._processes[KILLED_RANK].wait()
        self._lab.set_cpu(self._lab.names[KILLED_RANK], 1.0)  # as when all start
        again = self._start(KILLED_RANK)
        self._processes[KILLED_RANK] = again
        self._wait_for("ready", [again])
        self._throttle(KILLED_RANK)
        self._tell([again], began_s)
        return time.monotonic() - began_s

    def _start(self, rank: int) -> Any:
        names, run = self._lab.names, json.dumps(asdict(self._run))
        addresses = ",".join(f"{self._lab.ip(name)}:{PORT}" for name in names)
        return self._lab.popen(
            names[rank],
            [sys.executable, str(WORKER), run, str(rank), addresses],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip

    def _throttle(self, rank: int, cores: float | None = None) -> None:
        self._lab.set_cpu(self._lab.names[rank], cores or QUOTAS[rank])

    def _wait_for(self, word: str, processes: Sequence[Any]) -> None:
        """Until all have said it."""
        for process in processes:
            for line in process.stdout:
                if line.strip() == word:
                    break
            else:
                raise HostFailedError(f"a host ended before it was {word}")

    def _tell(self, processes: Sequence[Any], began_s: float) -> None:
        """The word to go on."""
        for process in processes:
            process.stdin.write(f"{began_s}\n")
            process.stdin.flush()


def sleep_until(time_s: float) -> None:
    """Sleeps until a monotonic time."""
    time.sleep(max(0.0, time_s - time.monotonic()))


def set_links(lab: Any, links: str) -> None:
    """Thin links between the sites, both ways."""
    site_by_rank = [site for site, n in enumerate(SITES) for _ in range(n)]
    for a, first in enumerate(lab.names):
        for b, second in enumerate(lab.names):
            ends = (site_by_rank[a], site_by_rank[b])
            if a < b and ends[0] != ends[1]:
                rtt_s, mbit = FAR[links][ends]
                lab.set(f"{first}-{second}", rtt_s=rtt_s, rate_bytes_per_s=mbit * MBIT)
