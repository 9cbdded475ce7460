import pytest

from launcher.worker.profiling import _max_workers


@pytest.mark.parametrize(
    ("given", "what"), [("x", "the input is"), ("validation_data", "the validation data are")]
)
def test_data_from_a_generator_are_for_one_worker(given: str, what: str) -> None:
    n_workers, reason = _max_workers({"x": [1], given: (row for row in [1])}, 32)
    assert n_workers == 1
    assert reason is not None
    assert reason.startswith(f"{what} a Python generator")


def test_a_batch_has_a_row_for_each_worker() -> None:
    assert _max_workers({"x": [1], "validation_data": ([1], [2])}, 32) == (
        32,
        "a batch has 32 rows",
    )
