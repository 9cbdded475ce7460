"""Turn the state of training into bytes and back, without creating a TensorFlow variable.

A snapshot is an `.npz` file: arrays under numbered names, and `state.json`, in which an array
stands as {"__array__": name} and a tuple as {"__tuple__": […]}.
"""

import io
import json
import zipfile
import zlib
from typing import Any

import numpy as np

from launcher.errors import RecordError

FORMAT = 1
STATE = "state.json"
# What reading a damaged archive can raise: a wrong header looks like an unknown compression
# (NotImplementedError), an encrypted file (RuntimeError) or another kind of value (TypeError).
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)


def dump(state: dict[str, Any]) -> bytes:
    """Pack nested dicts, lists, tuples, numbers, strings and arrays."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps({"format": FORMAT, "state": _encode(state, arrays)})
    buffer = io.BytesIO()
    arrays[STATE] = np.frombuffer(text.encode(), dtype=np.uint8)
    np.savez(buffer, **arrays)  # type: ignore[arg-type] # names are not known to be arrays
    return buffer.getvalue()


def load(data: bytes) -> dict[str, Any]:
    """Read what `dump` wrote.

    Raises:
        RecordError: the bytes are damaged or of a later format.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as bundle:
            document = json.loads(bundle[STATE].tobytes().decode())
            if document["format"] > FORMAT:
                raise RecordError(
                    f"The checkpoint has format {document['format']}, this launcher reads up to "
                    f"{FORMAT}. Update the launcher."
                )
            return dict(_decode(document["state"], bundle))
    except DAMAGE as error:
        raise RecordError(f"The checkpoint is damaged ({error}). Use an earlier one.") from error


def is_plain(value: Any) -> bool:
    """Whether `dump` can keep this value."""
    if value is None or isinstance(value, (bool, int, float, str, np.ndarray, np.generic)):
        return not (isinstance(value, np.ndarray) and value.dtype == object)
    if isinstance(value, (list, tuple)):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return False


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        if value.dtype.kind == "V" or value.dtype.name in ("bfloat16",):  # not known to npz
            arrays[name] = np.frombuffer(value.tobytes(), dtype=np.uint8)
            return {"__array__": name, "dtype": value.dtype.name, "shape": list(value.shape)}
        arrays[name] = value
        return {"__array__": name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        items = [_encode(item, arrays) for item in value]
        return {"__tuple__": items} if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: _encode(item, arrays) for key, item in value.items()}
    return value


def _decode(value: Any, bundle: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item, bundle) for item in value]
    if not isinstance(value, dict):
        return value
    if "__array__" in value:
        array = bundle[value["__array__"]]
        if "dtype" in value:
            import ml_dtypes

            dtype = getattr(ml_dtypes, value["dtype"])
            return np.frombuffer(array.tobytes(), dtype=dtype).reshape(value["shape"]).copy()
        return array
    if "__tuple__" in value:
        return tuple(_decode(item, bundle) for item in value["__tuple__"])
    return {key: _decode(item, bundle) for key, item in value.items()}
