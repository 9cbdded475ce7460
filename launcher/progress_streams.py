"""Progress on the standard streams of this process."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from launcher.config import Environment, Terminal
from launcher.console import make_console
from launcher.progress import Progress

TICK_S = 1.0


def make_progress(
    environment: Environment, terminal: Terminal, clock: Callable[[], float], *, is_json: bool
) -> Progress:
    """Progress that redraws a line on a terminal, and writes plain lines elsewhere.

    With `is_json` stdout is left to the result: all else goes to stderr. A terminal without
    control codes (`TERM=dumb`, as in Emacs) gets plain lines, too.
    """
    out, out_is_tty = (
        (sys.stderr, terminal.stderr_is_tty) if is_json else (sys.stdout, terminal.stdout_is_tty)
    )
    errors = make_console(sys.stderr, is_tty=terminal.stderr_is_tty, environment=environment)
    is_live = terminal.stderr_is_tty and errors.width >= 20 and not errors.is_dumb_terminal
    progress = Progress(
        out,
        sys.stderr,
        live=is_live,
        shared=(out_is_tty and terminal.stderr_is_tty) or _are_one_file(out, sys.stderr),
        clock=clock,
        width=lambda: errors.width,
    )
    if is_live:
        threading.Thread(target=_tick, args=(progress,), daemon=True).start()
    return progress


def _are_one_file(a: TextIO, b: TextIO) -> bool:
    """Whether what is written to both ends up in one file or pipe, as with `2>&1`."""
    if a is b:
        return True
    try:
        return os.path.samestat(os.fstat(a.fileno()), os.fstat(b.fileno()))
    except (OSError, ValueError):  # not a file, or closed
        return False


def _tick(progress: Progress) -> None:
    while True:
        time.sleep(TICK_S)
        progress.tick()
