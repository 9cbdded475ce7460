"""Starts the trials of a search: each a `launch` run with a driver of its own."""

import pickle
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Protocol

from launcher.config import Environment, Request
from launcher.follow import FileFollowed, Followed
from launcher.ownership import Driver
from launcher.search_space import Value
from launcher.spawned import Orders, spawn
from launcher.stored import Shipped
from launcher.worker.environment import environment


class Trials(Protocol):
    """Starts drivers, or what stands for them in tests."""

    def start(self, request: Request) -> Followed:
        """Launch a run; follow it."""

    def go_on(self, run: str, request: Request) -> Followed:
        """Go on with a run that has stopped; follow it."""

    def find(self, driver: Driver) -> Followed | None:
        """Follow a driver that still runs; None if it has ended, or is elsewhere."""


@dataclass(slots=True)
class SpawnedTrials:
    """Drivers as processes of this machine, each in a session of its own.

    Ctrl-C does not reach them: they are stopped one by one, at a checkpoint.

    Args:
        shipped: the script's folder, packed once for all.
    """

    environment: Environment
    shipped: Shipped
    _children: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, request: Request) -> Followed:
        """See `Trials`; blocks for about a second."""
        return self._spawned(Orders(request, self.shipped))

    def go_on(self, run: str, request: Request) -> Followed:
        """See `Trials`; blocks for about a second."""
        return self._spawned(Orders(request, run=run))

    def find(self, driver: Driver) -> Followed | None:
        """See `Trials`."""
        process = driver.process
        if not (process.is_here and process.is_alive and driver.journal):
            return None
        return FileFollowed(Path(driver.journal), process, lambda: process.signal(SIGTERM))

    def _spawned(self, orders: Orders) -> Followed:
        here = self.environment
        orders = Orders(
            orders.request,
            orders.shipped,
            orders.run,
            home=here.home,
            legacy_keras=here.tf_use_legacy_keras,
            no_color=True,
        )
        self._children = [child for child in self._children if child.poll() is None]
        spawned, child = spawn(pickle.dumps(orders), environment())
        self._children.append(child)
        process = spawned.process
        return FileFollowed(spawned.journal, process, lambda: process.signal(SIGTERM))


def arguments(params: Mapping[str, Value], source: str) -> tuple[str, ...]:
    """Parameters as a script's arguments: `--learning-rate 0.01`.

    A name is taken as it is written, unless the script has it with the other of `-` and `_` only.
    """
    words: list[str] = []
    for name, value in params.items():
        other = name.replace("_", "-") if "_" in name else name.replace("-", "_")
        is_other = f"--{name}" not in source and f"--{other}" in source
        option, text = f"--{other if is_other else name}", value_text(value)
        # argparse takes -1e-05 for an option where it stands alone
        words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return tuple(words)


def value_text(value: Value) -> str:
    """A value as a script reads it: floats with as many digits as they need."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def command_text(script: str, request: Request) -> str:
    """The command that trains a trial's configuration again."""
    params = "" if request.params is None else f"LAUNCH_PARAMS={shlex.quote(request.params)} "
    data = "".join(f" --data {shlex.quote(uri)}" for uri in request.data)
    args = f" -- {shlex.join(request.args)}" if request.args else ""
    return f"{params}launch {shlex.quote(script)} --seed {request.seed}{data}{args}"
