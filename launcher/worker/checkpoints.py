"""Hand what training has reached to the keeper: checkpoints, the script's files, the model.

The step waits only while a checkpoint is copied; a thread packs and sends it. One is in flight at
a time, and at most one more waits: a newer one takes its place.
"""

import contextlib
import io
import logging
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import ray

from launcher.worker import snapshot
from launcher.worker.channel import Channel
from launcher.worker.files import ScriptFiles, TooManyBytesError, packed
from launcher.worker.pace import Pace
from launcher.worker.spool import FROM_BYTES

logger = logging.getLogger(__name__)

PIECE_BYTES = 64 << 20  # what is larger is sent in several messages
LAST_S = 5.0  # a checkpoint in flight may take so long when the channel closes


@dataclass(slots=True)
class _Taken:
    """A checkpoint as it was copied; `error` is why it did not reach the keeper."""

    reached: dict[str, Any]
    files: dict[str, Any] | None
    landed: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class Checkpoints:
    """Takes checkpoints on rank 0, seldom enough to cost little.

    Args:
        folder: the private copy in which the script runs.
        listing: the files in it before the script started.
        every_s: between checkpoints in mid-epoch; None lets their cost decide.
    """

    def __init__(
        self,
        channel: Channel,
        folder: Path,
        listing: dict[str, tuple[int, int]],
        every_s: float | None,
    ) -> None:
        self.pace = Pace(every_s)
        self._channel, self._files = channel, ScriptFiles(folder, listing)
        self._key = ""  # of the files that the keeper has
        self._sent_copies: dict[str, Any] = {}
        self._has_complained = False
        self._changed = threading.Condition()
        self._waiting: _Taken | None = None
        self._in_flight: _Taken | None = None
        self._thread: threading.Thread | None = None
        channel.before_closing(lambda: self.settle(LAST_S))

    def write(self, reached: dict[str, Any], *, began_s: float, wait: bool) -> None:
        """Keep a state with its "position", which nothing may change any more.

        Args:
            began_s: when training paused for it, by `time.perf_counter`.
            wait: until the keeper has it and has tried to write it.
        """
        taken = _Taken(reached, self._copied_files())
        self.pace.took_off(time.perf_counter() - began_s)
        with self._changed:
            self._waiting = taken
            self._changed.notify_all()
        self._start()
        if wait:
            taken.landed.wait()
            if taken.error is not None:
                raise taken.error

    def settle(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is in flight any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting is None and self._in_flight is None, timeout_s
            )

    def write_artifacts(self, *, wait: bool) -> None:
        """Keep the files that the script has written since it started, if any changed."""
        self.settle()
        copies = self._copied_files()
        if copies is not None:
            self._send_files(copies, wait=wait)

    def write_models(self, models: Sequence[Any]) -> None:
        """Keep the trained models: the first as "model", others by their names."""
        for place, model in reversed(list(enumerate(models))):
            stem = "model" if place == 0 else f"model-{_plain(model.name)}"
            with tempfile.TemporaryDirectory() as folder:
                file = saved_model(model, Path(folder), stem)
                if file is not None:
                    with file.open("rb") as stream:
                        self._channel.call("keep_model", file.name, self._sent(stream), wait=True)
                elif getattr(model, "built", True):
                    text = f"{type(model).__name__} cannot be saved by Keras: it is not kept."
                    self._channel.emit("warning", text=text)

    # ------------------------------------------------------------------ the files

    def _copied_files(self) -> dict[str, Any] | None:
        """Copies of the script's files; None, with a warning, where they cannot be had."""
        try:
            return self._files.copied()
        except TooManyBytesError as error:
            self._complain(
                f"The script has written {error.n_bytes / 1e9:.1f} GB of files: too much to be "
                "kept. Write large files to an absolute path or to storage of your own."
            )
        except OSError as error:
            self._complain(
                f"The script's files are not kept: they cannot be copied ({error}). Make room in "
                f"{tempfile.gettempdir()} on the node of worker 0."
            )
        return None

    def _complain(self, text: str) -> None:
        if not self._has_complained:
            self._channel.emit("warning", text=text)
        self._has_complained = True

    def _send_files(self, copies: dict[str, Any], *, wait: bool) -> None:
        if copies == self._sent_copies:
            return
        bundle = packed(copies)
        if bundle.key != self._key:
            # Awaited even where storage is not: a checkpoint counts on them being there.
            method = "keep_files"
            self._channel.call(method, bundle.key, bundle.content, bundle.n_files, wait, wait=True)
        self._key, self._sent_copies = bundle.key, copies

    # ------------------------------------------------------------------ the thread

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="launch-checkpoints", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                taken, self._waiting = self._waiting, None
                self._in_flight = taken
            assert taken is not None
            try:
                self._send(taken)
            except ray.exceptions.RayError as error:  # the driver has ended, and this process will
                taken.error = error
            except Exception as error:  # noqa: BLE001 - training goes on without this one
                taken.error = error
                self._channel.emit("warning", text=f"A checkpoint was not kept: {error!r}.")
            self.pace.landed()
            with self._changed:
                self._in_flight = None
                self._changed.notify_all()
            taken.landed.set()

    def _send(self, taken: _Taken) -> None:
        if taken.files is not None:
            self._send_files(taken.files, wait=False)
        position = taken.reached["position"]
        with _packed(taken.reached) as stream:
            data = self._sent(stream)
        self._channel.call(
            "keep_checkpoint", position, data, self._key, self.pace.whole_s, wait=True
        )

    def _sent(self, stream: IO[bytes]) -> bytes | str:
        """What a call of the keeper gets for a file: its bytes, or the name of sent pieces.

        What is large goes in pieces, so that it need not be in memory here.
        """
        piece = stream.read(PIECE_BYTES)
        following = stream.read(PIECE_BYTES)
        if not following:
            return piece
        name = uuid.uuid4().hex
        while piece:
            self._channel.call("keep_piece", name, piece, wait=True)
            piece, following = following, stream.read(PIECE_BYTES)
        return name


def _packed(reached: dict[str, Any]) -> IO[bytes]:
    """A checkpoint as a file, in memory where it is small or there is no room for a file."""
    file: IO[bytes] = tempfile.SpooledTemporaryFile(FROM_BYTES)  # noqa: SIM115 - the caller's
    try:
        snapshot.write(reached, file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            file.close()
        if not isinstance(error, OSError):
            raise
        logger.warning("a checkpoint is packed in memory: %s", error)
        file = io.BytesIO()
        snapshot.write(reached, file)
    file.seek(0)
    return file


def saved_model(model: Any, folder: Path, stem: str = "model") -> Path | None:
    """Writes the model as a `.keras` file, or its weights where Keras cannot save the model."""
    for file, save in (
        (folder / f"{stem}.keras", model.save),
        (folder / f"{stem}.weights.h5", model.save_weights),
    ):
        try:
            save(str(file))
        except Exception as error:  # noqa: BLE001 - of the script's own get_config, say
            logger.info("%s is not written: %r", file.name, error)
            continue  # its weights can be kept
        return file
    return None


def _plain(name: str) -> str:
    """A model's name as part of a file's."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
