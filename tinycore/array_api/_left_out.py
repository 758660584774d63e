"""Names of the standard that this namespace lacks, each with the reason.

Floor 6. Published in docs/array-api.md. Asking for one of these names says why it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NO_COMPLEX: Final = "there are no complex dtypes; keep real and imaginary parts apart"

LEFT_OUT: Final[Mapping[str, str]] = {
    "complex64": NO_COMPLEX,
    "complex128": NO_COMPLEX,
    "imag": NO_COMPLEX,
    "array.size": "`Tensor.size(dim)` is a function, as in PyTorch; use `math.prod(x.shape)`",
    "fft": f"Fourier transforms give complex numbers, and {NO_COMPLEX}",
}
"""Why a name of the standard is missing, or, of an array, is something else. An extension stands
for all its functions.
"""


def explained(namespace: str, name: str) -> AttributeError:
    """The error for a name that is not there, with the reason if the standard has it."""
    told = LEFT_OUT.get(name)
    text = f"module {namespace!r} has no attribute {name!r}"
    return AttributeError(f"{text}: {told}" if told else text)
