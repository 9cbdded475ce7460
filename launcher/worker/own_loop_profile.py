"""Measures a script's own training loop: a few steps at two batch sizes, and whether it adds up.

Workers sum up the gradients of their rows with the rows' part of the batch as weight. That is
one machine's gradient if the loss is a mean over rows (or Keras's own, whose denominators are
exchanged). It is put to the test here: the first batch is handed out whole, then in two parts,
with weights that do not move.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf

from launcher.errors import ScriptError
from launcher.worker import script
from launcher.worker.echo import Echo
from launcher.worker.frames import OTHERS
from launcher.worker.measurement import Measurement
from launcher.worker.model_facts import item_bytes, n_batch_norms, random_layers
from launcher.worker.readings import Reading
from launcher.worker.step_times import typical_step_s

SMALL_SHARE = 4  # the second batch size is a quarter of the first
MIN_STEPS, MAX_STEPS, MEASURE_S = 5, 60, 1.2
REPEATS = 5  # of the first batch of each pass: seen, and the four of CHECKS
CHECKS = ("whole", "again", "part", "rest")
TOLERANCE = 1e-3
ASSUMED_EPOCHS = 10
EPOCHS = re.compile(r"^((n|num|number_of|max|total|train|training)_?)?epochs$", re.IGNORECASE)
STEPS = re.compile(
    r"^((n|num|max|total|train|training)_?)(steps|iterations|iters|updates)$", re.IGNORECASE
)
NOT_ADDITIVE = (
    "the loss of the script's own loop is not a mean over the rows of a batch: the gradients of "
    "parts of a batch do not add up to its gradient. Use tf.reduce_mean or a loss of Keras"
)


class OwnLoopProfile:
    """Watches own loops while a script is profiled; ends the script when it knows enough.

    Args:
        parallel: the engine.
        echo: its exchange, which stands for two workers as soon as the script reads data itself.
        end: raises what ends the script.
    """

    picks_rows = True

    def __init__(self, parallel: Any, echo: Echo, end: Callable[[], None]) -> None:
        self._parallel, self._echo, self._end = parallel, echo, end
        echo.on_gradients = self._gated
        parallel.state.gathers = False  # so that all gradients are seen
        self.first_step_at_s = 0.0
        self.n_rows = 0
        self._phases = ["seen", *CHECKS, "small", "full"]
        self._times_s: dict[str, list[float]] = {"small": [], "full": []}
        self._seen: dict[str, list[np.ndarray]] = {name: [] for name in CHECKS}
        self._check_s: dict[str, list[float]] = {}
        self._n_elements: int | None = None
        self._is_repeated = False
        self._declared: dict[str, int] = {}

    # ---- LoopWatcher

    def trained(self, reading: Reading | None, n_rows: int, step_s: float | None) -> None:
        """A step is over."""
        if self.wants_end():
            return
        phase = self._phases[0]
        if phase == "seen":
            self._begin(reading, n_rows)
        elif phase in CHECKS:
            self._check_s[phase] = [step_s or 0.0]
            if n_rows != self.n_rows:
                self._phases = ["small", "full"]  # another pass: nothing to compare
            else:
                self._phases.pop(0)
        elif step_s is not None and n_rows == self.n_rows:
            self._times_s[phase].append(step_s)
            times_s = self._times_s[phase][1:]  # the first may be traced
            long_enough = len(times_s) >= MIN_STEPS and sum(times_s) > MEASURE_S
            if long_enough or len(times_s) >= MAX_STEPS:
                self._phases.pop(0)

    def between(self) -> None:
        """End the script when there is nothing more to be learned."""
        if self.wants_end():
            self._end()

    def wants_end(self) -> bool:
        """Whether enough is known."""
        return not self._phases

    def ended(self) -> None:
        """Nothing to do."""

    def warn(self, text: str) -> None:
        """The reason goes into the measurement."""

    def rows(self, n_rows: int) -> tuple[int, int]:
        """The rows of this phase."""
        share = max(1, n_rows // SMALL_SHARE)
        phase = self._phases[0] if self._phases else "full"
        if phase in ("part", "small"):
            return 0, share
        return (share if phase == "rest" and n_rows > 1 else 0), n_rows

    def begins(self) -> None:
        """From here on the engine computes as one of two workers."""
        self._echo.world_size = 2
        self._parallel.shares = (1.0, 1.0)
        self._declared = self._declared or _declared(sys._getframe(1))

    def wants_again(self) -> bool:
        """The tests are about one batch."""
        return self._is_checking

    def arranged(self, dataset: Any) -> Any:
        """The first batch several times over."""
        self._is_repeated = True

        @tf.autograph.experimental.do_not_convert
        def repeated(number: Any, batch: Any) -> Any:
            count = tf.where(number == 0, REPEATS, 1)
            return tf.data.Dataset.from_tensors(batch).repeat(tf.cast(count, tf.int64))

        return dataset.enumerate().flat_map(repeated)

    # ---- what was learned

    def measurement(self, import_s: float, started_s: float) -> Measurement:
        """What is known.

        Raises:
            ScriptError: no step was measured.
        """
        full_s, small_s = (self._times_s[name] for name in ("full", "small"))
        full_s = full_s or self._check_s.get("again", [])
        if not full_s and not small_s:
            raise ScriptError(
                "The script's own loop ended before a few steps could be measured. Train longer, "
                "or let launch see more batches."
            )
        obstacle = self._obstacle()
        rows = max(1, self.n_rows)
        sizes, times = [rows], [_step_s(full_s or small_s)]
        if full_s and small_s and obstacle is None and rows > 1:
            sizes, times = [rows, max(1, rows // SMALL_SHARE)], [times[0], _step_s(small_s)]
        models = self._parallel.own.models
        trained, changed = models.trained(), models.changed
        steps = self._n_elements or self._declared.get("steps")
        return Measurement(
            global_batch=rows,
            batch_rows=tuple(sizes),
            step_s=tuple(times),
            steps=steps,
            epochs=self._epochs(),
            validation_steps=0,
            early_stopping=False,
            n_params=int(sum(model.count_params() for model in trained)),
            payload_bytes=int(sum(np.prod(v.shape) * item_bytes(v) for v in changed)),
            n_tensors=len(changed),
            random_layers=tuple(sorted({each for m in trained for each in random_layers(m)})),
            n_batch_norms=sum(map(n_batch_norms, trained)),
            max_workers=1 if obstacle is not None else rows,
            max_workers_reason=obstacle or f"a batch has {rows} rows",
            import_s=import_s,
            setup_s=max(0.0, self.first_step_at_s - started_s),
            assumed=() if self._declared else ("epochs",),
            uses_fit=False,
        )

    def _epochs(self) -> int:
        if self._n_elements is None and "steps" in self._declared:
            return 1
        return self._declared.get("epochs", ASSUMED_EPOCHS)

    def _obstacle(self) -> str | None:
        """Why more workers would not be faster."""
        if self._parallel.own.obstacle is not None:
            return str(self._parallel.own.obstacle).rstrip(".")
        return None if self._adds_up() else NOT_ADDITIVE

    def _adds_up(self) -> bool:
        """Whether the parts' gradients add up to the whole's, as far as that can be told.

        Not where the loop draws random numbers, or where the engine corrects denominators and
        moments with sums over ranks that there are none of here.
        """
        vectors = {name: np.concatenate(each) for name, each in self._seen.items() if each}
        if len(vectors) < len(CHECKS) or self._echo.has_other_sums:
            return True
        whole, again, part, rest = (vectors[name] for name in CHECKS)
        if len({v.shape for v in vectors.values()}) > 1 or not np.isfinite(whole).all():
            return True
        if _difference(whole, again) > TOLERANCE:
            return True
        return _difference(whole, part + rest) <= TOLERANCE

    # ---- details

    def _begin(self, reading: Reading | None, n_rows: int) -> None:
        """The first step has shown what there is to measure."""
        self.first_step_at_s = time.perf_counter()
        if reading is None or not reading.can_be_cut or n_rows < 2:
            self._phases = ["full"]
            self.n_rows = n_rows
            return
        self.n_rows, self._n_elements = n_rows, reading.n_elements
        can_compare = reading.gap == 1 and (self._is_repeated or not reading.is_in_graph)
        self._phases = [*(CHECKS if can_compare else ()), "small", "full"]

    def _gated(self, gradients: list[Any]) -> list[Any]:
        """Records gradients, and lets none through, while it is tested how they add up."""
        dense = [tf.reshape(tf.cast(each, tf.float32), [-1]) for each in gradients]
        is_open = tf.numpy_function(lambda: np.array(self._is_closed), [], tf.bool)

        def record() -> Any:
            return tf.numpy_function(self._record, [tf.concat(dense, 0)], tf.float32)

        gate = tf.cond(tf.ensure_shape(is_open, []), record, lambda: tf.constant(1.0))
        gate = tf.ensure_shape(gate, [])
        return [each * tf.cast(gate, each.dtype) for each in gradients]

    @property
    def _is_checking(self) -> bool:
        return bool(self._phases) and self._phases[0] in CHECKS

    @property
    def _is_closed(self) -> bool:
        """No gradient may pass from the first on: it would go on to act as momentum."""
        return self._is_checking or self._phases[:1] == ["seen"]

    def _record(self, gradients: np.ndarray) -> np.ndarray:
        if self._is_checking:
            self._seen[self._phases[0]].append(gradients.copy())
        return np.zeros((), np.float32)


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
    return float(np.abs(expected - found).max() / max(np.abs(expected).max(), 1e-12))


def _step_s(times_s: Sequence[float]) -> float:
    return typical_step_s(list(times_s[1:] or times_s))


def _declared(frame: FrameType | None) -> dict[str, int]:
    """The numbers of epochs and steps that the script's variables name, as far as they do."""
    found: dict[str, int] = {}
    for scope in _scopes(frame):
        for name, value in [*scope.items(), *_arguments(scope)]:
            for kind, pattern in (("epochs", EPOCHS), ("steps", STEPS)):
                if type(value) is int and value > 0 and pattern.match(name):
                    found.setdefault(kind, value)
    return found


def _scopes(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """Variables of the script's functions and modules that are running, the innermost first."""
    while frame is not None and frame.f_code.co_filename != script.__file__:
        if not frame.f_code.co_filename.startswith(OTHERS):
            yield frame.f_locals
            yield frame.f_globals
        frame = frame.f_back


def _arguments(scope: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a script's `args` or `config` hold."""
    held = [scope.get(name) for name in ("args", "config", "cfg", "FLAGS", "hparams")]
    tables = [each if isinstance(each, dict) else getattr(each, "__dict__", {}) for each in held]
    return [(k, v) for table in tables for k, v in table.items() if isinstance(k, str)]
