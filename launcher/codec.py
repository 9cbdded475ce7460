"""Frozen dataclasses to JSON values and back, tolerant of what other versions wrote.

A reader ignores unknown keys and gives missing ones their default. JSON has no infinity and no
NaN: such a float becomes a string and turns back.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class DecodeError(ValueError):
    """A JSON document does not fit its dataclass."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How dataclasses appear as JSON objects.

    Attributes:
        flat: fields, by class, whose own keys appear in the object that holds them.
    """

    flat: Mapping[type, frozenset[str]] = field(default_factory=dict)

    def encode(self, value: Any) -> Any:
        """A JSON value; fields with the metadata `record: False` are left out."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._encode_fields(value)
        if isinstance(value, Mapping):
            return {str(key): self.encode(item) for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            return [self.encode(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, Path):
            return str(value)
        return value

    def decode(self, cls: type[T], data: Any) -> T:
        """The dataclass that a JSON object stands for.

        Raises:
            DecodeError: a key without a default is missing, or a value is of another type.
        """
        if not isinstance(data, dict):
            raise DecodeError(f"{cls.__name__} should be an object and is {data!r:.60}")
        hints = typing.get_type_hints(cls)
        values: dict[str, Any] = {}
        for each in dataclasses.fields(cls):  # type: ignore[arg-type] # T is a dataclass
            if each.name in self.flat.get(cls, ()):
                values[each.name] = self.decode(hints[each.name], data)
            elif each.name in data and each.metadata.get("record", True):
                values[each.name] = self._decode_as(hints[each.name], data[each.name], each.name)
            elif _is_required(each):
                raise DecodeError(f"{cls.__name__} lacks {each.name!r}")
        return cls(**values)

    def _encode_fields(self, value: Any) -> dict[str, Any]:
        encoded: dict[str, Any] = {}
        for each in dataclasses.fields(value):
            item = self.encode(getattr(value, each.name))
            if not each.metadata.get("record", True):
                continue
            if each.name in self.flat.get(type(value), ()):
                encoded.update(item)
            else:
                encoded[each.name] = item
        return encoded

    def _decode_as(self, hint: Any, data: Any, name: str) -> Any:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is Any or origin is typing.Literal:  # a later version may know more words
            return data
        if origin in (typing.Union, types.UnionType):
            return self._decode_union(arguments, data, name)
        if origin is tuple:
            return self._decode_tuple(arguments, data, name)
        if origin is not None and issubclass(origin, Mapping):
            if not isinstance(data, dict):
                raise DecodeError(f"{name!r} should be an object and is {data!r:.60}")
            return {key: self._decode_as(arguments[1], item, name) for key, item in data.items()}
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.decode(hint, data)
        return _decode_scalar(hint, data, name)

    def _decode_union(self, arguments: tuple[Any, ...], data: Any, name: str) -> Any:
        if data is None and type(None) in arguments:
            return None
        hints = [hint for hint in arguments if hint is not type(None)]
        return self._decode_as(hints[0], data, name)

    def _decode_tuple(self, arguments: tuple[Any, ...], data: Any, name: str) -> Any:
        if not isinstance(data, list):
            raise DecodeError(f"{name!r} should be a list and is {data!r:.60}")
        return tuple(self._decode_as(arguments[0], item, name) for item in data)


def _is_required(each: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return each.default is missing and each.default_factory is missing


def _decode_scalar(hint: Any, data: Any, name: str) -> Any:
    """A number, a truth value, a text or a path."""
    if hint is Path and isinstance(data, str):
        return Path(data)
    if hint is float and isinstance(data, (int, float, str)) and not isinstance(data, bool):
        return _number(data, name)
    if hint is int and isinstance(data, bool):
        raise DecodeError(f"{name!r} should be a whole number and is {data!r}")
    if not isinstance(data, hint):
        raise DecodeError(f"{name!r} should be of type {hint.__name__} and is {data!r:.60}")
    return data


def _number(data: float | str, name: str) -> float:
    try:
        return float(data)
    except ValueError:
        raise DecodeError(f"{name!r} should be a number and is {data!r:.60}") from None
