"""Carry what the script prints to the driver, exactly as it prints it."""

import codecs
import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator

Emit = Callable[[str, str], None]


class _Forwarder(io.TextIOBase):
    """A text stream that hands everything to `emit`."""

    encoding = "utf-8"

    def __init__(self, stream: str, emit: Emit) -> None:
        self._stream, self._emit = stream, emit

    def write(self, text: str) -> int:
        if text:
            self._emit(self._stream, text)
        return len(text)

    def writable(self) -> bool:
        return True


@contextlib.contextmanager
def captured_output(emit: Emit) -> Iterator[None]:
    """Send file descriptor 1 (so also what subprocesses print) and `sys.stderr` to `emit`.

    Descriptor 2 stays with the process's log: TensorFlow's C++ lines go there.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    saved_descriptor, saved_stderr, saved_stdout = os.dup(1), sys.stderr, sys.stdout
    os.dup2(writer, 1)
    os.close(writer)
    pump = threading.Thread(target=_pump, args=(reader, emit), daemon=True)
    pump.start()
    sys.stdout = io.TextIOWrapper(
        os.fdopen(os.dup(1), "wb", buffering=0),
        encoding="utf-8",
        errors="replace",
        write_through=True,
    )
    sys.stderr = _Forwarder("stderr", emit)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            sys.stdout.flush()
            sys.stdout.close()
        sys.stdout, sys.stderr = saved_stdout, saved_stderr
        os.dup2(saved_descriptor, 1)
        os.close(saved_descriptor)
        pump.join(timeout=2.0)  # a subprocess left behind may hold the pipe open


def _pump(reader: int, emit: Emit) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with os.fdopen(reader, "rb", buffering=0) as source:
        while chunk := source.read(65536):
            text = decoder.decode(chunk)
            if text:
                emit("stdout", text)
