import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from launcher.worker.shadowed import own_modules_first, shadowed_names

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Writes files beside a script and runs it; gives its globals."""

    def call(script: str, **files: str) -> dict[str, Any]:
        for name, text in files.items():
            path = tmp_path / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        module = ModuleType("__main__")
        module.__file__ = str(tmp_path / "train.py")
        sys.path.insert(0, str(tmp_path))
        try:
            with own_modules_first(tmp_path):
                exec(compile(script, str(tmp_path / "train.py"), "exec"), module.__dict__)
        finally:
            sys.path.remove(str(tmp_path))
        return vars(module)

    return call


def test_only_modules_that_are_loaded_from_elsewhere_are_shadowed(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    (tmp_path / "no_such_module.py").write_text("")
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").write_text("")
    (tmp_path / "logging").mkdir()  # holds no module: a folder of logs, say
    (tmp_path / "logging" / "today.log").write_text("")
    (tmp_path / "re.txt").write_text("")
    assert shadowed_names(tmp_path) == {"json", "launcher"}


def test_a_script_gets_its_own_module_and_the_process_keeps_its(run: Run) -> None:
    found = run("import json\nfrom json import WORD", json="WORD = 'own'")
    assert found["WORD"] == "own"
    assert found["json"].WORD == "own"
    assert sys.modules["json"] is json
    assert not hasattr(json, "WORD")


def test_libraries_still_get_the_real_one(
    run: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path_factory.mktemp("library")
    (library / "a_library.py").write_text("import json")
    monkeypatch.syspath_prepend(library)
    found = run("import a_library", json="WORD = 'own'")
    assert found["a_library"].json is json


def test_a_module_runs_once_however_often_it_is_imported(run: Run) -> None:
    script = "import json\nimport json as again\nimport helper_of_once\n"
    found = run(
        script + "same = json is again is helper_of_once.json",
        json="import sys\nreal = sys.modules['json']\nreal.n_runs = getattr(real, 'n_runs', 0) + 1",
        helper_of_once="import json",
    )
    try:
        assert found["same"]
        assert json.n_runs == 1  # type: ignore[attr-defined]
    finally:
        del json.n_runs, sys.modules["helper_of_once"]  # type: ignore[attr-defined]


def test_packages_with_relative_imports_work(run: Run) -> None:
    found = run(
        "import launcher.deep.leaf\nfrom launcher import middle\n"
        "from launcher.deep import leaf as l\n"
        "words = launcher.TOP, launcher.deep.leaf.WORD, middle.WORD, l.WORD",
        launcher__in____init__="TOP = 'top'\nfrom . import middle",
        launcher__in__middle="from .deep.leaf import WORD",
        launcher__in__deep__in____init__="",
        launcher__in__deep__in__leaf="from .. import TOP\nfrom ..middle import __name__ as n\n"
        "WORD = TOP + ' leaf'",
    )
    assert found["words"] == ("top", "top leaf", "top leaf", "top leaf")


def test_import_as_gives_the_submodule(run: Run) -> None:
    found = run(
        "import launcher.deep as deep",
        launcher__in____init__="",
        launcher__in__deep="WORD = 'deep'",
    )
    assert found["deep"].WORD == "deep"


def test_a_star_import_brings_the_modules_names(run: Run) -> None:
    assert run("from json import *", json="WORD = 'own'\n_hidden = 1")["WORD"] == "own"


def test_a_missing_submodule_or_name_is_an_import_error(run: Run) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'launcher\.errors'"):
        run("import launcher.errors", launcher__in____init__="")
    with pytest.raises(ImportError, match="cannot import name 'LauncherError'"):
        run("from launcher import LauncherError", launcher__in____init__="")


def test_an_error_while_importing_is_not_hidden_and_is_tried_again(run: Run) -> None:
    found = run(
        "messages = []\nfor _ in range(2):\n    try:\n        import json\n"
        "    except RuntimeError as error:\n        messages.append(str(error))",
        json="raise RuntimeError('broken')",
    )
    assert found["messages"] == ["broken", "broken"]


def test_an_import_missing_inside_a_submodule_is_not_hidden(run: Run) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        run(
            "from launcher import middle",
            launcher__in____init__="",
            launcher__in__middle="import no_such_module_anywhere",
        )


def test_circular_imports_work(run: Run) -> None:
    found = run(
        "import json\nword = json.copy.WORD",
        json="import copy\nWORD = 'json'",
        copy="import json\nWORD = json.__name__ + ' again'",
    )
    assert found["word"] == "json again"


def test_a_function_imports_its_own_modules_when_it_is_called(run: Run) -> None:
    found = run(
        "def late():\n    import json\n    return json.WORD\nword = late()", json="WORD = 'own'"
    )
    assert found["word"] == "own"


def test_imports_are_as_before_afterwards(run: Run, tmp_path: Path) -> None:
    before = builtins.__import__
    with pytest.raises(ZeroDivisionError, match="division"):
        run("1 / 0", json="")
    assert builtins.__import__ is before


def test_nothing_is_changed_where_no_name_is_taken(tmp_path: Path) -> None:
    before = builtins.__import__
    with own_modules_first(tmp_path):
        assert builtins.__import__ is before
