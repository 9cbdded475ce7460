"""Serves the files of a run on a cluster's head to someone afar, as lines of a job's output.

Run as `python -P -m launcher.job_files STORAGE RUN`: lists the run's folder. With a file `wanted`
in the working folder (JSON: `[[key, size, version, offset], …]`) it sends those files instead.
"""

import base64
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from launcher.auto_down import read_notes
from launcher.errors import LauncherError
from launcher.jobs import WANTED
from launcher.storage import Storage
from launcher.worker.staging.manifest import DataFile, Source
from launcher.worker.staging.origin import BrokenError, Origin
from launcher.worker.staging.origins import open_origin

BLOCK_BYTES: Final = 12 << 10  # the dashboard passes on at most 20,000 characters at a time
NAMESPACE: Final = "launch-fetch"


def main() -> int:
    """List a run's folder, or send files of it."""
    uri, run = sys.argv[1:]
    if read_notes(Path.home()):
        _be_seen()
    wanted = Path(WANTED)
    serve(uri, run, wanted.read_text(encoding="utf-8") if wanted.is_file() else None, say)
    return 0


def serve(uri: str, run: str, wanted: str | None, say: Callable[..., None]) -> None:
    """List a run's folder, or send the files that are wanted.

    Args:
        say: takes an entry: its kind and its details.
    """
    try:
        origin = open_origin(run_source(uri, run))
        if wanted is None:
            found = [[f.key, f.name, f.size, f.version] for f in origin.found()]
            say("listing", found=found)
            return
        for words in json.loads(wanted):
            _send(origin, say, *words)
    except (LauncherError, BrokenError) as error:
        say("error", text=str(error), what=type(error).__name__)


def run_source(uri: str, run: str) -> Source:
    """A run's folder in storage."""
    folder = Storage.open(uri).folder(f"runs/{run}")
    return Source(folder.root if folder.is_local else folder.uri)


def _send(
    origin: Origin,
    say: Callable[..., None],
    key: str,
    size: int | None,
    version: str,
    offset: int,
) -> None:
    reader = origin.open(DataFile(key, 0, key, size, version), offset)
    say("file", key=key, offset=reader.offset)
    try:
        while block := reader.read(BLOCK_BYTES):
            say("block", text=base64.b64encode(block).decode())
    finally:
        reader.close()
    say("end", key=key)


def say(kind: str, **detail: object) -> None:
    """Say an entry on standard output, as a journal has it."""
    sys.stdout.write(json.dumps({"kind": kind, **detail}) + "\n")


def _be_seen() -> None:
    """Count as a driver while this lasts: who takes unused clusters down then waits."""
    import ray

    options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False}
    with suppress(ConnectionError, RuntimeError, ValueError):
        ray.init(address="auto", configure_logging=False, logging_level="error", **options)


if __name__ == "__main__":
    sys.exit(main())
