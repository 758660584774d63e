"""A case as data: what to compute, from what, and what the hardware must do for it.

A program gets the peer's module and the inputs as that peer's tensors. Programs are listed under
the name of the peer; tinycore and tinygrad share one under `TENSOR`: they share an interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

import numpy

__all__ = ["TENSOR", "Case", "Input", "Kind", "Prepared", "Program", "StartCase"]

TENSOR: Final = "tensor"
"""The key of the program that tinycore and tinygrad share."""

FLOAT_BYTES: Final = 4

Array = numpy.ndarray[Any, numpy.dtype[Any]]
Program = Callable[..., Any]


@dataclass(frozen=True)
class Input:
    """Random numbers: floats in -scale to scale, or integers from 0 up to `limit`.

    A dtype that NumPy lacks is made by the peer, from float32.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0
    limit: int = 0

    def make(self, generator: numpy.random.Generator) -> Array:
        """The numbers, the same for every peer."""
        if self.limit:
            return generator.integers(0, self.limit, self.shape, numpy.int32)
        numbers = generator.random(self.shape, numpy.float32)
        numbers -= numpy.float32(0.5)
        numbers *= numpy.float32(2 * self.scale)
        return numbers


class Kind(Enum):
    """Way in which a program is called."""

    CALL = auto()
    """program(module, *inputs) -> result, a pure function; the JIT gets the inputs as arguments."""
    STEP = auto()
    """program(module, *inputs) -> step; step() -> result, and may change what it closes over.

    A step may be a `Prepared`; what its first part makes is the argument of the second.
    """
    TOOL = auto()
    """As STEP, but what is timed is Python, not kernels: no JIT; the result is a count to show."""


@dataclass(frozen=True)
class Prepared:
    """A step with a part that is not timed: `run(prepare())`."""

    prepare: Callable[[], Any]
    run: Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    """Work that is done again and again in one process."""

    name: str
    programs: Mapping[str, Program]
    inputs: tuple[Input, ...] = ()
    flops: float = 0.0
    read_bytes: int = 0
    """Least bytes that must come from memory; likewise `written_bytes`."""
    written_bytes: int = 0
    kind: Kind = Kind.CALL
    tolerance: float = 1e-3
    """Tolerance between peers, in parts of the result's root mean square."""
    by_default: bool = True

    def suits(self, peer: str) -> bool:
        """True if this way of driving a peer is one of its own for this case."""
        return self.kind is not Kind.TOOL or not peer.endswith("-jit")

    def program_of(self, peer: str) -> Program | None:
        """The program for a peer, if it can do this case."""
        own = self.programs.get(peer)
        if own is None and peer in {"tinycore", "tinygrad"}:
            return self.programs.get(TENSOR)
        return own


@dataclass(frozen=True)
class StartCase:
    """Work of a whole process: a script that prints how many seconds it took."""

    name: str
    scripts: Mapping[str, str]
    empty_caches: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    by_default: bool = True
