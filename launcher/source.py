"""What a script's source shows without running it: calls, imports, generators, layers.

Names are followed through imports (`np` → `numpy`), not through assignments: a static look can
miss things, so its absence of findings proves nothing.
"""

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FindingKind = Literal[
    "unseeded generator",
    "unsorted listing",
    "parallel draws",
    "generator input",
    "dropout",
    "augmentation",
    "batch normalization",
    "mixed precision",
    "early stopping",
    "absolute path",
]

UNSEEDED = frozenset(
    {
        "numpy.random.default_rng",
        "numpy.random.RandomState",
        "numpy.random.SeedSequence",
        "numpy.random.PCG64",
        "numpy.random.MT19937",
        "numpy.random.Philox",
        "numpy.random.SFC64",
        "numpy.random.seed",
        "random.Random",
        "random.seed",
    }
)
NEVER_SEEDED = frozenset(
    {"random.SystemRandom", "os.urandom", "secrets.randbelow", "secrets.SystemRandom"}
)
LISTINGS = frozenset({"os.listdir", "os.scandir", "glob.glob", "glob.iglob"})
# Calls of Python's functions in a dataset, which may draw as well.
FOREIGN_CALLS = frozenset({"py_function", "numpy_function", "py_func"})
NOISE = frozenset({"GaussianNoise"})
DROPOUT_OPTIONS = frozenset({"dropout", "recurrent_dropout"})
WRITERS = frozenset(
    {
        "save",
        "save_weights",
        "export",
        "to_csv",
        "savez",
        "ModelCheckpoint",
        "CSVLogger",
        "makedirs",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something at a place in the source that later stages care about."""

    kind: FindingKind
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its dotted name with imports resolved, such as `numpy.random.default_rng`."""

    name: str
    line: int
    node: ast.Call

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def word(self, index: int) -> str | None:
        """The positional argument at `index` if it is a literal text."""
        return _text(self.node.args[index]) if len(self.node.args) > index else None

    @property
    def is_unseeded(self) -> bool:
        """Whether nothing, or only None, is passed."""
        passed = [*self.node.args, *(k.value for k in self.node.keywords)]
        return all(isinstance(a, ast.Constant) and a.value is None for a in passed)


@dataclass(frozen=True, slots=True)
class Module:
    """One parsed file. `file` is its name in messages."""

    path: Path
    file: str
    tree: ast.Module
    calls: tuple[Call, ...]
    imports: frozenset[str]
    dotted: frozenset[str]
    attributes: frozenset[str]
    texts: frozenset[str]

    def functions(self) -> frozenset[str]:
        """Names of the functions defined at the top level."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return frozenset(node.name for node in self.tree.body if isinstance(node, kinds))

    def environment(self, variable: str) -> tuple[str, int] | None:
        """The literal value and line at which the file sets an environment variable."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and _key(node.targets[0]) == variable:
                return _text(node.value) or "", node.lineno
        for call in self.calls:
            if call.name in {"os.environ.setdefault", "os.putenv"} and call.word(0) == variable:
                return call.word(1) or "", call.line
        return None


def read_module(path: Path, file: str, tree: ast.Module) -> Module:
    """Collect what a parsed file imports and calls."""
    aliases = dict(_aliases(tree))
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    dotted = {_dotted(n, aliases) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    return Module(
        path=path,
        file=file,
        tree=tree,
        calls=tuple(
            Call(_dotted(node.func, aliases), node.lineno, node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
        ),
        imports=frozenset(_imports(tree)),
        dotted=frozenset(dotted | set(aliases.values())),
        attributes=frozenset(attributes),
        texts=frozenset(text for text in texts if isinstance(text, str)),
    )


def local_imports(module: Module, folder: Path) -> Iterator[Path]:
    """Files inside `folder` (where the script's imports start) that the module imports."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from _files(folder, name.name)
        elif isinstance(node, ast.ImportFrom):
            start = module.path.parent if node.level else folder
            for _ in range(node.level - 1):
                start = start.parent
            base = node.module or ""
            yield from _files(start, base)
            for name in node.names:
                yield from _files(start, f"{base}.{name.name}".strip("."))


def find(module: Module) -> Iterator[Finding]:
    """All findings of a file, in the order of its lines."""
    sorted_lists = {id(a) for c in module.calls if c.name == "sorted" for a in c.node.args}
    generators = _generator_functions(module.tree)
    draws = any(map(_draws, module.calls))
    for call in sorted(module.calls, key=lambda c: c.line):
        kind = _kind(call)
        if kind == "unsorted listing" and id(call.node) in sorted_lists:
            continue
        if kind is None and call.last == "fit" and _feeds_generator(call, module, generators):
            kind = "generator input"
        if kind is None and draws and _is_parallel_map(call):
            kind = "parallel draws"
        if kind is not None:
            yield Finding(kind, module.file, call.line, _shown(call.node))
    if "stop_training" in module.attributes:
        yield Finding("early stopping", module.file, 1, "sets stop_training")


def _kind(call: Call) -> FindingKind | None:
    """What a single call means, by its name and arguments."""
    last, word = call.last, call.word(0)
    unseeded = call.name in NEVER_SEEDED or last == "from_non_deterministic_state"
    layer = ".layers." in call.name or "." not in call.name
    rules: tuple[tuple[FindingKind, bool], ...] = (
        ("unseeded generator", unseeded or (call.name in UNSEEDED and call.is_unseeded)),
        ("unsorted listing", call.name in LISTINGS),
        ("early stopping", last == "EarlyStopping"),
        ("batch normalization", last == "BatchNormalization"),
        ("dropout", _is_dropout(call)),
        ("augmentation", ".image.random_" in call.name or (layer and last.startswith("Random"))),
        ("mixed precision", last in {"set_global_policy", "set_dtype_policy"} and _is_mixed(call)),
        ("absolute path", word is not None and word.startswith("/") and _writes(call)),
    )
    return next((kind for kind, holds in rules if holds), None)


def _draws(call: Call) -> bool:
    """Whether a call draws from a generator that parallel calls would share."""
    if call.name.startswith("tensorflow.random."):
        return not call.last.startswith(("stateless_", "set_"))
    return call.last in FOREIGN_CALLS or _kind(call) == "augmentation"


def _is_parallel_map(call: Call) -> bool:
    """Whether this is `dataset.map(…, num_parallel_calls=…)`."""
    if call.last != "map" or not isinstance(call.node.func, ast.Attribute):
        return False
    given = [k.value for k in call.node.keywords if k.arg == "num_parallel_calls"]
    given += [a for a in call.node.args[1:2] if ast.unparse(a).endswith("AUTOTUNE")]
    return any(not isinstance(g, ast.Constant) or g.value not in (None, 1) for g in given)


def _is_dropout(call: Call) -> bool:
    """A layer such as SpatialDropout2D, or one with `dropout=0.1`."""
    if call.last in NOISE or call.last.rstrip("123D").endswith("Dropout"):
        return True
    return any(k.arg in DROPOUT_OPTIONS and _is_set(k.value) for k in call.node.keywords)


def _is_mixed(call: Call) -> bool:
    word = call.word(0)
    return word is None or "float16" in word


def _writes(call: Call) -> bool:
    if call.name == "open":
        return any(mode in (call.word(1) or "r") for mode in "wax+")
    return call.last in WRITERS


def _is_set(node: ast.expr) -> bool:
    return not (isinstance(node, ast.Constant) and not node.value)


def _feeds_generator(call: Call, module: Module, generators: frozenset[str]) -> bool:
    """Whether `fit` gets a Python generator, as far as the file shows."""
    x = next((k.value for k in call.node.keywords if k.arg == "x"), None)
    x = call.node.args[0] if x is None and call.node.args else x
    if isinstance(x, ast.Name):
        x = next((v for name, v in _assignments(module.tree) if name == x.id), None)
    if isinstance(x, ast.GeneratorExp):
        return True
    called = x.func if isinstance(x, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in generators


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _generator_functions(tree: ast.Module) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in ast.walk(node))
    )


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that imports bind, with the dotted name that each stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.asname:
                    yield name.asname, name.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"


def _imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of the modules that the file imports (not relative ones)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """`np.random.seed` as `numpy.random.seed`; a part that is no name becomes empty."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    first = aliases.get(node.id, node.id) if isinstance(node, ast.Name) else ""
    return ".".join([first, *reversed(parts)])


def _files(start: Path, dotted: str) -> Iterator[Path]:
    if not dotted:
        return
    target = start.joinpath(*dotted.split("."))
    for path in (target.with_name(f"{target.name}.py"), target / "__init__.py"):
        if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises without rights
            yield path


def _key(node: ast.expr) -> str | None:
    """The literal key of a subscript such as `os.environ["KEY"]`."""
    return _text(node.slice) if isinstance(node, ast.Subscript) else None


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _shown(node: ast.Call) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:59]}…"
