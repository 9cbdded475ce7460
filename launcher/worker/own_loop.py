"""Shares out a script's own training loops: each rank gets its rows of every batch it trains on.

Whatever the script computes from a batch between two elements of a dataset is a *step*, as a
`train_step` is. Elements of passes that do not train, and those of which it isn't known yet, are
handed out whole: every rank computes all of them, as one machine would.
"""

import contextlib
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import numpy as np
import tensorflow as tf

from launcher.worker.own_loop_watcher import LoopWatcher, Unwatched
from launcher.worker.own_models import OwnModels
from launcher.worker.own_values import Values
from launcher.worker.readings import Reading, Readings
from launcher.worker.sharing import Uncut, cut_batch, cuts_of

if TYPE_CHECKING:
    from launcher.worker.data_parallel import DataParallel

CHECK_AFTER_STEPS = 2
"""Steps after which the ranks compare what they saw; then again at the end of each pass."""
WARN_AFTER_STEPS = 5

WHOLE = (
    "Every worker computes whole batches, so more workers are not faster: {reason} "
    "The curve is that of one worker."
)
NO_DATASET = (
    "the script's own loop trains on what does not come from a tf.data.Dataset. "
    "Iterate over tf.data.Dataset.from_tensor_slices(…).batch(…)."
)
ON_BATCH = (
    "the script trains with train_on_batch. Use model.fit, or a tf.GradientTape over a batched "
    "tf.data.Dataset."
)
NOT_BATCHED = (
    "it is not seen that the elements of the script's dataset are batches. Let tf.data make "
    "them with batch(…)."
)
SEVERAL = (
    "a step of the script's own loop reads from several datasets. Put them together with "
    "tf.data.Dataset.zip."
)


class OwnBatch(NamedTuple):
    """An element of a dataset that the script reads itself; fields as of `Uncut`."""

    data: Any
    n_rows: Any
    digest: Any


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a rank's step counts, see `StepState`; `muted`: its metrics count on another rank."""

    weight: float
    n_copies: float
    muted: bool


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of an element that the script gets, and what they count."""

    begin: int
    end: int
    numbers: Numbers
    is_trained: bool


class OwnLoops:
    """What the script reads and trains outside of Keras's own loops, on one rank.

    Decisions are taken when an element is read, in Python: for loops inside of a `tf.function`
    by a call out of it. All ranks take the same ones, since all run the same script.

    Args:
        parallel: the engine.
    """

    def __init__(self, parallel: "DataParallel") -> None:
        self._parallel = parallel
        self.watcher: LoopWatcher = Unwatched()
        self.models, self.values = OwnModels(parallel), Values(parallel)
        self.obstacle: str | None = None  # why batches cannot be shared out, as of the last step
        self._metrics: WeakSet[Any] = WeakSet()
        self._is_quiet = False
        self._readings = Readings()
        self._open: list[tuple[Reading, Numbers]] = []
        self._debt: tuple[int, Numbers] | None = None
        self._n_rows = self._n_steps = self._n_elsewhere = 0
        self._began_s: float | None = None
        self._ran_in_graph = self._is_checked = self._has_warned = False
        self._ended_in_graph: list[Reading] = []
        with tf.device("/CPU:0"):
            self._applications = tf.Variable(0, trainable=False, dtype=tf.int64)

    # ---- what the hooks call

    @property
    def n_applied(self) -> int:
        """How often gradients were applied up to now."""
        return int(self._applications.numpy()) + self._n_elsewhere

    @property
    def has_element(self) -> bool:
        """Whether the script has an element in hand (maybe while tracing)."""
        return bool(self._open)

    def begin(self, key: Hashable, *, can_be_cut: bool, n_elements: int | None = None) -> Reading:
        """A pass over a dataset begins."""
        self.watcher.begins()
        return self._readings.begin(key, can_be_cut=can_be_cut, n_elements=n_elements)

    def before(self, reading: Reading | None) -> None:
        """The script asks for the next element, or is between two steps without any."""
        self._note(reading, self.n_applied)
        self.models.settle()
        if self._n_steps >= CHECK_AFTER_STEPS and not self._is_checked:
            self._is_checked = True
            self._check_data()
        if self._n_steps >= WARN_AFTER_STEPS and self.obstacle and not self._has_warned:
            self._has_warned = True
            self.watcher.warn(WHOLE.format(reason=self.obstacle))
        self.watcher.between()

    def again(self, reading: Reading) -> OwnBatch | None:
        """The last batch, where it is to be handed out once more."""
        last: OwnBatch | None = reading.last if self.watcher.wants_again() else None
        return last

    def take(self, batch: OwnBatch, reading: Reading) -> Any:
        """The rows of an element that the script gets."""
        if not tf.executing_eagerly():
            return self._take_in_graph(batch, reading)
        n_rows = int(batch.n_rows)
        reading.last = batch if self.watcher.picks_rows else None
        part = self._part(reading, n_rows)
        self._count(part.numbers)
        if part.is_trained:
            self._digest(batch.digest)
        if part.end - part.begin == n_rows:
            return batch.data
        return cut_batch(Uncut(*batch), _int64(part.begin), _int64(part.end)).data

    def end(self, reading: Reading) -> None:
        """The pass has come to the end of its dataset, on all ranks at the same time."""
        self._note(reading, self.n_applied)
        self.drop(reading)
        self._after_pass(reading)

    def drop(self, reading: Reading) -> None:
        """The script reads no further in this pass."""
        self._readings.end(reading)
        if any(each is reading for each, _ in self._open):
            self._open = [each for each in self._open if each[0] is not reading]
            self.rest()

    def end_in_graph(self, reading: Reading) -> None:
        """The loop over a dataset inside of a function is over; part of its graph."""
        self._open = [each for each in self._open if each[0] is not reading]

        def ended(n_applied: np.ndarray) -> np.ndarray:
            self._note(reading, int(n_applied) + self._n_elsewhere)
            self._readings.end(reading)
            self._ended_in_graph.append(reading)
            self._open = [each for each in self._open if each[0] is not reading]
            return _as_array(self._open[-1][1] if self._open else self._whole())

        self._count_in_graph(tf.numpy_function(ended, [self._applications], tf.float32))

    def rest(self) -> None:
        """Counts as the element in hand does; where there is none, as a whole batch.

        Rows whose gradients the script has not applied yet go on counting as they did.
        """
        if not self._parallel.shares_data:
            return
        with tf.init_scope():
            if self._open:
                self._count(self._open[-1][1])
            elif self._debt is None:
                self._count(self._whole())

    def function_ended(self) -> None:
        """A function that the script called has run, on its thread."""
        if self._ran_in_graph:
            self._ran_in_graph = False
            self._open = [each for each in self._open if not each[0].is_in_graph]
            self.rest()
        ended, self._ended_in_graph = self._ended_in_graph, []
        for reading in ended:
            self._after_pass(reading)
        if not self._open:
            self.before(None)

    def elsewhere(self, model: Any) -> None:
        """Keras has trained one batch for the script (`train_on_batch`), which stays whole."""
        self._n_elsewhere += 1
        self.models.note(model)
        for reading, _ in self._open:
            reading.can_be_cut = False
        if not self._open:
            self.before(None)

    def prepare(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Before an optimizer applies gradients; collective when it is its first time."""
        with tf.init_scope():
            self.models.prepare(optimizer, variables)

    def applied(self) -> None:
        """Counts one application of gradients; part of the script's graph where it has one."""
        self._applications.assign_add(1)
        if tf.executing_eagerly() and not self._open:
            self.before(None)

    # ---- metrics of the script's own

    def counts(self, metric: Any) -> bool:
        """Whether an update of this metric now counts this rank's rows only."""
        if not self._parallel.shares_data or self._parallel.is_in_keras:
            return False
        return self.has_element or metric in self._metrics

    def share_metric(self, metric: Any, variables: Sequence[Any]) -> None:
        """From now on the metric's states add up over ranks to those of one machine."""
        if metric in self._metrics:
            return
        self._metrics.add(metric)
        if self._parallel.exchange.rank:
            with tf.init_scope():
                for variable in variables:
                    variable.assign(np.zeros(variable.shape, np.asarray(variable).dtype))

    def is_shared(self, metric: Any) -> bool:
        """Whether the metric's result must be taken from all ranks' states."""
        return not self._is_quiet and self._parallel.shares_data and metric in self._metrics

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """Lets results of metrics be taken from this rank's states."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    def goes_on(self) -> Any:
        """Whether a loop inside of a function is to take another element, a bool scalar."""
        return tf.ensure_shape(tf.numpy_function(self._goes_on, [], tf.bool), [])

    # ---- details

    def _goes_on(self) -> np.ndarray:
        return np.array(not self.watcher.wants_end())

    def _check_data(self) -> None:
        if not self.watcher.picks_rows:  # else there is nobody to compare with
            self._parallel.check_data()

    def _after_pass(self, reading: Reading) -> None:
        if reading.has_trained:
            self._check_data()
            self._parallel.begin_epoch()
            self.watcher.ended()

    def _take_in_graph(self, batch: OwnBatch, reading: Reading) -> Any:
        reading.is_in_graph = True
        self._hold(reading, self._whole())  # while this is traced

        def decide(n_rows: np.ndarray, n_applied: np.ndarray) -> tuple[Any, Any]:
            self._ran_in_graph = True
            self._note(reading, int(n_applied) + self._n_elsewhere)
            part = self._part(reading, int(n_rows))
            rows = np.array([part.begin, part.end, part.is_trained], np.int64)
            return rows, _as_array(part.numbers)

        rows, numbers = tf.numpy_function(
            decide, [batch.n_rows, self._applications], [tf.int64, tf.float32]
        )
        begin, end, is_trained = tf.unstack(tf.ensure_shape(rows, [3]))
        self._count_in_graph(numbers)
        self._digest(batch.digest, is_trained)
        if not (self._parallel.shares_data or self.watcher.picks_rows):
            return batch.data
        return cut_batch(Uncut(*batch), begin, end).data

    def _note(self, reading: Reading | None, n_applied: int) -> None:
        """Takes notice of gradients that were applied since the last element."""
        now_s = time.perf_counter()
        before = self._readings.n_applied
        trained = self._readings.note(n_applied)
        if self._readings.n_applied != before:
            self._debt = None
            self._n_steps += 1
            self.obstacle = self._obstacle(trained)
            step_s = None if self._began_s is None else now_s - self._began_s
            only = trained[0] if trained else None
            self.watcher.trained(only, self._n_rows if only else 0, step_s)
        if reading is None or not reading.n_since:
            self._began_s = now_s

    def _obstacle(self, trained: list[Reading]) -> str | None:
        if self._n_elsewhere:
            return ON_BATCH
        if not self._open:
            return NO_DATASET
        if not trained:
            return SEVERAL
        return None if all(reading.can_be_cut for reading in trained) else NOT_BATCHED

    def _part(self, reading: Reading, n_rows: int) -> Part:
        """Which rows this rank gets; the element counts as read."""
        is_trained = self._readings.take(reading)
        is_cut = is_trained and reading.can_be_cut
        asked = self.watcher.rows(n_rows) if is_cut else None
        if asked is not None:
            (begin, end), numbers = asked, _of_rows(*asked, n_rows)
        else:
            begin, end, numbers = self._share(n_rows, is_cut=is_cut)
        if is_trained or not self._readings.n_applied:
            self._n_rows = n_rows
        self._hold(reading, numbers)
        return Part(begin, end, numbers, is_trained)

    def _hold(self, reading: Reading, numbers: Numbers) -> None:
        self._open = [each for each in self._open if each[0] is not reading]
        self._open.append((reading, numbers))

    def _share(self, n_rows: int, *, is_cut: bool) -> tuple[int, int, Numbers]:
        """This rank's rows.

        As long as the gradients of rows that were handed out have not been applied, all rows
        must count as those: Σ_r w_r (g_r + h_r) is only one machine's g + h if h, too, is over
        rows of the same part of its batch, or over all rows of it.
        """
        if self._debt is not None and self._debt[0] != n_rows:
            weight = self._debt[1].weight
            return 0, n_rows, Numbers(weight, 1 / weight if weight else 1.0, self._is_muted)
        if not (is_cut and self._parallel.shares_data):
            return 0, n_rows, self._whole()
        rank, cuts = self._parallel.exchange.rank, cuts_of(self._parallel.shares)
        begin, end = (int(np.rint(n_rows * cut)) for cut in cuts[rank : rank + 2])
        numbers = _of_rows(begin, end, n_rows)
        self._debt = n_rows, numbers
        return begin, end, numbers

    def _whole(self) -> Numbers:
        n_workers = self._parallel.exchange.world_size
        return Numbers(1 / n_workers, float(n_workers), self._is_muted)

    @property
    def _is_muted(self) -> bool:
        """Whether metrics of whole batches count elsewhere: on rank 0."""
        return self._parallel.exchange.rank > 0

    def _count(self, numbers: Numbers) -> None:
        if self._parallel.shares_data:
            self._parallel.state.count_as(numbers.weight, numbers.n_copies, float(numbers.muted))

    def _count_in_graph(self, numbers: Any) -> None:
        weight, n_copies, muted = tf.unstack(tf.ensure_shape(numbers, [3]))
        self._parallel.state.count_as(weight, n_copies, muted)

    def _digest(self, digest: Any, is_trained: Any = None) -> None:
        from launcher.worker.step import next_digest

        following = next_digest(self._parallel.state.digest, digest)
        if is_trained is not None:
            following = tf.where(is_trained > 0, following, self._parallel.state.digest)
        self._parallel.state.digest.assign(following)


def _of_rows(begin: int, end: int, n_rows: int) -> Numbers:
    return Numbers((end - begin) / max(1, n_rows), 1.0, False)


def _as_array(numbers: Numbers) -> np.ndarray:
    return np.array([numbers.weight, numbers.n_copies, numbers.muted], np.float32)


def _int64(value: int) -> Any:
    return tf.constant(value, tf.int64)
