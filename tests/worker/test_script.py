import atexit
import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import ScriptError
from launcher.worker.script import (
    Ending,
    ExitCodeError,
    Stopped,
    UserScriptError,
)
from tests.worker.script_folder import Folder, folder_in


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path) as made:
        yield made


# ---- as Python would


def test_a_script_sees_itself_as_main(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write(
        "src/train.py",
        "import os, sys\nif __name__ == '__main__':\n"
        "    own = sys.modules['__main__'].sys is sys\n"
        "    print(sys.argv, __file__, os.getcwd(), sys.path[0], own)",
    )
    folder.run("src/train.py", "--epochs", "3")
    where = folder.path
    assert capsys.readouterr().out == (
        f"['src/train.py', '--epochs', '3'] {where}/src/train.py {where} {where}/src True\n"
    )


def test_everything_is_as_before_afterwards(folder: Folder) -> None:
    folder.write("train.py", "import os, sys\nsys.argv.append('x'); sys.path.append('y')\n1 / 0")
    before = list(sys.argv), list(sys.path), Path.cwd(), sys.modules["__main__"]
    folder.error()
    assert (sys.argv, sys.path, Path.cwd(), sys.modules["__main__"]) == before


def test_what_a_script_makes_of_warnings_ends_with_it(folder: Folder) -> None:
    folder.write("train.py", "import warnings\nwarnings.simplefilter('ignore')")
    before = list(warnings.filters)
    folder.run()
    assert warnings.filters == before


def test_a_script_finds_the_modules_and_files_beside_it(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write("helping.py", "WORD = 'helped'")
    folder.write("data/größe.txt", "42")
    folder.write(
        "train.py",
        "from pathlib import Path\nimport helping\n"
        "print(helping.WORD, Path('data/größe.txt').read_text())",
    )
    folder.run()
    assert capsys.readouterr().out == "helped 42\n"


def test_a_script_finds_its_parameters_in_a_variable(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write("train.py", "import os\nprint(os.environ.get('LAUNCH_PARAMS'))\n")
    folder.run(params='{"rate": 0.1}')
    folder.run()
    assert capsys.readouterr().out == '{"rate": 0.1}\nNone\n'


def test_names_and_text_outside_of_ascii_work(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write("größe messen.py", "überschrift = '☃'\nprint(überschrift)")
    folder.run("größe messen.py")
    assert capsys.readouterr().out == "☃\n"


def test_a_declared_encoding_is_respected(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder.path / "train.py").write_bytes("# coding: latin-1\nprint('ä')".encode("latin-1"))
    folder.run()
    assert capsys.readouterr().out == "ä\n"


def test_classes_of_a_script_can_be_pickled(folder: Folder) -> None:
    folder.write(
        "train.py",
        "import pickle\nclass Own: pass\nassert type(pickle.loads(pickle.dumps(Own()))) is Own",
    )
    folder.run()


def test_a_script_has_no_input_of_whoever_launched_it(folder: Folder) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"typed\n")
    saved = os.dup(0)
    os.dup2(reader, 0)
    try:
        folder.write(
            "train.py",
            "import subprocess, sys\nassert sys.stdin.read() == ''\n"
            "assert subprocess.run(['cat'], capture_output=True).stdout == b''\n"
            "input('epochs? ')",
        )
        assert folder.error().endswith("EOFError: EOF when reading a line\n")
        assert os.read(0, 100) == b"typed\n"
    finally:
        os.dup2(saved, 0)
        for descriptor in (reader, writer, saved):
            os.close(descriptor)


# ---- leaving


@pytest.mark.parametrize("code", ["", "0", "None", "False"])
def test_leaving_without_an_error_is_success(folder: Folder, code: str) -> None:
    folder.write("train.py", f"import sys\nsys.exit({code})")
    folder.run()


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("3", "train.py ended with sys.exit(3)\n"),
        ("-1", "train.py ended with sys.exit(-1)\n"),
        ("'no data found'", "no data found\n"),
        ("['a', 1]", "['a', 1]\n"),
    ],
)
def test_leaving_with_an_error_shows_what_python_would(
    folder: Folder, code: str, shown: str
) -> None:
    folder.write("train.py", f"import sys\nsys.exit({code})")
    assert folder.error() == shown


@pytest.mark.parametrize("name", ["Stopped", "ScriptError"])
def test_what_the_launcher_raises_passes_through_the_script(folder: Folder, name: str) -> None:
    where = "launcher.worker.script" if name == "Stopped" else "launcher.errors"
    folder.write(
        "train.py",
        f"from {where} import {name}\ntry:\n    raise {name}('stop')\nexcept ValueError:\n    pass",
    )
    with pytest.raises((Stopped, ScriptError), match="stop"):
        folder.run()


@pytest.mark.parametrize("rest", ["pass", "raise SystemExit(1)", "raise ValueError('no model')"])
def test_a_script_that_catches_what_ends_it_has_ended_all_the_same(
    folder: Folder, rest: str
) -> None:
    ending, entered = Ending(), []

    def train() -> None:
        with ending.noted():
            entered.append(1)
            raise Stopped("stop")

    sys.modules["training_of_a_test"] = type(sys)("training_of_a_test")
    sys.modules["training_of_a_test"].train = train  # type: ignore[attr-defined]
    folder.write(
        "train.py",
        "from training_of_a_test import train\n"
        f"try:\n    train()\nexcept:\n    pass\ntry:\n    train()\nexcept:\n    {rest}",
    )
    with pytest.raises(Stopped, match="stop"):
        folder.run(ending=ending)
    del sys.modules["training_of_a_test"]
    assert entered == [1]


EXIT = """\
import atexit
atexit.register(print, "first", end="!")
@atexit.register
def last():
    print("last")
def never():
    print("never")
atexit.register(never)
atexit.unregister(never)
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "1 / 0"])
def test_what_a_script_wants_done_at_its_exit_is_done_at_its_end(
    folder: Folder, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    folder.write("train.py", EXIT + end)
    before = atexit.register
    with contextlib.suppress(UserScriptError):
        folder.run()
    assert capsys.readouterr().out == "last\nfirst!"
    assert atexit.register is before


def test_what_fails_at_the_exit_of_a_script_is_shown_and_no_failure(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write("train.py", EXIT + "atexit.register(int, 'many')")
    folder.run()
    found = capsys.readouterr()
    assert found.out == "last\nfirst!"
    assert "invalid literal for int() with base 10: 'many'" in found.err


@pytest.mark.parametrize(
    "lines", ["import stopping", "try:\n    import stopping\nexcept BaseException:\n    pass"]
)
def test_a_script_that_is_stopped_does_nothing_at_its_exit(
    folder: Folder, capsys: pytest.CaptureFixture[str], lines: str
) -> None:
    folder.write("stopping.py", "from launcher.worker.script import Stopped\nraise Stopped")
    folder.write("train.py", EXIT + lines)
    ending = Ending()
    ending.cause = Stopped()
    with pytest.raises(Stopped):
        folder.run(ending=ending)
    assert capsys.readouterr().out == ""


def test_an_exit_code_is_told_apart_from_a_traceback(folder: Folder) -> None:
    folder.write("train.py", "print('no data')\nraise SystemExit(3)")
    with pytest.raises(ExitCodeError):
        folder.run()


def test_a_scripts_own_except_exception_does_not_hold_a_stop_up(folder: Folder) -> None:
    folder.write(
        "train.py",
        "from launcher.worker.script import Stopped\ntry:\n    raise Stopped('stop')\n"
        "except Exception:\n    pass",
    )
    with pytest.raises(Stopped, match="stop"):
        folder.run()


# ---- train_loop_per_worker


@pytest.mark.parametrize(
    ("parameters", "shown"), [("config", "{}"), ("", "none"), ("config=None", "{}")]
)
def test_a_train_loop_is_called_as_ray_train_would(
    folder: Folder, capsys: pytest.CaptureFixture[str], parameters: str, shown: str
) -> None:
    body = "config" if parameters else "'none'"
    folder.write(
        "train.py",
        f"def train_loop_per_worker({parameters}):\n    print({body})\n"
        "if __name__ == '__main__':\n    print('as main')\n",
    )
    folder.run(kind="train_loop_per_worker")
    assert capsys.readouterr().out == f"{shown}\n"
