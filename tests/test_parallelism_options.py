from pathlib import Path

import pytest

from launcher.config import Environment, Flags, Request
from launcher.errors import UsageError
from launcher.request import make_request


def request(**flags: str) -> Request:
    environment = Environment.read({"HOME": "/home/ada"}, cwd=Path("/project"))
    return make_request("train.py", (), Flags(**flags), environment, draw_seed=lambda: 7)


def test_workers_share_the_data_unless_asked_otherwise() -> None:
    assert request().limits.parallelism == "data"
    assert request(parallelism="auto").limits.parallelism == "auto"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"parallelism": "both"}, "--parallelism"),
        ({"parallelism": "model", "workers": "1"}, "needs two workers or more"),
        ({"parallelism": "model", "max_workers": "1"}, "needs two workers or more"),
        ({"parallelism": "model", "strategy": "direct"}, "there are none to exchange"),
    ],
)
def test_stages_that_make_no_sense_are_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        request(**flags)
