"""A search space: typed parameters, some of which count only where others have certain values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Value = str | int | float | bool
UNUSED = 0.5  # the coordinate of a parameter that a configuration does not have


@dataclass(frozen=True, slots=True)
class Condition:
    """A parameter counts only where another one has one of these values."""

    name: str
    values: tuple[Value, ...]

    def holds(self, params: Mapping[str, Value]) -> bool:
        """Whether the other parameter has such a value; one that does not count has none."""
        return self.name in params and params[self.name] in self.values


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; on a logarithmic scale, or in steps."""

    name: str
    low: float
    high: float
    is_int: bool = False
    log: bool = False
    step: float | None = None
    default: float | None = None
    when: tuple[Condition, ...] = ()

    def has(self, value: Any) -> bool:
        """Whether a value is a number of this range."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_inside = is_number and bool(self.low <= value <= self.high)
        return is_inside and self._is_whole(value) and self._is_on_step(value)

    def _is_whole(self, value: float) -> bool:
        return not self.is_int or float(value).is_integer()

    def _is_on_step(self, value: float) -> bool:
        n_steps = 0.0 if self.step is None else (value - self.low) / self.step
        return abs(n_steps - round(n_steps)) < 1e-6

    def encode(self, value: Value) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        number = float(value)
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        if self.is_int:
            return (number - self.low + 0.5) / (self.high - self.low + 1)
        return (number - self.low) / (self.high - self.low)

    def decode(self, u: float) -> Value:
        """The value at a place from 0 to 1."""
        number: float
        if self.log:
            number = self.low * (self.high / self.low) ** u
        elif self.is_int:
            number = self.low + math.floor(min(u, 1 - 1e-9) * (self.high - self.low + 1))
        else:
            number = self.low + u * (self.high - self.low)
        if self.step is not None:
            n_steps = math.floor((self.high - self.low) / self.step + 1e-9)
            number = self.low + min(round((number - self.low) / self.step), n_steps) * self.step
        number = min(max(number, self.low), self.high)
        return round(number) if self.is_int else number


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, without an order."""

    name: str
    values: tuple[Value, ...]
    default: Value | None = None
    when: tuple[Condition, ...] = ()

    def has(self, value: Any) -> bool:
        """Whether it is one of the values."""
        return value in self.values

    def encode(self, value: Value) -> float:
        """The middle of the value's part of 0 to 1."""
        return (self.values.index(value) + 0.5) / len(self.values)

    def decode(self, u: float) -> Value:
        """The value whose part of 0 to 1 this is."""
        return self.values[min(int(u * len(self.values)), len(self.values) - 1)]


Parameter = Range | Choice


@dataclass(frozen=True, slots=True)
class Space:
    """What may be tuned, in the file's order; `fixed` parameters are the same in every trial."""

    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, Value]

    def active(self, params: Mapping[str, Value]) -> tuple[Parameter, ...]:
        """The parameters that count, given the values of those before them."""
        known = dict(self.fixed)
        found: list[Parameter] = []
        for each in self.parameters:
            if not all(condition.holds(known) for condition in each.when):
                continue
            found.append(each)
            if each.name in params:
                known[each.name] = params[each.name]
        return tuple(found)

    @property
    def defaults(self) -> dict[str, Value]:
        """The values that the file calls the defaults; empty if it names none."""
        named = {each.name: each.default for each in self.parameters}
        known = {name: value for name, value in named.items() if value is not None}
        return {each.name: known[each.name] for each in self.active(known) if each.name in known}

    def encode(self, params: Mapping[str, Value]) -> tuple[float, ...]:
        """A configuration as a point of the unit cube, `(n_parameters,)`."""
        return tuple(
            each.encode(params[each.name]) if each.name in params else UNUSED
            for each in self.parameters
        )

    def decode(self, point: Sequence[float]) -> dict[str, Value]:
        """The configuration at a point of the unit cube."""
        params: dict[str, Value] = {}
        for each, u in zip(self.parameters, point, strict=True):
            if all(condition.holds({**self.fixed, **params}) for condition in each.when):
                params[each.name] = each.decode(min(max(float(u), 0.0), 1.0))
        return params
