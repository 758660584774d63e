"""The entry point of observers: it does nothing, unless VIZ asks for a recording."""

from __future__ import annotations

import sys

from tinycore.config import in_force, process, watchers

__all__ = ["OBSERVER"]

OBSERVER = None
"""This package observes by a profiler, not by hooks."""


def watch(value: int, is_entered: bool) -> None:
    """Record the blocks of a `Context(VIZ=1)`."""
    if value:
        from tiny_viz.program import block  # noqa: PLC0415  most programs record nothing

        block(value, is_entered)


if process["VIZ"]:
    from tiny_viz.program import begin

    begin()
watchers["VIZ"] = watch
if value := in_force()["VIZ"]:  # the first kernel is in such a block
    watch(value, True)
if "IPython" in sys.modules:
    from tiny_viz.notebook import show_tensors

    show_tensors()
