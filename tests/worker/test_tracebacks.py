"""What is shown of a script's error."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.script_folder import SHOWN_ROOT, Folder, folder_in


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path) as made:
        yield made


def test_a_traceback_is_what_python_prints(folder: Folder) -> None:
    folder.write("train.py", "def fail():\n    raise ValueError('größer')\n\nfail()\n")
    assert folder.error() == (
        "Traceback (most recent call last):\n"
        f'  File "{SHOWN_ROOT}/train.py", line 4, in <module>\n'
        "    fail()\n"
        f'  File "{SHOWN_ROOT}/train.py", line 2, in fail\n'
        "    raise ValueError('größer')\n"
        "ValueError: größer\n"
    )


def test_frames_of_libraries_after_the_scripts_own_are_shown(folder: Folder) -> None:
    folder.write("train.py", "import json\njson.loads('{')\n")
    text = folder.error()
    assert text.index(f'"{SHOWN_ROOT}/train.py", line 2') < text.index("json/decoder.py")
    assert "JSONDecodeError" in text


def test_a_chain_of_errors_is_shown_with_the_scripts_frames_only(folder: Folder) -> None:
    folder.write(
        "train.py",
        "def load():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        raise ValueError('bad data') from error\n"
        "try:\n    load()\nexcept ValueError:\n    raise KeyError('again')\n",
    )
    text = folder.error()
    assert text.count("Traceback (most recent call last)") == 3
    assert "direct cause" in text
    assert "During handling" in text
    assert text.index("ZeroDivisionError") < text.index("ValueError: bad data")
    frames = [line for line in text.splitlines() if line.startswith("  File ")]
    assert all(SHOWN_ROOT in frame for frame in frames)


def test_a_group_of_errors_shows_no_frames_of_the_launcher(folder: Folder) -> None:
    folder.write(
        "train.py",
        "from launcher.worker.script import unpack\ndef one():\n    unpack(b'', None)\n"
        "try:\n    one()\nexcept AttributeError as error:\n"
        "    raise ExceptionGroup('several', [error])\n",
    )
    text = folder.error()
    assert "ExceptionGroup: several" in text
    assert f'{SHOWN_ROOT}/train.py", line 3, in one' in text
    assert "launcher/worker" not in text


def test_frames_of_the_launcher_between_the_scripts_own_are_left_out(folder: Folder) -> None:
    folder.write(
        "train.py",
        "from launcher.worker.output import _NoiseFilter\n"
        "def emit(*args):\n    raise ValueError('own')\n"
        "_NoiseFilter(emit).feed('x\\n')\n",
    )
    text = folder.error()
    assert "launcher/worker" not in text
    assert "line 3, in emit" in text


def test_a_syntax_error_in_an_imported_module_names_its_line(folder: Folder) -> None:
    folder.write("broken.py", "x = 1\nif x\n    pass\n")
    folder.write("train.py", "import broken\n")
    text = folder.error()
    assert text == (
        "Traceback (most recent call last):\n"
        f'  File "{SHOWN_ROOT}/train.py", line 1, in <module>\n'
        "    import broken\n"
        f'  File "{SHOWN_ROOT}/broken.py", line 2\n'
        "    if x\n"
        "        ^\n"
        "SyntaxError: expected ':'\n"
    )


def test_an_error_in_a_shadowing_module_shows_no_import_machinery(folder: Folder) -> None:
    folder.write("ray.py", "raise RuntimeError('my own ray')\n")
    folder.write("train.py", "import ray\n")
    text = folder.error()
    assert text.endswith("RuntimeError: my own ray\n")
    assert text.count("  File ") == 2
    assert "importlib" not in text


def test_a_missing_module_is_told_as_python_does(folder: Folder) -> None:
    folder.write("train.py", "import no_such_module_anywhere\n")
    assert folder.error().endswith(
        "    import no_such_module_anywhere\n"
        "ModuleNotFoundError: No module named 'no_such_module_anywhere'\n"
    )


def test_a_keyboard_interrupt_of_the_script_is_the_scripts(folder: Folder) -> None:
    folder.write("train.py", "raise KeyboardInterrupt\n")
    assert folder.error().endswith("KeyboardInterrupt\n")
