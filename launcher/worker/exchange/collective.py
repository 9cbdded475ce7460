"""The exchange through TensorFlow's collective runtime (a ring over gRPC, or NCCL on GPUs)."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from launcher.worker.exchange.path_use import PathUse
from launcher.worker.ring_order import task_by_rank

GROUP_KEY_BY_KIND = {"CPU": 77, "GPU": 78}
"""One group per kind of device: a worker may join a group with one device only."""


class CollectiveExchange:
    """All-reduce with `CollectiveReduceV2` over the workers named in `TF_CONFIG`.

    `MultiWorkerMirroredStrategy` is made for its runtime alone (servers, heartbeats that abort
    a collective within seconds when a peer dies); nothing runs under its scope.

    An instance key is derived from what is summed (purpose, shapes, dtype, position in the
    traced function), so it is the same on all ranks however often each of them retraces.

    Args:
        strategy: the strategy that holds the collective runtime.
        rank: of this worker.
        world_size: number of workers.
        timeout_s: after which a collective fails; 0 waits for as long as all peers live.
    """

    waits = None  # its operations wait inside TensorFlow

    def __init__(self, strategy: Any, rank: int, world_size: int, timeout_s: float = 0.0) -> None:
        self.rank = rank
        self.world_size = world_size
        self._strategy = strategy
        self._timeout_s = timeout_s
        self._kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        self._token = self._ordering_token()
        self._n_traced: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()

    @classmethod
    def from_tf_config(cls, timeout_s: float = 0.0) -> "CollectiveExchange":
        """Starts the collective runtime; must come before any other TensorFlow operation.

        Blocks until all workers of `TF_CONFIG` are there.
        """
        implementation = tf.distribute.experimental.CommunicationImplementation
        on_gpu = bool(tf.config.list_physical_devices("GPU"))
        options = tf.distribute.experimental.CommunicationOptions(
            implementation=implementation.AUTO if on_gpu else implementation.RING
        )
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver, communication_options=options
        )
        world_size = len(resolver.cluster_spec().job_tasks("worker"))
        rank = task_by_rank(world_size).index(int(resolver.task_id))
        return cls(strategy, rank, world_size, timeout_s)

    def sum_tensors(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """Sums tensors over ranks with one collective per dtype.

        Args:
            tensors: of static shape; floats go over the GPU's links where there is one.
            purpose: names the call, see `Exchange`.
        """
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        sums: list[Any] = list(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            kind = self._kind if dtype.is_floating else "CPU"
            parts = self._sum_packed([tensors[i] for i in places], purpose, kind)
            for place, part in zip(places, parts, strict=True):
                sums[place] = part
        return sums

    def gather_rows(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """Gathers rows with one collective a tensor, after one for the numbers of rows.

        Args:
            tensors: float or 32/64-bit integer, with equally many rows each.
            purpose: names the call, see `Exchange`.
        """
        n_own = tf.shape(tensors[0])[0]
        own = tf.one_hot(self.rank, self.world_size, n_own, 0, dtype=tf.int32)
        (n_by_rank,) = self.sum_tensors([own], f"numbers of {purpose}")
        n_padded = tf.reduce_max(n_by_rank)
        kept = tf.reshape(tf.range(n_padded)[None, :] < n_by_rank[:, None], [-1])
        return [self._gather(t, n_own, n_padded, kept, purpose) for t in tensors]

    def _gather(self, tensor: Any, n_own: Any, n_padded: Any, kept: Any, purpose: str) -> Any:
        """Rows of all ranks, sent with padding since all must send equally much."""
        kind = self._kind if tensor.dtype.is_floating else "CPU"
        what = f"{purpose}|gather|{tensor.dtype.name}|{kind}|{tensor.shape[1:]}"
        key = self._instance_key(what)
        with tf.device("/CPU:0"):
            # A key stands for one shape, so each number of rows has a key of its own.
            mixed = tf.bitwise.bitwise_xor(key, n_padded * 0x3779B1)
            instance_key = tf.bitwise.bitwise_and(mixed, 0x7FFFFFFF)
        with _on(kind):
            padding = [[0, n_padded - n_own]] + [[0, 0]] * (tensor.shape.rank - 1)
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=tf.pad(tensor, padding),
                group_size=self.world_size,
                group_key=GROUP_KEY_BY_KIND[kind],
                instance_key=instance_key,
                ordering_token=[self._token.handle] if kind == "GPU" else [],
                communication_hint="auto" if kind == "GPU" else "ring",
                timeout_seconds=self._timeout_s,
            )
            gathered = tf.ensure_shape(gathered, [None, *tensor.shape[1:]])
            return tf.boolean_mask(gathered, kept)

    def sum_arrays(self, arrays: Sequence[np.ndarray], purpose: str) -> list[np.ndarray]:
        """Sums NumPy arrays over ranks, over the CPU; blocks until all ranks take part."""
        arrays = [np.asarray(array) for array in arrays]
        wide = [array.astype(_summable(array.dtype), copy=False) for array in arrays]
        sums: list[np.ndarray] = list(arrays)
        for dtype in dict.fromkeys(array.dtype for array in wide):
            places = [i for i, array in enumerate(wide) if array.dtype == dtype]
            with tf.device("/CPU:0"):
                tensors = [tf.constant(wide[i]) for i in places]
            parts = self._sum_packed(tensors, f"{purpose} (array)", "CPU")
            for place, part in zip(places, parts, strict=True):
                sums[place] = part.numpy().astype(arrays[place].dtype, copy=False)
        return sums

    def path_uses(self) -> list[PathUse]:
        """None: it has one network, and does not say what it does there."""
        return []

    def close(self) -> None:
        """TensorFlow's runtime parts by itself."""

    def _sum_packed(self, tensors: list[Any], purpose: str, kind: str) -> list[Any]:
        """Sums tensors of one dtype as one flat vector."""
        shapes = [tensor.shape for tensor in tensors]
        sizes = [shape.num_elements() for shape in shapes]
        if None in sizes:
            raise ValueError(f"only static shapes can be summed over ranks ({purpose}): {shapes}")
        key = self._instance_key(f"{purpose}|{tensors[0].dtype.name}|{kind}|{shapes}")
        with _on(kind):
            flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
            total = self._all_reduce(flat, key, kind)
            parts = tf.split(total, sizes) if len(sizes) > 1 else [total]
            return [tf.reshape(p, shape) for p, shape in zip(parts, shapes, strict=True)]

    def _all_reduce(self, flat: Any, key: int, kind: str) -> Any:
        return tf.raw_ops.CollectiveReduceV2(
            input=flat,
            group_size=self.world_size,
            group_key=GROUP_KEY_BY_KIND[kind],
            instance_key=key,
            ordering_token=[self._token.handle] if kind == "GPU" else [],
            merge_op="Add",
            final_op="Id",
            communication_hint="auto" if kind == "GPU" else "ring",
            timeout_seconds=self._timeout_s,
        )

    def _instance_key(self, what: str) -> int:
        """A 31-bit key from what is summed and how often it was summed before in this trace."""
        position = 0
        if not tf.executing_eagerly():
            graph = _outermost_graph()
            counts = self._n_traced.setdefault(graph, Counter())
            position = counts[what]
            counts[what] += 1
        digest = hashlib.blake2b(f"{what}|{position}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") & 0x7FFFFFFF

    def _ordering_token(self) -> Any:
        """NCCL needs one order of launches; the runtime takes it from uses of this resource."""
        if self._kind == "CPU":
            return None
        with tf.init_scope(), _on(self._kind):
            return tf.Variable(0.0, trainable=False)


def _on(kind: str) -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = tf.device(f"/{kind}:0")
    return context


def _outermost_graph() -> Any:
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and hasattr(
        graph.outer_graph, "outer_graph"
    ):
        graph = graph.outer_graph
    return graph


def _summable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which arrays of `dtype` travel without loss."""
    if dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize <= 2):
        return np.dtype(np.int32)
    if dtype.kind in "iu":
        return np.dtype(np.int32 if dtype == np.int32 else np.int64)
    if dtype.kind == "f":
        return dtype if dtype.itemsize in (4, 8) else np.dtype(np.float32)
    if dtype.name == "bfloat16":
        return np.dtype(np.float32)
    raise ValueError(f"arrays of dtype {dtype} cannot be summed over ranks")
