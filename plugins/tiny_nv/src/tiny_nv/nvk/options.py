"""Options of the driver that environment variables choose: each is a way that no card has tried.

NV_COPY_ENGINE=0        copies on an engine of their own, COPY0, in a channel group beside the
                        graphics engine's
NV_INLINE_DESCRIPTORS=1 launch descriptors within the commands, not beside the arguments
NV_SLEEP=1              waits that sleep until the card's interrupt
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from tinycore.errors import DeviceUnavailable

__all__ = ["Options", "chosen_options"]

COPY_ENGINES: Final = 10
_OFF: Final = ("", "0")


@dataclass(frozen=True)
class Options:
    """Chosen options of one device."""

    copy_engine: int | None = None
    """Number of the copy engine that has a channel group of its own; None for the copy engine of
    the graphics engine's group."""
    inline_descriptors: bool = False
    """True if the first descriptor of a chain is part of the commands."""
    sleeps: bool = False
    """True if waits sleep until an interrupt of the card."""


def chosen_options() -> Options:
    """The options that the environment chooses. Raises DeviceUnavailable for an engine there is
    not.
    """
    engine = os.environ.get("NV_COPY_ENGINE", "")
    if engine and not (engine.isdecimal() and int(engine) < COPY_ENGINES):
        raise DeviceUnavailable(
            f"NV_COPY_ENGINE is {engine!r}: it takes a number from 0 to {COPY_ENGINES - 1}, or "
            "nothing, which copies beside the graphics engine"
        )
    return Options(
        copy_engine=int(engine) if engine else None,
        inline_descriptors=os.environ.get("NV_INLINE_DESCRIPTORS", "") not in _OFF,
        sleeps=os.environ.get("NV_SLEEP", "") not in _OFF,
    )
