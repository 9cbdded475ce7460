"""The comparison on real hosts with real links, in the lab."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.micro_clouds.settings import MBIT, QUOTAS, SITES

WORKER = Path(__file__).with_name("lab_worker.py")
NEAR_RTT_S, NEAR_RATE = 0.0005, 1000 * MBIT
FAR = {  # RTT in seconds and Mbit/s between sites
    "hard": {(0, 1): (0.08, 10), (1, 2): (0.08, 10), (0, 2): (0.08, 10)},
    "mixed": {(0, 1): (0.03, 50), (1, 2): (0.05, 25), (0, 2): (0.08, 10)},
}


@dataclass(frozen=True, slots=True)
class LabCourse:
    """How training went on the hosts that told.

    Attributes:
        looks: of each host, (seconds, steps, accuracy).
        exchange: of each host, what its exchange tells.
    """

    looks: list[list[tuple[float, int, float]]]
    exchange: list[Any]

    def accuracy_at(self, time_s: float) -> float:
        """The hosts' mean accuracy at a time, each as last looked at."""
        found = [[a for at_s, _, a in host if at_s <= time_s] or [0.1] for host in self.looks]
        return sum(each[-1] for each in found) / len(found)

    def time_to(self, target: float) -> float:
        """When the hosts' mean accuracy was first at the target, in seconds."""
        times = sorted(at_s for host in self.looks for at_s, _, _ in host)
        return next((t for t in times if self.accuracy_at(t) >= target), float("inf"))


def train_in_lab(
    method: str, hardness: str, seconds: float, rate: float, *, skewed: bool = False
) -> LabCourse:
    """One run of a method of `lab_worker` on six hosts."""
    from tests.lab.lab import Lab

    with Lab(sum(SITES), rtt_s=NEAR_RTT_S, rate_bytes_per_s=NEAR_RATE) as lab:
        set_links(lab, hardness)
        processes = []
        for rank, name in enumerate(lab.names):
            hosts = ",".join(lab.ip(each) for each in lab.names)
            command = [sys.executable, str(WORKER), method, str(rank), hosts, str(seconds)]
            command += [str(rate), "skewed" if skewed else "even"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            pipes["stderr"] = subprocess.DEVNULL
            processes.append(lab.popen(name, command, **pipes))
        try:
            wait_for("ready", processes)
            for name, quota in zip(lab.names, QUOTAS, strict=True):
                lab.set_cpu(name, quota)
            tell(processes)
            told = processes[:1] if method in ("ring", "one_shot") else processes
            wait_for("over", told)
            for name in lab.names:
                lab.set_cpu(name, 1.0)
            tell(told)
            found = [json.loads(next(process.stdout)) for process in told]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return LabCourse([each["course"] for each in found], [each.get("exchange") for each in found])


def set_links(lab: Any, hardness: str) -> None:
    """Thin links between the sites, both ways."""
    site_by_rank = [site for site, n in enumerate(SITES) for _ in range(n)]
    for a, first in enumerate(lab.names):
        for b, second in enumerate(lab.names):
            ends = (site_by_rank[a], site_by_rank[b])
            if a < b and ends[0] != ends[1]:
                rtt_s, mbit = FAR[hardness][ends]
                lab.set(f"{first}-{second}", rtt_s=rtt_s, rate_bytes_per_s=mbit * MBIT)


def wait_for(word: str, processes: Sequence[Any]) -> None:
    """Until all have said it."""
    for process in processes:
        for line in process.stdout:
            if line.strip() == word:
                break
        else:
            raise SystemExit(f"a worker ended before it was {word}")


def tell(processes: Sequence[Any]) -> None:
    """The word to go on."""
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
