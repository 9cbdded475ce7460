"""Show where a run stands: a live line on a terminal, plain lines elsewhere.

The script's own output passes through unchanged, above the live line. While it stands in the
middle of a line the live line stays away.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from launcher.figures import clock_text, metric_text, money_limit, time_text
from policies.wording import dollars

PLAIN_EVERY_S = 30.0  # plain progress lines: one per epoch, or after this long
REDRAW_EVERY_S = 0.1
BAR_WIDTH = 28
CLEAR = "\r\x1b[2K"


class Status(Protocol):
    """Where training stands; None means not known."""

    @property
    def epoch(self) -> int:
        """Epochs that are done; the next one runs unless `epoch_ended`."""

    @property
    def epochs(self) -> int | None:
        """Declared epochs."""

    @property
    def step(self) -> int:
        """Steps done in the epoch."""

    @property
    def steps(self) -> int | None:
        """Steps of an epoch."""

    @property
    def loss(self) -> float | None:
        """The epoch's loss so far."""

    @property
    def step_s(self) -> float | None:
        """Recent time of a step."""

    @property
    def cost_usd(self) -> float:
        """Spent so far."""

    @property
    def budget_usd(self) -> float | None:
        """The limit."""

    @property
    def eta_s(self) -> float | None:
        """Time left."""

    @property
    def epoch_ended(self) -> bool:
        """Whether the epoch just ended."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the epoch that just ended, by name."""


class Progress:
    """Writes the script's output, stages and the state of training.

    Args:
        stdout: for what the script prints.
        stderr: for everything of ours.
        live: whether stderr is a terminal that can redraw a line.
        shared: whether both streams show in one place: a terminal, or a file.
        clock: monotonic, in seconds.
        width: columns of the terminal, asked at each redraw.
    """

    def __init__(
        self,
        stdout: TextIO,
        stderr: TextIO,
        *,
        live: bool,
        shared: bool,
        clock: Callable[[], float],
        width: Callable[[], int],
    ) -> None:
        self._stdout, self._stderr = stdout, stderr
        self._live, self._shared = live, shared
        self._clock, self._width = clock, width
        self._lock = threading.RLock()
        self._line = ""  # what the live line should show
        self._stage: tuple[str, float] | None = None  # the stage it shows, and since when
        self._is_drawn = False
        self._is_mid_line = False  # the script's output stands in the middle of a line
        self._drawn_at_s = float("-inf")
        self._plain_at_s: float | None = None  # of the last plain line, or the first step
        self._held = ""  # a plain line that waits for the end of the script's line

    def stage(self, text: str) -> None:
        """Say what is going on now."""
        with self._lock:
            self._line = ""
            if self._live:
                self._stage = (text, self._clock())
                self._line = f"{text} …"
                self._draw(force=True)
            else:
                self._end_line()
                self._write_ours(f"launch: {text}\n")

    def tick(self) -> None:
        """Show how long the stage has been going on; called about once a second."""
        with self._lock:
            if self._stage is None or not self._live:
                return
            text, since_s = self._stage
            self._line = f"{text} … {self._clock() - since_s:.0f} s"
            self._draw(force=False)

    def line(self, text: str) -> None:
        """Write a line of ours that stays, above the live line."""
        with self._lock:
            self._erase()
            self._end_line()
            self._write_ours(f"{text}\n")
            self._draw(force=True)

    def output(self, text: str, stream: str = "stdout") -> None:
        """Pass on what the script printed, exactly."""
        if not text:
            return
        with self._lock:
            shown_here = self._shared or stream == "stderr"
            if shown_here:
                self._erase()
            _write(self._stderr if stream == "stderr" else self._stdout, text)
            if shown_here:
                self._is_mid_line = not text.endswith("\n")
                self._write_held()
            self._draw(force=True)

    def training(self, status: Status) -> None:
        """Show where training stands: redrawn in place, or a plain line now and then."""
        with self._lock:
            self._stage = None
            if self._live:
                self._line = training_line(status, self._width() - 1)
                self._draw(force=status.epoch_ended)
                return
            now = self._clock()
            if self._plain_at_s is None:
                self._plain_at_s = now
            if status.epoch_ended or now - self._plain_at_s >= PLAIN_EVERY_S:
                self._plain_at_s = now
                self._held = f"launch: {training_line(status, None)}\n"
                self._write_held()

    def pause(self) -> None:
        """Take the live line away, until there is something new to show."""
        with self._lock:
            self._erase()
            self._line, self._stage = "", None
            self._end_line()
            self._is_mid_line = False

    def close(self) -> None:
        """Take the live line away for good."""
        self.pause()
        self._live = False

    def _draw(self, *, force: bool) -> None:
        now = self._clock()
        if not self._live or not self._line or self._is_mid_line:
            return
        if not force and now - self._drawn_at_s < REDRAW_EVERY_S:
            return
        text = _cut(self._line, self._width() - 1)
        self._write_ours(f"{CLEAR}{text}")
        self._is_drawn, self._drawn_at_s = True, now

    def _erase(self) -> None:
        if self._is_drawn:
            self._write_ours(CLEAR)
            self._is_drawn = False

    def _end_line(self) -> None:
        """End the script's unfinished line where ours would continue it."""
        if self._is_mid_line and self._shared:
            self._write_ours("\n")
            self._is_mid_line = False
        self._write_held()

    def _write_held(self) -> None:
        if self._held and not (self._is_mid_line and self._shared):
            self._write_ours(self._held)
            self._held = ""

    def _write_ours(self, text: str) -> None:
        _write(self._stderr, text)


def training_line(status: Status, width: int | None) -> str:
    """The state of training in at most `width` columns, the least important left out first.

    Without a width: all of it, without the bar.
    """
    epochs = "" if status.epochs is None else f"/{status.epochs}"
    head = f"epoch {status.epoch + (not status.epoch_ended)}{epochs}"
    steps = f"{status.step:,}" if status.steps is None else f"{status.step:,}/{status.steps:,}"
    if status.epoch_ended:
        steps = "done"
    parts = [
        steps,
        *([] if status.loss is None else [f"loss {metric_text(status.loss)}"]),
        *([] if status.step_s is None else [f"{time_text(status.step_s)}/step"]),
        _money(status),
        *_left(status),
    ]
    if width is None:
        return " · ".join([head, *parts])
    bar = _bar(status)
    while len(parts) > 1 and len(_joined(head, bar, parts)) > width:
        if bar:
            bar = ""
        else:
            parts.pop(-2 if len(parts) > 2 else -1)
    return _cut(_joined(head, bar, parts), width)


def _joined(head: str, bar: str, parts: list[str]) -> str:
    return "  ".join(part for part in (head, bar, " · ".join(parts)) if part)


def _left(status: Status) -> list[str]:
    """Time left, unless it is not known or next to nothing."""
    if status.eta_s is None or status.eta_s < 1:
        return []
    text = clock_text(status.eta_s) if status.eta_s < 100 else time_text(status.eta_s)
    return [f"{text} left"]


def _money(status: Status) -> str:
    spent = dollars(status.cost_usd)
    return spent if status.budget_usd is None else f"{spent} of {money_limit(status.budget_usd)}"


def _bar(status: Status) -> str:
    """A bar over the steps of the epoch; empty where their number is not known."""
    if not status.steps:
        return ""
    done = BAR_WIDTH if status.epoch_ended else BAR_WIDTH * status.step // status.steps
    done = min(done, BAR_WIDTH)
    return "━" * done + "╌" * (BAR_WIDTH - done)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def _write(stream: TextIO, text: str) -> None:
    """Write and flush; a reader that went away must not end the training."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # a reader or a terminal that is gone, or closed by us
        return
