"""The form of a program: inputs and steps, each a line of Python here and one for the mirror.

A program is data; nothing is computed until one of its interpretations runs it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from tests.fuzz.programs.draw import Input
from tinycore.dtype import DType
from tinycore.uop.shape import Shape


class Rounding(enum.Enum):
    """Rounding of a step's result, relative to the exact function of exact operands."""

    EXACT = "not at all: elements are moved, compared or chosen"
    WHOLE = "by rounding, but not where operands and results are small whole numbers"
    ROUNDED = "by rounding"


class Kind(enum.Enum):
    """Kind of a step."""

    COMPUTE = "makes values of values"
    REALIZE = "computes values now, which loses the graph above them"
    READ = "takes values to the host, and what is there as a new value"
    WRITE = "changes memory: the output stands for the first input from here on"
    GRADIENT = "derives a number made of inputs"
    JIT = "captures and replays a function, once per call"


@dataclass(frozen=True)
class Value:
    """Facts about a value before it is computed; its elements lie between two numbers."""

    name: str
    shape: Shape
    dtype: DType
    low: float
    high: float

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for n in self.shape:
            count *= n
        return count


@dataclass(frozen=True)
class Step:
    """One statement. `ours` and `theirs` are its text for tensors here and for the mirror.

    `absolute` and `slope` describe an op whose result or whose derivative cancels inside: errors
    are then of the order of a rounding of 1, or of the greatest gradient times `slope`.
    """

    kind: Kind
    outputs: tuple[Value, ...]
    inputs: tuple[str, ...]
    ours: str
    theirs: str
    rounding: Rounding = Rounding.EXACT
    unit: float = 0.0  # the coarsest half-ulp of 1 among the dtypes that take part
    tiny: float = 0.0  # below this the coarsest dtype has no full precision
    absolute: float = 0.0
    slope: float = 0.0
    ends: tuple[str, ...] = ()  # where gradients end from here on, of a REALIZE step
    function: Function | None = None  # of a JIT step

    def reads(self) -> set[str]:
        """Every name the step needs."""
        calls = () if self.function is None else self.function.calls
        return {*self.inputs, *(name for call in calls for name in call)}


@dataclass(frozen=True)
class Function:
    """The body of a JIT step: its results are the step's outputs, call after call."""

    name: str
    parameters: tuple[Value, ...]
    body: tuple[Step, ...]
    returned: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...]  # names of the arguments


@dataclass(frozen=True)
class Program:
    """A whole program. The values in `compared` are read at the end, together or one by one."""

    seed: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    compared: tuple[Value, ...]
    together: bool

    def needs_gradients(self) -> bool:
        """True if any step, also inside functions, derives something."""
        return any(step.kind is Kind.GRADIENT for step in all_steps(self.steps))

    def without_unused_inputs(self) -> Program:
        """The same program with only the inputs that something reads."""
        read = {name for step in self.steps for name in step.reads()}
        read |= {value.name for value in self.compared}
        return replace(self, inputs=tuple(i for i in self.inputs if i.name in read))


def all_steps(steps: tuple[Step, ...]) -> list[Step]:
    """The steps and those inside functions."""
    found = []
    for step in steps:
        found.append(step)
        if step.function is not None:
            found += all_steps(step.function.body)
    return found


def ours_of(steps: tuple[Step, ...]) -> list[str]:
    """The lines of Python that compute with tensors here."""
    return [line for step in steps for line in (definition(step, True) + step.ours.split("\n"))]


def theirs_of(steps: tuple[Step, ...]) -> list[str]:
    """The lines of Python that compute the same with torch."""
    return [line for step in steps for line in (definition(step, False) + step.theirs.split("\n"))]


def definition(step: Step, here: bool) -> list[str]:
    """The function that a JIT step calls."""
    if (function := step.function) is None:
        return []
    lines = ours_of(function.body) if here else theirs_of(function.body)
    arguments = ", ".join(p.name for p in function.parameters)
    return [
        *(["@TinyJit"] if here else []),
        f"def {function.name}({arguments}):",
        *[f"    {line}" for line in lines],
        f"    return {', '.join(function.returned)},",
    ]
