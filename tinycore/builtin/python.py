"""PYTHON: the reference device, an interpreter over NumPy. It needs nothing and runs everything.

Importing this module imports no NumPy. Slow and plain: it says what a kernel means.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import dtypes
from tinycore.plugin import Backend, deferred

__all__ = ["BACKEND"]

BACKEND: Final = Backend(
    name="PYTHON",
    api=(2, 0),
    open=deferred("tinycore.builtin.interpreter:PythonRuntime"),
    renderers={"PYTHON": deferred("tinycore.builtin.interpreter:toolchain")},
    capabilities=frozenset(
        {"host_memory", "external_pointer", "peer_copy", "image", "local_memory"}
        | {dtype.name for dtype in dtypes.all}
    ),
    priority=0,
    dlpack=1,
)
