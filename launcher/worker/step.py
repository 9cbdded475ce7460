"""The arithmetic of a running step: this rank's weight, and what is summed over ranks in it."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from launcher.worker.exchange import Exchange
from launcher.worker.exchange.waits import GRADIENT_SLICES, GRADIENTS
from launcher.worker.sharing import HASH_FACTOR, Shared, Uncut
from launcher.worker.slices import Slices


class StepState:
    """The running step's numbers, held in variables.

    Variables, because any function traced inside a step may read them, a user's own cached
    `tf.function` included, which could not hold on to tensors of the trace around it.

    A step is *shared* when each rank has its slice of the global batch (weight w_r = rows of
    the slice / rows of the batch), and *whole* when every rank has all of it (w_r = 1/n, and
    everything that is summed over ranks counts n copies).

    Args:
        exchange: sums over ranks.
        slices: cut training batches where they follow speed; None where they stay as they are.

    Attributes:
        gathers: whether slices of an embedding's gradient are gathered; else they are added up.
        on_slices: is shown them before they are exchanged, while a step is traced.
    """

    def __init__(self, exchange: Exchange, slices: Slices | None = None) -> None:
        self._exchange, self._slices = exchange, slices
        self.gathers = True
        self.on_slices: Callable[[Any], None] = lambda _: None
        self.weight = tf.Variable(1.0, trainable=False, name="launch_weight")
        self.n_copies = tf.Variable(1.0, trainable=False, name="launch_copies")
        self.muted = tf.Variable(0.0, trainable=False, name="launch_muted")
        self.request = tf.Variable(0.0, trainable=False, name="launch_request")
        self.agreed = tf.Variable(0.0, trainable=False, name="launch_agreed")
        with tf.device("/CPU:0"):
            self.digest = tf.Variable(0, trainable=False, dtype=tf.int64, name="launch_digest")

    def reset(self) -> None:
        """Forgets requests, measurements and which data were seen."""
        self.request.assign(0.0)
        self.agreed.assign(0.0)
        self.digest.assign(0)
        if self._slices is not None:
            self._slices.restart()

    def cut(self, batch: Uncut) -> Shared:
        """This rank's slice of the batch whose step begins now."""
        assert self._slices is not None
        return self._slices.cut(batch)

    def begin_shared(self, shared: Shared, *, training: bool) -> None:
        """Sets the numbers for a slice of a global batch."""
        if self._exchange.world_size > 1:
            n_own, n_rows = tf.cast(shared.n_own, tf.float32), tf.cast(shared.n_rows, tf.float32)
            self.weight.assign(tf.math.divide_no_nan(n_own, n_rows))
            self.n_copies.assign(1.0)
        if training:
            self.digest.assign(next_digest(self.digest, shared.digest))

    def begin_whole(self) -> None:
        """Sets the numbers for a batch that every rank has in full."""
        self.weight.assign(1.0 / self._exchange.world_size)
        self.n_copies.assign(float(self._exchange.world_size))
        if self._slices is not None:
            self._slices.measure_nothing()

    def count_as(self, weight: Any, n_copies: Any, muted: Any) -> None:
        """Sets the numbers for a step of a script's own loop."""
        self.weight.assign(weight)
        self.n_copies.assign(n_copies)
        self.muted.assign(muted)

    def is_silent(self) -> Any:
        """Whether metrics of a script's own loop do not count on this rank, a bool scalar."""
        return tf.logical_or(self.is_idle(), self.muted > 0.0)

    def is_idle(self) -> Any:
        """Whether this rank has no rows in this step, a bool scalar."""
        return tf.equal(self.weight, 0.0)

    def mean_gradients(
        self, gradients: Sequence[Any], values: Sequence[Any] = ()
    ) -> tuple[list[Any], list[Any]]:
        """Σ_r w_r · g_r for every gradient that is not None; carries the ranks' requests along.

        Slices of an embedding's gradient are gathered, not added up, since optimizers treat
        repeated rows in their own ways (Keras 3's Adam squares each of them by itself).

        Args:
            gradients: dense ones of static shape, `IndexedSlices`, or None.
            values: float32 scalars to travel with them.

        Returns:
            The means of the gradients, and of the values.
        """
        means = list(gradients)
        if not self.gathers:
            means = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
        gradients = tuple(means)
        dense = [i for i, g in enumerate(gradients) if isinstance(g, tf.Tensor)]
        weighted = [self._weighted(each) for each in [*(gradients[i] for i in dense), *values]]
        sums = self._sum_with_messages(weighted)
        for place, total in zip(dense, sums, strict=False):
            means[place] = total
        for place, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                self.on_slices(gradient)
                means[place] = self._gathered(gradient)
        return means, sums[len(dense) :]

    def means(self, values: Sequence[Any], purpose: str) -> list[Any]:
        """Σ_r w_r · v_r of some floats."""
        weighted = [self._weighted(value) for value in values]
        return list(self._exchange.sum_tensors(weighted, purpose))

    def _sum_with_messages(self, gradients: list[Any]) -> list[Any]:
        """Sums gradients over ranks, and in the same message what ranks tell each other."""
        messages = [tf.convert_to_tensor(self.request)]
        if self._slices is not None:
            messages.append(self._slices.outgoing())
        sums = self._exchange.sum_tensors([*gradients, *messages], GRADIENTS)
        self.agreed.assign(sums[len(gradients)])
        if self._slices is not None:
            self._slices.take(sums[-1])
        return sums[: len(gradients)]

    def _weighted(self, values: Any) -> Any:
        return tf.math.multiply_no_nan(values, tf.cast(self.weight, values.dtype))

    def _gathered(self, slices: Any) -> Any:
        """All ranks' rows; of a batch that every rank has in full, rank 0's alone."""
        is_copy = tf.logical_and(self.n_copies > 1.0, self._exchange.rank > 0)
        n_rows = tf.shape(slices.indices)[0]
        n_sent = tf.where(is_copy, 0, n_rows)
        share = tf.cast(self.batch_share(), slices.values.dtype)
        own = [tf.math.multiply_no_nan(slices.values, share)[:n_sent], slices.indices[:n_sent]]
        values, indices = self._exchange.gather_rows(own, GRADIENT_SLICES)
        return tf.IndexedSlices(values, indices, slices.dense_shape)

    def denominator(self, local: Any, purpose: str) -> Any:
        """The divisor for this rank's sum so that Σ_r w_r · (sum_r / divisor_r) is global.

        Args:
            local: d_r, this rank's part of the loss's denominator D = Σ_r d_r.
            purpose: names the exchange.

        Returns:
            D · w_r as float32; 0 where the rank has no rows, so divide with `divide_no_nan`.
        """
        own = tf.where(self.is_idle(), 0.0, tf.cast(local, tf.float32))
        (total,) = self._exchange.sum_tensors([own], f"denominator {purpose}")
        return total * self.weight

    def sum_scale(self) -> Any:
        """The factor for a sum over own rows so that Σ_r w_r · factor · sum_r is the global sum."""
        return tf.math.divide_no_nan(1.0, self.n_copies * self.weight)

    def batch_share(self) -> Any:
        """How much of "one batch" this rank's step is: sums to 1 over ranks, or 1 if whole."""
        return self.n_copies * self.weight

    def sum_over_ranks(self, tensors: Sequence[Any], purpose: str) -> list[Any]:
        """A differentiable sum of this rank's tensors over all ranks.

        The step's objective is Σ_q w_q · L_q, and a rank's gradients are weighted by w_r when
        they are exchanged. So the gradient handed back here is (1/w_r) Σ_q w_q ∂L_q/∂sum.
        """
        exchange, weight = self._exchange, self.weight

        @tf.custom_gradient
        def total(*local: Any) -> tuple[list[Any], Any]:
            sums = exchange.sum_tensors(list(local), purpose)

            def gradient(*upstream: Any) -> list[Any]:
                weighted = [g * tf.cast(weight, g.dtype) for g in upstream]
                totals = exchange.sum_tensors(weighted, f"gradient of {purpose}")
                return [tf.math.divide_no_nan(g, tf.cast(weight, g.dtype)) for g in totals]

            return sums, gradient

        sums: list[Any] = total(*tensors)
        return sums

    def keep_if(self, is_idle: Any, variables: Sequence[Any], before: Sequence[Any]) -> None:
        """Takes back what a step that does not count did to variables.

        Args:
            is_idle: whether it does not count, a bool scalar.
            variables: to restore.
            before: their values before the step.
        """

        def restore() -> Any:
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)
            return tf.constant(0)

        if variables:
            tf.cond(is_idle, restore, lambda: tf.constant(0))


def shaped(gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
    """The gradients with the static shapes of their variables (some ops lose them)."""
    if variables is None:
        return list(gradients)
    return [
        g
        if g is None or not hasattr(g, "set_shape") or g.shape.is_fully_defined()
        else tf.ensure_shape(g, v.shape)
        for g, v in zip(gradients, variables, strict=True)
    ]


def next_digest(digest: Any, batch: Any) -> Any:
    """The rolling hash after one more batch; int64, wraps around."""
    return tf.convert_to_tensor(digest) * HASH_FACTOR + batch
