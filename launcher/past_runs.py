"""Run records as past runs that a policy can be asked about, or why one cannot."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from launcher.record import Outcome, RunRecord, Segment, parse_timestamp
from policies.past import PastRun, flaw_of
from policies.schema import Experience, Situation

SENSELESS = (ValueError, TypeError, ArithmeticError, LookupError)  # of values that cannot be
MOVED = "moved"  # the end of a segment that went on under another plan


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run that cannot be replayed, and why, as a clause."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Measured:
    """A timed segment of a run, and when it ended."""

    segment: Experience
    ended: datetime


class History:
    """All runs in a storage, as what was known at any time.

    Args:
        records: those that can be read, in any order.
    """

    def __init__(self, records: Sequence[RunRecord]) -> None:
        self._measured: list[_Measured] = []
        for record in records:
            with contextlib.suppress(*SENSELESS):
                self._measured += _measured_in(record)

    @property
    def segments(self) -> tuple[Experience, ...]:
        """Every segment that was ever timed and makes sense."""
        return tuple(each.segment for each in self._measured)

    def before(self, record: RunRecord) -> tuple[Experience, ...]:
        """What other runs had measured when a run began, oldest first."""
        began = parse_timestamp(record.created)
        known = [
            each
            for each in self._measured
            if each.ended <= began and each.segment.run != record.run
        ]
        return tuple(each.segment for each in sorted(known, key=lambda each: each.ended))

    def past_run(self, record: RunRecord) -> PastRun | LeftOut:
        """A run as it can be asked about again, or why it cannot."""
        try:
            return self._past_run(record)
        except SENSELESS as error:
            return LeftOut(record.run, f"its record makes no sense ({error})")

    def _past_run(self, record: RunRecord) -> PastRun | LeftOut:
        reason = _reason(record)
        if reason is not None:
            return LeftOut(record.run, reason)
        situation, outcome = record.situation(0), record.outcome
        if situation is None or outcome is None:
            return LeftOut(record.run, "its record lacks its cluster, its script or its outcome")
        flaw = _flaw(record, situation, outcome)
        if flaw is not None:
            return LeftOut(record.run, flaw)
        free = replace(situation.limits, workers=None)
        return PastRun(
            run=record.run,
            seed=record.decisions[0].decision.seed,
            situation=replace(situation, limits=free),
            segments=tuple(_experience(record, each) for each in _timed(record)),
            n_starts=_n_starts(record),
            moving_s=_moving_s(record),
            time_s=outcome.time_s,
            cost_usd=outcome.cost_usd,
            before=self.before(record),
            asked=situation.limits.workers,
        )


def _reason(record: RunRecord) -> str | None:
    """What in a run's course keeps it from being replayed."""
    if record.status == "running":
        return "it has not ended, or was lost"
    if not record.decisions:
        return "it ended before a decision was made"
    if not record.segments:
        return "it was not trained"
    if not _timed(record):
        return "it ended before a step was timed"
    return None


def _flaw(record: RunRecord, situation: Situation, outcome: Outcome) -> str | None:
    """What in a record makes no sense."""
    for name, value in (("time", outcome.time_s), ("cost", outcome.cost_usd)):
        if not (math.isfinite(value) and value >= 0.0):
            return f"its record has a {name} of {value:g}"
    if situation.work.global_batch < 1:
        return f"its record has a batch of {situation.work.global_batch}"
    flaws = [flaw_of(_experience(record, each)) for each in _timed(record)]
    return next((flaw for flaw in flaws if flaw is not None), None)


def _measured_in(record: RunRecord) -> list[_Measured]:
    found = []
    for each in _timed(record):
        segment = _experience(record, each)
        ended = each.ended or record.heartbeat_at
        if flaw_of(segment) is None:
            found.append(_Measured(segment, parse_timestamp(ended)))
    return found


def _timed(record: RunRecord) -> list[Segment]:
    """The segments that a policy can learn from."""
    return [each for each in record.segments if replace(record, segments=(each,)).experiences()]


def _experience(record: RunRecord, segment: Segment) -> Experience:
    return replace(record, segments=(segment,)).experiences()[0]


def _n_starts(record: RunRecord) -> int:
    """Timed segments that began for another reason than a move."""
    ends = [None, *(each.end for each in record.segments)]
    timed = _timed(record)
    begun = zip(record.segments, ends, strict=False)
    return max(1, sum(each in timed and end != MOVED for each, end in begun))


def _moving_s(record: RunRecord) -> float:
    """Between the end of a segment that moved and the beginning of the next."""
    pairs = zip(record.segments, record.segments[1:], strict=False)
    return math.fsum(
        max((parse_timestamp(later.started) - parse_timestamp(each.ended)).total_seconds(), 0.0)
        for each, later in pairs
        if each.end == MOVED and each.ended is not None
    )
