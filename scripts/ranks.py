"""Processes on the hosts of a lab that measure together, and do as rank 0 is told."""

import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Ask = Callable[[str, str], str]


@contextmanager
def ranks(
    lab: Any, command: Callable[[int, str], list[str]], answer_s: float | None = None
) -> Iterator[Ask]:
    """A process on each host, in order of rank; all end with the `with`.

    Args:
        lab: whose hosts.
        command: of a rank, given the hosts' addresses with commas between them.
        answer_s: an answer that takes longer ends the processes, in seconds.

    Yields:
        A function that writes a line to rank 0 and returns its next line that begins with the
        second argument; it ends the program with what the processes said where they ended.
    """
    hosts = ",".join(lab.ip(name) for name in lab.names)
    processes: list[subprocess.Popen[str]] = []
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with tempfile.TemporaryFile("w+") as errors:

        def ask(line: str, begins: str) -> str:
            first = processes[0]
            assert first.stdin is not None
            assert first.stdout is not None
            first.stdin.write(f"{line}\n")
            first.stdin.flush()
            with _ended_after(first, answer_s):
                for text in first.stdout:
                    if text.startswith(begins):
                        return text
            errors.seek(0)
            raise SystemExit(f"the workers ended:\n{errors.read()[-3000:]}")

        try:
            for rank, name in enumerate(lab.names):
                end = null if rank else pipe
                options = {"stdin": end, "stdout": end, "stderr": errors, "text": True}
                processes.append(lab.popen(name, command(rank, hosts), **options))
            yield ask
        finally:
            for process in processes:
                process.kill()
                process.wait()


@contextmanager
def _ended_after(process: "subprocess.Popen[str]", seconds: float | None) -> Iterator[None]:
    """End a process when the `with` block takes longer."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
