"""The frontend: `Tensor`, the list of those that live, and the engine that computes them.

Floor 5. Tensors ask for all they need of the floors below through `runtime`.
"""

from tinycore.engine.realize import Engine
from tinycore.tensor.core import live_tensors, replace_nodes
from tinycore.tensor.runtime import use
from tinycore.tensor.tensor import Tensor

__all__ = ["Tensor", "live_tensors", "replace_nodes"]

use(Engine())
