"""Numbers as people say them, for the one line of reason and for explanations."""

from typing import Final

from policies.schema import Plan

_WORDS: Final = (
    "no", "one", "two", "three", "four", "five", "six",
    "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_ORDINALS: Final = {
    2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth",
    9: "ninth", 10: "tenth", 11: "eleventh", 12: "twelfth",
}  # fmt: skip
_FRACTIONS: Final = {
    1 / 10: "a tenth", 1 / 5: "a fifth", 1 / 4: "a quarter", 1 / 3: "a third", 2 / 5: "two fifths",
    1 / 2: "half", 3 / 5: "three fifths", 2 / 3: "two thirds", 3 / 4: "three quarters",
}  # fmt: skip
# A fraction in words is at most this far (relative) from the number.
CLOSE: Final = 0.06


def count(n: int) -> str:
    """A number as a word up to twelve."""
    return _WORDS[n] if 0 <= n < len(_WORDS) else f"{n:,}"


def ordinal(n: int) -> str:
    """A rank with its article: "a third", "a 13th"."""
    if n in _ORDINALS:
        return f"{'an' if n in (8, 11) else 'a'} {_ORDINALS[n]}"
    last = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"a {n}{'th' if n % 100 in (11, 12, 13) else last}"


def workers(n: int) -> str:
    """`1 worker`, `4 workers`."""
    return f"{n:,} worker{'' if n == 1 else 's'}"


def share(ratio: float) -> str:
    """A part of something: "a third of", "half", "92 % of"."""
    for value, words in _FRACTIONS.items():
        if abs(ratio / value - 1.0) <= CLOSE:
            return words if words == "half" else f"{words} of"
    return f"{100 * ratio:.0f} % of"


def exchange_name(plan: Plan) -> str:
    """How a plan exchanges gradients: "allreduce", "direct, two-shot"; a dash for one worker."""
    if plan.n_workers == 1:
        return "–"
    if plan.options.algorithm is None:
        return plan.strategy
    return f"{plan.strategy}, {plan.options.algorithm.replace('_', '-')}"


def times(ratio: float) -> str:
    """How many times as much: "1.4 ×", "9 ×", "120 ×"."""
    return f"{ratio:.1f} ×" if ratio < 3.95 else f"{float(f'{ratio:.2g}'):,.0f} ×"


def duration(seconds: float) -> str:
    """A time with two figures and its unit: "8 µs", "41 ms", "12 s", "5 min", "1 h 20 min"."""
    if 0.0 < seconds < 9.95e-5:
        return f"{1e6 * seconds:.{1 if seconds < 9.95e-7 else 0}f} µs"
    if seconds < 0.9995:
        return f"{1000 * seconds:.{1 if seconds < 0.00995 else 0}f} ms"
    if seconds < 99.5:
        return f"{seconds:.{1 if seconds < 9.95 else 0}f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    return f"{minutes / 60 / 24:.1f} days"


def dollars(usd: float) -> str:
    """An amount: "$1,240", "$2.34", "$0.13", "$0.034", "$0.0042"."""
    if usd == 0.0:
        return "$0"
    if usd >= 1000.0:
        return f"${usd:,.0f}"
    if usd >= 0.1:
        return f"${usd:,.2f}"
    if usd >= 0.01:
        return f"${usd:.3f}".removesuffix("0")
    return f"${usd:.4f}" if usd >= 0.0001 else "under $0.0001"


def size(n_bytes: float) -> str:
    """A size with two figures or more: "100 bytes", "340 kB", "14.7 MB"."""
    if n_bytes < 1000:
        return f"{n_bytes:.0f} bytes"
    for unit in ("kB", "MB"):
        n_bytes /= 1000
        if n_bytes < 999.5:
            return f"{n_bytes:.{1 if n_bytes < 99.5 else 0}f} {unit}"
    return f"{n_bytes / 1000:,.1f} GB"


def percent(p: float) -> str:
    """A probability as a whole percentage, never rounded to certainty."""
    if p < 0.01:
        return "under 1 %"
    if p > 0.99:
        return "over 99 %"
    return f"{100 * p:.0f} %"
