"""Reads the search space of `launch tune` from a YAML file.

learning-rate: {float: [1e-4, 1e-1], log: true, default: 0.002}
filters: {int: [8, 64], step: 8}
optimizer: {choice: [adam, sgd]}
momentum: {float: [0.5, 0.99], when: {optimizer: sgd}}
epochs: 10
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import yaml

from launcher.errors import UsageError
from launcher.search_space import Choice, Condition, Parameter, Range, Space, Value

P = TypeVar("P", Choice, Range)

KINDS = ("float", "int", "choice")
KEYS = (*KINDS, "log", "step", "default", "when")
_NAME = re.compile(r"[^\W\d][\w.-]*")  # what can stand behind -- on a command line
_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")


def read_space(text: str, file: str) -> Space:
    """The space that a YAML document describes.

    Args:
        file: its name, for messages.

    Raises:
        UsageError: it describes none; the message has line, key and value.
    """
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark is not None else file
        problem = getattr(error, "problem", None) or error
        raise UsageError(f"{where}: this is no YAML: {problem}.") from error
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(
            f"{file}: a search space is a list of `name: …` lines. Write for example "
            "learning-rate: {float: [1e-4, 1e-1], log: true}"
        )
    return _Reader(loader, file).space(root)


class _Reader:
    """Reads the entries of a file, in order."""

    def __init__(self, loader: yaml.SafeLoader, file: str) -> None:
        self._loader, self._file = loader, file
        self._parameters: list[Parameter] = []
        self._fixed: dict[str, Value] = {}

    def space(self, root: yaml.MappingNode) -> Space:
        for key, node in root.value:
            name = self._name(key)
            if name in self._known():
                raise self._error(key, f"{name} stands here for the second time. Leave one out.")
            self._entry(name, node)
        if not self._parameters:
            raise UsageError(
                f"{self._file}: there is nothing to tune. Write for example "
                "learning-rate: {float: [1e-4, 1e-1], log: true}"
            )
        return Space(tuple(self._parameters), dict(self._fixed))

    def _name(self, node: yaml.Node) -> str:
        name = self._value(node)
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise self._error(
                node,
                f"{name!r} cannot be a parameter's name. Write letters, digits, -, _ and ., and "
                "begin with a letter.",
            )
        return name

    def _entry(self, name: str, node: yaml.Node) -> None:
        if isinstance(node, yaml.ScalarNode):
            self._fixed[name] = self._scalar(name, node, self._value(node))
            return
        if isinstance(node, yaml.SequenceNode):
            self._parameters.append(Choice(name, self._values(name, node)))
            return
        assert isinstance(node, yaml.MappingNode)
        by_key = {str(self._value(key)): value for key, value in node.value}
        for key, _ in node.value:
            if str(self._value(key)) not in KEYS:
                raise self._error(
                    key, f"{name}: {self._value(key)!r} is not known. There are {', '.join(KEYS)}."
                )
        kinds = [kind for kind in KINDS if kind in by_key]
        if len(kinds) != 1:
            raise self._error(node, f"{name}: give exactly one of float, int and choice.")
        make = self._choice if kinds[0] == "choice" else self._range
        self._parameters.append(make(name, kinds[0], by_key))

    def _choice(self, name: str, kind: str, by_key: Mapping[str, yaml.Node]) -> Choice:
        for key in ("log", "step"):
            if key in by_key:
                raise self._error(by_key[key], f"{name}: a choice has no {key}. Leave it out.")
        values = self._values(name, by_key[kind])
        found = Choice(name, values, when=self._when(name, by_key.get("when")))
        return self._with_default(found, by_key.get("default"))

    def _range(self, name: str, kind: str, by_key: Mapping[str, yaml.Node]) -> Range:
        is_int, node = kind == "int", by_key[kind]
        ends = self._value(node)
        if not isinstance(ends, list) or len(ends) != 2:
            raise self._error(node, f"{name}: {kind} {ends!r} should be [lowest, highest].")
        low, high = (self._number(name, node, end, is_int=is_int) for end in ends)
        if low >= high:
            raise self._error(node, f"{name}: {low:g} is not below {high:g}.")
        log = self._log(name, by_key.get("log"))
        if log and low <= 0:
            raise self._error(node, f"{name}: a log scale begins above 0, and this at {low:g}.")
        step = self._step(name, by_key.get("step"), high - low, is_int=is_int, log=log)
        if step is not None:  # the last step may end below
            high = round(low + math.floor((high - low) / step + 1e-9) * step, 12)
        when = self._when(name, by_key.get("when"))
        found = Range(name, low, high, is_int, log, step, None, when)
        return self._with_default(found, by_key.get("default"))

    def _log(self, name: str, node: yaml.Node | None) -> bool:
        value = False if node is None else self._value(node)
        if not isinstance(value, bool):
            raise self._error(node, f"{name}: log {value!r} should be true or false.")
        return value

    def _step(
        self, name: str, node: yaml.Node | None, room: float, *, is_int: bool, log: bool
    ) -> float | None:
        if node is None:
            return None
        if log:
            raise self._error(node, f"{name}: a log scale has no step. Leave one of them out.")
        step = self._number(name, node, self._value(node), is_int=is_int)
        if not 0 < step <= room:
            raise self._error(node, f"{name}: step {step:g} should be above 0, at most {room:g}.")
        return step

    def _when(self, name: str, node: yaml.Node | None) -> tuple[Condition, ...]:
        if node is None:
            return ()
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, f"{name}: when should be like {{optimizer: sgd}}.")
        return tuple(self._condition(name, str(self._value(key)), each) for key, each in node.value)

    def _condition(self, name: str, other: str, node: yaml.Node) -> Condition:
        known = self._known()
        if other not in known:
            raise self._error(node, f"{name}: when names {other!r}, which does not stand above it.")
        value = self._value(node)
        values = tuple(value) if isinstance(value, list) else (value,)
        parameter = known[other]
        for each in values:
            if parameter is not None and not parameter.has(each):
                raise self._error(node, f"{name}: {other} is never {each!r}.")
        return Condition(other, values)

    def _with_default(self, parameter: P, node: yaml.Node | None) -> P:
        if node is None:
            return parameter
        value = _as_number(self._value(node)) if isinstance(parameter, Range) else self._value(node)
        if not parameter.has(value):
            raise self._error(node, f"{parameter.name}: default {value!r} is none of its values.")
        return replace(parameter, default=value)

    def _values(self, name: str, node: yaml.Node) -> tuple[Value, ...]:
        values = self._value(node)
        if not isinstance(values, list) or not values:
            raise self._error(node, f"{name}: choice {values!r} should be a list of values.")
        found = tuple(self._scalar(name, node, value) for value in values)
        if len(set(found)) < len(found):  # 1, 1.0 and true are the same to Python
            raise self._error(node, f"{name}: a value stands in {values!r} twice.")
        return found

    def _scalar(self, name: str, node: yaml.Node, value: Any) -> Value:
        value = _as_number(value)
        if not isinstance(value, (str, int, float, bool)):
            raise self._error(node, f"{name}: {value!r} should be a text or a number.")
        return value

    def _number(self, name: str, node: yaml.Node, value: Any, *, is_int: bool) -> float:
        number = _as_number(value)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise self._error(node, f"{name}: {value!r} is not a number.")
        if not math.isfinite(number) or (is_int and not float(number).is_integer()):
            kind = "whole" if is_int else "finite"
            raise self._error(node, f"{name}: {value!r} is not a {kind} number.")
        return float(number)

    def _known(self) -> dict[str, Parameter | None]:
        """What stands above, by name; None for what is fixed."""
        tuned: dict[str, Parameter | None] = {each.name: each for each in self._parameters}
        return {**dict.fromkeys(self._fixed), **tuned}

    def _value(self, node: yaml.Node) -> Any:
        try:
            return self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, TypeError) as error:
            problem = getattr(error, "problem", None) or error
            raise self._error(node, f"this cannot be read: {problem}.") from error

    def _error(self, node: yaml.Node | None, text: str) -> UsageError:
        line = node.start_mark.line + 1 if node is not None else 1
        return UsageError(f"{self._file}:{line}: {text}")


def _as_number(value: Any) -> Any:
    """YAML 1.1 takes `1e-3` for a text."""
    is_number = isinstance(value, str) and _EXPONENT.fullmatch(value) is not None
    return float(value) if is_number else value
