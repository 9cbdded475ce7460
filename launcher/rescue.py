"""The end of a run whose storage fails: wait for a while, then keep here what it did not take."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.book import Book
from launcher.errors import StorageError
from launcher.record import dump_record
from launcher.runs import RECORD_FILE
from launcher.storage import Storage

WAIT_S = 30.0  # for storage to work again, when all else is done
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of the files of a run.

    Attributes:
        events: of the keeper since the last segment.
        places: by its path in storage, where a file is that storage did not take.
        text: what is to be said of it; None if storage has all.
    """

    events: tuple[Any, ...] = ()
    places: Mapping[str, Path] = field(default_factory=dict)
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Rescue:
    """Takes what a run's folder in storage does not.

    Attributes:
        folder: the run's in storage.
        places: folders of this machine; the first that can be written counts.
    """

    folder: Storage
    places: Sequence[Path]

    def files(
        self,
        keeper: Any,
        wait_s: float,
        stage: Callable[[str], None],
        *,
        get: Callable[[Any], Any] | None = None,
    ) -> Settled:
        """Wait until storage has what the keeper holds; take what it has not in time.

        Blocks for at most about `wait_s`.

        Args:
            keeper: handle of the keeper actor.
            stage: is told what is waited for.
            get: waits for the answer of a call; Ray's where left out.
        """
        import ray

        try:
            return self._files(keeper, wait_s, stage, get or ray.get)
        except ray.exceptions.RayError as error:  # the keeper is gone, with what it held
            return Settled(text=f"The keeper of checkpoints has died: {_first_line(error)}")

    def _files(
        self,
        keeper: Any,
        wait_s: float,
        stage: Callable[[str], None],
        get: Callable[[Any], Any],
    ) -> Settled:
        paths, why = get(keeper.unwritten.remote(0.0))
        if paths:
            stage(f"storage fails: trying for {wait_s:.0f} s more to write {_listed(paths)}")
        ends_at_s = time.monotonic() + wait_s
        while paths and time.monotonic() < ends_at_s:
            paths, why = get(keeper.unwritten.remote(_LOOK_S))
        events = tuple(get(keeper.drain.remote(0.0)))
        if not paths:
            return Settled(events)
        kept = {path: self._kept(path, get(keeper.content.remote(path))) for path in paths}
        found = {path: place for path, place in kept.items() if place is not None}
        return Settled(events, found, self._text(why, kept))

    def record(self, book: Book, wait_s: float) -> str | None:
        """Wait until storage has the record; else take it. What is to be said, None if it has."""
        why = book.settle(wait_s)
        if why is None:
            return None
        kept = self._kept(RECORD_FILE, dump_record(book.record).encode())
        return self._text(why, {RECORD_FILE: kept})

    def _kept(self, path: str, content: bytes) -> Path | None:
        for place in self.places:
            try:
                Storage.open(str(place)).write(path, content)
            except StorageError:
                continue
            return place / path
        return None

    def _text(self, why: str, kept: Mapping[str, Path | None]) -> str:
        target = self.folder.path()
        lost = [path for path, place in kept.items() if place is None]
        used = [place for place in self.places if any(_is_in(p, place) for p in kept.values())]
        parts = [f"Storage did not take {_listed(tuple(kept))}: {why}"]
        parts += [
            f"It is in {place}: once storage works, copy what is in there to {target}."
            for place in used
        ]
        if lost:
            parts.append(f"Lost, as nothing here could be written either: {_listed(lost)}.")
        return " ".join(parts)


def _is_in(path: Path | None, place: Path) -> bool:
    return path is not None and path.is_relative_to(place)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(paths)
