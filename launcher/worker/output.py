"""Carry what the script prints to the driver, exactly as it prints it."""

import codecs
import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator

Emit = Callable[[str, str], None]

# TensorFlow's and gRPC's C++ lines, which are for the process's log.
NOISE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: )?[IWEF]\d{0,4} ?[\w/.: -]*\.(cc|h|cpp|cu):\d+\]"
    r"|WARNING: All log messages before absl::InitializeLog"
    r"|[IWEF]0000 00:00:"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] "
)
LONGEST_PREFIX = 120  # characters after which a partial line is known not to be noise


class _Stderr(io.TextIOBase):
    """`sys.stderr`: text goes straight to `emit`; its descriptor is 2, for subprocesses."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.buffer = _Bytes(emit)

    def write(self, text: str) -> int:
        if text:
            self._emit("stderr", text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


class _Bytes(io.RawIOBase):
    """`sys.stderr.buffer`."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes) -> int:  # type: ignore[override]
        text = self._decoder.decode(bytes(data))
        if text:
            self._emit("stderr", text)
        return len(data)

    def writable(self) -> bool:
        return True


@contextlib.contextmanager
def captured_output(emit: Emit) -> Iterator[None]:
    """Send all that this process and its subprocesses print to `emit(stream, text)`.

    The log lines of TensorFlow's C++ side on descriptor 2 stay in the process's own log.
    """
    saved_stdout, saved_stderr = sys.stdout, sys.stderr
    sys.stdout.flush()
    with _piped(1, lambda text: emit("stdout", text)):
        noise = _NoiseFilter(lambda text: emit("stderr", text))
        with _piped(2, noise.feed, noise):
            sys.stdout = io.TextIOWrapper(
                os.fdopen(os.dup(1), "wb", buffering=0),
                encoding="utf-8",
                errors="replace",
                write_through=True,
            )
            sys.stderr = _Stderr(emit)
            try:
                yield
            finally:
                with contextlib.suppress(ValueError, OSError):  # the script may have closed it
                    sys.stdout.flush()
                    sys.stdout.close()
                sys.stdout, sys.stderr = saved_stdout, saved_stderr


@contextlib.contextmanager
def _piped(
    descriptor: int, take: Callable[[str], None], noise: "_NoiseFilter | None" = None
) -> Iterator[None]:
    """Replace a descriptor by a pipe whose text goes to `take`."""
    reader, writer = os.pipe()
    saved = os.dup(descriptor)
    os.dup2(writer, descriptor)
    os.close(writer)
    if noise is not None:
        noise.log_descriptor = saved
    pump = threading.Thread(target=_pump, args=(reader, take), daemon=True)
    pump.start()
    try:
        yield
    finally:
        os.dup2(saved, descriptor)
        pump.join(timeout=2.0)  # a subprocess left behind may hold the pipe open
        if noise is not None:
            noise.finish()
        os.close(saved)


def _pump(reader: int, take: Callable[[str], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with os.fdopen(reader, "rb", buffering=0) as source:
        is_open = True
        while is_open:
            chunk = source.read(65536)
            is_open = bool(chunk)
            text = decoder.decode(chunk, final=not is_open)
            if text:
                take(text)


class _NoiseFilter:
    """Parts lines of TensorFlow's C++ side from what the script's subprocesses print."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._line = ""  # the line so far, while it may still turn out to be noise
        self._passing = False  # in the middle of a line that is not
        self.log_descriptor = 2

    def feed(self, text: str) -> None:
        """Take a piece of text; pass on what is not noise as early as possible."""
        for piece in text.splitlines(keepends=True):
            ended = piece.endswith(("\n", "\r"))
            if self._passing:
                self._emit(piece)
                self._passing = not ended
                continue
            self._line += piece
            if NOISE.match(self._line):
                if ended:
                    os.write(self.log_descriptor, self._line.encode())
                    self._line = ""
            elif ended or len(self._line) > LONGEST_PREFIX or not _may_be_noise(self._line):
                self._emit(self._line)
                self._line, self._passing = "", not ended

    def finish(self) -> None:
        """Pass on an unfinished last line."""
        if self._line:
            self._emit(self._line)
            self._line = ""


def _may_be_noise(line: str) -> bool:
    """Whether a line that begins so could become one of TensorFlow's."""
    return line[0] in "IWEF" or line[0].isdigit()
