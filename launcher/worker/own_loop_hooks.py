"""Hooks for own training loops: every private name of TensorFlow's that we touch is named here."""

import itertools
import logging
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.operators.control_flow import for_loop_registry
from tensorflow.python.data.ops.dataset_ops import DatasetV2
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from launcher.worker.data_parallel import DataParallel
from launcher.worker.frames import script_line
from launcher.worker.method_patch import wrap_method
from launcher.worker.own_loop import OwnBatch
from launcher.worker.readings import Reading
from launcher.worker.sharing import uncut

logger = logging.getLogger(__name__)

BATCHING = frozenset({"Batch", "ParallelBatch", "PaddedBatch", "DenseToRagged", "Rebatch"})
"""Datasets whose elements are batches of rows."""
KEEPING = frozenset(
    {
        *("Map", "ParallelMap", "Prefetch", "Repeat", "Take", "Skip", "Shuffle", "Cache"),
        *("Options", "Filter", "Shard", "Zip", "Snapshot", "TakeWhile", "AssertCardinality"),
        *("AssertNext", "CacheV2", "Concatenate", "Scan", "Model", "MaxIntraOpParallelism"),
        *("PrivateThreadPool", "OwnBatches"),
    }
)
"""Datasets whose elements are batches of rows where those of one of their inputs are."""
ARGUMENT = "_VariantDataset"
"""What a dataset becomes that a function has as an argument."""


def install(parallel: DataParallel) -> None:
    """Patches TensorFlow, once per process."""
    passes = _Passes(parallel)
    passes.install()
    _install_functions(parallel, passes)


class _Passes:
    """Hands out the elements of the datasets that a script reads itself."""

    def __init__(self, parallel: DataParallel) -> None:
        self._parallel = parallel
        self._numbers = itertools.count()
        self._serials: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._readings: weakref.WeakKeyDictionary[Any, Reading] = weakref.WeakKeyDictionary()
        self._of_arguments: list[Reading] = []
        self._are_batched = True

    def install(self) -> None:
        """Patches datasets, their iterators, and autograph's loops over them."""
        wrap_method(DatasetV2, "__iter__", self._iter, subclasses=False)
        hooks = {"__next__": self._next, "get_next": self._next}
        hooks["get_next_as_optional"] = self._next_as_optional
        for name, hook in hooks.items():
            wrap_method(OwnedIterator, name, hook, subclasses=False, autograph=True)
        loops = for_loop_registry._registry
        over_dataset = loops[DatasetV2]
        loops[DatasetV2] = lambda *args: self._for_dataset(over_dataset, *args)

    def _iter(self, original: Any, dataset: Any) -> Any:
        if self._parallel.is_in_keras or _is_marked(dataset):
            return original()
        reading = self._begin(dataset)
        iterator = iter(self._marked(dataset))
        self._readings[iterator] = reading
        if tf.executing_eagerly():
            own = self._parallel.own
            weakref.finalize(iterator, own.drop, reading).atexit = False
        return iterator

    def given(self, arguments: Sequence[Any]) -> None:
        """A function is called with these; inside of it, datasets and iterators are nameless."""
        streams = [each for each in arguments if isinstance(each, (DatasetV2, OwnedIterator))]
        if streams and tf.executing_eagerly():
            known = [self._readings.get(each) for each in streams]
            self._are_batched = all(
                _is_batched(stream) if reading is None else reading.can_be_cut
                for stream, reading in zip(streams, known, strict=True)
            )
            for reading in self._of_arguments:
                reading.can_be_cut = self._are_batched

    def _begin(self, dataset: Any) -> Reading:
        serial = self._serials.setdefault(dataset, next(self._numbers))
        key: Hashable = (serial, script_line())
        if type(dataset).__name__ == ARGUMENT:
            return self._begin_argument(key)
        n_elements = _n_elements(dataset)
        return self._parallel.own.begin(key, can_be_cut=_is_batched(dataset), n_elements=n_elements)

    def _begin_argument(self, key: Hashable) -> Reading:
        reading = self._parallel.own.begin(key, can_be_cut=self._are_batched)
        self._of_arguments.append(reading)
        return reading

    def _marked(self, dataset: Any) -> Any:
        """The dataset with the rows and the hash of each element."""
        is_tuple = type(dataset.element_spec) is tuple

        @tf.autograph.experimental.do_not_convert
        def mark(*element: Any) -> OwnBatch:
            return OwnBatch(*uncut(element if is_tuple else element[0]))

        return dataset.map(mark)

    def _next(self, original: Any, iterator: Any) -> Any:
        if not _is_marked(iterator):
            return original()
        reading, own = self._reading(iterator), self._parallel.own
        if not tf.executing_eagerly():
            return own.take(original(), reading)
        try:
            own.before(reading)
            batch = own.again(reading) or original()
        except (StopIteration, tf.errors.OutOfRangeError):
            own.end(reading)
            raise
        except BaseException:  # such as a stop: its traceback may keep the iterator for long
            own.drop(reading)
            raise
        return own.take(batch, reading)

    def _next_as_optional(self, original: Any, iterator: Any) -> Any:
        if not _is_marked(iterator):
            return original()
        reading, own = self._reading(iterator), self._parallel.own
        if tf.executing_eagerly():
            own.before(reading)
        return _Optional(original(), lambda batch: own.take(batch, reading))

    def _reading(self, iterator: Any) -> Reading:
        """The pass of an iterator; inside of a function it is known by its place there."""
        found = self._readings.get(iterator)
        if found is None:
            found = self._readings[iterator] = self._begin_argument(script_line())
        return found

    def _for_dataset(self, original: Any, dataset: Any, test: Any, body: Any, *rest: Any) -> None:
        """Autograph's `for` over a dataset; ends when all are to stop."""
        own = self._parallel.own
        if self._parallel.is_in_keras or _is_marked(dataset):
            original(dataset, test, body, *rest)
            return
        reading = self._begin(dataset)
        goes_on = tf.autograph.experimental.do_not_convert(lambda *_: own.goes_on())
        marked = own.watcher.arranged(self._marked(dataset)).take_while(goes_on)
        original(marked, test, lambda batch: body(own.take(batch, reading)), *rest)
        own.end_in_graph(reading)


class _Optional:
    """An optional element, of which the script gets its rows."""

    def __init__(self, optional: Any, take: Callable[[Any], Any]) -> None:
        self._optional, self._take = optional, take

    def has_value(self) -> Any:
        """Whether there is an element."""
        return self._optional.has_value()

    def get_value(self) -> Any:
        """The rows of the element."""
        return self._take(self._optional.get_value())


def _install_functions(parallel: DataParallel, passes: _Passes) -> None:
    """Functions return values of all rows, and the engine hears when one has run."""
    make = tf.function
    warned: list[bool] = []

    def function(func: Any = None, *signature: Any, **options: Any) -> Any:
        exchanges = parallel.shares_data or parallel.own.watcher.picks_rows
        if exchanges and options.get("jit_compile") and not parallel.is_in_keras:
            options["jit_compile"] = False
            if not warned:
                logger.warning("jit_compile=True is switched off: workers cannot exchange in XLA")
                warned.append(True)
        if func is None:
            return lambda decorated: function(decorated, *signature, **options)
        traced = _returning(func, parallel) if parallel.shares_data else func
        return make(traced, *signature, **options)

    def call(original: Any, _function: Any, *args: Any, **kwargs: Any) -> Any:
        passes.given((*args, *kwargs.values()))
        result = original(*args, **kwargs)
        if tf.executing_eagerly() and not parallel.is_in_keras:
            parallel.own.function_ended()
        return result

    def gradient(original: Any, _tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        parallel.own.values.note(target)
        return original(target, *args, **kwargs)

    tf.function = function
    wrap_method(Function, "__call__", call, subclasses=False)
    if parallel.shares_data:
        wrap_method(tf.GradientTape, "gradient", gradient, subclasses=False, autograph=True)


def _returning(function: Any, parallel: DataParallel) -> Any:
    """The function, with the values that it returns made those of all rows."""
    internal = tf.__internal__.autograph
    returned = tf.autograph.experimental.do_not_convert(parallel.own.values.returned)

    def traced(*args: Any, **kwargs: Any) -> Any:
        call = internal.tf_convert(function, internal.control_status_ctx())
        return returned(lambda: call(*args, **kwargs))

    return tf.__internal__.decorator.make_decorator(function, traced)


def _is_marked(stream: Any) -> bool:
    return type(stream.element_spec) is OwnBatch


def _is_batched(dataset: Any) -> bool:
    """Whether the elements are seen to be batches of rows."""
    kind = type(dataset).__name__.strip("_").removesuffix("Dataset")
    if kind in BATCHING:
        return True
    return kind in KEEPING and any(map(_is_batched, dataset._inputs()))


def _n_elements(dataset: Any) -> int | None:
    """Its length, where it is known."""
    with tf.init_scope():
        try:
            n_elements = int(dataset.cardinality())
        except (TypeError, ValueError, tf.errors.OpError):  # it belongs to a function's graph
            return None
    return n_elements if n_elements >= 0 else None
