"""Hand what training has reached to the keeper: checkpoints, the script's files, the model."""

import tempfile
import time
from pathlib import Path
from typing import Any

from launcher.worker import script, snapshot
from launcher.worker.channel import Channel

SHARE = 0.02  # of the time that checkpoints may take
DUE_AFTER_S = 5.0  # between epochs a checkpoint is taken at least this often
MAX_ARTIFACTS_BYTES = 1 << 30


class Checkpoints:
    """Writes checkpoints on rank 0, seldom enough to cost little.

    Args:
        folder: the private copy in which the script runs.
        listing: the files in it before the script started.
        every_s: least time between two checkpoints in mid-epoch; None for never.
    """

    def __init__(
        self,
        channel: Channel,
        folder: Path,
        listing: dict[str, tuple[int, int]],
        every_s: float | None,
    ) -> None:
        self._channel, self._folder = channel, folder
        self._listing, self._kept = listing, listing
        self._every_s = every_s
        self._at_s, self._took_s = time.monotonic(), 0.0

    def is_due_in_epoch(self) -> bool:
        """Whether to ask for one in mid-epoch; asking starts the wait for the next."""
        if self._every_s is None or self._since_s < max(self._every_s, self._took_s / SHARE):
            return False
        self._at_s = time.monotonic()
        return True

    def is_due_between(self) -> bool:
        """Whether one between epochs or fits is cheap against what it would save."""
        return self._since_s > min(DUE_AFTER_S, self._took_s / SHARE)

    def is_cheap_for(self, trained_s: float) -> bool:
        """Whether one more costs little against so much training that it would keep."""
        return self._took_s < trained_s * SHARE

    @property
    def _since_s(self) -> float:
        return time.monotonic() - self._at_s

    def write(self, reached: dict[str, Any], *, wait: bool) -> None:
        """Keep a state with its "position"; `wait` until it is in storage."""
        began_s = time.monotonic()
        data = snapshot.dump(reached)
        self.write_artifacts(wait=wait)
        self._channel.call("keep_checkpoint", reached["position"], data, wait=wait)
        self._at_s = time.monotonic()
        self._took_s = self._at_s - began_s

    def write_artifacts(self, *, wait: bool) -> None:
        """Keep the files that the script has written since it started, if any changed."""
        now = script.listing(self._folder)
        if now == self._kept:
            return
        names = [name for name, status in now.items() if self._listing.get(name) != status]
        n_bytes = sum(now[name][0] for name in names)
        if n_bytes > MAX_ARTIFACTS_BYTES:
            self._channel.emit(
                "warning",
                text=f"The script has written {n_bytes / 1e9:.1f} GB of files: too much to be "
                "kept. Write large files to an absolute path or to storage of your own.",
            )
            return
        self._kept = now
        data = script.pack_files(self._folder, names)
        self._channel.call("keep_artifacts", data, len(names), wait=wait)

    def write_model(self, model: Any) -> None:
        """Keep the trained model."""
        name, data = saved_model(model)
        if name:
            self._channel.call("keep_model", name, data, wait=True)


def saved_model(model: Any) -> tuple[str, bytes]:
    """The model as a `.keras` file, or its weights where Keras cannot save the model."""
    with tempfile.TemporaryDirectory() as folder:
        for name, save in (
            ("model.keras", model.save),
            ("model.weights.h5", model.save_weights),
        ):
            path = Path(folder, name)
            try:
                save(str(path))
            except (ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError):
                continue  # a custom class without get_config, say: its weights can be kept
            return name, path.read_bytes()
    return "", b""
