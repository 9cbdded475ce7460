"""Progress on the standard streams of this process."""

import sys
import threading
import time
from collections.abc import Callable

from launcher.config import Environment, Terminal
from launcher.console import make_console
from launcher.progress import Progress

TICK_S = 1.0


def make_progress(
    environment: Environment, terminal: Terminal, clock: Callable[[], float], *, is_json: bool
) -> Progress:
    """Progress that redraws a line on a terminal, and writes plain lines elsewhere.

    With `is_json` stdout is left to the result: all else goes to stderr.
    """
    out, out_is_tty = (
        (sys.stderr, terminal.stderr_is_tty) if is_json else (sys.stdout, terminal.stdout_is_tty)
    )
    errors = make_console(sys.stderr, is_tty=terminal.stderr_is_tty, environment=environment)
    progress = Progress(
        out,
        sys.stderr,
        live=terminal.stderr_is_tty and errors.width >= 20,
        shared=out is sys.stderr or (out_is_tty and terminal.stderr_is_tty),
        clock=clock,
        width=lambda: errors.width,
    )
    if terminal.stderr_is_tty:
        threading.Thread(target=_tick, args=(progress,), daemon=True).start()
    return progress


def _tick(progress: Progress) -> None:
    while True:
        time.sleep(TICK_S)
        progress.tick()
