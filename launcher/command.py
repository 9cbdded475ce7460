"""Carry a command out: its session, its default, and every error as one line with an exit code."""

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

from launcher.config import Environment, Terminal
from launcher.errors import (
    ClusterError,
    LauncherError,
    ScriptFailedError,
    StorageError,
    TrainingFailedError,
    UsageError,
)
from launcher.log import JOURNAL_FILE, new_log_folder, set_up_logging

if TYPE_CHECKING:
    from launcher.journal import Journal
    from launcher.launch import Result
    from launcher.record import RunRecord
    from launcher.run import Around
    from launcher.runs import RunIndex

logger = logging.getLogger(__name__)

GROUP_OPTIONS = frozenset({"--help", "-h", "--version"})
DEFAULT_COMMAND = "run"
USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130


@dataclass(slots=True)
class Session:
    """What one call of the command shares between its parts."""

    environment: Environment
    terminal: Terminal
    args: tuple[str, ...] = ()
    has_args: bool = False
    log_file: Path | None = None
    has_ended: bool = False  # a run was carried out and has shown how it ended

    def start_logging(self, write: Callable[[str], None]) -> Path:
        """Open a folder for this command's log files."""
        logs = self.environment.state_dir / "logs"
        try:
            folder = new_log_folder(logs, datetime.now(UTC), os.getpid())
        except OSError as error:
            raise StorageError(
                f"The log folder {logs} cannot be written: {error.strerror}. Set HOME to a folder "
                "that can be."
            ) from error
        self.log_file = set_up_logging(folder, write)
        return folder

    @property
    def index(self) -> "RunIndex":
        """Which storage each run of this machine went to."""
        from launcher.runs import RunIndex

        return RunIndex(self.environment.state_dir / "runs")


class DefaultToRun(TyperGroup):
    """Puts `run` in front of a first word that is no command, and keeps what follows `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Complete the words before the parser sees them."""
        session: Session = ctx.obj
        if not args:
            args = ["--help"]
        if "--" in args:
            at = args.index("--")
            session.has_args, session.args = True, tuple(args[at + 1 :])
            args = args[:at]
        if not args or args[0] not in self._known():
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def _known(self) -> frozenset[str]:
        return GROUP_OPTIONS | frozenset(self.commands)


def carry_out(session: Session, action: "Callable[[Around], Result]", *, is_json: bool) -> int:
    """Run or resume with a screen, a journal and a log folder; the exit code."""
    from launcher.journal import Journal
    from launcher.ownership import this_driver
    from launcher.record import dump_record
    from launcher.run import Around
    from launcher.screen import FollowedScreen, make_journal_screen, make_screen

    screen = make_screen(session.environment, session.terminal, time.monotonic, is_json=is_json)
    logs = session.start_logging(screen.warn)
    journal = Journal(logs / JOURNAL_FILE)
    both = FollowedScreen(screen, make_journal_screen(journal, session.environment))
    driver = this_driver(str(journal.path))
    try:
        result = action(Around(session.environment, both, logs, driver, journal.begun))
    finally:
        screen.close()
    session.has_ended = True
    error, code = result.error, result.record.exit_code or 0
    if error is not None:
        code = error.exit_code
    conclude(journal, code, "" if error is None else error_text(error, logs), result.record)
    if is_json:
        sys.stdout.write(dump_record(result.record) + "\n")
    if error is not None:
        report_error(error, session)
    return code


def conclude(journal: "Journal", code: int, text: str, record: "RunRecord | None") -> None:
    """Tell those who follow a run how it ended.

    Args:
        text: what is to be written to stderr.
    """
    from launcher.record import CODEC

    document = None if record is None else CODEC.encode(record)
    journal.write("result", exit_code=code, text=text, record=document)


def execute(group: Any, words: Sequence[str]) -> int:
    """Carry out a command line; never raises.

    Args:
        group: the commands.
        words: the command line without the program's name.

    Returns:
        The exit code.
    """
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows ?
    try:
        session = Session(Environment.read(), _terminal())
    except UsageError as error:
        say(str(error))
        return error.exit_code
    return _execute(group, words, session)


def _execute(group: Any, words: Sequence[str], session: Session) -> int:
    try:
        return _call(group, words, session)
    except TyperException as error:
        return _report_usage(error)
    except LauncherError as error:
        return report_error(error, session)
    except (KeyboardInterrupt, Abort):
        say("interrupted before training began")
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:  # such as `launch runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 - the last resort: one line, details in the log
        return _report_internal(error, session)


def _open_streams() -> None:
    """Put nothing in the place of standard streams that are closed, as by `>&-`."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def _call(group: Any, words: Sequence[str], session: Session) -> int:
    code = group.main(args=[*words], prog_name="launch", standalone_mode=False, obj=session)
    if code == INTERRUPTED_EXIT_CODE and not session.has_ended:  # Typer caught Ctrl-C
        raise KeyboardInterrupt
    return int(code or 0)


def report_error(error: LauncherError, session: Session) -> int:
    """Print an error as one message of ours, or the user's own traceback; its exit code."""
    folder = None if session.log_file is None else session.log_file.parent
    sys.stderr.write(error_text(error, folder))
    return error.exit_code


def error_text(error: LauncherError, log_dir: Path | None) -> str:
    """What a person is told of an error, in whole lines."""
    if isinstance(error, ScriptFailedError):
        return str(error).rstrip("\n") + "\n"
    text = f"launch: {error}\n"
    noisy = isinstance(error, (TrainingFailedError, ClusterError))
    if noisy and not isinstance(error, StorageError) and log_dir is not None:
        files = (path for path in log_dir.rglob("*") if path.name != JOURNAL_FILE)
        if any(path.is_file() and path.stat().st_size for path in files):
            text += f"launch: what Ray and TensorFlow said is in {log_dir}\n"
    return text


def say(text: str) -> None:
    """One message of ours on stderr."""
    sys.stderr.write(f"launch: {text}\n")


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def refuse_args(session: Session) -> None:
    """Only `run` takes arguments for a script."""
    if session.has_args:
        raise UsageError("This command takes no arguments after --. Leave them out.")


def refuse_extra(script: str, extra: Sequence[str] | None, group: TyperGroup) -> None:
    """Tell a mistyped command and a script's argument without `--` apart from a script."""
    commands = [name for name in group.commands if name != DEFAULT_COMMAND]
    if script in commands:
        raise UsageError(f"The command stands first: launch {script} …")
    close = get_close_matches(script, commands, n=1)
    if close and not Path(script).exists():
        raise UsageError(f"There is no command {script!r}. Did you mean `launch {close[0]}`?")
    if extra:
        raise UsageError(
            f"Unexpected argument {extra[0]!r}. The script's own arguments go after --: "
            f"launch {script} -- {' '.join(extra)}"
        )


def _terminal() -> Terminal:
    return Terminal(
        *(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    )


def _report_usage(error: TyperException) -> int:
    """A mistake in the options, as the parser found it."""
    option = getattr(error, "option_name", None)
    text = " ".join(error.format_message().split())
    if option is not None and text.startswith("No such option"):
        known = getattr(error, "possibilities", None) or ()
        close = get_close_matches(option, known, n=1, cutoff=0.75)
        text = f"There is no option {option}. " + (
            f"Did you mean {close[0]}?"
            if close
            else "The script's own arguments go after --, as in: launch train.py -- --epochs 3"
        )
    elif (ctx := getattr(error, "ctx", None)) is not None:
        text = f"{text.rstrip('.')}. See: {ctx.command_path} --help"
    say(text)
    return USAGE_EXIT_CODE


def _report_internal(error: Exception, session: Session) -> int:
    """Something that should not happen."""
    if session.log_file is None:
        with contextlib.suppress(StorageError):  # without a log, Python prints the traceback
            session.start_logging(say)
    logging.getLogger().error("internal error", exc_info=error)
    text = " ".join(str(error).split())
    where = "" if session.log_file is None else f" Details in {session.log_file}"
    say(f"internal error: {type(error).__name__}: {text}.{where}")
    return 1
