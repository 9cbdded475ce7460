"""What is run in the lab, run by run: methods, models, data, links, and what happens to hosts."""

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

OURS, RING, DIRECT = "decentralized", "ring", "direct"
RIVALS = ("gaia", "ako", "hop")
ABLATIONS = ("no-transfer", "no-priority", "no-weights", "equal-batches")
SLOWED, KILLED = "slowed", "killed"
EXACT_TAKES = 5  # times as long as the others, which need not wait for thin links
RATES = {  # of learning, the likeliest one first
    OURS: (0.2, 0.4, 0.1),
    RING: (0.2, 0.4, 0.1),
    DIRECT: (0.2, 0.4, 0.1),
    "gaia": (0.05, 0.1, 0.02),
    "ako": (0.05, 0.1, 0.02),
    "hop": (0.1, 0.2, 0.4),
}


@dataclass(frozen=True, slots=True)
class LabRun:
    """One run on six hosts.

    Attributes:
        case: names model, data and links.
        method: how gradients are exchanged, or what happens to a host under ours.
        model: "mlp" or "cnn".
        skewed: whether a half of each site's data are of its own labels.
        links: between the sites, "hard" or "mixed".
        rate: of learning.
        seed: of weights, images and their order.
        seconds: of training.
    """

    case: str
    method: str
    model: str
    skewed: bool
    links: str
    rate: float
    seed: int
    seconds: float

    @property
    def name(self) -> str:
        """As `--only` selects it."""
        return f"{self.case}/{self.method}"

    @property
    def file(self) -> str:
        """Where its course is kept, in the folder of all."""
        return f"{self.case}/{self.method}-rate{self.rate:g}-seed{self.seed}-{self.seconds:g}s.json"

    @property
    def is_exact(self) -> bool:
        """Whether every step waits for all hosts, so that all have the same weights."""
        return self.method in (RING, DIRECT)


CASES = {  # model, skewed, links
    "mlp": ("mlp", False, "hard"),
    "mlp-skewed": ("mlp", True, "hard"),
    "mlp-mixed": ("mlp", False, "mixed"),
    "cnn": ("cnn", False, "hard"),
    "cnn-skewed": ("cnn", True, "hard"),
}


def runs(seconds: float, n_seeds: int, n_rates: int = 1) -> Iterator[LabRun]:
    """All runs, so that those of the first seed tell of everything.

    Args:
        seconds: of training in each; more where every step waits for all.
        n_seeds: of each run.
        n_rates: learning rates that each method may choose from.
    """
    for seed in range(n_seeds):
        for case, (model, skewed, links) in CASES.items():
            plain = LabRun(case, OURS, model, skewed, links, 0.0, seed, seconds)
            for method in methods_of(case):
                run = replace(plain, method=method)
                if run.is_exact:
                    run = replace(run, seconds=EXACT_TAKES * seconds)
                for rate in RATES.get(method, RATES[OURS][:1])[:n_rates]:
                    yield replace(run, rate=rate)


def methods_of(case: str) -> tuple[str, ...]:
    """What is run of a case: exact training is blind to who holds which rows of a batch."""
    exact = () if CASES[case][1] else (RING, DIRECT)
    others = {"mlp": (*ABLATIONS, SLOWED, KILLED), "mlp-skewed": ABLATIONS}.get(case, ())
    return (OURS, *RIVALS, *exact, *others)


def is_wanted(run: LabRun, only: Sequence[str]) -> bool:
    """Whether a run is among those that are wanted.

    Args:
        run: in question.
        only: names such as `mlp/ako`, `cnn*` or `killed`; all are wanted where there are none.
    """
    names = (run.name, run.case, run.method)
    return not only or any(fnmatch.fnmatch(name, each) for each in only for name in names)
