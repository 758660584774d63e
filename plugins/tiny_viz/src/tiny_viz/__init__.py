"""Profiles of tinycore programs: recorded to a file, shown in a terminal, a notebook or a page."""

from __future__ import annotations

from tinycore.plugin import deferred

__all__ = ["profile"]

profile = deferred("tiny_viz.profile:profile")
"""See `tiny_viz.profile`."""
