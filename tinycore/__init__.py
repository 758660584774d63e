"""A tensor framework for any accelerator: a minimal core, every backend a package of its own.

The public vocabulary. Importing it looks for no device and loads no backend.
"""

from tinycore import tensor as _tensor
from tinycore.config import Context
from tinycore.device.registry import Device
from tinycore.dtype import dtypes
from tinycore.engine.counters import GlobalCounters
from tinycore.engine.realize import Engine
from tinycore.tensor import Tensor
from tinycore.tensor.jit import TinyJit
from tinycore.tensor.runtime import use as _use

__version__ = "0.1.0"

__all__ = ["Context", "Device", "GlobalCounters", "Tensor", "TinyJit", "dtypes"]

_use(Engine())
del _tensor
