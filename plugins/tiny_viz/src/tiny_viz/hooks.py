"""The entry point of observers: it does nothing, unless VIZ asks for a recording."""

from __future__ import annotations

import sys

from tinycore.config import process

__all__ = ["OBSERVER"]

OBSERVER = None
"""This package observes by a profiler, not by hooks."""

if process["VIZ"]:  # not that of a Context, which lets new tensors note their lines alone
    from tiny_viz.program import begin

    begin()
if "IPython" in sys.modules:
    from tiny_viz.notebook import show_tensors

    show_tensors()
