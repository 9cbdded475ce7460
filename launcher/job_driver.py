"""The driver of a run that was submitted from afar: a job on the head, whose log is the journal.

Run as `python -P -m launcher.job_driver VERSION` in a folder with the orders. What it shows goes to
its standard output, one JSON object a line, where Ray's Jobs API serves it to whoever follows.
"""

import os
import pickle
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from launcher.command import conclude
from launcher.config import Environment
from launcher.detached import DRIVER_LOG, drive, environment_for, let_go
from launcher.jobs import ORDERS, own_version
from launcher.journal import Journal
from launcher.log import new_log_folder, set_up_logging
from launcher.ownership import this_driver
from launcher.run import Around
from launcher.screen import make_journal_screen
from launcher.spawned import Orders


def main() -> int:
    """Carry the orders out; the exit code of the run."""
    (theirs,) = sys.argv[1:]
    folder = Path.cwd()
    os.chdir("/")
    journal = Journal(own_log())
    if theirs != own_version():
        text = (
            f"launch: The cluster's head has launch {own_version()}, this machine {theirs}. "
            "Install the same version in both.\n"
        )
        conclude(journal, 4, text, None)
        return 4
    orders: Orders = pickle.loads((folder / ORDERS).read_bytes())
    environment = environment_for(orders, Environment.read())
    logs = new_log_folder(environment.state_dir / "logs", datetime.now(UTC), os.getpid())
    screen = make_journal_screen(journal, environment, columns=orders.columns, colour=orders.colour)
    set_up_logging(logs, screen.warn)
    let_go(logs / DRIVER_LOG)
    driver = this_driver(str(journal.path), detached=True)
    request = replace(orders.request, address=None, ray_address=os.environ["RAY_ADDRESS"])
    around = Around(environment, screen, logs, driver, journal.begun)
    return drive(replace(orders, request=request), around, journal)


def own_log() -> Path:
    """The file that this job's standard output goes to."""
    return Path("/proc/self/fd/1").readlink()


if __name__ == "__main__":
    sys.exit(main())
