"""A cluster afar whose jobs run in this process: drivers say what they are given to say."""

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.job_files import serve
from launcher.jobs import DRIVER, FILES, WANTED, JobState, UnreachableError
from tests.fakes import a_record


def line(kind: str, **detail: Any) -> str:
    return json.dumps({"kind": kind, **detail}, ensure_ascii=False) + "\n"


def begun(run: str = "far", storage: str = "/root/launch") -> str:
    from launcher.record import dump_record

    record = json.loads(dump_record(a_record(run, storage)))
    return line("begun", run=run, record=record)


def result(code: int = 0, text: str = "", **record: Any) -> str:
    return line("result", exit_code=code, text=text, record=record or None)


@dataclass(frozen=True)
class Submitted:
    command: str
    files: dict[str, bytes]
    purpose: str


@dataclass
class FakeJobs:
    """Attributes: says: of each driver, in turn; an exception is a line that breaks."""

    says: list[list[str | Exception]] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    message: str = ""
    on_stop: Callable[[], None] = lambda: None

    def submit(self, command: str, folder: Path | None, purpose: str) -> str:
        there = folder.iterdir() if folder is not None else ()
        files = {path.name: path.read_bytes() for path in there}
        self.submitted.append(Submitted(command, files, purpose))
        return f"job-{len(self.submitted) - 1}"

    def state(self, job: str) -> JobState:
        return JobState(is_over=True, message=self.message)

    def stop(self, job: str) -> None:
        self.stopped.append(job)
        self.on_stop()

    def said(self, job: str) -> Iterator[str]:
        asked = self.submitted[int(job.removeprefix("job-"))]
        if FILES in asked.command:
            yield from self._served(asked)
        elif DRIVER in asked.command:
            for piece in self.says.pop(0) if len(self.says) > 1 else self.says[0]:
                if isinstance(piece, Exception):
                    raise piece
                yield piece

    def having(self, purpose: str) -> tuple[str, ...]:
        found = [i for i, each in enumerate(self.submitted) if each.purpose == purpose]
        return tuple(f"job-{i}" for i in reversed(found))

    def _served(self, asked: Submitted) -> Iterator[str]:
        uri, run = shlex.split(asked.command)[-2:]
        lines: list[str] = ["noise of the head\n"]
        wanted = asked.files.get(WANTED)
        serve(
            uri,
            run,
            None if wanted is None else wanted.decode(),
            lambda kind, **detail: lines.append(line(kind, **detail)),
        )
        yield from lines


BROKEN = UnreachableError("The Ray dashboard at far does not answer (ClientError).")
