"""Numbers for tables and lines: short, with their unit, never broken across lines."""

import math

from policies.schema import Interval
from policies.wording import dollars

_UNITS = (
    (1e-4, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (100.0, 1.0, "s"),
    (6000.0, 60.0, "min"),
    (float("inf"), 3600.0, "h"),
)
_BIT_UNITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))


def time_text(seconds: float) -> str:
    """A time with two to three figures: `23 µs`, `71 ms`, `12 s`, `19 min`, `2.3 h`."""
    scale, unit = _unit(seconds)
    return f"{_number(seconds / scale)} {unit}"


def clock_text(seconds: float) -> str:
    """A time that was measured, to the second: `41 s`, `18 min 52 s`, `1 h 5 min`."""
    if not math.isfinite(seconds):
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def age_text(seconds: float) -> str:
    """How long ago: `just now`, `5 min ago`, `3 h ago`, `12 days ago`."""
    for scale, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= scale * (2 if unit == "days" else 1):
            return f"{seconds / scale:.0f} {unit} ago"
    return "just now"


def time_interval(interval: Interval) -> str:
    """A mean with its bounds in one unit: `119 ms (112–127)`."""
    scale, unit = _unit(interval.mean)
    low, high = _number(interval.low / scale), _number(interval.high / scale)
    return f"{_number(interval.mean / scale)} {unit}{_bounds(low, high)}"


def money_interval(interval: Interval) -> str:
    """An amount with its bounds: `$0.31 (0.29–0.34)`; nothing but `$0` where all is free."""
    if interval.high == 0:
        return "$0"
    low, high = (dollars(value).removeprefix("$") for value in (interval.low, interval.high))
    return f"{dollars(interval.mean)}{_bounds(low, high)}"


def price_text(usd_per_h: float) -> str:
    """A node's price: `$0.34/h`."""
    return f"{dollars(usd_per_h)}/h"


def money_limit(usd: float) -> str:
    """A budget as people say it: `$5`, `$0.50`."""
    return f"${usd:,.0f}" if float(usd).is_integer() else dollars(usd)


def bandwidth_text(bytes_per_s: float) -> str:
    """A bandwidth in bits, as network people count: `180 Mbit/s`, `4.8 Gbit/s`."""
    scale, unit = _bit_unit(bytes_per_s)
    return f"{_number(8 * bytes_per_s / scale)} {unit}"


def bandwidth_interval(interval: Interval) -> str:
    """A bandwidth with its bounds in one unit: `180 Mbit/s (150–210)`."""
    scale, unit = _bit_unit(interval.mean)
    mean, low, high = (_number(8 * x / scale) for x in (interval.mean, interval.low, interval.high))
    return f"{mean} {unit}{_bounds(low, high)}"


def count_text(n: int) -> str:
    """A large number: `1.2 M`, `12.3 k`, `950`."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if n >= scale:
            return f"{n / (1e3 if unit == 'k' else scale):.1f} {unit}"
    return f"{n:,}"


def metric_text(value: float) -> str:
    """A metric with four figures."""
    return f"{value:.4g}"


def _bounds(low: str, high: str) -> str:
    return "" if low == high else f" ({low}–{high})"


def _unit(seconds: float) -> tuple[float, str]:
    found = (each[1:] for each in _UNITS if seconds < each[0])
    return next(found, _UNITS[-1][1:])  # what is no number is less than nothing


def _bit_unit(bytes_per_s: float) -> tuple[float, str]:
    return next((each for each in _BIT_UNITS if 8 * bytes_per_s >= each[0]), _BIT_UNITS[-1])


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 9.95 else f"{value:,.0f}"
