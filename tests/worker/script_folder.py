"""A user's folder in which tests run scripts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.worker.job import Job
from launcher.worker.script import Ending, UserScriptError, run_script

SHOWN_ROOT = "/home/me/my project"


class Folder:
    """A private copy of a user's folder, to run a script in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def run(
        self,
        name: str = "train.py",
        *args: str,
        kind: str = "fit",
        params: str | None = None,
        ending: Ending | None = None,
    ) -> None:
        job = Job(
            run="brave-otter",
            archive=None,
            script=name,
            shown_root=SHOWN_ROOT,
            argv0=name,
            args=args,
            kind=kind,  # type: ignore[arg-type]
            frameworks=("keras",),
            seed=7,
            params=params,
        )
        run_script(job, self.path, ending)

    def error(self, name: str = "train.py", **how: str) -> str:
        """What is shown of the script's error."""
        with pytest.raises(UserScriptError) as caught:
            self.run(name, **how)
        assert str(caught.value) == caught.value.text
        return caught.value.text


@contextmanager
def folder_in(tmp_path: Path) -> Iterator[Folder]:
    """A new one; the modules that scripts imported from it are forgotten in the end."""
    before = set(sys.modules)
    yield Folder(tmp_path / "project")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
