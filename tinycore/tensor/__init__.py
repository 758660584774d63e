"""The frontend: `Tensor`, its graph, its gradients, and captured functions.

Floor 5. Tensors ask for all they need of the floors below through `runtime.py`. The files, in the
order in which a program passes them:

- making: `tensor.py` (the class), `core.py`, `graph.py` (builders of nodes), `data.py`,
  `creation.py`, `random.py`, `stream.py`, `host_bytes.py`, `layout.py`, `signatures.py`,
  `checks.py`, `foreign_names.py`
- elements: `operands.py`, `elementwise.py`, `remainder.py`, `functions.py`, `special.py`,
  `powers.py`, `activations.py`, `templates.py` (nodes of methods by shapes)
- shapes: `movement.py`, `joining.py`, `indexing.py`, `selection.py`
- folds: `reduce.py`, `scan.py`, `prefix_scan.py`, `sorting.py`
- products: `linalg.py`, `windows.py`, `attention.py`, `losses.py`,
  `composed.py`
- images, many devices, kernels by hand: `image_products.py`, `pixels.py`, `multi.py`, `custom.py`,
  `placeholder.py`
- gradients: `grad.py`, `softmax_products.py`, `gradient_sources.py`,
  `versions.py`, `past.py`, `history.py`
- computing: `realize.py`, `realization.py`, `held_values.py`, `runtime.py`
- writing: `storage.py` (a group of aliases), `inplace.py`, `view_writes.py` (where a write lands),
  `views.py`, `aliases.py`, `liveness.py`, `atomic_writes.py`, `change_tracking.py`
- captures: `jit.py`, `arguments.py`, `guards/` (what a function finds around it), `proxies.py`,
  `change_sets.py` (what a function touches), `capturing_run.py`, `recorded_call.py`, `captured.py`
- other libraries: `interop.py`, `dlpack.py`, `ufuncs.py`

This file is the door by which programs come in, above all floors: behind it the methods of the
library `tinycore.linalg` are on the class.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import tinycore.linalg  # noqa: F401  puts its methods on the class
from tinycore.errors import ArgumentTypeError
from tinycore.tensor.tensor import Tensor as Plain

if TYPE_CHECKING:
    from tinycore.linalg import Tensor as Tensor
else:
    Tensor = Plain

__all__ = ["Tensor"]


class _Module(ModuleType):
    """This module, which is called by those who know `torch.tensor(data)`."""

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise ArgumentTypeError("tinycore.tensor is a module; a tensor is made by Tensor(data)")


sys.modules[__name__].__class__ = _Module
