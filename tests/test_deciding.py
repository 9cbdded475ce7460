from dataclasses import replace
from pathlib import Path

import pytest

from launcher.config import Request
from launcher.deciding import Decider
from launcher.errors import BudgetTooSmallError
from tests.fake_posts import a_stretch
from tests.fakes import FakeScreen, a_decision, a_request

UNSURE = replace(a_decision(), p_fits=0.4)


def decider(request: Request, screen: FakeScreen, folder: Path) -> Decider:
    return Decider(a_stretch(request, screen, folder))


def test_a_plan_that_surely_fits_needs_no_question(tmp_path: Path) -> None:
    decider(a_request(str(tmp_path)), FakeScreen(), tmp_path).confirm(a_decision())


def test_yes_answers_the_question(tmp_path: Path) -> None:
    decider(a_request(str(tmp_path), yes=True), FakeScreen(), tmp_path).confirm(UNSURE)


def test_without_a_terminal_an_unsure_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetTooSmallError, match=r"probability of 40%.*--yes.*raise --budget"):
        decider(a_request(str(tmp_path)), FakeScreen(), tmp_path).confirm(UNSURE)


@pytest.mark.parametrize("answer", [True, False])
def test_at_a_terminal_the_user_decides(tmp_path: Path, answer: bool) -> None:
    screen = FakeScreen(answer=answer)
    request = a_request(str(tmp_path), budget_usd=None, deadline_s=60.0, stdin_is_tty=True)
    if answer:
        decider(request, screen, tmp_path).confirm(UNSURE)
    else:
        with pytest.raises(BudgetTooSmallError, match="Not started: raise --deadline"):
            decider(request, screen, tmp_path).confirm(UNSURE)
    assert len(screen.questions) == 1
    assert "probably stop at the deadline" in screen.questions[0]
