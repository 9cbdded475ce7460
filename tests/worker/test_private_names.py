"""Fails loudly where a new version of Keras moves a private name that the engine touches."""

import inspect
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

KERAS = """
import inspect, keras
from keras.src import tree
from keras.src.backend.common import KerasVariable
from keras.src.models import Functional
from keras.src.backend.tensorflow import trainer as t
from keras.src.losses import loss
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
T, I, B = t.TensorFlowTrainer, t.TFEpochIterator, keras.layers.BatchNormalization
for cls, names in {
    T: "train_step test_step predict_step make_train_function make_test_function fit evaluate "
       "predict compile train_on_batch test_on_batch predict_on_batch _get_metrics_result_or_logs "
       "_resolve_auto_jit_compile",
    I: "__init__ _enumerate_iterator catch_stop_iteration",
    BaseOptimizer: "apply apply_gradients save_own_variables add_variable_from_reference",
    Functional: "_standardize_inputs",
    KerasVariable: "assign",
    keras.metrics.Metric: "update_state result reset_state __call__",
    keras.metrics.Mean: "update_state",
    B: "_moments call",
}.items():
    for name in names.split():
        assert callable(getattr(cls, name)), (cls, name)
assert isinstance(KerasVariable.value, property)
assert "is_memory_sufficient(model)" in inspect.getsource(saving_lib._save_model_to_fileobj)
assert callable(saving_lib.weight_memory_size)
assert list(inspect.signature(loss.apply_mask).parameters) == [
    "sample_weight", "mask", "dtype", "reduction"]
assert list(inspect.signature(loss.reduce_values).parameters) == [
    "values", "sample_weight", "reduction"]
assert "apply_mask(" in inspect.getsource(loss.reduce_weighted_values)
assert "reduce_values(" in inspect.getsource(loss.reduce_weighted_values)
assert "_distributed_dataset" in inspect.getsource(I._get_iterator)
assert "data_adapter" in inspect.getsource(I.__init__)
assert "_get_metrics_result_or_logs" in inspect.getsource(T.fit)
assert "_get_metrics_result_or_logs" in inspect.getsource(T.evaluate)
assert "self._moments(inputs, mask)" in inspect.getsource(B.call)
assert list(inspect.signature(B._moments).parameters) == ["self", "inputs", "mask"]
assert keras.layers.Dropout(0.5)._seed_generators[0].state.shape == (2,)
assert hasattr(keras.Sequential(), "_flatten_layers")
assert keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])._functional
"""

TF_KERAS = """
import inspect, tf_keras
from tf_keras.src.engine import data_adapter as d
from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase as B
from tf_keras.src.metrics import base_metric
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
from tf_keras.src.optimizers.optimizer import _BaseOptimizer
from tf_keras.src import losses
from tf_keras.src.utils import losses_utils as u, metrics_utils
M, H = tf_keras.Model, d.DataHandler
for cls, names in {
    M: "train_step test_step predict_step make_train_function fit evaluate predict compile "
       "train_on_batch test_on_batch _validate_and_get_metrics_result _flatten_layers",
    H: "__init__ enumerate_epochs steps catch_stop_iteration",
    OptimizerV2: "apply_gradients", _BaseOptimizer: "apply_gradients",
    B: "call _calculate_mean_and_var _get_training_value",
    metrics_utils: "result_wrapper",
}.items():
    for name in names.split():
        assert callable(getattr(cls, name)), (cls, name)
assert list(inspect.signature(u.apply_valid_mask).parameters) == [
    "losses", "sw", "mask", "reduction"]
assert "reduce_weighted_loss(" in inspect.getsource(u.compute_weighted_loss)
assert "losses_utils.apply_valid_mask(" in inspect.getsource(losses.Loss.__call__)
assert "metrics_utils.result_wrapper(" in inspect.getsource(base_metric.Metric.__new__)
assert tf_keras.metrics.Mean.__mro__[1].__name__ == "Reduce"
assert "_validate_and_get_metrics_result" in inspect.getsource(M.fit)
assert "_validate_and_get_metrics_result" in inspect.getsource(M.evaluate)
assert "self._dataset" in inspect.getsource(H.enumerate_epochs)
assert "_initial_step" in inspect.getsource(H.steps)
assert d.GeneratorDataAdapter and d.DatasetAdapter
g = tf_keras.layers.Dropout(0.5)._random_generator
assert hasattr(g, "_seed") and hasattr(g, "_maybe_init")
"""


TENSORFLOW = """
import inspect
import tensorflow as tf
from tensorflow.python.autograph.operators import control_flow as c
from tensorflow.python.data.ops.dataset_ops import DatasetV2
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
assert "for_loop_registry.lookup" in inspect.getsource(c.for_stmt)
loop = c.for_loop_registry._registry[DatasetV2]
assert list(inspect.signature(loop).parameters) == [
    "ds", "extra_test", "body", "get_state", "set_state", "symbol_names", "opts"]
assert "body(iterate)" in inspect.getsource(loop)
for name in ("__next__", "get_next", "get_next_as_optional"):
    assert name in vars(OwnedIterator), name
assert "__iter__" in vars(DatasetV2) and "__call__" in vars(Function)
assert isinstance(tf.function(lambda: 1), Function)
ds = tf.data.Dataset.range(4).map(lambda i: i).batch(2).prefetch(1)
kinds = [type(ds).__name__, type(ds._inputs()[0]).__name__]
assert kinds == ["_PrefetchDataset", "_BatchDataset"], kinds
seen = []
tf.function(lambda given: seen.append(type(given).__name__))(ds)
assert seen == ["_VariantDataset"], seen
assert "gradient" in vars(tf.GradientTape)
"""


@pytest.mark.parametrize(
    "names", [KERAS, TF_KERAS, TENSORFLOW], ids=["keras", "tf_keras", "tensorflow"]
)
def test_private_names_are_where_they_were(names):
    checked = subprocess.run(
        [sys.executable, "-c", inspect.cleandoc(names)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr[-2000:]
