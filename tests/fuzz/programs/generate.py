"""From a seed to a program.

Nothing is computed here, and nothing but the seed is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.fuzz.programs.builder import Builder
from tests.fuzz.programs.draw import Draw
from tests.fuzz.programs.effects import FAMILY, Family, gradient
from tests.fuzz.programs.form import Program

FEWEST, MOST = 3, 12
"""Operations of a program, not counting those that bring operands into range."""


def random_program(seed: int, family: Sequence[Family] = FAMILY) -> Program:
    """The program of a seed: the same on every Python and platform. Nothing is computed."""
    draw = Draw(seed)
    b = Builder(draw)
    wanted = draw.between(FEWEST, MOST)
    while wanted > 0:
        before = len(b.steps)
        draw.weighted(family)(b)
        wanted -= len(b.steps) > before
    if not b.gradients and draw.chance(0.5):
        gradient(b)
    made = {v.name for step in b.steps for v in step.outputs}
    compared = tuple(v for v in b.live.values() if v.name in made)
    program = Program(seed, tuple(b.inputs), tuple(b.steps), compared, draw.chance(0.7))
    return program.without_unused_inputs()
