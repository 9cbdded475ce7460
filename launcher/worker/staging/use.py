"""Shows a script its data: in `$LAUNCH_DATA_DIR`, which stays there as long as it runs."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.worker.staging.cache import held
from launcher.worker.staging.wanted import DataPlace

VARIABLE = "LAUNCH_DATA_DIR"


def with_data_folder(text: str) -> str:
    """An argument of the script, the data folder filled in where it is named."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return text
    return text.replace("${" + VARIABLE + "}", folder).replace(f"${VARIABLE}", folder)


@contextlib.contextmanager
def data_in_use(places: Sequence[DataPlace], rank: int) -> Iterator[None]:
    """Name a rank's data folder to the script; a copy is not given up while the block runs.

    Args:
        places: of all ranks; empty: the run has no data.
    """
    if not places:
        yield
        return
    place = places[rank]
    os.environ[VARIABLE] = place.folder
    lock = contextlib.nullcontext() if place.lock is None else held(Path(place.lock))
    try:
        with lock:
            yield
    finally:
        os.environ.pop(VARIABLE, None)
