"""The driver of a detached run: no terminal, a journal to be followed by.

Run as `python -P -m launcher.detached`. It takes pickled orders on standard input and says on
standard output, in one line, how it can be followed.
"""

import logging
import os
import pickle
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from launcher.command import INTERRUPTED_EXIT_CODE, conclude, error_text
from launcher.config import Environment, make_storage
from launcher.errors import LauncherError
from launcher.journal import Journal
from launcher.launch import Result
from launcher.log import JOURNAL_FILE, new_log_folder, set_up_logging
from launcher.ownership import this_driver
from launcher.process import process
from launcher.run import Around, resume, run
from launcher.screen import make_journal_screen
from launcher.spawned import Orders, Spawned

logger = logging.getLogger(__name__)

DRIVER_LOG = "driver.log"  # what should never be said: by interpreters and libraries


def main() -> int:
    """Carry the orders out; the exit code of the run."""
    orders: Orders = pickle.load(sys.stdin.buffer)
    environment = environment_for(orders, Environment.read())
    logs = new_log_folder(environment.state_dir / "logs", datetime.now(UTC), os.getpid())
    journal = Journal(logs / JOURNAL_FILE)
    screen = make_journal_screen(journal, environment, columns=orders.columns, colour=orders.colour)
    set_up_logging(logs, screen.warn)
    print(Spawned(process(), journal.path).line(), flush=True)
    let_go(logs / DRIVER_LOG)
    driver = this_driver(str(journal.path), detached=True)
    return drive(orders, Around(environment, screen, logs, driver, journal.begun), journal)


def drive(orders: Orders, around: Around, journal: Journal) -> int:
    """Launch or resume, and put how it ended into the journal; never raises."""
    request = orders.request
    if not request.storage:
        request = replace(request, storage=make_storage(None, around.environment))
    record, text = None, ""
    try:
        result = _carried_out(replace(orders, request=request), around)
        record, code = result.record, result.record.exit_code or 0
        if result.error is not None:
            code, text = result.error.exit_code, error_text(result.error, around.log_dir)
    except LauncherError as error:
        code, text = error.exit_code, error_text(error, around.log_dir)
    except KeyboardInterrupt:
        code, text = INTERRUPTED_EXIT_CODE, "launch: interrupted before training began\n"
    except Exception as error:
        logger.exception("internal error")
        code, text = 1, f"launch: internal error: {error}. Details in {around.log_dir}\n"
    conclude(journal, code, text, record)
    return code


def _carried_out(orders: Orders, around: Around) -> Result:
    if orders.run is not None:
        return resume(orders.run, orders.request, around)
    return run(orders.request, around, orders.shipped)


def environment_for(orders: Orders, here: Environment) -> Environment:
    """The environment of a run on this machine: what the user set there, the rest from here.

    Options are in the request already.
    """
    return replace(
        here,
        home=orders.home or here.home,
        launch={},
        tf_config=None,
        ray_address=None,
        keras_backend=None,
        tf_use_legacy_keras=orders.legacy_keras,
        no_color=orders.no_color,
    )


def let_go(log: Path) -> None:
    """Leave the streams of who started this process."""
    sys.stdout.flush()
    null, kept = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT, 0o644)
    for old, new in ((0, null), (1, kept), (2, kept)):
        os.dup2(new, old)
    os.close(null)
    os.close(kept)


if __name__ == "__main__":
    sys.exit(main())
