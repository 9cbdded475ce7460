"""Parse what people type for a link, or say what is wrong with it."""

import re
from collections.abc import Callable
from typing import TypeVar

from launcher.errors import UsageError
from launcher.quantities import parse_positive, parse_price_usd_per_h

_SECONDS_BY_UNIT = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES_PER_S_BY_UNIT = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6}
_NUMBER = re.compile(r"^\s*(\d+\.?\d*|\.\d+)\s*([a-zµ]*)\s*$", re.IGNORECASE)
MAX_DELAY_S = 60.0
T = TypeVar("T")


def parse_delay_s(text: str, option: str) -> float:
    """A delay in seconds: `20ms`, `0.5ms`, `80us`, `1s`, `0`."""
    seconds = 0.0 if text.strip() == "0" else _quantity(text, _SECONDS_BY_UNIT)
    if seconds is None or seconds > MAX_DELAY_S:
        raise UsageError(
            f"{option} {text!r} is not a delay of up to {MAX_DELAY_S:g} s. Write for example "
            f"{option} 20ms."
        )
    return seconds


def parse_rate_bytes_per_s(text: str, option: str) -> float:
    """A rate in bytes per second: `50mbit`, `1gbit`, `none` (0: no limit)."""
    if text.strip().lower() == "none":
        return 0.0
    rate = _quantity(text, _BYTES_PER_S_BY_UNIT)
    if not rate:
        raise UsageError(
            f"{option} {text!r} is not a rate. Write for example {option} 100mbit, 1gbit, or none "
            "for no limit."
        )
    return rate


def parse_loss(text: str, option: str) -> float:
    """A share of packets: `1%`, `0.01`, below 1."""
    word = text.strip()
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(%?)", word)
    share = float(match[1]) / (100 if match[2] else 1) if match else 1.0
    if share >= 1:
        raise UsageError(f"{option} {text!r} is not a share of packets. Write for example 1%.")
    return share


def parse_cpus(text: str, option: str) -> float | None:
    """Cores that a host may use: `0.45`, or None for `all`."""
    return None if text.strip().lower() == "all" else parse_positive(text, option)


def parse_price(text: str, option: str) -> float:
    """US dollars an hour."""
    return parse_price_usd_per_h(text.strip(), option)


def per_host(text: str, option: str, n_hosts: int, parse: Callable[[str, str], T]) -> tuple[T, ...]:
    """One value for all hosts, or one for each, with commas between."""
    words = text.split(",")
    if len(words) == 1:
        words *= n_hosts
    if len(words) != n_hosts:
        raise UsageError(
            f"{option} {text} has {len(words)} values for {n_hosts} hosts. Give one for each, or "
            "one for all."
        )
    return tuple(parse(word, option) for word in words)


def _quantity(text: str, size_by_unit: dict[str, float]) -> float | None:
    match = _NUMBER.match(text)
    unit = size_by_unit.get(match[2].lower()) if match else None
    return None if match is None or unit is None else float(match[1]) * unit
