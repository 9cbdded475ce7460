"""Parse what people type for money, time, counts and sizes, or say what is wrong with it.

Each parser takes the text and the name of the option (or variable) it came from, and raises
UsageError with one line: what, with the value, then what to do.
"""

import json
import math
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from launcher.errors import UsageError

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})
MAX_BUDGET_USD = 1_000_000.0
MAX_PRICE_USD_PER_H = 10_000.0
MAX_PRICE_USD_PER_GB = 100.0
MAX_DURATION_S = 366 * 86_400.0
MAX_WORKERS = 100_000
MAX_BYTES = 2**60
_SECONDS_BY_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES_BY_UNIT = {
    "": 1,
    "b": 1,
    "k": 2**10,
    "kb": 10**3,
    "kib": 2**10,
    "m": 2**20,
    "mb": 10**6,
    "mib": 2**20,
    "g": 2**30,
    "gb": 10**9,
    "gib": 2**30,
    "t": 2**40,
    "tb": 10**12,
    "tib": 2**40,
}
_MONEY = re.compile(r"^(?:usd|(?:us)?\$)?\s*([^\s$]*?)\s*(?:usd|\$)?$", re.IGNORECASE)
_THOUSANDS = re.compile(r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$")


def parse_budget_usd(text: str, option: str) -> float:
    """US dollars: `5`, `$5`, `5usd`, `5 USD`, `0.50`."""
    amount = _money(text)
    if amount is None:
        raise UsageError(
            f"{option} {text!r} is not an amount of US dollars. Write for example {option} 5, "
            f"{option} 4.50 or {option} '$5'."
        )
    if amount <= 0:
        raise UsageError(f"{option} is {text}, and a run needs more than $0. Write {option} 5.")
    if amount > MAX_BUDGET_USD:
        raise UsageError(
            f"{option} {text} is over ${MAX_BUDGET_USD:,.0f}: is that a typo? "
            "Give at most that, or no budget at all for no limit."
        )
    return amount


def parse_price_usd_per_h(text: str, option: str) -> float:
    """US dollars an hour for one node: `0.34`, `$0.34`, `0`."""
    amount = _money(re.sub(r"\s*/\s*h(our)?$", "", text))
    if amount is None or not 0 <= amount <= MAX_PRICE_USD_PER_H:
        raise UsageError(
            f"{option} {text!r} is not a price of a node. Write US dollars an hour from 0 to "
            f"{MAX_PRICE_USD_PER_H:,.0f}, for example {option} 0.34."
        )
    return amount


def parse_price_usd_per_gb(text: str, option: str) -> float:
    """US dollars for a GB (10^9 bytes) of data: `0.09`, `$0.09`, `0`."""
    amount = _money(re.sub(r"\s*/\s*gb$", "", text, flags=re.IGNORECASE))
    if amount is None or not 0 <= amount <= MAX_PRICE_USD_PER_GB:
        raise UsageError(
            f"{option} {text!r} is not a price of data. Write US dollars per GB from 0 to "
            f"{MAX_PRICE_USD_PER_GB:g}, for example {option} 0.09."
        )
    return amount


def parse_duration_s(text: str, option: str) -> float:
    """A time span in seconds: `30m`, `1h30m`, `90s`, `2d`, or a plain number of seconds."""
    seconds = _duration_s(text)
    if seconds is None or seconds <= 0:
        raise UsageError(
            f"{option} {text!r} is not a time span. Write for example {option} 30m, 1h30m or 90s."
        )
    if seconds > MAX_DURATION_S:
        raise UsageError(
            f"{option} {text} is over a year: is that a typo? Leave it out for no limit."
        )
    return seconds


def parse_workers(text: str, option: str) -> int:
    """A number of workers, at least 1."""
    number = _whole(text)
    if number is None or number < 1:
        raise UsageError(f"{option} {text!r} is not a number of workers. Write 1 or more.")
    if number > MAX_WORKERS:
        raise UsageError(f"{option} {text} is over {MAX_WORKERS:,}: is that a typo?")
    return number


def parse_auto_workers(text: str, option: str) -> int | None:
    """A number of workers, or None for `auto`."""
    if text.strip().lower() == "auto":
        return None
    number = _whole(text)
    if number is None or number < 1:
        raise UsageError(
            f"{option} {text!r} is not a number of workers. Write 1 or more, or auto to let "
            "launch choose."
        )
    return parse_workers(text, option)


def parse_count(text: str, option: str) -> int:
    """A whole number, at least 1."""
    number = _whole(text)
    if number is None or number < 1:
        raise UsageError(f"{option} {text!r} must be a whole number from 1 on.")
    return number


def parse_staleness(text: str, option: str) -> int | None:
    """An age of gradients in steps, at least 1, or None for `none`."""
    if text.strip().lower() == "none":
        return None
    number = _whole(text)
    if number is None or number < 1:
        raise UsageError(
            f"{option} {text!r} is not an age in steps. Write 1 or more, or none for no bound."
        )
    return number


def parse_period(text: str, option: str) -> int:
    """A number of steps, 0 for never."""
    number = _whole(text)
    if number is None or number < 0:
        raise UsageError(f"{option} {text!r} is not a number of steps. Write 0 (never) or more.")
    return number


def _share(text: str) -> float | None:
    """`2%` or `0.02` as a number; None if it is neither."""
    word = text.strip()
    number = _finite(word.removesuffix("%"))
    return number / 100 if number is not None and word.endswith("%") else number


def parse_part(text: str, option: str) -> float:
    """A part of a whole, in (0, 1]: `75%` or `0.75`."""
    number = _share(text)
    if number is None or not 0 < number <= 1:
        raise UsageError(f"{option} {text!r} is not a part of a whole. Write for example 75%.")
    return number


def parse_positive(text: str, option: str) -> float:
    """A finite number above zero."""
    number = _finite(text)
    if number is None or number <= 0:
        raise UsageError(f"{option} {text!r} must be a number above 0, for example {option} 2.")
    return number


def parse_not_negative(text: str, option: str) -> float:
    """A finite number, zero or more."""
    number = _finite(text)
    if number is None or number < 0:
        raise UsageError(f"{option} {text!r} must be a number, 0 or more, for example {option} 1.")
    return number


def parse_fraction(text: str, option: str) -> float:
    """A fraction in [0, 1]: `2%` or `0.02`."""
    number = _share(text)
    if number is None or not 0 <= number <= 1:
        raise UsageError(f"{option} {text!r} is not a share of the budget. Write for example 2%.")
    return number


def parse_bytes(text: str, option: str) -> int:
    """A size in bytes: `800MiB`, `2GB`, `1TB`, `1000000`."""
    match = re.match(r"^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$", text, re.IGNORECASE)
    unit = match[2].lower() if match else ""
    if match is None or unit not in _BYTES_BY_UNIT or float(match[1]) <= 0:
        raise UsageError(f"{option} {text!r} is not a size. Write for example {option} 800MiB.")
    n_bytes = float(match[1]) * _BYTES_BY_UNIT[unit]
    if n_bytes > MAX_BYTES:
        raise UsageError(f"{option} {text:.40} is over a million TB: is that a typo?")
    return int(n_bytes)


def parse_seed(text: str, option: str) -> int | None:
    """A seed from 0 to 2^32 − 1, the range that NumPy's global generator takes."""
    number = _whole(text)
    if number is None or not 0 <= number < 2**32:
        raise UsageError(
            f"{option} {text!r} is not a seed. Write a whole number from 0 to 2^32 - 1."
        )
    return number


def parse_run_name(text: str, option: str) -> str:
    """A run's name: letters, digits, `-`, `_` and `.`, as it becomes a folder's name."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text) is None:
        raise UsageError(
            f"{option} {text!r} cannot be a run's name. Use up to 63 letters, digits, '-', '_' "
            "or '.', starting with a letter or digit."
        )
    return text


def parse_text(text: str, option: str) -> str:
    """Any text but an empty one."""
    if not text.strip():
        raise UsageError(f"{option} is empty. Give it a value or leave it out.")
    return text.strip()


def refuse_relative_uri(text: str, option: str) -> None:
    """Refuse `file://folder`, in which the folder stands in the place of a host."""
    if text.startswith("file://") and urlsplit(text).netloc not in ("", "localhost"):
        raise UsageError(
            f"{option} {text} has no absolute path. Write file:///home/…, or give the path alone."
        )


def parse_switch(text: str, option: str) -> bool:
    """On or off: 1, true, yes, on; 0, false, no, off."""
    word = text.strip().lower()
    if word not in TRUE_WORDS | FALSE_WORDS:
        raise UsageError(f"{option} is {text!r}. Set it to 1 or 0.")
    return word in TRUE_WORDS


def parse_json_object(text: str, option: str) -> str:
    """A JSON object, such as `{"rate": 0.1}`, as it was written."""
    try:
        is_object = isinstance(json.loads(text), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise UsageError(
            f"{option} {text!r:.80} is not a JSON object. Write for example {option}='"
            '{"rate": 0.1}\'.'
        )
    return text


def one_of(*words: str) -> Callable[[str, str], str]:
    """A parser that takes one of these words."""

    def parse(text: str, option: str) -> str:
        word = text.strip().lower()
        if word not in words:
            choice = " or ".join([", ".join(words[:-1]), words[-1]])
            raise UsageError(f"{option} {text!r} is not known. Choose {choice}.")
        return word

    return parse


def _money(text: str) -> float | None:
    match = _MONEY.match(text.strip())
    if match is None:
        return None
    number = match[1]
    if _THOUSANDS.match(number):  # 1,500; but 4,50 is no 450
        number = number.replace(",", "")
    return _finite(number)


def _duration_s(text: str) -> float | None:
    word = text.strip().lower().replace(" ", "")
    if (plain := _finite(word)) is not None:
        return plain
    if re.fullmatch(r"(\d+(\.\d+)?d)?(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?", word) is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", word)
    return sum(float(number) * _SECONDS_BY_UNIT[unit] for number, unit in parts)


def _finite(text: str) -> float | None:
    """The number, or None where there is none that is finite."""
    if re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", text, re.IGNORECASE) is None:
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text, re.ASCII) else None
