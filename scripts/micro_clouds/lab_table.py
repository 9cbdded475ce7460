"""What the runs in the lab have shown so far: tables, and goals met or missed."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scripts.micro_clouds.in_lab import KILLED_AT, KILLED_RANK, SLOWED_AT, SLOWED_RANK
from scripts.micro_clouds.lab_course import LabCourse
from scripts.micro_clouds.lab_runs import CASES, DIRECT, KILLED, OURS, RING, RIVALS, SLOWED

FIXED_S = 20.0
SETTLED_S = 1.0  # after an event


@dataclass(frozen=True, slots=True)
class Row:
    """One method at its best rate; medians over seeds.

    Attributes:
        method: its name.
        rate: of learning.
        times_s: to the target, of each seed; infinite where it was never there.
        until_s: how long it was trained.
        at_fixed: accuracy after `FIXED_S`.
        at_end: accuracy.
        n_steps: of the first host in a run.
        thin_mb: over the mean link between sites.
        near_mb: over the mean link inside a site.
    """

    method: str
    rate: float
    times_s: tuple[float, ...]
    until_s: float
    at_fixed: float
    at_end: float
    n_steps: float
    thin_mb: float
    near_mb: float

    @property
    def time_s(self) -> float:
        """To the target."""
        return statistics.median(self.times_s)

    @property
    def least_s(self) -> float:
        """To the target; as long as it was trained where it was never there."""
        return min(self.time_s, self.until_s)


@dataclass(frozen=True, slots=True)
class Goal:
    """A number that is to be reached.

    Attributes:
        name: what it is.
        value: as measured.
        target: the least that meets the goal.
        is_least: whether the value may be greater, as another method was never at the target.
    """

    name: str
    value: float
    target: float
    is_least: bool = False

    def __str__(self) -> str:
        is_met = "met" if self.value >= self.target else "missed"
        sign = "≥ " if self.is_least else ""
        return f"goal {self.name}: {sign}{self.value:.3g} (target {self.target:g}) {is_met}"


def rows_of(courses: Sequence[LabCourse], case: str, target: float) -> dict[str, Row]:
    """Each method's best rate by its name."""
    found: dict[str, Row] = {}
    for method in dict.fromkeys(course.run.method for course in courses):
        own = [c for c in courses if (c.run.case, c.run.method) == (case, method)]
        rates = sorted({course.run.rate for course in own})
        rows = [_row([c for c in own if c.run.rate == rate], target) for rate in rates]
        if rows:
            found[method] = min(rows, key=lambda row: (row.time_s, -row.at_end))
    return found


def _row(courses: Sequence[LabCourse], target: float) -> Row:
    run = courses[0].run

    def median(of: list[float]) -> float:
        return float(statistics.median(of))

    return Row(
        run.method,
        run.rate,
        tuple(course.time_to(target) for course in courses),
        run.seconds,
        median([course.accuracy_at(FIXED_S) for course in courses]),
        median([course.at_end for course in courses]),
        median([len(course.hosts[0].steps) for course in courses]),
        median([course.link_bytes(near=False) / 1e6 for course in courses]),
        median([course.link_bytes(near=True) / 1e6 for course in courses]),
    )


def show(courses: Sequence[LabCourse], target: float) -> list[Goal]:
    """Prints a table of each case that has been run; its goals, as far as they can be told."""
    goals: list[Goal] = []
    for case in CASES:
        rows = rows_of(courses, case, target)
        if not rows:
            continue
        print(f"\n{case}: medians over seeds; measured in the lab")
        print(
            f"{'method':<16} seeds  rate     to {target}   at {FIXED_S:.0f} s  at end   steps",
            end="",
        )
        print("   MB thin  MB near")
        for row in rows.values():
            print(_line(row))
        exact = rows or {}
        if CASES[case][1]:  # exact training is blind to skewed data
            exact = {**rows_of(courses, case.removesuffix("-skewed"), target), **rows}
        goals += goals_of(case, rows, exact)
    return [*goals, *disturbed(courses)]


def _line(row: Row) -> str:
    shown = f"{row.time_s:.1f} s" if math.isfinite(row.time_s) else f"> {row.until_s:.0f} s"
    spread = ""
    if len(row.times_s) > 1:
        spread = " (" + ", ".join(f"{time_s:.1f}" for time_s in sorted(row.times_s)) + ")"
    return (
        f"{row.method:<16} {len(row.times_s):>5} {row.rate:>5g} {shown:>11} {row.at_fixed:>9.3f}"
        f" {row.at_end:>7.3f} {row.n_steps:>7.0f} {row.thin_mb:>9.1f} {row.near_mb:>8.1f}{spread}"
    )


def goals_of(case: str, rows: dict[str, Row], exact: dict[str, Row]) -> Iterator[Goal]:
    """How ours compares with the others.

    Args:
        case: that was run.
        rows: of it.
        exact: where ring-BSP and `direct` are found, if they were run.
    """
    ours = rows.get(OURS)
    if ours is None:
        return
    if (ring := exact.get(RING)) is not None:
        yield Goal(
            f"{case}: times ring-BSP", ring.least_s / ours.time_s, 4.2, ring.time_s == math.inf
        )
        yield Goal(f"{case}: accuracy at {FIXED_S:.0f} s over ring-BSP's",
                   ours.at_fixed / ring.at_fixed, 1.26)  # fmt: skip
    rivals = [rows[name] for name in RIVALS if name in rows]
    if rivals:
        best = min(rivals, key=lambda row: row.time_s)
        yield Goal(f"{case}: times the best rival ({best.method})",
                   best.least_s / ours.time_s, 1.5, best.time_s == math.inf)  # fmt: skip
    if (direct := exact.get(DIRECT)) is not None:
        yield Goal(f"{case}: final accuracy less exact", ours.at_end - direct.at_end, -0.01)


def disturbed(courses: Sequence[LabCourse]) -> Iterator[Goal]:
    """What the others lose when a host is slowed or killed, against calm runs of the same seeds."""
    calm = {_key(course): course for course in courses if course.run.method == OURS}
    pairs = [(course, calm[_key(course)]) for course in courses if _key(course) in calm]
    slowed = [pair for pair in pairs if pair[0].run.method == SLOWED]
    if slowed:
        keeps = [kept(*pair, SLOWED_RANK, SLOWED_AT) for pair in slowed]
        yield Goal("others keep when one is slowed", statistics.median(keeps), 0.95)
    killed = [course for course, _ in pairs if course.run.method == KILLED]
    if killed:
        gaps = [gap_s(course) for course in killed]
        yield Goal("a dead one stops nobody: seconds without a step, less", -max(gaps), -1.0)
        behind = [returned_behind(course) for course in killed]
        yield Goal("a returned one's accuracy less the others'", statistics.median(behind), -0.03)


def _key(course: LabCourse) -> tuple[str, int, float, float]:
    run = course.run
    return run.case, run.seed, run.rate, run.seconds


def kept(course: LabCourse, calm: LabCourse, rank: int, at: float) -> float:
    """Which part of their examples the others compute after an event, of those of a calm run."""
    begin_s, end_s = at * course.run.seconds + SETTLED_S, course.run.seconds
    others = [other for other in range(len(course.hosts)) if other != rank]
    return statistics.mean(
        course.hosts[other].examples(begin_s, end_s)
        / max(1, calm.hosts[other].examples(begin_s, end_s))
        for other in others
    )


def gap_s(course: LabCourse) -> float:
    """The others' longest time without a step while a host is dead, and until it is back."""
    begin_s = KILLED_AT * course.run.seconds
    end_s = min(course.back_s or course.run.seconds, course.run.seconds)
    others = [host for rank, host in enumerate(course.hosts) if rank != KILLED_RANK]
    return max(host.longest_gap_s(begin_s, end_s) for host in others)


def returned_behind(course: LabCourse) -> float:
    """The accuracy at the end of a host that was killed, less the others'."""
    ends = [host.accuracy_at(math.inf) for host in course.hosts]
    others = [accuracy for rank, accuracy in enumerate(ends) if rank != KILLED_RANK]
    return ends[KILLED_RANK] - statistics.mean(others)
