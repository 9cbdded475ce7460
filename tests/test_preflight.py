import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import ScriptError
from launcher.preflight import Script, _refuse_place, check_script

FIT = "import keras\nmodel = keras.Sequential()\nmodel.fit(x, y)\n"


def check(
    folder: Path, source: str | bytes = FIT, name: str = "train.py", **options: bool
) -> Script:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.encode() if isinstance(source, str) else source)
    return check_script(
        path, folder, home=Path("/home/ada"), legacy_keras=options.get("legacy", False)
    )


def kinds(script: Script) -> list[str]:
    return [finding.kind for finding in script.findings]


def test_a_plain_keras_script_passes(tmp_path: Path) -> None:
    script = check(tmp_path)
    assert script.kind == "fit"
    assert script.frameworks == ("keras",)
    assert script.findings == ()
    assert script.name == "train.py"


def test_a_missing_script_is_named_with_a_suggestion(tmp_path: Path) -> None:
    check(tmp_path)
    with pytest.raises(ScriptError, match=r"no script .*trian\.py\. Did you mean train\.py"):
        check_script(tmp_path / "trian.py", tmp_path, home=tmp_path)
    with pytest.raises(ScriptError, match="Check the path"):
        check_script(tmp_path / "no" / "x.py", tmp_path, home=tmp_path)


def test_a_script_whose_path_cannot_be_looked_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="cannot be read: File name too long"):
        check_script(tmp_path / ("x" * 300), tmp_path, home=tmp_path)


def test_a_script_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="has a name that is not UTF-8"):
        check(tmp_path, name="caf\udce9.py")


def test_a_folder_is_not_a_script(tmp_path: Path) -> None:
    check(tmp_path, name="project/train.py")
    with pytest.raises(ScriptError, match=r"is a folder.*Name a script in it: train\.py"):
        check_script(tmp_path / "project", tmp_path, home=tmp_path)


def test_a_pipe_is_not_a_script(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    with pytest.raises(ScriptError, match="not a regular file"):
        check_script(tmp_path / "train.py", tmp_path, home=tmp_path)


@pytest.mark.parametrize("content", [b"\x00\x01", b"PK\x03\x04\xff\xfe", b"\x89PNG\r\n\xd8"])
def test_binary_data_is_not_a_script(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ScriptError, match="not a Python script but binary data"):
        check(tmp_path, content)


@pytest.mark.parametrize("name", ["train.ipynb", "train.py"])
def test_a_notebook_is_not_a_script(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScriptError, match=r"is a notebook.*nbconvert"):
        check(tmp_path, '{"cells": [], "nbformat": 4}', name)


def test_a_syntax_error_is_shown_like_python_shows_it(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="is not valid Python") as error:
        check(tmp_path, "x = 1\ndef f(:\n    pass\n")
    text = str(error.value)
    assert 'train.py", line 2' in text
    assert "def f(:" in text
    assert "SyntaxError" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    "source", ["", "print('hello')\n", "import keras\nmodel = keras.Sequential()\n"]
)
def test_a_script_without_training_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(ScriptError, match=r"train\.py does not train anything"):
        check(tmp_path, source)


def test_a_script_of_another_framework_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="trains with torch"):
        check(tmp_path, "import torch\nfor x in y:\n    loss.backward()\n")


@pytest.mark.parametrize(
    "source",
    [
        "import helper\nhelper.train()\n",
        "from helper import train\ntrain()\n",
        "from package.inner import train\ntrain()\n",
        "from package import inner\n",
        "import middle\n",
    ],
)
def test_fit_may_be_called_in_a_module_of_the_scripts_folder(tmp_path: Path, source: str) -> None:
    for name in ("helper.py", "package/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(FIT)
    (tmp_path / "middle.py").write_text("from package.inner import *\n")
    assert check(tmp_path, source).kind == "fit"


def test_a_relative_import_is_followed(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from .inner import train\n")
    (tmp_path / "package" / "inner.py").write_text("from . import deep\n")
    (tmp_path / "package" / "deep.py").write_text(FIT)
    assert check(tmp_path, "import package\n").kind == "fit"


@pytest.mark.parametrize(
    "source",
    [
        "import company_training\ncompany_training.go()\n",
        "exec(open('x').read())\n",
        "import keras\ngetattr(keras.Sequential(), 'fit')(x)\n",
        "import keras\nf = model.fit\nf(x)\n",
        "import keras_tuner\ntuner.search(x)\n",
    ],
)
def test_in_doubt_a_script_passes(tmp_path: Path, source: str) -> None:
    assert check(tmp_path, source).kind == "fit"


def test_a_helper_with_a_syntax_error_leaves_a_doubt(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def (")
    assert check(tmp_path, "import helper\n").kind == "fit"


@pytest.mark.parametrize(
    "loop",
    [
        "opt.apply_gradients(zip(g, v))",
        "with tf.GradientTape() as t: pass\nopt.apply(g, v)",
        "opt.minimize(loss, v)",
        "m.train_on_batch(x, y)",
    ],
)
def test_an_own_training_loop_with_an_optimizer_passes(tmp_path: Path, loop: str) -> None:
    assert check(tmp_path, f"import tensorflow as tf\n{loop}\n").kind == "fit"


def test_gradients_that_no_optimizer_applies_are_refused_with_their_line(tmp_path: Path) -> None:
    source = "import tensorflow as tf\nwith tf.GradientTape() as t: pass\nw.assign_sub(g)\n"
    with pytest.raises(ScriptError, match=r"train\.py:2 takes gradients.*optimizer\.apply"):
        check(tmp_path, source)


def test_a_custom_train_step_beside_fit_is_no_own_loop(tmp_path: Path) -> None:
    source = (
        FIT + "class M(keras.Model):\n    def train_step(self, d):\n        tf.GradientTape()\n"
    )
    assert check(tmp_path, source).kind == "fit"


def test_a_train_loop_per_worker_is_recognised(tmp_path: Path) -> None:
    source = "import tensorflow as tf\ndef train_loop_per_worker(config):\n    pass\n"
    assert check(tmp_path, source).kind == "train_loop_per_worker"


@pytest.mark.parametrize(
    "line",
    [
        "import tensorflow as tf; s = tf.distribute.MirroredStrategy()",
        "import tensorflow as tf; s = tf.distribute.experimental.ParameterServerStrategy(r)",
        "from tensorflow import distribute as d; s = d.MultiWorkerMirroredStrategy()",
        "from tensorflow.distribute import MirroredStrategy; s = MirroredStrategy()",
    ],
)
def test_an_own_strategy_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ScriptError, match=r"train\.py:4 makes its own tf\.distribute strategy"):
        check(tmp_path, f"{FIT}{line}\n")


def test_asking_for_the_current_strategy_is_fine(tmp_path: Path) -> None:
    check(tmp_path, f"{FIT}import tensorflow as tf\ntf.distribute.get_strategy()\n")


@pytest.mark.parametrize(
    "line",
    [
        "keras.distribution.set_distribution(d)",
        "from keras.distribution import DataParallel; DataParallel()",
        "from keras import distribution; distribution.DataParallel()",
    ],
)
def test_keras_distribution_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ScriptError, match=r"train\.py:4 uses keras\.distribution"):
        check(tmp_path, f"{FIT}{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        'import os; os.environ["KERAS_BACKEND"] = "jax"',
        'import os; os.environ.setdefault("KERAS_BACKEND", "jax")',
        'keras.config.set_backend("jax")',
    ],
)
def test_another_backend_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(ScriptError, match=r"train\.py:4 sets the Keras backend to jax"):
        check(tmp_path, f"{FIT}{line}\n")
    check(tmp_path, FIT + line.replace("jax", "tensorflow") + "\n")


def test_a_script_that_sets_tf_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"train\.py:5 sets TF_CONFIG"):
        check(tmp_path, f'{FIT}import os\nos.environ["TF_CONFIG"] = c\n')


@pytest.mark.parametrize(
    ("source", "legacy", "framework"),
    [
        ("import keras\n", False, "keras"),
        ("import keras\n", True, "keras"),
        ("import tf_keras\n", False, "tf_keras"),
        ("import tensorflow as tf\ntf.keras.Sequential()\n", False, "keras"),
        ("import tensorflow as tf\ntf.keras.Sequential()\n", True, "tf_keras"),
        ("from tensorflow.keras import layers\n", True, "tf_keras"),
        ("from tensorflow import keras\nkeras.Model()\n", True, "tf_keras"),
        ("import keras\nimport tf_keras\n", False, "both"),
        (
            'import os\nos.environ["TF_USE_LEGACY_KERAS"] = "1"\nimport tensorflow.keras\n',
            False,
            "tf_keras",
        ),
    ],
)
def test_the_framework_follows_from_imports_and_the_variable(
    tmp_path: Path, source: str, legacy: bool, framework: str
) -> None:
    assert check(tmp_path, f"{source}model.fit(x)\n", legacy=legacy).framework == framework


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("import numpy as np; np.random.default_rng()", "unseeded generator"),
        ("from numpy.random import default_rng as d; d(None)", "unseeded generator"),
        ("import numpy as np; np.random.RandomState()", "unseeded generator"),
        ("import numpy as np; np.random.seed()", "unseeded generator"),
        ("import random; random.Random()", "unseeded generator"),
        ("import os; os.listdir('data')", "unsorted listing"),
        ("keras.layers.Dropout(0.5)", "dropout"),
        ("from keras.layers import SpatialDropout2D as S; S(0.5)", "dropout"),
        ("keras.layers.LSTM(3, dropout=0.1)", "dropout"),
        ("keras.layers.RandomFlip()", "augmentation"),
        ("import tensorflow as tf; tf.image.random_hue(x, 1)", "augmentation"),
        ("keras.layers.BatchNormalization()", "batch normalization"),
        ('keras.mixed_precision.set_global_policy("mixed_bfloat16")', "mixed precision"),
        ("keras.callbacks.EarlyStopping()", "early stopping"),
        ('model.save("/data/model.keras")', "absolute path"),
        ('open("/data/log.txt", "w")', "absolute path"),
    ],
)
def test_what_matters_later_is_found_with_its_line(tmp_path: Path, line: str, kind: str) -> None:
    (finding,) = check(tmp_path, f"{FIT}{line}\n").findings
    assert (finding.kind, finding.file, finding.line) == (kind, "train.py", 4)


@pytest.mark.parametrize(
    "line",
    [
        "import numpy as np; np.random.default_rng(1)",
        "import numpy as np; np.random.rand(3)",
        "import random; random.Random(5)",
        "import os; sorted(os.listdir('data'))",
        "keras.layers.LSTM(3, dropout=0)",
        'keras.mixed_precision.set_global_policy("float32")',
        'open("/data/x.txt")',
    ],
)
def test_harmless_lines_are_not_found(tmp_path: Path, line: str) -> None:
    assert check(tmp_path, f"{FIT}{line}\n").findings == ()


@pytest.mark.parametrize(
    "call", ["model.fit(rows())", "d = rows()\nmodel.fit(d)", "model.fit(x=rows())"]
)
def test_a_generator_as_input_is_found(tmp_path: Path, call: str) -> None:
    source = f"import keras\ndef rows():\n    yield 1\n{call}\n"
    assert kinds(check(tmp_path, source)) == ["generator input"]


def test_hints_name_the_file_and_line(tmp_path: Path) -> None:
    script = check(tmp_path, f"{FIT}import numpy as np\nrng = np.random.default_rng()\n")
    assert script.hints == ("train.py:5: np.random.default_rng()",)
    assert not script.uses_early_stopping


DRAWING = f"{FIT}import tensorflow as tf\ndef aug(x): return tf.image.random_flip_up_down(x)\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("d = d.map(aug, num_parallel_calls=4).batch(8)", True),
        ("d = d.batch(8).map(aug, tf.data.AUTOTUNE)", True),
        ("d = d.map(aug, num_parallel_calls=None)", False),
        ("d = d.map(aug)", False),
        ("d = pool.map(aug, rows)", False),
        ("d = d.map(aug, num_parallel_calls=4)\nimport random; random.Random()", False),
    ],
)
def test_draws_in_a_parallel_map_are_told_apart_from_other_causes(
    tmp_path: Path, line: str, found: bool
) -> None:
    draws = check(tmp_path, f"{DRAWING}{line}\n").parallel_draws
    assert [each.startswith("train.py:6: d.") for each in draws] == [True] * found


def test_a_parallel_map_without_draws_is_harmless(tmp_path: Path) -> None:
    script = check(tmp_path, f"{FIT}d = d.map(read, num_parallel_calls=4)\n")
    assert script.parallel_draws == ()


def test_the_shipped_folder_is_the_current_one_if_the_script_lies_in_it(tmp_path: Path) -> None:
    script = check(tmp_path, name="jobs/süß train.py")
    assert script.root == tmp_path
    assert script.name == "jobs/süß train.py"
    elsewhere = check_script(script.path, Path("/etc"), home=Path("/home/ada"))
    assert elsewhere.root == tmp_path / "jobs"


def test_a_whole_home_folder_is_not_shipped(tmp_path: Path) -> None:
    path = check(tmp_path, name="project/train.py").path
    assert check_script(path, tmp_path, home=tmp_path).root == tmp_path / "project"
    assert check_script(path, Path("/"), home=tmp_path).root == tmp_path / "project"


def test_a_whole_machine_is_not_shipped() -> None:
    with pytest.raises(ScriptError, match=r"lies in / itself.*Move it to a folder of its own"):
        _refuse_place(Path("/train.py"), Path("/"))


def test_an_unreadable_encoding_that_is_declared_still_parses(tmp_path: Path) -> None:
    check(tmp_path, "# coding: latin-1\nname = 'ü'\n".encode("latin-1") + FIT.encode())


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_content_passes_or_is_refused_never_worse(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    try:
        check(tmp_path_factory.getbasetemp(), content)
    except ScriptError as error:
        assert str(error)
