"""Fixtures: labs that skip with the reason where this machine cannot have one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.requirement import missing


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """`make_lab(4, rtt_s=0.02)`: a `Lab` that ends with the test."""
    _skip_where_missing()
    with ExitStack() as stack:

        def make(*words: Any, **options: Any) -> Lab:
            return stack.enter_context(Lab(*words, **options))

        yield make


@pytest.fixture(scope="module")
def ray_lab() -> Iterator[Lab]:
    """Three hosts 0.5 ms apart with a Ray node of one CPU on each, for the module's tests."""
    _skip_where_missing()
    with Lab(3) as lab:
        lab.start_ray()
        yield lab


def _skip_where_missing() -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
