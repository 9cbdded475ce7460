"""A supervisor with everything around it, on a fake clock."""

from dataclasses import replace

from launcher.book import Book
from launcher.budget import Meter
from launcher.interrupts import Interrupts
from launcher.record import RunRecord, Segment, new_record
from launcher.runs import RunStore
from launcher.supervise import (
    Allowance,
    Ended,
    Lookout,
    Supervisor,
)
from tests.fakes import (
    NOW,
    FakeClock,
    FakeTraining,
    FakeView,
    a_node,
    a_plan,
    a_request,
    an_event,
)


def a_running_record(name: str = "brave-otter") -> RunRecord:
    record = new_record(a_request(name=name), name, now=NOW, owner="host:1", versions={})
    return replace(record, segments=(Segment(a_plan(1), "2026-11-30T12:00:10.000Z"),))


class Stage:
    """A supervisor with everything around it, on a fake clock; one node for $3,600 an hour."""

    def __init__(self, store: RunStore | None = None) -> None:
        self.clock, self.view, self.interrupts = FakeClock(), FakeView(), Interrupts()
        self.book = Book(store, a_running_record(), patience_s=60.0)  # however busy the machine
        self.meter = Meter(self.clock)
        self.meter.hold([a_node(0, price_usd_per_h=3600.0)])  # a dollar a second

    def run(
        self,
        *script: tuple[float, object],
        allowance: Allowance | None = None,
        steps_before: int = 0,
        expected_step_s: float | None = None,
        lookout: Lookout | None = None,
        **training: object,
    ) -> Ended:
        self.training = FakeTraining(self.clock, script, **training)  # type: ignore[arg-type]
        return Supervisor(
            self.training,
            self.book,
            self.meter,
            allowance or Allowance(None, None),
            self.view,
            self.interrupts,
            steps_per_epoch=10,
            expected_step_s=expected_step_s,
            steps_before=steps_before,
            lookout=lookout,
        ).run()

    def interrupt(self) -> None:
        self.interrupts.count += 1

    @property
    def segment(self) -> Segment:
        return self.book.record.segments[-1]


DONE = an_event("end", how="done")
