"""The console that results are printed on."""

from typing import TextIO

from rich.console import Console

from launcher.config import Environment
from launcher.layout import PLAIN_WIDTH


def make_console(stream: TextIO, *, is_tty: bool, environment: Environment) -> Console:
    """A console for tables: coloured on a terminal, plain and wide enough elsewhere."""
    return Console(
        file=stream,
        force_terminal=is_tty,
        no_color=environment.no_color,
        width=None if is_tty else PLAIN_WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
