"""Reads the stacks of all ranks: who is where, and who waits for whom."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath
from typing import Final

from launcher.worker.activity import Activity, Phase

_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_TRAINING: Final = "launcher/worker/loop.py"
_EXCHANGE: Final = ("launcher/worker/exchange/", "launcher/worker/step.py")
_TENSORFLOW: Final = ("/tensorflow/python/",)

WORDS_BY_PHASE: Final[Mapping[Phase, str]] = {
    Phase.STARTING: "starting",
    Phase.SCRIPT: "in the script outside of fit",
    Phase.COMPILING: "in the first step",
    Phase.STEP: "in a step",
    Phase.BETWEEN: "in the script's callbacks or data",
    Phase.EVALUATING: "evaluating",
    Phase.SAVING: "saving",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in a program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{PurePosixPath(self.file).name} line {self.line} ({self.function})"


def training_thread(stacks: str) -> tuple[Frame, ...]:
    """The frames of the thread that trains, innermost first, from what `faulthandler` wrote."""
    for thread in re.split(r"\n\s*\n", stacks):
        frames = tuple(
            Frame(m["file"], int(m["line"]), m["function"])
            for m in map(_FRAME.match, thread.splitlines())
            if m is not None
        )
        if any(_TRAINING in frame.file for frame in frames):
            return frames
    return ()


def whereabouts(frames: Sequence[Frame], run: str) -> str | None:
    """Where a rank is, in words; None where its stack does not tell.

    Args:
        frames: of its training thread, innermost first.
        run: the run's name, by which the private copy of the script's folder is known.
    """
    own = next((frame for frame in frames if f"/launch-{run}-" in frame.file), None)
    for frame in frames:
        if any(part in frame.file for part in _EXCHANGE):
            return "waits for the others' gradients"
        if any(part in frame.file for part in _TENSORFLOW):
            return "is inside TensorFlow" + (f", called from {own}" if own else "")
        if frame is own:
            return f"is in {own}"
    return f"is in {frames[0]}" if frames else None


def who_waits(
    activities: Sequence[Activity],
    stacks_by_rank: Mapping[int, str],
    place_by_rank: Mapping[int, str],
    run: str,
) -> str:
    """One sentence for all ranks that are at the same place; those that wait come last.

    Args:
        activities: one per rank.
        stacks_by_rank: what `faulthandler` wrote, of those that could be asked.
        place_by_rank: the address of each rank's node.
        run: the run's name.
    """
    words = {each.rank: _words(each, stacks_by_rank.get(each.rank), run) for each in activities}
    ranks = sorted(words, key=lambda rank: (_waits(words[rank]), words[rank], rank))
    sentences = []
    for text, group in groupby(ranks, key=lambda rank: words[rank]):
        named = [f"{rank} ({place_by_rank.get(rank, '?')})" for rank in group]
        sentences.append(f"Rank{'s' if len(named) > 1 else ''} {', '.join(named)}: {text}.")
    return " ".join(sentences)


def _waits(text: str) -> bool:
    return text.startswith("waits")


def _words(activity: Activity, stacks: str | None, run: str) -> str:
    if not activity.is_alive:
        return "its process is gone"
    if activity.is_stopped:
        return "its process is stopped"
    place = whereabouts(training_thread(stacks), run) if stacks else None
    at = WORDS_BY_PHASE[activity.phase]
    return f"{place}, {at}" if place else f"{at}; its stack is not known"
