"""Calls the command line inside the test's own process."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import typer

from launcher.cli import app
from launcher.command import execute

Launch = Callable[..., tuple[int, str, str]]


@contextmanager
def command_line(capsys: pytest.CaptureFixture[str]) -> Iterator[Launch]:
    """A function that runs words of `launch` and gives exit code, stdout and stderr.

    The log files that the commands opened are closed in the end.
    """

    def call(*words: str) -> tuple[int, str, str]:
        code = execute(typer.main.get_command(app), words)
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    for name in ("", "launcher", "policies"):
        logger = logging.getLogger(name)
        for handler in [*logger.handlers]:
            if "_pytest" not in type(handler).__module__:
                logger.removeHandler(handler)
                handler.close()
    logging.captureWarnings(capture=False)
