"""Turn the state of training into bytes and back, without creating a TensorFlow variable.

A snapshot is an `.npz` file: arrays under numbered names, and `state.json`, in which an array
stands as {"__array__": name} and a tuple as {"__tuple__": […]}. Behind it stand `SEAL` and the
SHA-256 of all that comes before, so that damage shows without unpacking anything. What reads zip
files ignores those 40 bytes.
"""

import contextlib
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from launcher.errors import RecordError

FORMAT = 1
STATE = "state.json"
SEAL = b"sha256:\n"
READ_BYTES = 1 << 20
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size
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
    buffer = io.BytesIO()
    write(state, buffer)
    return buffer.getvalue()


def write(state: dict[str, Any], stream: IO[bytes]) -> None:
    """Write what `dump` packs; no array is copied as a whole.

    Args:
        state: to be packed.
        stream: empty, to be written, read and sought in.
    """
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps({"format": FORMAT, "state": _encode(state, arrays)})
    arrays[STATE] = np.frombuffer(text.encode(), dtype=np.uint8)
    np.savez(stream, **arrays)  # type: ignore[arg-type] # names are not known to be arrays
    stream.seek(0)
    digest = hashlib.sha256()
    while piece := stream.read(READ_BYTES):
        digest.update(piece)
    stream.write(SEAL + digest.digest())


def load(data: bytes) -> dict[str, Any]:
    """Read what `dump` wrote.

    Raises:
        RecordError: the bytes are damaged or of a later format.
    """
    with _opened(data) as (state, bundle):
        return dict(_decode(state, bundle))


def position(data: bytes) -> dict[str, Any]:
    """The "position" in a snapshot, which holds no array; the rest is verified, not unpacked.

    Raises:
        RecordError: the bytes are damaged or of a later format.
    """
    with _opened(data) as (state, bundle):
        return dict(_decode(state["position"], bundle))


@contextlib.contextmanager
def _opened(data: bytes) -> Iterator[tuple[Any, Any]]:
    """The encoded state of a snapshot that is whole, and its arrays."""
    _verify(data)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as bundle:
            document = json.loads(bundle[STATE].tobytes().decode())
            if document["format"] > FORMAT:
                raise RecordError(
                    f"The checkpoint has format {document['format']}, this launcher reads up to "
                    f"{FORMAT}. Update the launcher."
                )
            yield document["state"], bundle
    except DAMAGE as error:
        raise RecordError(f"The checkpoint is damaged ({error}). Use an earlier one.") from error


def _verify(data: bytes) -> None:
    content, seal = memoryview(data)[:-SEAL_BYTES], data[-SEAL_BYTES:]
    if not seal.startswith(SEAL):
        raise RecordError(
            f"The checkpoint is damaged (it ends after {len(data):,} bytes). Use an earlier one."
        )
    if hashlib.sha256(content).digest() != seal[len(SEAL) :]:
        raise RecordError("The checkpoint is damaged (its checksum is wrong). Use an earlier one.")


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
            arrays[name] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
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
