"""Make a failing program small, and write it as a script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.fuzz.programs.draw import Content, Input
from tests.fuzz.programs.form import Kind, Program, Value, ours_of, theirs_of
from tests.fuzz.runner import Verdict
from tinycore.dtype import dtypes

FEW = 64
"""Elements of an input up to which it is written out."""


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less: all values but one, a step left out, one made an input."""
    if len(program.compared) > 1:
        for value in reversed(program.compared):
            yield cleaned(replace(program, compared=(value,)))
        for value in program.compared:
            rest = tuple(v for v in program.compared if v is not value)
            yield cleaned(replace(program, compared=rest))
    for place in reversed(range(len(program.steps))):
        if (candidate := without(program, place)) is not None:
            yield cleaned(candidate)


def without(program: Program, place: int) -> Program | None:
    """The program with a step left out; what others need of it becomes inputs."""
    step = program.steps[place]
    steps = program.steps[:place] + program.steps[place + 1 :]
    needed = {n for s in steps for n in s.reads()} | {v.name for v in program.compared}
    made = [v for v in step.outputs if v.name in needed]
    compared = tuple(v for v in program.compared if v not in step.outputs)
    if not compared:
        return None
    stand_ins = tuple(
        stand_in(v, program.seed)
        for v in made
        if v not in program.compared or any(v.name in s.reads() for s in steps)
    )
    return replace(program, inputs=program.inputs + stand_ins, steps=steps, compared=compared)


def stand_in(value: Value, seed: int) -> Input:
    """An input in the place of a value."""
    low, high = max(value.low, -4.0), min(value.high, 4.0)
    if low > high:
        low, high = value.low, value.high
    content = Content.NUMBERS if dtypes.is_float(value.dtype) else Content.WHOLE
    return Input(value.name, value.shape, value.dtype, content, low, high, seed)


def cleaned(program: Program) -> Program:
    """Without steps whose results are unused."""
    steps, needed = [], {v.name for v in program.compared}
    for step in reversed(program.steps):
        used = any(v.name in needed for v in step.outputs)
        if used or step.kind in (Kind.REALIZE, Kind.READ, Kind.WRITE):
            steps.append(step)
            needed |= step.reads()
    return replace(program, steps=tuple(reversed(steps))).without_unused_inputs()


def script(program: Program, failure: Verdict) -> str:
    """A Python script that shows the failure."""
    names = ", ".join(v.name for v in program.compared)
    together = [f"Tensor.realize({names})"] if program.together else []
    lines = [
        f'"""Seed {program.seed}: {failure.message}"""',
        *IMPORTS,
        *[
            f"{start.name} = Tensor({listed_values(start)}, dtype=dtypes.{start.dtype.name})"
            for start in program.inputs
        ],
        *ours_of(program.steps),
        *together,
        *[f'print("here ", "{v.name}", {v.name}.numpy().tolist())' for v in program.compared],
        "",
        "globals().update(namespace(torch))",
        *[f"{start.name} = leaf(torch.tensor({listed_values(start)}))" for start in program.inputs],
        *theirs_of(program.steps),
        *[f'print("torch", "{v.name}", {v.name}.tolist())' for v in program.compared],
    ]
    return "\n".join(lines) + "\n"


IMPORTS = (
    "import numpy",
    "import torch",
    "from tinycore import Tensor, TinyJit, dtypes",
    "from tests.fuzz.programs.draw import Content, Input",
    "from tests.fuzz.programs.functions import namespace",
    "",
)


def listed_values(start: Input) -> str:
    """The data of an input as Python: its elements if they are few, else how they are drawn."""
    data = start.data()
    if 0 < data.size <= FEW:
        return f"numpy.array({data.tolist()}, dtype={data.dtype.name!r})"
    drawn = f"{start.content}, {start.low}, {start.high}, {start.seed}"
    return f"Input({start.name!r}, {start.shape}, {start.dtype!r}, {drawn}).data()"
