import io
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.worker import output
from launcher.worker.output import Tail, _NoiseFilter, captured_output

PATIENCE_S = 60.0  # a busy machine may hold everything up for long


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "SETTLE_S", PATIENCE_S)
    monkeypatch.setattr(output, "LAST_S", PATIENCE_S)


class Heard:
    """What was emitted, by stream."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []

    def __call__(self, stream: str, text: str) -> None:
        self.pieces.append((stream, text))

    @property
    def out(self) -> str:
        return "".join(text for stream, text in self.pieces if stream == "stdout")

    @property
    def err(self) -> str:
        return "".join(text for stream, text in self.pieces if stream == "stderr")


@contextmanager
def heard() -> Iterator[Heard]:
    found = Heard()
    with captured_output(found):
        yield found


@pytest.mark.parametrize(
    "text",
    ["line\n", "half a line", "a\rb\r\nc\n", "größer ☃ \U0001f600\n", "\x1b[1mbold\x1b[0m", "\0\t"],
)
def test_text_arrives_exactly_as_printed(text: str) -> None:
    with heard() as found:
        sys.stdout.write(text)
        sys.stderr.write(text)
    assert (found.out, found.err) == (text, text)


def test_half_a_line_arrives_before_the_line_ends() -> None:
    arrived = threading.Event()

    def emit(stream: str, text: str) -> None:
        if text == "12/60":
            arrived.set()

    with captured_output(emit):
        print("12/60", end="")
        assert arrived.wait(PATIENCE_S)


def test_what_processes_of_the_script_print_arrives_in_order() -> None:
    with heard() as found:
        print("before")
        subprocess.run(["/bin/echo", "from a process"], check=True)
        print("after")
    assert found.out == "before\nfrom a process\nafter\n"


def test_bytes_arrive_as_text_with_what_is_no_utf_8_replaced() -> None:
    with heard() as found:
        sys.stdout.buffer.write(b"a\xffb\n")
    assert found.out == "a\ufffdb\n"


def test_a_character_split_over_two_writes_arrives_whole() -> None:
    first, second = "☃".encode()[:1], "☃".encode()[1:]
    with heard() as found:
        sys.stdout.buffer.write(first)
        sys.stdout.buffer.flush()
        threading.Event().wait(0.1)
        sys.stdout.buffer.write(second)
    assert found.out == "☃"


def test_a_character_cut_off_at_the_end_is_not_lost() -> None:
    with heard() as found:
        sys.stdout.buffer.write("x☃".encode()[:-1])
    assert found.out == "x\ufffd"


def test_much_output_arrives_whole() -> None:
    text = "0123456789abcde\n" * 40_000
    with heard() as found:
        sys.stdout.write(text)
    assert found.out == text


def test_a_stream_may_be_asked_what_scripts_ask_of_it() -> None:
    with heard():
        for stream in (sys.stdout, sys.stderr):
            assert stream.encoding == "utf-8"
            assert not stream.isatty()
            assert stream.writable()
            assert isinstance(stream.fileno(), int)
            stream.flush()
            stream.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]


def test_logging_and_warnings_arrive_on_standard_error() -> None:
    with heard() as found:
        handler = logging.StreamHandler()
        handler.emit(logging.makeLogRecord({"msg": "noted"}))
        subprocess.run([sys.executable, "-c", ""], stderr=sys.stderr, check=True)
    assert found.err == "noted\n"


def test_what_processes_write_to_standard_error_arrives() -> None:
    with heard() as found:
        subprocess.run(["/bin/sh", "-c", "echo from a process >&2"], check=True)
        sys.stderr.buffer.write("größer\n".encode())
    assert sorted(found.err.splitlines()) == ["from a process", "größer"]


NOISE = (
    "2026-11-30 03:33:19.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This is…",
    "E0000 00:00:1764473599.12 12 cuda_dnn.cc:8579] Unable to register cuDNN factory",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I1130 03:33:19.12 123 ev_epoll1_linux.cc:125] grpc epoll fd: 7",
)


@pytest.mark.parametrize("noise", NOISE)
def test_log_lines_of_tensorflow_go_to_the_processs_log(
    noise: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with heard() as found:
        text = f"Error: before\n{noise}\nInput? "
        subprocess.run([sys.executable, "-c", PRINTER, text], check=True)
    assert found.err == "Error: before\nInput? "
    assert capfd.readouterr().err == f"{noise}\n"


PRINTER = "import sys; sys.stderr.buffer.write(sys.argv[1].encode())"


@given(st.lists(st.sampled_from(["12 %\r", "E", "a\u2028b", "\n", "1" * 200]), max_size=8))
def test_what_is_no_noise_passes_whole_however_it_is_cut(pieces: list[str]) -> None:
    passed: list[str] = []
    noise = _NoiseFilter(passed.append)
    for character in "".join(pieces):
        noise.feed(character)
    noise.finish()
    assert "".join(passed) == "".join(pieces)


def test_a_closed_stream_does_not_hurt() -> None:
    with heard() as found:
        print("last words")
        sys.stdout.close()
    assert found.out == "last words\n"


def test_streams_are_as_before_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(ZeroDivisionError), heard():
        print(1 / 0)
    assert (sys.stdout, sys.stderr) == before
    subprocess.run(["/bin/echo", "outside"], check=True)
    assert capfd.readouterr().out == "outside\n"


def test_a_process_left_behind_does_not_hold_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LAST_S", 2.0)
    with heard() as found:
        process = subprocess.Popen(["/bin/sh", "-c", "echo started; exec sleep 600"])
        print("end")
    try:
        assert "end\n" in found.out
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_stream_that_was_replaced_by_the_script_is_left_to_it() -> None:
    own = io.StringIO()
    with heard() as found:
        shown, sys.stdout = sys.stdout, own
        print("mine")
        sys.stdout = shown
    assert (own.getvalue(), found.out) == ("mine\n", "")


def test_the_two_streams_keep_their_order() -> None:
    with heard() as found:
        for number in range(200):
            print(number, file=sys.stdout if number % 2 else sys.stderr)
    shown = "".join(text for _, text in found.pieces)
    assert shown.split() == [str(number) for number in range(200)]


def test_a_tail_is_the_last_lines_of_both_streams() -> None:
    tail = Tail(max_characters=30)
    for number in range(100):
        tail.take("stdout" if number % 2 else "stderr", f"line {number}\n")
    assert tail.text == "line 97\nline 98\nline 99\n"
    tail.take("stdout", "half")
    assert tail.text.endswith("line 99\nhalf\n")
    assert tail.quoted.startswith(" It has printed:\nline")
    assert (Tail().text, Tail().quoted) == ("", "")
