"""Probe agents in the hosts of a lab, without Ray."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any, Self

from launcher.probe import survey
from launcher.probe_session import AgentLostError, Ticket
from launcher.worker.agent import TOKEN_BYTES
from launcher.worker.greeting import Endpoint
from policies.schema import Network, Node
from tests.lab.host import ROOT
from tests.lab.lab import Hosts

START_S = 60.0


class LabAgents:
    """One agent per host; a context manager that ends them all.

    The calls go through pipes rather than the network: calls to hosts in `cut` stay unanswered.
    """

    def __init__(self, lab: Hosts) -> None:
        self.lab = lab
        self.cut: set[str] = set()
        self._channel_by_host: dict[str, _Channel] = {}
        self._known: dict[str, tuple[Endpoint, ...]] = {}

    def __enter__(self) -> Self:
        token = os.urandom(TOKEN_BYTES).hex()
        for name in self.lab.names:
            command = [sys.executable, "-m", "tests.lab.agent_process", self.lab.ip(name), token]
            pipe = subprocess.PIPE
            process = self.lab.popen(name, command, cwd=ROOT, stdin=pipe, stdout=pipe)
            self._channel_by_host[name] = _Channel(process)
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channel_by_host.values():
            channel.close()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The hosts as nodes of a cluster."""
        return tuple(
            Node(name, self.lab.ip(name), 1.0, 0.0, None, 0.0, "own machine", "1 cpu")
            for name in self.lab.names
        )

    def survey(self, deadline_s: float = 15.0, max_bytes: int = 2 << 30) -> Network:
        """Measure the network; `took_s` is without the start of the agents."""
        endpoints = self.endpoints()
        started_s = time.monotonic()
        network = survey(self.nodes, self, endpoints, started_s + deadline_s, max_bytes)
        return replace(network, took_s=time.monotonic() - started_s)

    def cut_later(self, name: str) -> None:
        """Where it answered is known, but it answers no more from now on."""
        self._known = self.endpoints()
        self.cut.add(name)

    def endpoints(self) -> dict[str, tuple[Endpoint, ...]]:
        """Where the agents answer that can be asked."""
        asked = {name: self.ask(name, "endpoints") for name in self.lab.names}
        wait([f for name, f in asked.items() if name not in self.cut], START_S)
        found = {name: future.result() for name, future in asked.items() if future.done()}
        return {**self._known, **found}

    def ask(self, node: str, method: str, *args: Any) -> "Future[Any]":
        """See `probe_session.Agents`."""
        if node in self.cut:
            return Future()
        return self._channel_by_host[node].call(method, args)

    def answered(self, tickets: Sequence[Ticket], timeout_s: float) -> list[Ticket]:
        """See `probe_session.Agents`."""
        done, _ = wait(tickets, timeout_s, FIRST_COMPLETED)  # type: ignore[call-overload]
        return list(done)

    def answer(self, ticket: Any) -> Any:
        """See `probe_session.Agents`."""
        answer = ticket.result()
        if isinstance(answer, Exception):
            raise AgentLostError(str(answer))
        return answer


class _Channel:
    """Calls to one agent process, answered in any order."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._futures: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, method: str, args: tuple[Any, ...]) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._lock:
            number = len(self._futures)
            self._futures[number] = future
            try:
                pickle.dump((number, method, args), self._process.stdin)  # type: ignore[arg-type]
                self._process.stdin.flush()  # type: ignore[union-attr]
            except OSError as error:
                future.set_result(error)
        return future

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            stream.close()  # type: ignore[union-attr]

    def _read(self) -> None:
        try:
            while True:
                number, answer = pickle.load(self._process.stdout)  # type: ignore[arg-type]
                self._futures[number].set_result(answer)
        except (EOFError, pickle.UnpicklingError):
            return  # the process is gone; whoever waits is told by its patience
