"""The engine's own checks, with ranks as threads or alone."""

import numpy as np
import pytest
import tensorflow as tf

from launcher.errors import ScriptError
from launcher.worker.data_parallel import DataParallel
from launcher.worker.exchange.alone import Alone
from launcher.worker.exchange.collective import _summable
from launcher.worker.metric_sums import weighted_logs
from tests.worker.fakes import on_ranks


def test_shares_match_the_number_of_workers():
    with pytest.raises(ValueError, match="2 shares for 1 workers"):
        DataParallel(Alone(), shares=[1, 1])


def test_install_comes_first():
    with pytest.raises(ValueError, match="install"):
        DataParallel(Alone()).data_hash()


def test_other_data_on_one_rank_raises_on_every_rank():
    def on_rank(exchange):
        parallel = DataParallel(exchange)
        parallel.install([])
        parallel.check_data()
        parallel.state.digest.assign(int(exchange.rank == 2))
        with pytest.raises(ScriptError, match="Worker 2 saw other training data"):
            parallel.check_data()
        return True

    assert on_ranks(3, on_rank) == [True] * 3


def test_a_worker_alone_agrees_with_itself():
    parallel = DataParallel(Alone())
    parallel.install([])
    parallel.request(3)
    assert parallel.agreed() == 3
    parallel.reset()
    assert parallel.agreed() == 0


def test_logs_are_weighted_and_others_kept():
    def on_rank(exchange):
        logs = {"loss": np.float32(exchange.rank), "name": "x", "nan": np.nan}
        return weighted_logs(exchange, logs, [1.0, 0.0][exchange.rank])

    for logs in on_ranks(2, on_rank):
        assert logs["loss"] == 0.0
        assert logs["name"] == "x"
        assert np.isnan(logs["nan"])


@pytest.mark.parametrize("name", ["bool", "int8", "uint8", "uint32", "int64", "float16", "float64"])
def test_arrays_travel_without_loss(name):
    dtype = np.dtype(name)
    values = np.array([0, 1], dtype)
    assert (values.astype(_summable(dtype)).astype(dtype) == values).all()
    assert _summable(np.dtype(tf.bfloat16.as_numpy_dtype)) == np.float32


def test_strings_cannot_be_summed():
    with pytest.raises(ValueError, match="cannot be summed"):
        _summable(np.dtype("U3"))
