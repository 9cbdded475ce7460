"""Starts the driver of a detached run as a process of its own session."""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.config import Request
from launcher.errors import ClusterError
from launcher.process import Process
from launcher.stored import Shipped


@dataclass(frozen=True, slots=True)
class Orders:
    """What a detached driver is to do.

    Attributes:
        run: the run to go on with; None to launch what is shipped.
        home: the user's home there; None means that of whoever runs Ray there.
        columns, colour: of the terminal that the run is likely to be shown on.
    """

    request: Request
    shipped: Shipped | None = None
    run: str | None = None
    home: Path | None = None
    legacy_keras: bool = False
    no_color: bool = False
    columns: int = 120
    colour: bool = False


@dataclass(frozen=True, slots=True)
class Spawned:
    """A detached driver that has begun, and the journal it keeps on its machine."""

    process: Process
    journal: Path

    def line(self) -> str:
        """This as a line of text."""
        return json.dumps({"process": asdict(self.process), "journal": str(self.journal)})

    @classmethod
    def parse(cls, line: str) -> "Spawned":
        """What `line` wrote."""
        values = json.loads(line)
        return cls(Process(**values["process"]), Path(values["journal"]))


def spawn(
    orders: bytes, environment: Mapping[str, str]
) -> "tuple[Spawned, subprocess.Popen[bytes]]":
    """Start a driver here and wait until it can be followed (about 1 s).

    Args:
        orders: pickled `Orders`.
        environment: of the process.

    Raises:
        ClusterError: it did not start; the message has its last words.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher.detached"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        env=environment,
    )
    assert child.stdin and child.stdout and child.stderr
    with child.stdin, child.stdout, child.stderr:
        try:
            with suppress(BrokenPipeError):  # what it said on stderr tells why
                child.stdin.write(orders)
                child.stdin.close()
            line = child.stdout.readline()
        except BaseException:  # such as Ctrl-C, which does not reach its session
            child.kill()
            raise
        if not line:
            said = child.stderr.read().decode(errors="replace").strip().splitlines()
            code = child.wait()
            reason = said[-1] if said else f"it ended with code {code}"
            raise ClusterError(f"The detached driver did not start: {reason}.")
    return Spawned.parse(line.decode()), child
