"""An instruction whose template is of scalars, in dialects that compute with vectors."""

from __future__ import annotations

import numpy
import pytest

from tiny_cpu._render_clang import Clang
from tiny_cpu._render_llvm import LlvmCpu
from tinycore import Context, Device, Tensor
from tinycore.dtype import dtypes
from tinycore.lower.pipeline import lower
from tinycore.render.base import Renderer
from tinycore.uop.instruction import Instruction
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import RuleSet, node, var

ROOT = Instruction("root", (dtypes.float32,), dtypes.float32, f"{__name__}:root")
roots = RuleSet("roots")


@roots.rule(node(Op.SQRT, var("x")))
def root_by_instruction(x: UOp) -> UOp:
    """sqrt(x) == root(x), of scalars and of vectors."""
    return UOp(Op.INSTRUCTION, x.dtype, (x,), ROOT)


@pytest.mark.parametrize("size", [1, 4, 64, 67])
def test_a_template_is_written_for_each_lane(
    toolchain: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialects: dict[str, tuple[type[Renderer], str]] = {
        "CLANG": (Clang, "__builtin_sqrtf({0})"),
        "LLVM": (LlvmCpu, "fdiv float {0}, 2.0"),  # a root of 4
    }
    dialect, template = dialects[toolchain]
    monkeypatch.setattr(dialect, "rules", {"tidy": roots})
    monkeypatch.setattr(dialect, "instructions", {ROOT: template})
    with Context(DEV=f"CPU:{toolchain}", VERIFY=1):
        x = Tensor(numpy.full(size, 3, numpy.float32))
        y = (x + 1).sqrt() * 7.25
        (item,) = y.schedule()
        kernel = lower(item.ast, Device["CPU"].toolchain.renderer, "kernel")

        assert y.tolist() == [14.5] * size
        assert {u.dtype for u in kernel.uops if u.op is Op.INSTRUCTION} == {dtypes.float32}
        if size == 64:
            assert any(u.op is Op.ADD and u.dtype.count > 1 for u in kernel.uops)
