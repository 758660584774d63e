"""Kernels in HIP that tests of its compilers share."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy
from code_object import run

from tiny_amd.arch import ARCHS, limits_of
from tiny_amd.hip import AmdHip
from tiny_amd.matrix import Instruction
from tinycore import Tensor
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.render.base import LinearKernel

__all__ = ["ANYWHERE", "check_accesses_of_bytes", "product_of"]

ANYWHERE: Final = """
extern "C" __attribute__((global, amdgpu_flat_work_group_size(32, 32)))
void k(unsigned char *p, const unsigned char *q) {
  int i = __builtin_amdgcn_workitem_id_x();
  __builtin_memcpy(p + 18 * i, q + i, 16);
}"""


def check_accesses_of_bytes(binary: bytes) -> None:
    """Run the kernel; a wider access at an odd address would be a fault."""
    given, found = numpy.arange(100, dtype="B"), numpy.zeros(32 * 18, "B")
    run(binary, [found, given])
    windows = numpy.lib.stride_tricks.sliding_window_view(given, 16)[:32]
    assert (found.reshape(32, 18)[:, :16] == windows).all()


def product_of(arch: str, found: Instruction, size: tuple[int, int, int]) -> LinearKernel:
    """A product of matrices by an instruction, however small it is."""
    limits = replace(limits_of(ARCHS[arch]), threads=1, units=1, matrix=(found.unit,))
    rows, inner, columns = size
    shapes = ((rows, inner), (inner, columns))
    left, right = (Tensor.empty(*shape, dtype=found.unit.a, device="NULL") for shape in shapes)
    ast = left.matmul(right, dtype=found.unit.out).schedule()[-1].ast
    return lower(ast, AmdHip(limits), "k", plan_for(ast, limits))
