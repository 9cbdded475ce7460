"""How a run in the lab went, and its file."""

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.micro_clouds.lab_runs import DIRECT, RING, LabRun
from scripts.micro_clouds.settings import SITES

N_HOSTS = sum(SITES)
SITE_BY_RANK = tuple(site for site, n in enumerate(SITES) for _ in range(n))
GUESSED = 0.1  # accuracy before the first look, of ten classes
WEIGHT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Host:
    """What a host has told.

    Attributes:
        looks: seconds, steps, accuracy.
        steps: seconds at which each step ended, and its examples.
        sent_bytes: by peer.
        n_weights: of the model.
        exchange: figures of our rule; None of the others.
    """

    looks: Sequence[tuple[float, int, float]]
    steps: Sequence[tuple[float, int]]
    sent_bytes: Mapping[str, int]
    n_weights: int
    exchange: Mapping[str, Any] | None

    def accuracy_at(self, time_s: float) -> float:
        """As last looked at."""
        return next((a for at_s, _, a in reversed(self.looks) if at_s <= time_s), GUESSED)

    def examples(self, begin_s: float, end_s: float) -> int:
        """That it has computed between two times."""
        return sum(n for at_s, n in self.steps if begin_s <= at_s < end_s)

    def longest_gap_s(self, begin_s: float, end_s: float) -> float:
        """Between two steps that ended between two times."""
        times = [at_s for at_s, _ in self.steps if begin_s <= at_s < end_s]
        return max((b - a for a, b in itertools.pairwise(times)), default=end_s - begin_s)


@dataclass(frozen=True, slots=True)
class LabCourse:
    """How training went on the hosts that told: the first one, where all have the same weights.

    Attributes:
        run: what was run.
        hosts: by rank.
        back_s: when a host that was killed was back, in seconds; None where none was.
    """

    run: LabRun
    hosts: Sequence[Host]
    back_s: float | None = None

    def accuracy_at(self, time_s: float) -> float:
        """The hosts' mean accuracy."""
        return statistics.mean(host.accuracy_at(time_s) for host in self.hosts)

    @property
    def at_end(self) -> float:
        """The hosts' mean accuracy at the end."""
        return self.accuracy_at(math.inf)

    def time_to(self, target: float) -> float:
        """When the hosts' mean accuracy was first at the target, in seconds; infinite if never."""
        times = sorted(at_s for host in self.hosts for at_s, _, _ in host.looks)
        return next((t for t in times if self.accuracy_at(t) >= target), math.inf)

    def link_bytes(self, *, near: bool) -> float:
        """Of the mean directed pair of hosts at one site, or at two."""
        found = [n for (a, b), n in self._bytes().items() if near == is_near(a, b)]
        return statistics.mean(found)

    def _bytes(self) -> dict[tuple[int, int], float]:
        """By pair of ranks; of exact training as its algorithm sends, which isn't counted."""
        pairs = list(itertools.permutations(range(N_HOSTS), 2))
        first = self.hosts[0]
        model_bytes = WEIGHT_BYTES * first.n_weights * len(first.steps)
        if self.run.method == RING:
            share = 2 * (N_HOSTS - 1) / N_HOSTS
            return {(a, b): share * model_bytes * (b == (a + 1) % N_HOSTS) for a, b in pairs}
        if self.run.method == DIRECT:
            return dict.fromkeys(pairs, float(model_bytes))
        return {(a, b): float(self.hosts[a].sent_bytes.get(str(b), 0)) for a, b in pairs}


def is_near(a: int, b: int) -> bool:
    """Whether two ranks are at one site."""
    return SITE_BY_RANK[a] == SITE_BY_RANK[b]


def from_told(run: LabRun, told: Sequence[str], back_s: float | None) -> LabCourse:
    """From what each host has told, a line of JSON."""
    return LabCourse(run, [Host(**json.loads(line)) for line in told], back_s)


def keep(course: LabCourse, file: Path) -> None:
    """Writes a course to its file, as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(course)) + "\n")
    partial.replace(file)


def read(file: Path) -> LabCourse:
    """A course that was kept."""
    data = json.loads(file.read_text())
    hosts = [Host(**host) for host in data["hosts"]]
    return LabCourse(LabRun(**data["run"]), hosts, data["back_s"])
