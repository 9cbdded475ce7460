import pytest

from launcher.worker.exchange.transport.frame import (
    HEADER_BYTES,
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    Frame,
    FrameError,
    Kind,
    parse,
)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.DATA, tag=-5, sequence=7, offset=10, length=20, total=30),
        Frame(Kind.DATA),
        Frame(Kind.ACK, tag=1 << 62, sequence=1, offset=9),
        Frame(Kind.BYE),
        Frame(Kind.LOST, tag=3, length=100),
    ],
)
def test_a_header_is_read_as_it_was_written(frame: Frame) -> None:
    assert len(frame.packed()) == HEADER_BYTES
    assert parse(frame.packed()) == frame


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.DATA, offset=10, length=21, total=30),
        Frame(Kind.DATA, length=MAX_CHUNK_BYTES + 1, total=MAX_CHUNK_BYTES + 1),
        Frame(Kind.DATA, length=1, total=MAX_MESSAGE_BYTES + 1),
        Frame(Kind.DATA, length=0, total=5),
        Frame(Kind.ACK, length=1),
        Frame(Kind.BYE, length=1),
        Frame(Kind.LOST, length=513),
    ],
)
def test_lengths_are_checked_before_anything_is_read(frame: Frame) -> None:
    with pytest.raises(FrameError, match="makes no sense"):
        parse(frame.packed())


def test_a_stream_out_of_step_is_noticed() -> None:
    with pytest.raises(FrameError, match="mark 0x0"):
        parse(b"\0" * HEADER_BYTES)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(FrameError, match="kind 9"):
        parse(Frame(Kind.DATA).packed()[:2] + b"\x09" + b"\0" * (HEADER_BYTES - 3))
