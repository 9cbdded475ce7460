"""Sentries that answer as a test wants it, and a run's surroundings."""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from launcher.book import Book
from launcher.budget import Meter
from launcher.config import Environment, Request
from launcher.interrupts import Interrupts
from launcher.runs import RunIndex, RunStore
from launcher.sentries import SentryLostError
from launcher.storage import Storage
from launcher.stored import Shipped
from launcher.stretch import Stretch
from launcher.supervise import Allowance
from launcher.worker.activity import Activity, Phase
from policies.schema import Node
from tests.fakes import FakeScreen, a_record


class FakePosts:
    """Answers for its nodes with what `activities` hold, but for those that are `silent`."""

    def __init__(self) -> None:
        self.activities: dict[str, tuple[Activity, ...]] = {}
        self.silent: set[str] = set()
        self.broken: set[str] = set()
        self.stationed: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.stacks_by_rank: dict[int, str] = {}
        self.ended = 0

    def station(self, node: Node) -> None:
        self.stationed.append(node.id)
        self.broken.discard(node.id)

    def ask(self, node_id: str, watch: str) -> str:
        self.asked.append((node_id, watch))
        return node_id

    def answer(self, ticket: str) -> tuple[Activity, ...] | None:
        if ticket in self.broken:
            raise SentryLostError("The actor died.")
        return None if ticket in self.silent else self.activities.get(ticket, ())

    def stacks(self, node_ids: Iterable[str]) -> dict[int, str]:
        return self.stacks_by_rank

    def end_workers(self) -> None:
        self.ended += 1

    def speeds(self, node_ids: Iterable[str]) -> dict[str, float]:
        return dict.fromkeys(node_ids, 1.0)

    def dismiss(self, node_ids: Iterable[str]) -> None:
        self.stationed.clear()


def an_activity(rank: int = 0, phase: Phase = Phase.STEP, ticks: int = 1, **more: int) -> Activity:
    return replace(Activity(rank, phase, ticks, 0.0), **more)


def a_stretch(request: Request, screen: FakeScreen, folder: Path) -> Stretch:
    """The surroundings of a run whose record is kept nowhere."""
    store = RunStore(Storage.open(request.storage), RunIndex(folder / "index"))
    return Stretch(
        request,
        Environment(home=folder, cwd=folder),
        screen,
        folder,
        Shipped(b"zip", "f" * 16, "train.py", "/project", "train.py", "fit", ("keras",)),
        store,
        Book(None, a_record()),
        Meter(time.monotonic),
        Interrupts(),
        Allowance(request.budget_usd, request.deadline_s),
        time.monotonic(),
    )
