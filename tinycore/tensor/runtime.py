"""The runtime: the engine, or what runs tensors in its place.

Floor 5. The seam between `Tensor` and what runs it. `use` replaces the runtime by a subclass of
`Engine`, which is how the tests run the same tensors on the plain evaluator of
`tiny_testing.reference`. `TinyJit` alone goes past it, to the engine's launches, so it needs the
engine's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tinycore._deferred import deferred, numpy

if TYPE_CHECKING:
    from tinycore.engine.engine import Engine

HostArray: TypeAlias = "numpy.ndarray[Any, numpy.dtype[Any]]"
ENGINE: Final[Callable[[], Engine]] = deferred("tinycore.engine.engine:Engine")
"""The engine, which takes as long to import as the frontend: at the first tensor, not before."""


class Holder:
    """The runtime in use: the engine, unless a test installs another."""

    active: Engine | None = None


def use(runtime: Engine) -> None:
    """Make `runtime` the one that all tensors use from now on."""
    Holder.active = runtime


def runtime() -> Engine:
    """The runtime in use."""
    if Holder.active is None:
        Holder.active = ENGINE()
    return Holder.active
