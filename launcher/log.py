"""Where log lines go: all to the command's log file, our warnings also to the terminal."""

import contextlib
import logging
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

LOG_FILE = "launch.log"
JOURNAL_FILE = "journal.jsonl"
OURS = ("launcher", "policies")
NOISY = ("ray", "tensorflow", "absl")  # these print on their own: only into the file
KEPT_FOLDERS = 50
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _Lines(logging.Handler):
    """Hands each record to a function as one line, without its traceback."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's message as one line."""
        self._write(" ".join(record.getMessage().split()))


class _LogFile(logging.FileHandler):
    """A log file; where its disk is full, lines are lost and nothing is said of it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Print no traceback into what the user reads."""

    def close(self) -> None:
        """Close, though what is left cannot be written."""
        with contextlib.suppress(OSError):
            super().close()


def set_up_logging(folder: Path, write: Callable[[str], None]) -> Path:
    """Send everything to a file in `folder`, and warnings of ours to `write`.

    Ray's and TensorFlow's own lines only reach the file, if these are imported before: else see
    `quieten`. Calling it again replaces the handlers of the call before.

    Args:
        folder: is made if needed.
        write: takes one line for the terminal.

    Returns:
        The log file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOG_FILE
    file = _LogFile(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    _drop_handlers(root)
    root.addHandler(file)
    root.setLevel(logging.WARNING)
    quieten()
    for name in OURS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        _drop_handlers(logger)
        logger.addHandler(_Lines(write))
    logging.captureWarnings(capture=True)
    return path


def quieten() -> None:
    """Send what Ray and TensorFlow log to the file only; again after they are first imported."""
    for name in NOISY:
        logger = logging.getLogger(name)
        _drop_handlers(logger)
        logger.propagate = True


def _drop_handlers(logger: logging.Logger) -> None:
    for handler in [*logger.handlers]:
        logger.removeHandler(handler)
        handler.close()


def new_log_folder(logs: Path, now: datetime, pid: int) -> Path:
    """A folder for the log files of one command; the oldest beyond 50 are deleted.

    Those of commands that may still run are kept.
    """
    folder = logs / f"{now:%Y%m%d-%H%M%S}-{pid}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(path for path in logs.iterdir() if path.is_dir())[:-KEPT_FOLDERS]:
        if not Path("/proc", old.name.rpartition("-")[2], "stat").exists():
            shutil.rmtree(old, ignore_errors=True)
    return folder
