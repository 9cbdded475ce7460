"""Tells the script's own lines from those of libraries and of the launcher."""

import sys
from pathlib import Path

import tensorflow as tf

OTHERS = (str(Path(tf.__file__).parent), str(Path(__file__).parent.parent), "<frozen")
"""Where code lies that is not the script's, as far as it reads data for it."""


def script_line() -> tuple[str, int]:
    """File and line of the script that runs now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OTHERS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
