"""Linear algebra, spectra and digests: a library of methods of `Tensor`, also by themselves.

Floor 6. `decompositions.py` (QR, singular values, polar factor), `elimination.py` (systems,
determinants, Cholesky), `spectral.py` (eigenvalues, rank, norms and powers), `digest.py` (Keccak).
Each is a class of methods in terms of those of floor 5, which knows none of them; here they are put
on the class that programs use, when they import it (`tinycore/tensor/__init__.py`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tinycore.linalg.decompositions import Decompositions
from tinycore.linalg.digest import Digest
from tinycore.linalg.elimination import Elimination
from tinycore.linalg.spectral import Spectral
from tinycore.tensor import tensor

METHODS: Final = {
    name: method
    for part in (Decompositions, Elimination, Spectral, Digest)
    for name, method in vars(part).items()
    if not name.startswith("_")
}
globals().update(METHODS)

if TYPE_CHECKING:

    class Tensor(tensor.Tensor, Digest):
        """`Tensor` with the methods of this library."""

    def __getattr__(name: str) -> Callable[..., Any]:
        """Each method, as a function of its tensor."""

else:
    Tensor = tensor.Tensor
    for name, method in METHODS.items():
        setattr(Tensor, name, method)
