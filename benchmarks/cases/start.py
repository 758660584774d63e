"""What a user waits for first: the import, and one small result, in a new process."""

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
        f"from time import perf_counter\nstart = perf_counter()\n{work}\n"
        "print(perf_counter() - start)\n"
    )


def _first_results() -> Mapping[str, str]:
    check = "result = (T([1., 2.]) + 1).tolist()\nassert result == [2., 3.], result"
    return {module: _timed(f"{line}\n{check}") for module, line in _IMPORTS.items()}


CASES: Final = (
    StartCase("import of Tensor", {module: _timed(line) for module, line in _IMPORTS.items()}),
    StartCase("import + first result, no caches", _first_results(), empty_caches=True),
    StartCase("import + first result, disk cache", _first_results()),
)
