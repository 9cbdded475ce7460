"""How fast data came from a source before: remembered on this machine."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from launcher.small_file import read_object, replace_file
from launcher.worker.staging.manifest import Manifest, Source

logger = logging.getLogger(__name__)

ASSUMED_BYTES_PER_S: Final = 50e6  # where nothing is remembered
MIN_BYTES: Final = 4 << 20  # less says more about start-up than about the way


@dataclass(frozen=True, slots=True)
class DataRates:
    """A small file: bytes per second, by bucket or host; `driver` is this machine."""

    file: Path

    def of(self, manifest: Manifest) -> float | None:
        """The rate at which these data came last, in bytes per second; None: not known."""
        rate = read_object(self.file).get(_key(manifest.sources))
        return rate if isinstance(rate, (int, float)) and rate > 0 else None

    def remember(self, manifest: Manifest, bytes_per_s: float) -> None:
        """Note a rate; a full disk only costs the memory."""
        try:
            known = read_object(self.file)
            replace_file(self.file, json.dumps({**known, _key(manifest.sources): bytes_per_s}))
        except OSError as error:
            logger.warning("The rate of the data cannot be remembered: %s", error)


def _key(sources: Sequence[Source]) -> str:
    places = {"driver" if each.is_local else urlsplit(each.public).netloc for each in sources}
    return " ".join(sorted(places))
