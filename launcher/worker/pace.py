"""When a checkpoint is due, so that all of them together cost little and little can be lost."""

import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean, median

SHARE = 0.02  # of the time that checkpoints may cost
LEAST_S = 10.0  # in mid-epoch: a loss of so little is not worth more writing
LEAST_BETWEEN_S = 1.0  # at an epoch's end, where a checkpoint is simplest to go on from
MAX_LOSS_S = 60.0  # an epoch's end after so long is kept, whatever that costs
SHARE_IN_FLIGHT = 0.25  # of the time that network and storage may be busy with checkpoints
N_COSTS, N_STEPS = 3, 50  # that are remembered


class Pace:
    """Measures what checkpoints cost, and says when the next one is due.

    A checkpoint costs the pause in which it is copied and, while it is in flight (packed, sent
    and written in the background), what steps take longer than they did before.

    Args:
        every_s: between checkpoints in mid-epoch; None lets their cost decide.
        clock: seconds, monotonic.
    """

    def __init__(self, every_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._lock = threading.Lock()  # a checkpoint lands in another thread
        self._last_s, self._took_off_s = clock(), clock()
        self._has_one = self._is_in_flight = False
        self._pause_s, self._flight_s, self._whole_s = 0.0, 0.0, 0.0
        self._costs: deque[float] = deque(maxlen=N_COSTS)
        self._steps: deque[float] = deque(maxlen=N_STEPS)
        self._steps_in_flight: list[float] = []

    @property
    def cost_s(self) -> float:
        """What a checkpoint costs training; 0 until one was measured."""
        with self._lock:
            return fmean(self._costs) if self._costs else 0.0

    @property
    def pause_s(self) -> float:
        """How long training stood still for the last one."""
        return self._pause_s

    @property
    def whole_s(self) -> float:
        """How long the last one took from its copy to storage."""
        return self._whole_s

    def stepped(self, took_s: float) -> None:
        """A step has ended."""
        with self._lock:
            (self._steps_in_flight if self._is_in_flight else self._steps).append(took_s)

    def took_off(self, pause_s: float) -> None:
        """A checkpoint was copied, for which training paused so long."""
        with self._lock:
            self._close_account()
            self._last_s = self._took_off_s = self._clock()
            self._pause_s, self._has_one, self._is_in_flight = pause_s, True, True

    def landed(self) -> None:
        """The checkpoint in flight has arrived, or is given up; from any thread."""
        with self._lock:
            self._close_account()

    def is_due_in_epoch(self) -> bool:
        """Whether to ask for one in mid-epoch; asking starts the wait for the next."""
        if self._is_in_flight or self._since_s < self._interval_s:
            return False
        self._last_s = self._clock()
        return True

    def is_due_between(self) -> bool:
        """Whether to take one between epochs or fits."""
        enough_s = max(LEAST_BETWEEN_S, self.cost_s / SHARE)
        return not self._has_one or self._since_s >= min(enough_s, MAX_LOSS_S)

    def is_cheap_for(self, trained_s: float) -> bool:
        """Whether one more costs little against so much training that it would keep."""
        return self.cost_s < trained_s * SHARE

    @property
    def _since_s(self) -> float:
        return self._clock() - self._last_s

    @property
    def _interval_s(self) -> float:
        if self._every_s is not None:
            return self._every_s
        return max(LEAST_S, self.cost_s / SHARE, self._flight_s / SHARE_IN_FLIGHT)

    def _close_account(self) -> None:
        """Count what the checkpoint in flight has cost; with the lock held."""
        if not self._is_in_flight:
            return
        slower_s = 0.0
        if self._steps:
            slower_s = sum(self._steps_in_flight) - len(self._steps_in_flight) * median(self._steps)
        self._costs.append(self._pause_s + max(0.0, slower_s))
        self._flight_s = self._clock() - self._took_off_s
        self._whole_s = self._pause_s + self._flight_s
        self._steps_in_flight.clear()
        self._is_in_flight = False
