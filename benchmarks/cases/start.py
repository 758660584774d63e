"""The first waits of a user: the import, and one small result, in a new process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.case import StartCase

__all__ = ["CASES"]

_IMPORTS: Final = {
    "tinycore": "from tinycore import Tensor as T",
    "torch": "from torch import tensor as T",
    "tinygrad": "from tinygrad import Tensor as T",
}


def _timed(work: str) -> str:
    return (
        f"from benchmarks.clock import seconds\nstart = seconds()\n{work}\n"
        "print(seconds() - start)\n"
    )


def _first_results() -> Mapping[str, str]:
    check = "result = (T([1., 2.]) + 1).tolist()\nassert result == [2., 3.], result"
    return {module: _timed(f"{line}\n{check}") for module, line in _IMPORTS.items()}


_LAYERS: Final = """\
x, w = T.ones(32, 64), T.ones(64, 64).contiguous().realize()
for _ in range(96):
    x = (x @ w).relu() * 0.01 + x
result = x.sum().item()
assert result > 0, result"""


def _long_programs() -> Mapping[str, str]:
    names = ("tinycore", "tinygrad")
    return {module: _timed(f"{_IMPORTS[module]}\n{_LAYERS}") for module in names}


CASES: Final = (
    StartCase("import of Tensor", {module: _timed(line) for module, line in _IMPORTS.items()}),
    StartCase("import + first result, no caches", _first_results(), empty_caches=True),
    StartCase("import + first result, disk cache", _first_results()),
    StartCase("import + 96 equal layers, no caches", _long_programs(), empty_caches=True),
    StartCase("import + 96 equal layers, disk cache", _long_programs()),
)
