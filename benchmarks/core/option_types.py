"""Values of options on the command line, with errors that say what to give. Standard library only."""

import argparse
import os
from pathlib import Path

from resireduce.errors import short

LONGEST_NAME, LONGEST_PATH = 255, 4095
"""Most bytes of a file's name and of a path on Linux."""


def named_path(text: str) -> Path:
    """Return a path that an option names; what no path can be is refused, also "", which Path takes for this folder."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no path; give the name of a file or folder, . for this one")
    if len(os.fsencode(text)) > LONGEST_PATH or max(map(len, os.fsencode(text).split(b"/"))) > LONGEST_NAME:
        raise argparse.ArgumentTypeError(
            f"{text[:60]!r}... is too long; a name has up to {LONGEST_NAME} bytes, a path up to {LONGEST_PATH}"
        )
    return Path(text)


def whole_number(text: str) -> int:
    """Return the whole number that an option gives."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{short(text)} is no whole number; give one in digits, such as 8") from None


def number(text: str) -> float:
    """Return the number that an option gives."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{short(text)} is no number; give one, such as 0.5") from None
