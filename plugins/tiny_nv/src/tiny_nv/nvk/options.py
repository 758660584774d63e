"""Options of the driver that settings choose: each is a way that no card has tried.

NV_COPY_ENGINE, NV_INLINE_DESCRIPTORS and NV_SLEEP are rows of `settings.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny_nv.settings import nv_settings

__all__ = ["Options", "chosen_options"]


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
    """The options that settings choose. Raises SettingError for values that there are not."""
    return Options(
        copy_engine=nv_settings.NV_COPY_ENGINE,
        inline_descriptors=nv_settings.NV_INLINE_DESCRIPTORS,
        sleeps=nv_settings.NV_SLEEP,
    )
