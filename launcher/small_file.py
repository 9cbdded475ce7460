"""Small files that are replaced whole: whoever reads one finds what was there before, or after."""

import json
import uuid
from pathlib import Path
from typing import Any


def replace_file(path: Path, text: str) -> None:
    """Put a text in a file's place, and make its folder. Others may do the same meanwhile.

    Raises:
        OSError: it cannot be written. What was there stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name[:40]}-{uuid.uuid4().hex}")
    try:
        beside.write_text(text, encoding="utf-8", newline="")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none, or it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
