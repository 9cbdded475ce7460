"""What a script needs on every node, from its source and arguments."""

from pathlib import Path
from textwrap import dedent

from launcher.script_needs import PathNeed, ScriptNeeds, argument_paths, script_needs


def needs(tmp_path: Path, source: str, *args: str, **files: str) -> ScriptNeeds:
    for name, content in files.items():
        path = tmp_path / name.replace("__", "/")
        path = path.with_name(f"{path.name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(content))
    (tmp_path / "train.py").write_text(dedent(source))
    return script_needs(tmp_path / "train.py", tmp_path, args)


def test_modules_of_others_are_needed_not_pythons_nor_the_folders(tmp_path: Path) -> None:
    found = needs(
        tmp_path,
        """
        import json, os.path
        import keras, tensorflow as tf
        import numpy.linalg
        from PIL import Image
        import mine
        from package.part import x
        """,
        mine="import scipy",
        package__part="import yaml\nx = 1",
    )
    assert found.modules == ("PIL", "numpy", "scipy", "yaml")


def test_imports_that_may_be_skipped_are_not_needed(tmp_path: Path) -> None:
    found = needs(
        tmp_path,
        """
        try:
            import wandb
        except ImportError:
            wandb = None
        if False:
            import torch
        def later():
            import seaborn
        try:
            import pandas
        finally:
            pass
        if __name__ == "__main__":
            import tqdm
        """,
    )
    assert found.modules == ("pandas", "tqdm")


def test_modules_in_a_folder_beside_the_script_are_shipped(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "train.py").write_text("import deep, top, other")
    (tmp_path / "top.so").write_bytes(b"")
    found = script_needs(tmp_path / "src" / "train.py", tmp_path, ())
    assert found.modules == ("other",)


def test_absolute_paths_among_the_arguments_are_needed() -> None:
    args = ["/a/first", "--data", "/mnt/x", "--epochs", "3", "--out=/tmp/o", "rel/path", "-v", "/"]
    assert argument_paths(args) == [
        PathNeed("/a/first", "argument 1", "unknown"),
        PathNeed("/mnt/x", "--data", "input"),
        PathNeed("/tmp/o", "--out", "output"),
    ]


def test_absolute_paths_in_the_source_are_named_with_their_line(tmp_path: Path) -> None:
    source = """x = open("/mnt/x.csv")\nm.save("/tmp/m.keras")\ny = "/a b", "// no", "a/b"\n"""
    assert needs(tmp_path, source).paths == (
        PathNeed("/mnt/x.csv", "train.py:1", "unknown", is_argument=False),
        PathNeed("/tmp/m.keras", "train.py:2", "output", is_argument=False),
    )


def test_an_argument_counts_before_the_same_path_in_the_source(tmp_path: Path) -> None:
    found = needs(tmp_path, "x = '/mnt/x'", "--data", "/mnt/x")
    assert found.paths == (PathNeed("/mnt/x", "--data", "input"),)
    assert found.on_node.paths == ("/mnt/x",)
