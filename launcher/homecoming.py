"""Brings the results of a run afar into the storage of this machine, where other commands look."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.attach import View
from launcher.errors import LauncherError
from launcher.fetch import ARTIFACTS, BOOK, KINDS, RECORD, Fetched, Fetching
from launcher.fetch_progress import Shown
from launcher.job_book import JobPlace
from launcher.job_origin import JobOrigin
from launcher.jobs import Jobs
from policies.wording import size

# What a run that is done leaves; one that can go on leaves all.
RESULTS: Final = ("model", ARTIFACTS, "record")
STOPPED: Final = frozenset({"budget", "deadline", "interrupted"})


@dataclass(frozen=True, slots=True)
class Home:
    """Where a run's results go here; `storage` is None where they lie outside of any machine."""

    run: str
    storage: str | None

    @classmethod
    def of(cls, run: str, storage: str) -> "Home":
        """In a storage, if that is a folder."""
        return cls(run, None if "://" in storage else storage)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(str(self.storage), "runs", self.run)

    def is_its_own(self, record: Mapping[str, Any]) -> bool:
        """Whether the run's own folder is this one: the head is this machine."""
        try:
            here = json.loads((self.folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        is_fetched = (self.folder / BOOK).exists()
        return bool(here.get("created") == record.get("created")) and not is_fetched


def brought_home(
    view: View, jobs: Jobs, place: JobPlace, home: Home, record: Mapping[str, Any] | None
) -> bool:
    """Fetch what a run has left; whether all of it is safe, whatever happens to the cluster.

    Args:
        record: the run's; None, or one without a segment, if it ended before it left anything.
    """
    run = home.run
    if record is None or not record.get("segments") or home.is_its_own(record):
        return True
    if "://" in place.storage:
        view.say(f"the results are in {place.storage}. Bring them here: launch fetch {run}")
        return True
    if home.storage is None:
        view.say(f"the results are on the head. Bring them here: launch fetch {run}")
        return False
    try:
        found = _fetched(view, jobs, place, home, is_done=record.get("status") == "done")
    except LauncherError as error:
        view.say(f"the results are not home: {error} Try again: launch fetch {run}")
        return False
    view.session.index.remember(run, home.storage)
    models = found.of("model")
    what = home.folder / models[0] if models else home.folder
    view.say(f"brought home: {what} ({size(found.n_bytes)} in all)")
    if record.get("status") in STOPPED and record.get("checkpoints"):
        view.say(f"launch resume {run} goes on here; there, with {place.option}")
    return True


def _fetched(view: View, jobs: Jobs, place: JobPlace, home: Home, *, is_done: bool) -> Fetched:
    """Fetch results; and where the run can go on, what it needs for that."""
    view.stage(f"bringing {home.run} home")
    origin = JobOrigin(jobs, place.storage, home.run)
    shown = Shown(
        f"bringing {home.run} home", view.stage, is_tty=view.session.terminal.stderr_is_tty
    )
    fetching = Fetching(origin, home.folder, tell=shown.tell, announce=origin.announce)
    return fetching.fetched(RESULTS if is_done else KINDS)
