"""Cards that are limits alone: the core's accelerator computes what is planned for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tiny_testing.accelerator import Parts, backend_of
from tiny_testing.accelerator.device import Rewriter
from tinycore import Context
from tinycore.plugin import register, unregister
from tinycore.render.base import Limits

__all__ = ["card_named"]


@contextmanager
def card_named(name: str, limits: Limits) -> Iterator[None]:
    """A device with some limits, whose graphs are verified at each stage."""
    register(backend_of(Parts(name, renderer=lambda: Rewriter(limits), limits=limits)))
    try:
        with Context(DEV=name, CCACHE=0, VERIFY=1):
            yield
    finally:
        unregister(name)
