"""The launcher's own exchange: messages between workers that do not mind distance."""

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from launcher.errors import PeerLostError
from launcher.worker.exchange.algorithms.call import CALL_BITS, Call, Scratch, Vector
from launcher.worker.exchange.algorithms.gather import gather
from launcher.worker.exchange.algorithms.mailbox import Mailbox
from launcher.worker.exchange.path_use import PathUse, figures_of, uses_of
from launcher.worker.exchange.transport.figures import PathFigures
from launcher.worker.exchange.waits import Waits

AllReduce = Callable[[Call, Vector, Vector], None]


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

    `lost` tells which peer was lost, if one was: what TensorFlow makes of an error inside a
    function does not.
    """

    def __init__(self, network: Network, all_reduce: AllReduce) -> None:
        self.rank, self.world_size = network.rank, network.world_size
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
        sums: list[Any] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            parts = self._sum_packed([tensors[i] for i in places], purpose)
            for place, part in zip(places, parts, strict=True):
                sums[place] = part
        return sums

    def _sum_packed(self, tensors: list[Any], purpose: str) -> list[Any]:
        """Sums tensors of one dtype as one flat vector."""
        shapes = [tensor.shape for tensor in tensors]
        sizes = [shape.num_elements() for shape in shapes]
        if None in sizes:
            raise ValueError(f"only static shapes can be summed over ranks ({purpose}): {shapes}")
        dtype = tensors[0].dtype
        wide = tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype
        with tf.device("/CPU:0"):
            flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
            total = tf.numpy_function(
                functools.partial(self._sum, purpose), [tf.cast(flat, wide)], wide
            )
            total.set_shape([sum(sizes)])
            parts = tf.split(tf.cast(total, dtype), sizes) if len(sizes) > 1 else [total]
            return [
                tf.cast(tf.reshape(p, shape), dtype) for p, shape in zip(parts, shapes, strict=True)
            ]

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

    def _sum(self, purpose: str, vector: Vector) -> Vector:
        total = np.empty_like(vector)  # a new one each time: TensorFlow keeps it without a copy
        with self._timed(purpose) as call:
            self._all_reduce(call, vector, total)
        return total

    def _gather(self, purpose: str, rows: np.ndarray) -> np.ndarray:
        with self._timed(purpose) as call:
            return np.concatenate(gather(call, rows))

    @contextlib.contextmanager
    def _timed(self, purpose: str) -> Iterator[Call]:
        """The next call, whose time counts as waiting; one at a time."""
        began_s = time.perf_counter()
        with self._busy:
            try:
                yield self._call()
            except PeerLostError as error:
                self.lost = error
                raise
            self._waits.note(purpose, began_s, time.perf_counter())

    def _call(self) -> Call:
        return Call(self._network, next(self._numbers), self._scratch)


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
