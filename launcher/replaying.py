"""Replay past runs through policies, one run after the other, leaving out what cannot be."""

import logging
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

import numpy as np

from launcher.errors import UsageError
from launcher.past_runs import SENSELESS, History, LeftOut
from launcher.record import parse_timestamp
from launcher.runs import Runs
from policies.contenders import CONTENDERS, Asked, Contender
from policies.data.sweep import shipped_prior
from policies.hindsight import Hindsight
from policies.past import PastRun
from policies.recommend import NoPlanError
from policies.replay import Replayed, Total, replayed, total

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replay:
    """Past runs through one policy.

    Attributes:
        policy: its name.
        summary: what it does, in a line.
        runs: newest first.
        left_out: runs that it cannot be asked about, or would have refused.
        damaged: why further records cannot be read.
        total: of `runs`.
    """

    policy: str
    summary: str
    runs: tuple[Replayed, ...]
    left_out: tuple[LeftOut, ...]
    damaged: tuple[str, ...]
    total: Total


@dataclass(frozen=True, slots=True)
class Pasts:
    """Runs to be asked about, newest first, and those that cannot be.

    Attributes:
        storage: where they are kept.
        n_all: runs that there are.
        began: when the first and the last of those that were looked at began.
    """

    storage: str
    n_all: int
    began: tuple[datetime, ...]
    asked: tuple[Asked, ...]
    left_out: tuple[LeftOut, ...]
    damaged: tuple[str, ...]

    @property
    def n_looked_at(self) -> int:
        """Runs whose records could be read."""
        return len(self.asked) + len(self.left_out)


def all_contenders() -> tuple[Contender, ...]:
    """Every policy, the launcher's own first."""
    return tuple(CONTENDERS.values())


def contender_named(name: str) -> Contender:
    """The policy of a name, however it is spelt.

    Raises:
        UsageError: there is none; lists those that there are.
    """
    wanted = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    if wanted in CONTENDERS:
        return CONTENDERS[wanted]
    close = get_close_matches(wanted, CONTENDERS, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise UsageError(f"--policy {name!r} is not known.{hint} There are: {', '.join(CONTENDERS)}.")


@np.errstate(all="ignore")  # of values that cannot be, which then are flaws
def pasts_of(runs: Runs, storage: str, last: int) -> Pasts:
    """The last so many runs, to be asked about with what was known when each began."""
    history, records = History(runs.records), runs.records[:last]
    hindsight = Hindsight(history.segments, shipped_prior())
    found = [history.past_run(record) for record in records]
    moments = sorted(parse_timestamp(record.created) for record in records)
    return Pasts(
        storage,
        len(runs.records),
        tuple(moments[at] for at in (0, -1)) if moments else (),
        tuple(Asked(each, hindsight) for each in found if isinstance(each, PastRun)),
        tuple(each for each in found if isinstance(each, LeftOut)),
        runs.damaged,
    )


@np.errstate(all="ignore")
def replay(pasts: Pasts, contender: Contender) -> Replay:
    """Ask one policy about all runs."""
    outcomes = [_replayed(asked, contender) for asked in pasts.asked]
    runs = tuple(each for each in outcomes if isinstance(each, Replayed))
    refused = tuple(each for each in outcomes if isinstance(each, LeftOut))
    left_out = (*refused, *pasts.left_out)
    return Replay(contender.name, contender.summary, runs, left_out, pasts.damaged, total(runs))


def _replayed(asked: Asked, contender: Contender) -> Replayed | LeftOut:
    run = asked.past.run
    try:
        return replayed(asked, contender)
    except NoPlanError as error:
        return LeftOut(run, f"{contender.name} would have refused it: {error.problem}")
    except SENSELESS as error:
        logger.debug("%s cannot be replayed", run, exc_info=error)
        return LeftOut(run, f"{contender.name} cannot be asked about it ({error})")
