"""Types of options for argparse: numbers within bounds.

Floor 6. argparse says which option was wrong, and calls the type by the name of its function.
"""

from __future__ import annotations

import argparse
from typing import Final

__all__ = ["count", "seconds"]

DAY: Final = 86400.0
"""Most seconds that an option may give: waits of the system have bounds, too."""


def count(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def seconds(text: str) -> float:
    """A duration of more than 0 seconds, and a day at most."""
    number = float(text)
    if not 0 < number <= DAY:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0, and {DAY:g} at most")
    return number
