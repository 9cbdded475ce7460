"""Processes that the launcher starts."""

import ast
from collections.abc import KeysView
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from launcher.worker.environment import environment

PACKAGE = Path(__file__).parents[1] / "launcher"
STARTS = {"Popen", "run", "call", "check_call", "check_output"}


def starts(path: Path) -> list[ast.Call]:
    """Calls of `subprocess.Popen` and its like in a file."""
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "subprocess"
        and node.func.attr in STARTS
    ]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.name)
def test_a_child_gets_a_copy_of_the_environment(path: Path) -> None:
    """Without one it reads the environment that another thread may be moving (EFAULT)."""
    for call in starts(path):
        assert any(word.arg == "env" for word in call.keywords), f"{path}:{call.lineno}"


def test_a_copy_of_the_environment_bears_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Restless(dict[str, str]):
        n_reads = 0

        def keys(self) -> KeysView[str]:
            self.n_reads += 1
            if self.n_reads == 1:
                raise RuntimeError("dictionary changed size during iteration")
            return super().keys()

    variables = Restless(HOME="/home/ada")
    system = SimpleNamespace(environ=MappingProxyType(variables))
    monkeypatch.setattr("launcher.worker.environment.os", system)
    assert environment() == {"HOME": "/home/ada"}
    assert variables.n_reads == 2
