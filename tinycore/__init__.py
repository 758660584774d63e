"""A tensor framework for any accelerator: a minimal core, every backend a package of its own.

The public vocabulary. Each name is imported when it is first used, so that `import tinycore` costs
a few milliseconds and a backend's declaration, which lives on `tinycore.plugin`, no NumPy.
"""

from typing import TYPE_CHECKING, Any

from tinycore._deferred import deferred as _deferred
from tinycore._deferred import module_named as _module_named

if TYPE_CHECKING:
    from tinycore import nn
    from tinycore.config import Context
    from tinycore.device.registry import Device
    from tinycore.dtype import dtypes
    from tinycore.engine.counters import GlobalCounters
    from tinycore.helpers import fetch as fetch
    from tinycore.helpers import getenv as getenv
    from tinycore.nn.function import function
    from tinycore.tensor import Tensor
    from tinycore.tensor.capture.jit import TinyJit
    from tinycore.uop.node import UOp as UOp
    from tinycore.uop.size import Variable

    from_dlpack = Tensor.from_dlpack
    profile: Any

__version__ = "0.1.0"

_WHERE = {
    "Context": "tinycore.config:Context",
    "Device": "tinycore.device.registry:Device",
    "GlobalCounters": "tinycore.engine.counters:GlobalCounters",
    "Tensor": "tinycore.tensor:Tensor",
    "TinyJit": "tinycore.tensor.capture.jit:TinyJit",
    "Variable": "tinycore.uop.size:Variable",
    "dtypes": "tinycore.dtype:dtypes",
    "from_dlpack": "tinycore.tensor:Tensor.from_dlpack",
    "function": "tinycore.nn.function:function",
}

_ELSEWHERE = {
    "UOp": "tinycore.uop.node:UOp",
    "fetch": "tinycore.helpers:fetch",
    "getenv": "tinycore.helpers:getenv",
}
"""Names that tinygrad's users import from here; each has its home in the module beside it."""

__all__ = [
    "Context",
    "Device",
    "GlobalCounters",
    "Tensor",
    "TinyJit",
    "Variable",
    "dtypes",
    "from_dlpack",
    "function",
    "nn",
]


def __getattr__(name: str) -> object:
    """Import a public name at its first use (PEP 562)."""
    if place := _WHERE.get(name) or _ELSEWHERE.get(name):
        globals()[name] = _deferred(place).resolve()
        return globals()[name]
    if name in ("linalg", "nn"):
        return _module_named(f"tinycore.{name}")
    if name == "profile":
        return _deferred("tinycore.device.discovery:offered")("tinycore.viz", name, "viz")
    if name.startswith("_"):
        raise AttributeError(f"module 'tinycore' has no attribute {name!r}")
    foreign_names = _module_named("tinycore.tensor.interop.foreign_names")
    functions, types = [_deferred(_WHERE[owner]).resolve() for owner in ("Tensor", "dtypes")]
    known = foreign_names.of_package(name, functions, types)
    raise foreign_names.unknown_name("tinycore", name, known, __all__)


def __dir__() -> list[str]:
    return [*__all__, *_ELSEWHERE, "errors", "profile"]
