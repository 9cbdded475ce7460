import logging
import os
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from launcher.log import KEPT_FOLDERS, NOISY, new_log_folder, set_up_logging
from tests.fakes import NOW


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", "launcher", "policies", *NOISY)]
    before = [(each, [*each.handlers], each.level, each.propagate) for each in loggers]
    yield
    logging.captureWarnings(capture=False)
    for logger, handlers, level, propagate in before:
        for handler in {*logger.handlers} - {*handlers}:
            handler.close()
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def test_our_warnings_reach_the_terminal_in_one_line_and_all_reaches_the_file(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    logging.getLogger("ray").propagate = False  # as Ray's import sets it
    path = set_up_logging(tmp_path / "logs", lines.append)
    logging.getLogger("launcher.probe").debug("measured %s", "x")
    logging.getLogger("launcher.run").warning("node %s\nis silent", "a")
    logging.getLogger("ray").warning("noise")
    logging.getLogger("tensorflow").info("chatter")
    text = path.read_text()
    assert lines == ["node a is silent"]
    assert "DEBUG   launcher.probe: measured x" in text
    assert "noise" in text
    assert "chatter" not in text


def test_pythons_warnings_reach_the_file_only(tmp_path: Path) -> None:
    lines: list[str] = []
    path = set_up_logging(tmp_path / "logs", lines.append)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
    assert "old call" in path.read_text()
    assert lines == []


def test_setting_up_again_writes_each_line_once(tmp_path: Path) -> None:
    lines: list[str] = []
    set_up_logging(tmp_path / "a", lines.append)
    set_up_logging(tmp_path / "b", lines.append)
    logging.getLogger("policies.x").warning("once")
    assert lines == ["once"]
    assert not (tmp_path / "a" / "launch.log").exists()


NOBODY = 2**22 + 1  # no process has such a number


def test_only_the_newest_log_folders_are_kept(tmp_path: Path) -> None:
    for minute in range(KEPT_FOLDERS + 5):
        newest = new_log_folder(tmp_path, NOW + timedelta(minutes=minute), NOBODY)
    assert len(list(tmp_path.iterdir())) == KEPT_FOLDERS
    assert newest.is_dir()


def test_the_log_folder_of_a_command_that_still_runs_is_kept(tmp_path: Path) -> None:
    mine = new_log_folder(tmp_path, NOW, os.getpid())
    for minute in range(1, KEPT_FOLDERS + 5):
        new_log_folder(tmp_path, NOW + timedelta(minutes=minute), NOBODY)
    assert mine.is_dir()


def test_a_full_disk_costs_log_lines_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "launch.log").symlink_to("/dev/full")
    set_up_logging(tmp_path, lambda _: None)
    logging.getLogger("launcher.probe").info("measured")
    set_up_logging(tmp_path / "other", lambda _: None)
    assert capsys.readouterr() == ("", "")
