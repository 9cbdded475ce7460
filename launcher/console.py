"""The console that results are printed on."""

import contextlib
import os
from typing import TextIO

from rich.console import Console

from launcher.config import Environment
from launcher.layout import PLAIN_WIDTH


class _PipeConsole(Console):
    """A console whose reader may go away, as in `launch train.py | head`: a run goes on."""

    def on_broken_pipe(self) -> None:
        """Print nothing more, where Rich would end the process."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):  # no file of the system's
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.file.fileno())
            os.close(null)


def make_console(stream: TextIO, *, is_tty: bool, environment: Environment) -> Console:
    """A console for tables: coloured on a terminal, plain and wide enough elsewhere."""
    return _PipeConsole(
        file=stream,
        force_terminal=is_tty,
        no_color=environment.no_color,
        width=None if is_tty else PLAIN_WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
