"""Cuts a stream of global batches into each rank's share, with what the step must know of it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

N_HASHED_PER_ROW = 64
HASH_FACTOR = 0x5851F42D4C957F2D


class Shared(NamedTuple):
    """A rank's slice of one global batch.

    Attributes:
        data: what the script's `train_step` expects, with this rank's rows.
        n_own: rows in this rank's share, int64; 0 means that `data` is a duplicate row
            which must not count.
        n_rows: rows of the global batch, int64.
        digest: int64 hash of the global batch.
        first: index of this rank's first row among all rows of the stream, int64.
    """

    data: Any
    n_own: Any
    n_rows: Any
    digest: Any
    first: Any


class Uncut(NamedTuple):
    """A global batch as a whole, of which `cut_batch` takes a rank's slice.

    Attributes:
        data: the batch.
        n_rows: its rows, int64.
        digest: int64 hash of it.
    """

    data: Any
    n_rows: Any
    digest: Any


def cuts_of(shares: Sequence[float]) -> tuple[float, ...]:
    """Where the ranks' shares end, from 0.0 to 1.0, `(n + 1,)`.

    Raises:
        ValueError: a share is not positive.
    """
    if any(share <= 0 for share in shares):
        raise ValueError(f"every worker needs a positive share of the batch, not {list(shares)}")
    ends = np.cumsum(np.asarray(shares, np.float64)) / sum(shares)
    return (0.0, *(float(end) for end in ends[:-1]), 1.0)


def share_dataset(
    dataset: Any,
    rank: int,
    cuts: Sequence[float] | None,
    *,
    hashed: bool,
    numbered: bool,
    ahead: bool,
) -> Any:
    """A dataset of `Shared` elements from one of global batches.

    Args:
        dataset: yields global batches.
        rank: whose share.
        cuts: as of `cuts_of`; None leaves the batches `Uncut`.
        hashed: whether to hash the global batches.
        numbered: whether `first` is needed (it costs a sequential pass).
        ahead: whether to prepare slices in the background. A dataset that shuffles within
            `repeat` draws a seed when it starts over; if another iterator of it is alive, such
            as validation's, reading ahead would make the order of draws a matter of time.
    """
    if cuts is None or len(cuts) > 2:
        dataset = _in_one_order(dataset)
    is_tuple = type(dataset.element_spec) is tuple

    def share(element: Any) -> Shared | Uncut:
        batch = uncut(element, hashed)
        return batch if cuts is None else _share(batch, rank, cuts)

    ahead = ahead and dataset.cardinality() != tf.data.INFINITE_CARDINALITY
    if ahead:
        calls = tf.data.AUTOTUNE
        shared = dataset.map(lambda *e: share(e if is_tuple else e[0]), num_parallel_calls=calls)
    else:
        shared = _one_by_one(dataset, share)
    if numbered:
        shared = shared.scan(tf.constant(0, tf.int64), _number)
    return shared.prefetch(2) if ahead else shared


def _one_by_one(dataset: Any, share: Callable[[Any], Any]) -> Any:
    """The mapped dataset, read when asked: TensorFlow makes maps parallel and adds prefetching."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    nothing = tf.constant(0, tf.int64)
    return dataset.scan(nothing, lambda n, element: (n, share(element))).with_options(options)


def _in_one_order(dataset: Any) -> Any:
    """The dataset, whose rows must come to all ranks alike, though the script allows otherwise."""
    if dataset.options().deterministic is not False:
        return dataset
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _number(n_before: Any, element: Shared) -> tuple[Any, Shared]:
    return n_before + element.n_rows, element._replace(first=n_before + element.first)


def uncut(data: Any, hashed: bool = True) -> Uncut:
    """A batch with its number of rows and its hash (0 if not `hashed`)."""
    leaves = tf.nest.flatten(data)
    n_rows = _n_batch_rows([n for n in map(_n_rows, leaves) if n is not None])
    return Uncut(data, n_rows, batch_digest(leaves) if hashed else tf.constant(0, tf.int64))


def _share(batch: Uncut, rank: int, cuts: Sequence[float]) -> Shared:
    data, n_rows, digest = batch
    if len(cuts) == 2:
        return Shared(data, n_rows, n_rows, digest, tf.constant(0, tf.int64))
    return cut_batch(batch, _bounds(n_rows, cuts[rank]), _bounds(n_rows, cuts[rank + 1]))


def cut_batch(batch: Uncut, begin: Any, end: Any) -> Shared:
    """The rows from `begin` to before `end`, int64 scalars; a duplicate row if there are none."""
    data, n_rows, digest = batch
    n_own = end - begin
    first = tf.minimum(begin, tf.maximum(n_rows - 1, 0))
    n_taken = tf.minimum(tf.maximum(n_own, 1), n_rows)
    sliced = tf.nest.map_structure(lambda x: _rows(x, n_rows, first, n_taken), data)
    as_tensor = tf.convert_to_tensor
    return Shared(sliced, as_tensor(n_own), as_tensor(n_rows), digest, as_tensor(first))


def _n_batch_rows(n_by_leaf: Sequence[Any]) -> Any:
    """Rows of the batch: the number that most components have, the first on a tie."""
    if not n_by_leaf:
        return tf.constant(1, tf.int64)
    static = [tf.get_static_value(n) for n in n_by_leaf]
    if None not in static:
        return tf.constant(max(static, key=static.count), tf.int64)
    if len(n_by_leaf) <= 2:
        return n_by_leaf[0]
    rows = tf.stack(n_by_leaf)
    alike = tf.reduce_sum(tf.cast(rows[:, None] == rows[None, :], tf.int32), axis=1)
    return rows[tf.argmax(alike)]


def _bounds(n_rows: Any, cut: float) -> Any:
    """`round(n_rows · cut)`, half to even on every rank; static where `n_rows` is."""
    static = tf.get_static_value(n_rows)
    if static is not None:
        return tf.constant(int(np.rint(float(static) * cut)), tf.int64)
    return tf.cast(tf.round(tf.cast(n_rows, tf.float64) * cut), tf.int64)


def _n_rows(leaf: Any) -> Any:
    """Rows of one component as int64, or None where it has none."""
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    if not isinstance(leaf, tf.Tensor) or leaf.dtype == tf.variant or leaf.shape.rank == 0:
        return None
    if leaf.shape.rank is not None and leaf.shape[0] is not None:
        return tf.constant(leaf.shape[0], tf.int64)
    return tf.shape(leaf, tf.int64)[0]


def _rows(leaf: Any, n_rows: Any, first: Any, n_taken: Any) -> Any:
    """The rows of one component that this rank takes; a component without them is kept whole."""
    n_here = _n_rows(leaf)
    if n_here is None:
        return leaf
    static = [tf.get_static_value(x) for x in (n_here, n_rows, first, n_taken)]
    if None not in static and isinstance(leaf, tf.Tensor):
        here, rows, low, taken = (int(x) for x in static)
        return leaf[low : low + taken] if here == rows else leaf
    same = tf.equal(n_here, n_rows)
    low = tf.where(same, first, 0)
    taken = tf.where(same, n_taken, n_here)
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.dense_shape[1:]
        start = tf.concat([[low], tf.zeros_like(rest)], 0)
        return tf.sparse.slice(leaf, start, tf.concat([[taken], rest], 0))
    return leaf[low : low + taken]


def batch_digest(leaves: Sequence[Any]) -> Any:
    """An int64 hash of a batch: up to 64 evenly strided values a row of every component."""
    digest = tf.constant(0, tf.int64)
    for leaf in leaves:
        for part in _dense_parts(leaf):
            digest = digest * HASH_FACTOR + _digest(part)
    return digest


def _dense_parts(leaf: Any) -> list[Any]:
    if isinstance(leaf, tf.RaggedTensor):
        return [leaf.flat_values, *leaf.nested_row_splits]
    if isinstance(leaf, tf.SparseTensor):
        return [leaf.indices, leaf.values]
    return [leaf] if isinstance(leaf, tf.Tensor) and leaf.dtype != tf.variant else []


def _digest(tensor: Any) -> Any:
    """The FarmHash of a dense tensor, of a part of each row where rows are long."""
    shape = tensor.shape
    n_columns = shape[1:].num_elements() if shape.rank else None
    if n_columns is not None and n_columns >= 2 * N_HASHED_PER_ROW and tensor.dtype != tf.string:
        stride = n_columns // N_HASHED_PER_ROW
        rows = tf.reshape(tensor, [-1, n_columns])
        tensor = rows[:, : N_HASHED_PER_ROW * stride : stride]
    hashed = tf.raw_ops.Fingerprint(data=tf.reshape(tensor, [1, -1]), method="farmhash64")
    return tf.reshape(tf.bitcast(hashed, tf.int64), [])
