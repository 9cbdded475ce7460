"""The launcher's own exchange: messages between workers that do not mind distance."""

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from launcher.errors import PeerLostError
from launcher.worker.exchange.algorithms.call import CALL_BITS, Call, Scratch, Vector
from launcher.worker.exchange.algorithms.gather import gather
from launcher.worker.exchange.algorithms.mailbox import Mailbox
from launcher.worker.exchange.background import AllReduce, Background
from launcher.worker.exchange.buckets import buckets_of
from launcher.worker.exchange.path_use import PathUse, figures_of, uses_of
from launcher.worker.exchange.transport.figures import PathFigures
from launcher.worker.exchange.waits import GRADIENTS, Waits

FURTHER_GRADIENTS = "further gradients"
"""Purpose of waits after the one that ends a step's own work."""


class Network(Mailbox, Protocol):
    """The messages of a run, which end with it; `transport.mesh.Mesh` is one."""

    @property
    def n_paths(self) -> int:
        """How many networks there are."""
        ...

    def figures(self) -> tuple[PathFigures, ...]:
        """What went over every path to every peer."""
        ...

    def close(self) -> None:
        """Say goodbye to all peers."""
        ...


class DirectExchange:
    """Sums over ranks by an algorithm of `exchange.algorithms` over a mesh of connections.

    All ranks take the sums in the same order: inside a `tf.function` the sums are stateful
    operations, which TensorFlow runs in the order of the program. So the n-th sum of one rank
    is the n-th of all, which is how their messages find each other.

    Args:
        network: messages between ranks.
        all_reduce: sums a vector over ranks.
        bucket_bytes: gradients leave in buckets of at least this size, the last layers first, while
            the backward pass still makes those of the first layers; None: in one message after it.

    `lost` tells which peer was lost, if one was: what TensorFlow makes of an error inside a
    function does not.
    """

    def __init__(
        self, network: Network, all_reduce: AllReduce, *, bucket_bytes: int | None = None
    ) -> None:
        self.rank, self.world_size = network.rank, network.world_size
        self._bucket_bytes = bucket_bytes
        self._background = Background(network, all_reduce)
        self._network, self._all_reduce = network, all_reduce
        self._numbers = itertools.cycle(range(1 << CALL_BITS))
        self._scratch = Scratch()
        self._busy = threading.Lock()
        self._waits = Waits()
        self.lost: PeerLostError | None = None

    @property
    def waits(self) -> Waits:
        """How long this rank has waited for others."""
        return self._waits

    def sum_tensors(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """Sums tensors over ranks, those of one dtype as one vector.

        Args:
            tensors: of static shape.
            purpose: names the call, see `Exchange`.
        """
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        dtypes = [tensor.dtype for tensor in tensors]
        if self._bucket_bytes is not None and purpose == GRADIENTS:
            sizes = [(t.shape.num_elements() or 0) * t.dtype.size for t in tensors]
            groups = buckets_of(sizes, dtypes, self._bucket_bytes)
            totals = self._totals_of_buckets([_Pack.of(tensors, g, purpose) for g in groups])
        else:
            groups = [
                [i for i, d in enumerate(dtypes) if d == one] for one in dict.fromkeys(dtypes)
            ]
            totals = [self._total(_Pack.of(tensors, group, purpose)) for group in groups]
        sums: list[Any] = list(tensors)
        for group, total in zip(groups, totals, strict=True):
            for place, part in zip(group, total, strict=True):
                sums[place] = part
        return sums

    def _total(self, pack: "_Pack") -> list[Any]:
        """The sum over ranks of tensors of one dtype."""
        with tf.device("/CPU:0"):
            whole = functools.partial(self._sum, pack.purpose)
            return pack.unpacked(tf.numpy_function(whole, [pack.flat], pack.flat.dtype))

    def _totals_of_buckets(self, packs: Sequence["_Pack"]) -> list[list[Any]]:
        """The sums of several packs, each of which is on its way as soon as its tensors are there.

        An operation that begins a sum returns at once; those that wait for its end come after the
        last sum, which needs no other thread.
        """
        *early, last = packs
        if not early:
            return [self._total(last)]
        with tf.device("/CPU:0"):
            first = functools.partial(self._begin_first, len(packs))
            numbers = tf.numpy_function(first, [early[0].flat], tf.int64)
            begun = [numbers]
            for slot, pack in enumerate(early[1:], start=1):
                begin = functools.partial(self._begin, slot)
                begun.append(tf.numpy_function(begin, [numbers, pack.flat], tf.int64))
            whole = functools.partial(self._sum_last, last.purpose)
            last_total = tf.numpy_function(whole, [numbers, last.flat], last.flat.dtype)
            totals = []
            for slot, (pack, ours) in enumerate(zip(early, begun, strict=True)):
                end = functools.partial(self._end, slot)
                total = tf.numpy_function(end, [ours], pack.flat.dtype)
                totals.append(pack.unpacked(total))
            return [*totals, last.unpacked(last_total)]

    def gather_rows(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """All ranks' rows of some tensors, in rank order.

        Args:
            tensors: with equally many rows each.
            purpose: names the call, see `Exchange`.
        """
        gathered = []
        for tensor in map(tf.convert_to_tensor, tensors):
            with tf.device("/CPU:0"):
                rows = tf.numpy_function(
                    functools.partial(self._gather, purpose), [tensor], tensor.dtype
                )
            rows.set_shape([None, *tensor.shape[1:]])
            gathered.append(rows)
        return gathered

    def sum_arrays(self, arrays: Sequence[np.ndarray], purpose: str) -> list[np.ndarray]:
        """Sums NumPy arrays over ranks; blocks until all ranks take part."""
        arrays = [np.asarray(array) for array in arrays]
        sums: list[np.ndarray] = list(arrays)
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            places = [i for i, array in enumerate(arrays) if array.dtype == dtype]
            flat = np.concatenate([arrays[i].ravel() for i in places])
            total = self._sum(purpose, flat.astype(_wide(dtype), copy=False)).astype(
                dtype, copy=False
            )
            ends = np.cumsum([arrays[i].size for i in places])[:-1]
            for place, part in zip(places, np.split(total, ends), strict=True):
                sums[place] = part.reshape(arrays[place].shape)
        return sums

    def path_uses(self) -> list[PathUse]:
        """What every rank sent every other over each network, where there are several."""
        network = self._network
        if network.n_paths < 2:
            return []
        own = figures_of(self.rank, self.world_size, network.n_paths, network.figures())
        (total,) = self.sum_arrays([own], "paths")
        return uses_of(total)

    def close(self) -> None:
        """Part from the peers in an orderly way."""
        self._network.close()
        self._background.close()

    def _sum(self, purpose: str, vector: Vector, number: int | None = None) -> Vector:
        total = np.empty_like(vector)  # a new one each time: TensorFlow keeps it without a copy
        with self._timed(purpose, number) as call:
            self._all_reduce(call, vector, total)
        return total

    def _gather(self, purpose: str, rows: np.ndarray) -> np.ndarray:
        with self._timed(purpose) as call:
            return np.concatenate(gather(call, rows))

    def _begin_first(self, n_buckets: int, vector: Vector) -> Vector:
        """Begins the first bucket's sum; the numbers of all buckets' calls.

        So a bucket has the same number on all ranks, whichever of them is ready first.
        """
        numbers = np.array([next(self._numbers) for _ in range(n_buckets)], np.int64)
        return self._begin(0, numbers, vector)

    def _begin(self, slot: int, numbers: Vector, vector: Vector) -> Vector:
        self._background.begin(int(numbers[slot]), slot, vector)
        return numbers

    def _sum_last(self, purpose: str, numbers: Vector, vector: Vector) -> Vector:
        return self._sum(purpose, vector, int(numbers[-1]))

    def _end(self, slot: int, numbers: Vector) -> Vector:
        with self._waiting(FURTHER_GRADIENTS):
            return self._background.end(int(numbers[slot]))

    @contextlib.contextmanager
    def _timed(self, purpose: str, number: int | None = None) -> Iterator[Call]:
        """The call of this number, or the next one; one at a time."""
        with self._waiting(purpose), self._busy:
            own = next(self._numbers) if number is None else number
            yield Call(self._network, own, self._scratch)

    @contextlib.contextmanager
    def _waiting(self, purpose: str) -> Iterator[None]:
        """Time that counts as waiting."""
        began_s = time.perf_counter()
        try:
            yield
        except PeerLostError as error:
            self.lost = error
            raise
        self._waits.note(purpose, began_s, time.perf_counter())


@dataclass(frozen=True, slots=True)
class _Pack:
    """Tensors of one dtype as one flat vector, in a dtype in which they can be added up.

    Attributes:
        purpose: names the sum.
        dtype: of the tensors.
        shapes: of the tensors, all static.
        flat: the vector.
    """

    purpose: str
    dtype: Any
    shapes: list[Any]
    flat: Any

    @classmethod
    def of(cls, tensors: Sequence[Any], places: Sequence[int], purpose: str) -> "_Pack":
        """Some of the tensors."""
        packed = [tensors[place] for place in places]
        shapes = [tensor.shape for tensor in packed]
        if not all(shape.is_fully_defined() for shape in shapes):
            raise ValueError(f"only static shapes can be summed over ranks ({purpose}): {shapes}")
        dtype = packed[0].dtype
        wide = tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype
        with tf.device("/CPU:0"):
            flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in packed], axis=0)
            return cls(purpose, dtype, shapes, tf.cast(flat, wide))

    def unpacked(self, total: Any) -> list[Any]:
        """The sums of the tensors."""
        sizes = [shape.num_elements() for shape in self.shapes]
        total.set_shape([sum(sizes)])
        parts = tf.split(tf.cast(total, self.dtype), sizes) if len(sizes) > 1 else [total]
        return [
            tf.cast(tf.reshape(part, shape), self.dtype)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which arrays of `dtype` are added up without loss."""
    if dtype.kind == "f" and dtype.itemsize >= 4:
        return dtype
    if dtype.kind in "iu":
        return dtype if dtype.itemsize >= 4 else np.dtype(np.int32)
    if dtype.kind == "b":
        return np.dtype(np.int32)
    if dtype.kind == "f" or dtype.name == "bfloat16":
        return np.dtype(np.float32)
    raise ValueError(f"arrays of dtype {dtype} cannot be summed over ranks")
