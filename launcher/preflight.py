"""Look at a script before anything starts: can it be trained at all, and what should be known?

Nothing is imported or run. A script is refused only when its source shows that it cannot work;
in doubt it passes, and the profiler finds out.
"""

import ast
import json
import sys
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from launcher.errors import ScriptError
from launcher.source import Finding, FindingKind, Module, find, local_imports, read_module

ScriptFramework = Literal["keras", "tf_keras", "both"]
ScriptKind = Literal["fit", "train_loop_per_worker"]

MAX_MODULES = 500
TRAIN_LOOP = "train_loop_per_worker"
TRAINS = frozenset({"fit", "fit_generator"})
OWN_LOOP = frozenset({"apply_gradients", "minimize", "train_on_batch"})
DYNAMIC = frozenset({"exec", "eval", "__import__", "importlib.import_module", "runpy.run_path"})
OTHER_FRAMEWORKS = frozenset({"torch", "jax", "flax", "mxnet", "paddle", "pytorch_lightning"})
# Packages that never train a Keras model for the script.
WITHOUT_FIT = frozenset(sys.stdlib_module_names) | {
    *("tensorflow", "keras", "tf_keras", "numpy", "pandas", "scipy", "sklearn", "matplotlib"),
    *("PIL", "cv2", "tqdm", "absl", "yaml", "h5py", "pyarrow", "requests", "seaborn", "rich"),
    *("tensorflow_datasets", "torch", "jax", "flax"),
}


@dataclass(frozen=True, slots=True)
class Script:
    """A script that may be trained, and what its source shows.

    Attributes:
        path: absolute path of the file.
        root: the folder to ship: the current one if the script lies in it, else the script's.
        framework: what it imports; "both" needs both corrected in the workers.
    """

    path: Path
    root: Path
    framework: ScriptFramework
    kind: ScriptKind
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """The script's path inside the folder, with forward slashes."""
        return self.path.relative_to(self.root).as_posix()

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks to correct in the workers."""
        return ("keras", "tf_keras") if self.framework == "both" else (self.framework,)

    @property
    def uses_early_stopping(self) -> bool:
        """Whether declared epochs are only an upper bound."""
        return bool(self.of_kind("early stopping"))

    @property
    def hints(self) -> tuple[str, ...]:
        """Likely causes of ranks seeing different data, as `train.py:12: np.random…` lines."""
        return tuple(map(str, self.of_kind("unseeded generator", "unsorted listing")))

    @property
    def parallel_draws(self) -> tuple[str, ...]:
        """Where draws are in no certain order, if nothing else can make ranks' data differ."""
        return () if self.hints else tuple(map(str, self.of_kind("parallel draws")))

    def of_kind(self, *kinds: FindingKind) -> tuple[Finding, ...]:
        """The findings of these kinds."""
        return tuple(finding for finding in self.findings if finding.kind in kinds)


def check_script(path: Path, cwd: Path, *, home: Path, legacy_keras: bool = False) -> Script:
    """Read a script and the local modules it imports.

    Args:
        path: absolute path of the script.
        cwd: the current folder.
        home: the user's home folder, which is never shipped as a whole for a script below it.
        legacy_keras: whether TF_USE_LEGACY_KERAS is set in the environment.

    Raises:
        ScriptError: the script cannot be trained as it is.
    """
    script = read_script(path)
    modules = follow_imports(script)
    kind: ScriptKind = TRAIN_LOOP if TRAIN_LOOP in script.functions() else "fit"  # type: ignore[assignment] # mypy widens TRAIN_LOOP
    _refuse_backend(modules)
    if kind == "fit":
        _refuse_distribution(modules)
        _refuse_without_training(script, modules)
    root = _root(path, cwd, home)
    _refuse_place(path, root)
    return Script(
        path=path,
        root=root,
        framework=_framework(modules, legacy_keras=legacy_keras),
        kind=kind,
        findings=tuple(finding for module in modules for finding in find(module)),
    )


def read_script(path: Path) -> Module:
    """Parse the script itself, or say why that cannot be."""
    try:
        return _read_script(path)
    except OSError as error:  # a folder that may not be entered, a name that is too long
        raise ScriptError(
            f"{path} cannot be read: {error.strerror}. Check its path and its rights."
        ) from error


def _read_script(path: Path) -> Module:
    if not path.exists():
        raise ScriptError(_missing(path))
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.py"))[:4]
        hint = f"Name a script in it: {', '.join(inside)}." if inside else "Name a Python file."
        raise ScriptError(f"{path} is a folder, not a script. {hint}")
    if not path.is_file():
        raise ScriptError(f"{path} is not a regular file. Name a Python file.")
    content = path.read_bytes()
    if _is_notebook(path, content):
        raise ScriptError(
            f"{path} is a notebook. Turn it into a script first: "
            f"jupyter nbconvert --to script '{path.name}'"
        )
    if b"\0" in content or not _is_text(content):
        raise ScriptError(f"{path} is not a Python script but binary data. Name a Python file.")
    return _parse(path, path.name, content)


def _parse(path: Path, file: str, content: bytes) -> Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content, filename=str(path))
    except SyntaxError as error:
        shown = "".join(traceback.format_exception_only(error)).rstrip()
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ScriptError(f"{path.name} is not valid Python {version}:\n{shown}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ScriptError(f"{path} cannot be parsed: {error}. Name a Python file.") from error
    return read_module(path, file, tree)


def follow_imports(script: Module) -> tuple[Module, ...]:
    """The script and all local modules that it imports, directly or not."""
    folder = script.path.parent
    modules = {script.path: script}
    waiting = [script]
    while waiting and len(modules) < MAX_MODULES:
        for path in local_imports(waiting.pop(), folder):
            if path in modules:
                continue
            try:
                file = path.relative_to(folder).as_posix()
                module = _parse(path, file, path.read_bytes())
            except (ScriptError, OSError, ValueError):
                continue  # it may never be imported; the profiler finds out
            modules[path] = module
            waiting.append(module)
    return tuple(modules.values())


def _refuse_backend(modules: Iterable[Module]) -> None:
    for module in modules:
        found = module.environment("KERAS_BACKEND")
        for call in module.calls:
            if call.name.endswith("config.set_backend"):
                found = call.word(0) or "", call.line
        if found and found[0] not in {"", "tensorflow"}:
            raise ScriptError(
                f"{module.file}:{found[1]} sets the Keras backend to {found[0]}, and launch trains "
                "with TensorFlow only. Remove that line or set it to tensorflow."
            )
        if (config := module.environment("TF_CONFIG")) is not None:
            raise ScriptError(
                f"{module.file}:{config[1]} sets TF_CONFIG, which launch sets for each worker "
                "itself. Remove that line."
            )


def _refuse_distribution(modules: Iterable[Module]) -> None:
    for module in modules:
        for call in module.calls:
            where = f"{module.file}:{call.line}"
            in_tensorflow = call.name.startswith("tensorflow.") and ".distribute." in call.name
            if in_tensorflow and call.last.endswith("Strategy"):
                raise ScriptError(
                    f"{where} makes its own tf.distribute strategy ({call.last}). launch "
                    "distributes the script itself: remove the strategy and its scope."
                )
            if call.name.startswith(("keras.distribution.", "tensorflow.keras.distribution.")):
                raise ScriptError(
                    f"{where} uses keras.distribution, which the TensorFlow backend ignores. "
                    "launch distributes the script itself: remove that line."
                )


def _refuse_without_training(script: Module, modules: tuple[Module, ...]) -> None:
    """Refuse a script that certainly neither calls `fit` nor applies gradients."""
    words = frozenset[str]().union(*(m.attributes | m.texts for m in modules))
    roots = {name.partition(".")[0] for m in modules for name in m.imports}
    others = sorted(roots & OTHER_FRAMEWORKS)
    if others and not roots & {"tensorflow", "keras", "tf_keras"} and not _foreign(modules):
        raise ScriptError(
            f"{script.file} trains with {others[0]}, and launch runs Keras scripts on TensorFlow. "
            "Give it a script that calls model.fit of Keras."
        )
    if words & (TRAINS | OWN_LOOP) or _foreign(modules):
        return
    calls = [(module, call) for module in modules for call in module.calls]
    tapes = [(module, call) for module, call in calls if call.last == "GradientTape"]
    if tapes and "apply" in words:
        return
    if tapes:
        module, call = tapes[0]
        raise ScriptError(
            f"{module.file}:{call.line} takes gradients, which no optimizer of Keras applies. "
            "launch can share out a loop that hands them to optimizer.apply or apply_gradients."
        )
    raise ScriptError(
        f"{script.file} does not train anything: neither it nor the modules it imports call "
        f"model.fit or apply gradients, and it defines no {TRAIN_LOOP}(config). Name the script "
        "that trains."
    )


def _foreign(modules: Iterable[Module]) -> bool:
    """Whether code that was not read might call `fit` for the script."""
    read = {module.path for module in modules}
    folder = next(iter(modules)).path.parent
    for module in modules:
        if any(call.name in DYNAMIC for call in module.calls):
            return True
        local = set(local_imports(module, folder))
        if local - read:
            return True
        local_roots = {p.relative_to(folder).parts[0].removesuffix(".py") for p in local}
        roots = {name.partition(".")[0] for name in module.imports}
        if roots - WITHOUT_FIT - local_roots:
            return True
    return False


def _framework(modules: Iterable[Module], *, legacy_keras: bool) -> ScriptFramework:
    """Which Keras the script uses; `tf.keras` is the legacy one where the variable says so."""
    dotted = frozenset[str]().union(*(m.imports | m.dotted for m in modules))
    for module in modules:
        found = module.environment("TF_USE_LEGACY_KERAS")
        legacy_keras = legacy_keras or (found is not None and found[0].lower() in {"1", "true"})
    through_tensorflow = any(name.startswith("tensorflow.keras") for name in dotted)
    keras = any(name == "keras" or name.startswith("keras.") for name in dotted)
    tf_keras = any(name == "tf_keras" or name.startswith("tf_keras.") for name in dotted)
    tf_keras = tf_keras or (through_tensorflow and legacy_keras)
    keras = keras or (through_tensorflow and not legacy_keras)
    if keras and tf_keras:
        return "both"
    return "tf_keras" if tf_keras or (legacy_keras and not keras) else "keras"


def _root(path: Path, cwd: Path, home: Path) -> Path:
    inside = path.is_relative_to(cwd)
    is_too_wide = cwd != path.parent and home.is_relative_to(cwd)
    return cwd if inside and not is_too_wide else path.parent


def _refuse_place(path: Path, root: Path) -> None:
    """Refuse a script whose folder cannot be shipped."""
    if root == root.parent:
        raise ScriptError(
            f"{path} lies in {root} itself, and the folder of a script is shipped with it. Move "
            "it to a folder of its own, and launch it from there."
        )
    if any("\ud800" <= character <= "\udfff" for character in path.relative_to(root).as_posix()):
        raise ScriptError(f"{path!a} has a name that is not UTF-8. Give it another one.")


def _missing(path: Path) -> str:
    folder = path.parent
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    close = get_close_matches(path.name, names, n=1)
    hint = f"Did you mean {close[0]}?" if close else "Check the path."
    return f"There is no script {path}. {hint}"


def _is_notebook(path: Path, content: bytes) -> bool:
    if path.suffix == ".ipynb":
        return True
    if not content.lstrip().startswith(b"{"):
        return False
    try:
        document = json.loads(content)
    except ValueError:
        return False
    return isinstance(document, dict) and "cells" in document


def _is_text(content: bytes) -> bool:
    """Whether the bytes look like text in UTF-8 or in the encoding that they declare."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return b"coding" in b"".join(content.splitlines()[:2])
    return True
