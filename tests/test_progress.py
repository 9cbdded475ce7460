import io
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.progress import CLEAR, Progress, training_line
from tests.fakes import FakeClock


@dataclass(frozen=True)
class AStatus:
    epoch: int = 2
    epochs: int | None = 10
    step: int = 412
    steps: int | None = 1560
    loss: float | None = 0.4123456
    step_s: float | None = 0.07
    cost_usd: float = 0.12
    budget_usd: float | None = 5.0
    eta_s: float | None = 780.0
    epoch_ended: bool = False


class Screen:
    """A progress display with its streams, and what a terminal would show."""

    def __init__(self, *, live: bool = True, shared: bool = True, width: int = 100) -> None:
        self.clock = FakeClock(100.0)
        self.out = io.StringIO()
        self.err = self.out if shared else io.StringIO()
        self.progress = Progress(
            self.out, self.err, live=live, shared=shared, clock=self.clock, width=lambda: width
        )

    def shown(self) -> list[str]:
        """The terminal's lines: CLEAR empties the line that the cursor is in."""
        lines = []
        for line in self.err.getvalue().split("\n"):
            lines.append(line.rsplit(CLEAR, maxsplit=1)[-1])
        return lines


def test_the_live_line_shows_epoch_step_loss_money_and_time_left() -> None:
    line = training_line(AStatus(), 120)
    assert line.startswith("epoch 3/10  ━━━━━━━╌")
    assert line.endswith("412/1,560 · loss 0.4123 · 70 ms/step · $0.12 of $5 · 13 min left")


def test_a_plain_line_has_no_bar() -> None:
    assert training_line(AStatus(), None) == (
        "epoch 3/10 · 412/1,560 · loss 0.4123 · 70 ms/step · $0.12 of $5 · 13 min left"
    )


def test_next_to_no_time_left_is_not_shown() -> None:
    assert "left" not in training_line(AStatus(eta_s=0.4), None)
    assert "41 s left" in training_line(AStatus(eta_s=41.2), None)


def test_what_is_not_known_is_left_out() -> None:
    status = AStatus(
        epochs=None, steps=None, loss=None, step_s=None, eta_s=None, budget_usd=None, cost_usd=0.0
    )
    assert training_line(status, None) == "epoch 3 · 412 · $0"


@given(st.integers(1, 200), st.integers(0, 2000), st.none() | st.integers(1, 2000))
def test_a_live_line_never_exceeds_its_width(width: int, step: int, steps: int | None) -> None:
    assert len(training_line(AStatus(step=step, steps=steps), width)) <= width


def test_output_is_shown_exactly_above_the_live_line() -> None:
    screen = Screen()
    screen.progress.training(AStatus())
    screen.progress.output("hello\nworld\n")
    shown = screen.shown()
    assert shown[:2] == ["hello", "world"]
    assert shown[2].startswith("epoch 3/10")


def test_the_live_line_stays_away_while_output_is_in_the_middle_of_a_line() -> None:
    screen = Screen()
    screen.progress.training(AStatus())
    screen.progress.output("50%")
    screen.progress.training(replace(AStatus(), step=500))
    screen.progress.output("\r100%")
    assert screen.shown() == ["50%\r100%"]
    screen.progress.output("\n")
    assert screen.shown()[-1].startswith("epoch 3/10")


def test_piped_output_is_not_touched_by_the_live_line() -> None:
    screen = Screen(shared=False)
    screen.progress.training(AStatus())
    for text in ("a", "b\n", "\r\x1b[1mc", ""):
        screen.progress.output(text)
    screen.progress.close()
    assert screen.out.getvalue() == "ab\n\r\x1b[1mc"
    assert screen.shown() == [""]


@given(st.lists(st.text(max_size=10)))
def test_output_through_a_pipe_is_byte_for_byte_the_scripts(texts: list[str]) -> None:
    screen = Screen(live=False, shared=False)
    for text in texts:
        screen.progress.output(text)
        screen.progress.stage("x")
    screen.progress.close()
    assert screen.out.getvalue() == "".join(texts)


def test_the_scripts_own_errors_go_to_stderr() -> None:
    screen = Screen(live=False, shared=False)
    screen.progress.output("careful\n", "stderr")
    assert screen.err.getvalue() == "careful\n"


def test_without_a_terminal_each_stage_is_a_line() -> None:
    screen = Screen(live=False)
    screen.progress.stage("profiling")
    screen.progress.stage("training")
    assert screen.err.getvalue() == "launch: profiling\nlaunch: training\n"


def test_without_a_terminal_an_epoch_is_a_line_and_a_long_one_a_line_every_30_s() -> None:
    screen = Screen(live=False)
    for _ in range(61):
        screen.progress.training(AStatus())
        screen.clock.sleep(1.0)
    screen.progress.training(replace(AStatus(), epoch=3, step=0, epoch_ended=True))
    lines = screen.err.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("launch: epoch 3/10 · done")


def test_a_plain_line_waits_for_the_end_of_the_scripts_line() -> None:
    screen = Screen(live=False)
    screen.progress.output("epoch 2 loss 0.1")
    screen.progress.training(AStatus(epoch_ended=True))
    screen.progress.output("67\n")
    first, second, _ = screen.out.getvalue().split("\n")
    assert first == "epoch 2 loss 0.167"
    assert second.startswith("launch: epoch 2/10 · done")


def test_a_note_ends_the_scripts_line_and_comes_after_what_waited() -> None:
    screen = Screen(live=False)
    screen.progress.output("half a line")
    screen.progress.training(AStatus(epoch_ended=True))
    screen.progress.line("launch: 10.0.0.4 joined")
    script, waited, note, _ = screen.out.getvalue().split("\n")
    assert script == "half a line"
    assert "epoch 2/10" in waited
    assert note == "launch: 10.0.0.4 joined"


def test_the_live_line_is_not_redrawn_more_often_than_eyes_can_follow() -> None:
    screen = Screen()
    for step in range(1000):
        screen.progress.training(replace(AStatus(), step=step))
        screen.clock.sleep(0.001)
    assert screen.err.getvalue().count("epoch") <= 12


def test_a_line_of_ours_stays_above_the_live_line() -> None:
    screen = Screen()
    screen.progress.training(AStatus())
    screen.progress.output("half")
    screen.progress.line("launch: warning: the loss is nan")
    shown = screen.shown()
    assert shown[:2] == ["half", "launch: warning: the loss is nan"]
    assert shown[2].startswith("epoch")


def test_closing_leaves_a_clean_terminal() -> None:
    screen = Screen()
    screen.progress.stage("profiling")
    screen.progress.output("no newline")
    screen.progress.close()
    assert screen.shown() == ["no newline", ""]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_stage_is_cut_to_the_terminals_width(width: int) -> None:
    screen = Screen(width=width)
    screen.progress.stage("x" * 100)
    assert len(screen.shown()[-1]) == width - 1


def test_a_reader_that_went_away_does_not_end_the_training() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress = Progress(
        Closed(), io.StringIO(), live=False, shared=False, clock=FakeClock(), width=lambda: 80
    )
    progress.output("lost\n")


def test_a_long_stage_shows_how_long_it_takes() -> None:
    screen = Screen()
    screen.progress.stage("profiling")
    screen.clock.now_s += 12.0
    screen.progress.tick()
    assert screen.shown()[-1] == "profiling … 12 s"
    screen.clock.now_s += 1.0
    screen.progress.training(AStatus())
    screen.progress.tick()
    assert screen.shown()[-1].startswith("epoch 3/10")
