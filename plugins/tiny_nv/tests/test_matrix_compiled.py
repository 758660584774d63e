"""Plans and sources of products for matrix instructions, as NVIDIA's assemblers take them.

Apart from `test_matrix.py`: renderers there plan for a card of one multiprocessor, by whatever
device they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from assembling import assembled
from matrix_programs import Sources, noted

from tiny_nv.arch import arch_of, limits_of
from tiny_nv.matrix import INSTRUCTIONS, Instruction
from tiny_nv.program import NvrtcCompiler
from tinycore import Context, Tensor
from tinycore.dtype import DType
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Tensorize

OPERANDS = tuple(INSTRUCTIONS.values())
NAMES = {found.unit.a: found for found in OPERANDS}


@pytest.fixture
def sources() -> Iterator[Sources]:
    with noted() as found, Context(ALLOW_TF32=1):
        yield found


@pytest.mark.parametrize("dtype", NAMES, ids=lambda dtype: dtype.name)
def test_products_are_planned_for_the_unit_of_their_type(dtype: DType) -> None:
    left, right = (Tensor.empty(512, 512, dtype=dtype, device="NULL") for _ in range(2))
    ast = left.matmul(right, dtype=NAMES[dtype].unit.out).schedule()[-1].ast
    with Context(ALLOW_TF32=1):
        plan = plan_for(ast, limits_of(arch_of("sm_90")))

    assert [s.unit.name for s in plan if isinstance(s, Tensorize)] == [NAMES[dtype].unit.name]


@pytest.mark.parametrize(("terms", "columns"), [(512, 128), (2048, 256)])
def test_groups_of_short_sums_have_another_beside_them(terms: int, columns: int) -> None:
    """One begins and ends while the other multiplies."""
    sizes = ((64, 512, terms), (64, terms, 512))
    left, right = (Tensor.empty(*s, dtype="bfloat16", device="NULL") for s in sizes)
    plan = plan_for((left @ right).schedule()[-1].ast, limits_of(arch_of("sm_90a"), True))

    assert [s.unit.n for s in plan if isinstance(s, Tensorize)] == [columns]


def compiled_for(arch: str, renderer: str, instruction: Instruction, sources: Sources) -> str:
    """The source of a product of 512."""
    with Context(DEV=f"NULL:{renderer}:{arch}"):
        left, right = (Tensor.empty(512, 512, dtype=instruction.unit.a).realize() for _ in range(2))
        left.matmul(right, dtype=instruction.unit.out).realize()
    assert instruction.name in sources.texts[-1]
    return sources.texts[-1]


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_assemblers_take_every_unit(
    arch: str, sources: Sources, nvrtc: None, ptxas: str, tmp_path: Path
) -> None:
    number = int(arch[3:])
    for instruction in (found for found in OPERANDS if found.since <= number):
        text = compiled_for(arch, "NVRTC", instruction, sources)
        theirs = NvrtcCompiler(arch).assembly(text)
        assert instruction.name in theirs
        assert ".local" not in theirs
        ours = compiled_for(arch, "PTX", instruction, sources)
        said = assembled(ours, arch, ptxas, tmp_path)
        assert "0 bytes spill stores, 0 bytes spill loads" in said
