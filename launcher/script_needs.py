"""What a script needs on every node, as far as its source and arguments show it.

Nothing is run. Only what is certain counts as needed: an import that may be skipped, or a
relative path (which is shipped with the folder), does not.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.preflight import follow_imports, read_script
from launcher.source import Module, find, local_imports, read_module
from launcher.worker.checkup import Needs

Role = Literal["input", "output", "unknown"]

MAX_PATHS = 200
MAX_PATH_CHARS = 1024
# Their versions are compared on every node anyway.
COMPARED = frozenset({"ray", "tensorflow", "keras"})
_PATH = re.compile(r"^~?/[^\s\0\"'<>|*?{}]*[^\s\0\"'<>|*?{}/]/?$")
_OUTPUT = re.compile(
    r"out|save|log|ckpt|checkpoint|export|result|write|dest|tensorboard|cache", re.IGNORECASE
)
_INPUT = re.compile(
    r"data|input|train|val|test|image|corpus|text|weight|pretrained|load|init|config|vocab",
    re.IGNORECASE,
)
_CATCHES_IMPORTS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


@dataclass(frozen=True, slots=True)
class PathNeed:
    """An absolute path that the script names.

    Attributes:
        where: `--data`, `argument 2` or `train.py:12`.
        role: whether the script reads or makes it, as its name tells.
        is_argument: given on the command line rather than written in the source.
    """

    path: str
    where: str
    role: Role = "unknown"
    is_argument: bool = True


@dataclass(frozen=True, slots=True)
class ScriptNeeds:
    """Modules and absolute paths; `root` is the folder that is shipped."""

    modules: tuple[str, ...] = ()
    paths: tuple[PathNeed, ...] = ()
    root: Path | None = None

    @property
    def on_node(self) -> Needs:
        """What to look for on a node."""
        return Needs(self.modules, tuple(dict.fromkeys(need.path for need in self.paths)))


def script_needs(script: Path, root: Path, args: Sequence[str]) -> ScriptNeeds:
    """Read the script, the modules of its folder that it surely imports, and its arguments.

    Args:
        script: absolute path of the file.
        root: the folder that is shipped with it.
        args: the script's own arguments.

    Raises:
        ScriptError: the script cannot be read.
    """
    modules = follow_imports(read_script(script))
    literals = [path for module in modules for path in _literals(module)]
    path_by_name: dict[str, PathNeed] = {}
    for each in [*argument_paths(args), *literals]:
        path_by_name.setdefault(each.path, each)
    needed = sorted(set(_required_modules(modules, root)))
    return ScriptNeeds(tuple(needed), tuple(path_by_name.values())[:MAX_PATHS], root)


def argument_paths(args: Sequence[str]) -> list[PathNeed]:
    """The absolute paths among a script's arguments: `/x`, `--data /x`, `--data=/x`."""
    found = []
    option = ""
    for number, arg in enumerate(args, start=1):
        name, equals, value = arg.partition("=") if arg.startswith("-") else (option, "", arg)
        option = "" if equals or not arg.startswith("-") else arg
        if (equals or not arg.startswith("-")) and _is_path(value):
            found.append(PathNeed(value, name or f"argument {number}", _role(name)))
    return found


def _role(name: str) -> Role:
    if _OUTPUT.search(name):
        return "output"
    return "input" if _INPUT.search(name) else "unknown"


def _is_path(text: str) -> bool:
    return len(text) <= MAX_PATH_CHARS and _PATH.match(text) is not None


def _literals(module: Module) -> Iterator[PathNeed]:
    """Absolute paths written in a file; what it writes to is an output."""
    written = {each.line for each in find(module) if each.kind == "absolute path"}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_path(node.value):
            role: Role = "output" if node.lineno in written else "unknown"
            yield PathNeed(node.value, f"{module.file}:{node.lineno}", role, is_argument=False)


def _required_modules(modules: Sequence[Module], root: Path) -> Iterator[str]:
    """Top-level names of what is surely imported and comes neither from Python nor the folder.

    Args:
        modules: the script first, then the files of its folder that it may import.
        root: the folder that is shipped.
    """
    module_by_path = {module.path: module for module in modules}
    folder = modules[0].path.parent
    done, waiting = {modules[0].path}, [modules[0].path]
    while waiting:
        module = module_by_path[waiting.pop()]
        tree = ast.Module(list(_certain_imports(module.tree.body)), [])
        certain = read_module(module.path, module.file, tree)
        names = {name.partition(".")[0] for name in certain.imports}
        for name in names - sys.stdlib_module_names - COMPARED:
            if not any(_holds(each, name) for each in {folder, root}):
                yield name
        local = (set(local_imports(certain, folder)) & module_by_path.keys()) - done
        done |= local
        waiting.extend(local)


def _holds(folder: Path, name: str) -> bool:
    """Whether a folder has a module of that name, however it is built."""
    return (folder / name).is_dir() or next(folder.glob(f"{name}.*"), None) is not None


def _certain_imports(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The imports that run whenever the file runs."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.With) or (isinstance(node, ast.If) and _is_main(node.test)):
            yield from _certain_imports(node.body)
        elif isinstance(node, ast.Try) and not any(map(_catches_imports, node.handlers)):
            yield from _certain_imports([*node.body, *node.finalbody])


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and ast.unparse(test) in {
        "__name__ == '__main__'",
        "'__main__' == __name__",
    }


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & _CATCHES_IMPORTS)
