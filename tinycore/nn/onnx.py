"""`OnnxRunner`, where users of tinygrad look for it, from the package that offers it.

Floor 6. A package offers a name of this module by an entry point in the group `tinycore.nn.onnx`;
it is imported when the name is asked for.
"""

from __future__ import annotations

from typing import Any, Final

from tinycore.device.discovery import offered

__all__ = ["OnnxRunner"]  # noqa: F822  given by `__getattr__`

GROUP: Final = "tinycore.nn.onnx"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return offered(GROUP, name, "onnx")
