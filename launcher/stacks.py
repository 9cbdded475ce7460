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
_TENSORFLOW: Final = "/tensorflow/python/"
_CALLED_BACK: Final = "/tensorflow/python/ops/script_ops.py"
_WAITS: Final = "waits for the others' gradients"

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


Thread = tuple[Frame, ...]


def threads(stacks: str) -> list[Thread]:
    """Each thread's frames, innermost first, as `faulthandler` wrote them; training comes first."""
    found = [
        tuple(
            Frame(m["file"], int(m["line"]), m["function"])
            for m in map(_FRAME.match, thread.splitlines())
            if m is not None
        )
        for thread in re.split(r"\n\s*\n", stacks)
    ]
    return sorted(filter(None, found), key=lambda thread: not _is_in(thread, _TRAINING))


def whereabouts(stacks: str, run: str) -> str | None:
    """Where a rank is, in words; None where its stacks do not tell.

    What TensorFlow calls back, such as the exchange or a generator of data, runs in threads of
    TensorFlow's own, while the thread that trains waits inside TensorFlow.

    Args:
        stacks: what `faulthandler` wrote.
        run: the run's name, by which the private copy of the script's folder is known.
    """
    found = threads(stacks)
    if not found or not _is_in(found[0], _TRAINING):
        return None
    training, *others = found
    own = _own(training, run)
    for frame in training:
        if _is_in((frame,), *_EXCHANGE):
            return _WAITS
        if _is_in((frame,), _TENSORFLOW):
            return _inside_tensorflow(others, own, run)
        if frame is own:
            return f"is in {own}"
    return f"is in {training[0]}"


def _inside_tensorflow(others: Sequence[Thread], own: Frame | None, run: str) -> str:
    called_back = [thread for thread in others if _is_in(thread, _CALLED_BACK)]
    if any(_is_in(thread, *_EXCHANGE) for thread in called_back):
        return _WAITS
    for thread in called_back:
        if (frame := _own(thread, run)) is not None:
            return f"waits in TensorFlow for {frame}"
    return "is inside TensorFlow" + (f", called from {own}" if own else "")


def _is_in(frames: Thread, *parts: str) -> bool:
    return any(part in frame.file for frame in frames for part in parts)


def _own(frames: Thread, run: str) -> Frame | None:
    """The innermost frame of the script's own."""
    return next((frame for frame in frames if f"/launch-{run}-" in frame.file), None)


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
    return text.startswith(_WAITS)


def _words(activity: Activity, stacks: str | None, run: str) -> str:
    if not activity.is_alive:
        return "its process is gone"
    if activity.is_stopped:
        return "its process is stopped"
    place = whereabouts(stacks, run) if stacks else None
    at = WORDS_BY_PHASE[activity.phase]
    return f"{place}, {at}" if place else f"{at}; its stack is not known"
