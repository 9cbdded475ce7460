"""Lay text out for a terminal's width without ever breaking a number from its unit."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

LABEL_WIDTH = 10
PLAIN_WIDTH = 120  # columns where there is no terminal
SEPARATOR = " · "
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def labelled(label: str, pieces: Sequence[str], basis: str, width: int) -> Text:
    """`label  piece · piece … basis`: wrapped between pieces, the basis at the right edge."""
    room = max(width - LABEL_WIDTH, 20)
    lines = wrapped(pieces, room - len(basis) - 2 if basis else room)
    text = Text(f"{label:<{LABEL_WIDTH}}", style="bold")
    for index, line in enumerate(lines):
        if index:
            text.append("\n" + " " * LABEL_WIDTH)
        text.append(line, style="not bold")
        if basis and index == 0:
            columns = max(room - len(line), len(basis) + 2)  # a long piece goes over the edge
            text.append(f"{basis:>{columns}}", style="not bold dim")
    return text


def wrapped(pieces: Iterable[str], width: int) -> list[str]:
    """Join pieces to lines of at most `width`; a longer piece stands alone, unbroken."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(SEPARATOR) + len(piece) <= width:
            lines[-1] += SEPARATOR + piece
        else:
            lines.append(piece)
    return lines or [""]


def sentence(text: str, width: int, indent: str = "") -> str:
    """Wrap a sentence at spaces, keeping each number with the word that follows it."""
    kept = _glued(text.split(" "))
    lines: list[str] = []
    for word in kept:
        if lines and len(lines[-1]) + 1 + len(word) <= width - len(indent):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(f"{indent}{line}" for line in lines)


def _glued(words: list[str]) -> list[str]:
    """Words, with numbers and their units as one."""
    glued: list[str] = []
    for word in words:
        if glued and glued[-1].lstrip("$(").replace(",", "").replace(".", "").isdigit():
            glued[-1] += f" {word}"
        else:
            glued.append(word)
    return glued


def fitting(console: Console, variants: Iterable[Callable[[], Table]]) -> Table:
    """The first variant that is no wider than the console, else the last."""
    table = Table()
    for make in variants:
        table = make()
        if width_of(console, table) <= console.width:
            break
    return table


def width_of(console: Console, table: Table) -> int:
    """The columns that a table takes unwrapped."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def print_table(console: Console, table: Table) -> None:
    """Print a table, beyond the terminal's edge rather than with broken numbers."""
    width = max(console.width, width_of(console, table))
    segments = Segments(console.render(table, console.options.update_width(width)))
    console.print(segments, crop=False, soft_wrap=True, end="")


def plain_table(gap: int) -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_edge=False)


def shortened(text: str, length: int) -> str:
    """Text of at most `length` characters; a cut is shown."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def letters_of(node_ids: Iterable[str]) -> dict[str, str]:
    """Short names for nodes in this order: a, b, … z, aa, ab and so on."""
    names: dict[str, str] = {}
    for node_id in node_ids:
        if node_id not in names:
            names[node_id] = _letter(len(names))
    return names


def letter_ranges(names: Sequence[str]) -> str:
    """`a–d, f` for a, b, c, d, f."""
    ordered = sorted(set(names), key=lambda name: (len(name), name))
    groups: list[list[str]] = []
    for name in ordered:
        if groups and _number(name) == _number(groups[-1][-1]) + 1:
            groups[-1].append(name)
        else:
            groups.append([name])
    return ", ".join(_range(group) for group in groups)


def ring_text(nodes: Sequence[str], letters: Mapping[str, str]) -> str:
    """A plan's nodes in rank order: `a b c`, `a×2 b`, `a … f`."""
    counted: list[tuple[str, int]] = []
    for node in nodes:
        name = letters.get(node, "?")
        if counted and counted[-1][0] == name:
            counted[-1] = (name, counted[-1][1] + 1)
        else:
            counted.append((name, 1))
    words = [name if n == 1 else f"{name}×{n}" for name, n in counted]
    return " ".join(words) if len(words) <= 5 else f"{words[0]} … {words[-1]}"


def _letter(index: int) -> str:
    name = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        name = chr(ord("a") + digit) + name
    return name


def _number(name: str) -> int:
    number = 0
    for character in name:
        number = 26 * number + ord(character) - ord("a") + 1
    return number


def _range(group: list[str]) -> str:
    return ", ".join(group) if len(group) < 3 else f"{group[0]}–{group[-1]}"


def without_colours(text: str) -> str:
    """Text without a terminal's codes for colour and weight."""
    return _COLOUR.sub("", text)
