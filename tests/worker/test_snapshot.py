import hashlib
import io
import json
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from launcher.errors import RecordError
from launcher.worker import snapshot


def round_trip(value: object) -> object:
    return snapshot.load(snapshot.dump({"value": value}))["value"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
arrays = npst.arrays(
    npst.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufc"),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


@given(st.dictionaries(st.text(max_size=4), plain, max_size=4))
def test_plain_values_come_back_as_they_were(state: dict[str, object]) -> None:
    assert snapshot.is_plain(state)
    assert snapshot.load(snapshot.dump(state)) == state


@given(arrays)
def test_arrays_come_back_bit_by_bit(array: np.ndarray) -> None:
    found = round_trip(array)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


def test_arrays_of_bfloat16_come_back() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).astype(ml_dtypes.bfloat16)
    found = round_trip(array)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (ml_dtypes.bfloat16, (2, 3))
    assert (found == array).all()


def test_a_restored_array_can_be_written_to() -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16):
        found = round_trip(np.zeros(3, dtype))
        assert isinstance(found, np.ndarray)
        found[0] = 1


def test_numbers_of_numpy_come_back_as_pythons() -> None:
    assert round_trip(np.float32(0.5)) == 0.5
    assert round_trip(np.int64(7)) == 7
    assert round_trip(np.bool_(True)) is True


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), 1e-310, 0.1 + 0.2])
def test_unusual_numbers_come_back(number: float) -> None:
    assert round_trip(number) == number


def test_nan_comes_back_in_lists_and_arrays() -> None:
    found = round_trip([float("nan"), np.array([np.nan, 1.0])])
    assert isinstance(found, list)
    assert np.isnan(found[0])
    assert np.isnan(found[1][0])


def test_the_states_of_random_generators_come_back() -> None:
    states = {"python": random.getstate(), "numpy": np.random.get_state()}
    found = snapshot.load(snapshot.dump(states))
    before = random.random(), np.random.random()
    random.setstate(found["python"])
    np.random.set_state(found["numpy"])
    assert (random.random(), np.random.random()) == before


def test_many_arrays_keep_their_places() -> None:
    state = {"weights": [np.full(2, i) for i in range(30)], "nested": ({"x": np.ones(1)}, 2)}
    found = snapshot.load(snapshot.dump(state))
    assert [int(array[0]) for array in found["weights"]] == list(range(30))
    assert isinstance(found["nested"], tuple)
    assert found["nested"][0]["x"] == 1


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, [set()], np.array([object()]), b"bytes", lambda: 0]
)
def test_what_cannot_be_kept_is_known(value: object) -> None:
    assert not snapshot.is_plain(value)


def whole() -> bytes:
    return snapshot.dump({"weights": [np.arange(100.0)], "epoch": 3})


@pytest.mark.parametrize(
    "damaged",
    [b"", b"PK\x03\x04", b"no archive at all", whole()[:200], whole()[:-30], b"\x93NUMPY"],
)
def test_damaged_bytes_are_told(damaged: bytes) -> None:
    with pytest.raises(RecordError, match=r"damaged.*earlier one"):
        snapshot.load(damaged)


@given(st.data())
def test_whatever_byte_is_damaged_it_is_told(data: st.DataObject) -> None:
    content = bytearray(whole())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RecordError, match="damaged"):
        snapshot.load(bytes(content))


@given(st.integers(0, len(whole()) - 1))
def test_wherever_it_is_cut_off_it_is_told(length: int) -> None:
    with pytest.raises(RecordError, match="damaged"):
        snapshot.load(whole()[:length])


def test_its_position_can_be_read_alone() -> None:
    state = {"position": {"fit": 0, "epoch": 2, "step": 7}, "weights": [np.ones(3)]}
    assert snapshot.position(snapshot.dump(state)) == state["position"]
    with pytest.raises(RecordError, match="damaged"):
        snapshot.position(whole())


def test_what_reads_zip_files_can_read_it() -> None:
    with np.load(io.BytesIO(whole())) as bundle:
        assert bundle["a0"].tobytes() == np.arange(100.0).tobytes()


def sealed(**arrays: Any) -> bytes:
    """An archive of other content than a snapshot's, whole."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    return content + snapshot.SEAL + hashlib.sha256(content).digest()


def test_an_archive_of_something_else_is_told() -> None:
    with pytest.raises(RecordError, match="damaged"):
        snapshot.load(sealed(weights=np.ones(3)))


@pytest.mark.parametrize("document", ["[]", "3", '{"format": 1}', '{"format": 1, "state": [7]}'])
def test_a_state_of_another_shape_is_told(document: str) -> None:
    content = np.frombuffer(document.encode(), dtype=np.uint8)
    with pytest.raises(RecordError, match="damaged"):
        snapshot.load(sealed(**{snapshot.STATE: content}))


def test_a_later_format_is_named() -> None:
    document = json.dumps({"format": snapshot.FORMAT + 1, "state": {}})
    content = np.frombuffer(document.encode(), dtype=np.uint8)
    with pytest.raises(RecordError, match="has format 2, this launcher reads up to 1"):
        snapshot.load(sealed(**{snapshot.STATE: content}))
