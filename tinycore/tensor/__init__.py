"""The frontend: `Tensor`, and the list of those that live.

Floor 5. Imports the engine only through `runtime`.
"""

from tinycore.tensor.core import live_tensors, replace_nodes
from tinycore.tensor.tensor import Tensor

__all__ = ["Tensor", "live_tensors", "replace_nodes"]
