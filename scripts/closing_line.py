"""Adds up pytest's closing lines: `closing_line.py LOG...` prints one for several runs."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

LINE = re.compile(r"^=+ (?P<counts>.+?) in (?P<seconds>[\d.]+)s.* =+$")
COUNT = re.compile(r"(\d+) (\w+)")
ORDER = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error")


def closing_line(logs: Sequence[str], took_s: float) -> str:
    """One line for all runs, as pytest words it.

    Args:
        logs: what each run printed; one without a closing line counts as an error.
        took_s: seconds that all took together, some at the same time.
    """
    counts: Counter[str] = Counter()
    for log in logs:
        lines = [found for line in log.splitlines() if (found := LINE.match(line))]
        if not lines:
            counts["error"] += 1
            continue
        for number, word in COUNT.findall(lines[-1]["counts"]):
            counts[word.removesuffix("s") if word in ("errors", "warnings") else word] += int(
                number
            )
    del counts["deselected"]  # another of the runs has selected them
    parts = [_part(word, counts[word]) for word in ORDER if counts[word]]
    minutes, seconds = divmod(round(took_s), 60)
    text = f" {', '.join(parts) or 'no tests ran'} in {took_s:.2f}s "
    return f"{text}({minutes // 60}:{minutes % 60:02}:{seconds:02}) ".center(80, "=")


def _part(word: str, count: int) -> str:
    plural = "s" if word in ("error", "warning") and count > 1 else ""
    return f"{count} {word}{plural}"


if __name__ == "__main__":
    took = float(sys.argv[1])
    print(closing_line([Path(name).read_text(errors="replace") for name in sys.argv[2:]], took))
