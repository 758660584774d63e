"""Random functions with symbolic sizes against NumPy: a few here, any number by
`python -m tests.fuzz.symbolic`."""

from __future__ import annotations

import pytest

from tests.fuzz.symbolic import WAYS, check, function
from tinycore import Context


@pytest.mark.parametrize("seed", range(3))
def test_functions_of_symbolic_sizes_compute_what_numpy_computes(seed: int) -> None:
    with Context(DEV="PYTHON", PARALLEL=1):
        found = function(seed)
        kind, message = check(found)

    assert kind in ("", "refused"), f"{message}\n{found.ours}"


def test_every_kind_of_line_is_made() -> None:
    text = "\n".join(function(seed).ours for seed in range(200))

    assert WAYS == ("numbers", "variables", "TinyJit")
    for part in (
        "[:n]", "[:n + m]", "[m:m + n]", "[n - 1:]", ".shrink(", ".arange(", ".softmax(0)",
        ".mean(",
        ".var(", ".chunk(", ".tril(", ".pad(", "c1[m:m + n] =", "c2[:, m:m + n] =", ".assign(",
        "+=",
    ):  # fmt: skip
        assert part in text, part
