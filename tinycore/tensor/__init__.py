"""The frontend: `Tensor`, and the list of those that live.

Floor 5. Tensors ask for all they need of the floors below through `runtime`.
"""

from tinycore.tensor.core import live_tensors, replace_nodes
from tinycore.tensor.tensor import Tensor

__all__ = ["Tensor", "live_tensors", "replace_nodes"]
