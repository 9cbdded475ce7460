"""Let a script import its own `ray.py` or `launcher/`, though this process uses other ones.

Python would give it the modules that are loaded already. While the script runs, an import
statement in one of *its* files finds the files beside it first, as it would alone; the rest of
the process keeps its own modules.
"""

import builtins
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any


def shadowed_names(folder: Path) -> frozenset[str]:
    """Top-level names of modules in `folder` that this process has loaded from elsewhere."""
    own = {path.stem if path.is_file() else path.name for path in folder.iterdir()}
    return frozenset(
        name
        for name in own & set(sys.modules)
        if name.isidentifier()
        and name != "__main__"
        and not str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder))
        and PathFinder.find_spec(name, [str(folder)]) is not None
        and PathFinder.find_spec(name, [str(folder)]).loader is not None  # type: ignore[union-attr]
    )


class _Imports:
    """The script's modules whose names are taken, outside of `sys.modules`."""

    def __init__(self, folder: Path, names: frozenset[str], original: Any) -> None:
        self._folder, self._names, self._original = str(folder), names, original
        self._modules: dict[str, ModuleType] = {}

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """What `__import__` does, for importers of the script's own."""
        full = self._own_name(name, globals, level)
        if full is None:
            found: ModuleType = self._original(name, globals, locals, fromlist, level)
            return found
        module = self._load(full)
        if not fromlist:
            return module if level else self._modules[full.partition(".")[0]]
        for part in fromlist:
            if part != "*" and not hasattr(module, part) and hasattr(module, "__path__"):
                self._load_if_there(f"{full}.{part}")
        return module

    def _load_if_there(self, full: str) -> None:
        try:
            self._load(full)
        except ModuleNotFoundError as error:
            if error.name != full:  # something that it imports is missing
                raise

    def _own_name(self, name: str, globals_: Mapping[str, Any] | None, level: int) -> str | None:
        """The full name, if one of the script's files imports a name that is taken."""
        if not str((globals_ or {}).get("__file__", "")).startswith(self._folder):
            return None
        package = str((globals_ or {}).get("__package__") or "")
        if level and not package:
            return None
        full = resolve_name("." * level + name, package) if level else name
        return full if full.partition(".")[0] in self._names else None

    def _load(self, full: str) -> ModuleType:
        if full in self._modules:
            return self._modules[full]
        above, _, last = full.rpartition(".")
        parent = self._load(above) if above else None
        if full in self._modules:  # the parent has imported it
            return self._modules[full]
        path = [self._folder] if parent is None else list(getattr(parent, "__path__", []))
        spec = PathFinder.find_spec(full, path)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {full!r}", name=full)
        module = self._modules[full] = module_from_spec(spec)
        if spec.loader is not None:  # else a namespace package: nothing to run
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del self._modules[full]
                raise
        if parent is not None:
            setattr(parent, last, module)
        return module


@contextlib.contextmanager
def own_modules_first(folder: Path) -> Iterator[None]:
    """While the block runs, files in `folder` import the modules beside them first.

    Args:
        folder: the script's folder, whose files come first on `sys.path`.
    """
    names = shadowed_names(folder)
    if not names:
        yield
        return
    original = builtins.__import__
    builtins.__import__ = _Imports(folder, names, original)
    try:
        yield
    finally:
        builtins.__import__ = original
