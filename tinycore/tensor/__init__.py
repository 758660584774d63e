"""The frontend: `Tensor`, its graph, its gradients, and captured functions.

Floor 5. Tensors ask for all they need of the floors below through `runtime.py`. The class is in
`tensor.py`, its base in `core.py`; `graph.py` builds nodes, `aliases.py` finds what they show;
`signatures.py` and `checks.py` check arguments. The rest is in folders by subject, each of which
says how it works, in the order in which a program passes them:

- `methods/`: the methods, which build nodes
- `storage/`: memory and pending values of tensors, writes, and what computes them
- `autograd/`: gradients
- `capture/`: functions whose launches are recorded once and replayed, and what such a function
  finds around it, in `guards/`
- `interop/`: exchange with other libraries

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
