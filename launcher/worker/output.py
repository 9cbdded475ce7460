"""Carry what the script prints to the driver, exactly as it prints it."""

import array
import codecs
import contextlib
import fcntl
import io
import os
import re
import select
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator

Emit = Callable[[str, str], None]

# TensorFlow's and gRPC's C++ lines, which are for the process's log.
NOISE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: )?[IWEF]\d{0,4} ?[\w/.: -]*\.(cc|h|cpp|cu):\d+\]"
    r"|WARNING: All log messages before absl::InitializeLog"
    r"|[IWEF]0000 00:00:"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] "
)
SETTLE_S = 0.2  # longest wait for one stream before the other goes on
LAST_S = 2.0  # longest wait for what is left when the script has ended
LONGEST_PREFIX = 120  # characters after which a partial line is known not to be noise


class Tail:
    """Keeps the end of what a script prints, for the case that it fails and nothing else tells why.

    Attributes:
        text: in whole lines.
    """

    def __init__(self, max_characters: int = 4000) -> None:
        self._max, self._text = max_characters, ""

    def take(self, stream: str, text: str) -> None:  # noqa: ARG002 - see `Emit`
        """Take a piece of text of either stream."""
        self._text = (self._text + text)[-2 * self._max :]

    @property
    def text(self) -> str:
        """The last lines."""
        text = self._text
        if len(text) > self._max:
            text = text[-self._max :].partition("\n")[2]
        return text if not text or text.endswith("\n") else f"{text}\n"

    @property
    def quoted(self) -> str:
        """The same as the end of a message; nothing if nothing was printed."""
        text = self.text.strip()
        return f" It has printed:\n{text}" if text else ""


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

    def reconfigure(self, **_options: object) -> None:
        """Accept what scripts ask of the stream that Python gives them; it is UTF-8 already."""


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

    What Python itself prints on the two streams keeps its order. The log lines of TensorFlow's
    C++ side on descriptor 2 stay in the process's own log.
    """
    saved_stdout, saved_stderr = sys.stdout, sys.stderr
    sys.stdout.flush()
    noise = _NoiseFilter(lambda text: emit("stderr", text))
    with (
        _Pipe(1, lambda text: emit("stdout", text)) as out,
        _Pipe(2, noise.feed) as errors,
    ):
        noise.log_descriptor = errors.saved
        sys.stdout = io.TextIOWrapper(
            os.fdopen(os.dup(1), "wb", buffering=0),
            encoding="utf-8",
            errors="replace",
            write_through=True,
        )

        def emit_in_order(stream: str, text: str) -> None:
            out.settle()
            emit(stream, text)

        sys.stderr = _Stderr(emit_in_order)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError, OSError):  # the script may have closed it
                sys.stdout.flush()
                sys.stdout.close()
            sys.stdout, sys.stderr = saved_stdout, saved_stderr
            errors.close()
            noise.finish()


class _Pipe:
    """A descriptor replaced by a pipe, whose text a thread hands to `take`.

    Attributes:
        saved: where the descriptor pointed before.
    """

    def __init__(self, descriptor: int, take: Callable[[str], None]) -> None:
        self._descriptor, self._take = descriptor, take
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._reading = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> "_Pipe":
        self._reader, writer = os.pipe()
        self.saved = os.dup(self._descriptor)
        os.dup2(writer, self._descriptor)
        os.close(writer)
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
        os.close(self.saved)

    def close(self) -> None:
        """Put the descriptor back and take what is left in the pipe."""
        if not self._is_closed:
            self._is_closed = True
            os.dup2(self.saved, self._descriptor)
            self._thread.join(timeout=LAST_S)  # a subprocess left behind may hold the pipe open

    def settle(self) -> None:
        """Wait until everything written so far has been taken (or for `SETTLE_S`)."""
        give_up_s = time.monotonic() + SETTLE_S
        while time.monotonic() < give_up_s:
            with self._reading:
                if not self._waiting_bytes():
                    return
            time.sleep(0.0005)

    def _waiting_bytes(self) -> int:
        count = array.array("i", [0])
        with contextlib.suppress(OSError):  # closed meanwhile
            fcntl.ioctl(self._reader, termios.FIONREAD, count)
        return count[0]

    def _pump(self) -> None:
        is_open = True
        while is_open:
            select.select([self._reader], [], [])
            with self._reading:
                chunk = os.read(self._reader, 65536)
                is_open = bool(chunk)
                text = self._decoder.decode(chunk, final=not is_open)
                if text:
                    self._take(text)
        os.close(self._reader)


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
