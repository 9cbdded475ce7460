"""Cuts training batches step by step, as the ranks' speeds say, and measures this rank's."""

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from launcher.worker.balance import Balance, Pace
from launcher.worker.exchange.waits import Waits
from launcher.worker.sharing import Shared, Uncut, cut_batch, cuts_of

WARM_UP_STEPS = 2
NOTHING = Pace(0.0, 0.0, 0.0)
N_FIGURES = len(astuple(NOTHING))


@dataclass(frozen=True, slots=True)
class Begun:
    """A step's beginning: when, after how much waiting, with how many rows to compute."""

    at_s: float
    waited_s: float
    n_rows: int


class Slices:
    """This rank's slices of the training batches under a balance.

    A batch is cut when its step begins, not when it is read: however far pipelines read ahead,
    all ranks cut the same batch alike, because all have taken the same measurements from the
    same exchanges. What a rank measured of a step travels with the gradients of the next.

    Args:
        rank: of this worker.
        balance: says where to cut; the only one to observe measurements.
        waits: of the exchange.
        clock: of the exchange, in seconds.
    """

    def __init__(
        self,
        rank: int,
        balance: Balance,
        waits: Waits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._rank, self._balance, self._waits, self._clock = rank, balance, waits, clock
        shape = (len(balance.shares), N_FIGURES)
        with tf.device("/CPU:0"):
            self._own = tf.Variable(np.zeros(shape, np.float32), trainable=False)
            self._all = tf.Variable(np.zeros(shape, np.float32), trainable=False)
        self.restart()

    def restart(self) -> None:
        """Begins anew, as with a new fit; the shares stay."""
        self._begun: Begun | None = None
        self._n_begun = 0
        self._balance.restart()
        self.measure_nothing()
        self._all.assign(tf.zeros_like(self._all))

    def cut(self, batch: Uncut) -> Shared:
        """This rank's slice of the batch whose step begins now."""
        with tf.device("/CPU:0"):
            figures = tf.convert_to_tensor(self._all)
            own, bounds = tf.numpy_function(
                self._begin, [batch.n_rows, figures], [tf.float32, tf.int64]
            )
            self._own.assign(tf.ensure_shape(own, self._own.shape))
            bounds = tf.ensure_shape(bounds, [2])
            return cut_batch(batch, bounds[0], bounds[1])

    def measure_nothing(self) -> None:
        """Leaves the present step out."""
        self._own.assign(tf.zeros_like(self._own))

    def outgoing(self) -> Any:
        """What to sum over ranks together with the gradients."""
        return tf.convert_to_tensor(self._own)

    def take(self, total: Any) -> None:
        """Takes the sum of what all ranks sent."""
        self._all.assign(total)

    def _begin(self, n_rows: np.ndarray, figures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Runs once a step, when its data are there."""
        now_s = self._clock()
        self._balance.observe([Pace(*map(float, row)) for row in figures])
        own = np.zeros(figures.shape, np.float32)
        own[self._rank] = astuple(self._last_pace(now_s))
        cuts = cuts_of(self._balance.shares)
        begin, end = (round(int(n_rows) * cuts[self._rank + i]) for i in (0, 1))
        self._begun = Begun(now_s, self._waits.total_s, max(1, end - begin))
        self._n_begun += 1
        return own, np.array([begin, end], np.int64)

    def _last_pace(self, now_s: float) -> Pace:
        """Of the step before the one that begins; nothing if it exchanged no gradients."""
        begun, waits = self._begun, self._waits
        if begun is None or self._n_begun <= WARM_UP_STEPS or waits.ready_s < begun.at_s:
            return NOTHING
        waited_s = waits.before_ready_s - begun.waited_s
        busy_s = waits.ready_s - begun.at_s - waited_s
        return Pace(begun.n_rows, busy_s, now_s - begun.at_s)
