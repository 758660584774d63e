"""Kernels for made-up limits, computed by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy

from tiny_testing.kernels import Array
from tinycore import Context, Device
from tinycore.builtin.interpreter import PythonCompiler, PythonRenderer
from tinycore.device import Buffer
from tinycore.dtype import PointerDType
from tinycore.engine.compile import info_of
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Plan
from tinycore.render.base import Limits, LinearKernel
from tinycore.uop.host_bytes import decode, encode
from tinycore.uop.node import UOp

Program = tuple[UOp, ...]


def computed(
    ast: UOp, plan: Plan, limits: Limits, change: Callable[[Program], Program] | None = None
) -> tuple[LinearKernel, list[Array]]:
    """A kernel for some limits, perhaps changed, and its buffers after it was interpreted."""
    with Context(VERIFY=1):
        linear = lower(ast, PythonRenderer(limits), "product", plan)
    if change is not None:
        linear = replace(linear, uops=change(linear.uops))
    binary = PythonCompiler().compile(PythonRenderer(limits).render(linear))
    program = Device["PYTHON"].runtime.load(binary, info_of(linear, len(linear.buffers)))
    generator = numpy.random.default_rng(0)
    buffers, held = [], []
    for pointer in linear.buffers:
        assert isinstance(pointer.dtype, PointerDType)
        numbers = generator.integers(-3, 4, pointer.dtype.size)
        held.append(numbers)
        content = encode(numbers.astype(numpy.float32), pointer.dtype.base.scalar())
        buffers.append(Buffer.from_cpu("PYTHON", content))
    program([b.handle for b in buffers], [], wait=True)
    out = linear.buffers[0].dtype
    assert isinstance(out, PointerDType)
    return linear, [decode(buffers[0].numpy(), out.base), *held[1:]]


def checked_product(
    ast: UOp, size: tuple[int, int, int], limits: Limits, plan: Plan | None = None
) -> LinearKernel:
    """The kernel of a product for some limits, whose result is that of NumPy."""
    rows, inner, columns = size
    chosen = plan_for(ast, limits) if plan is None else plan
    linear, (found, left, right) = computed(ast, chosen, limits)
    expected = left.reshape(rows, inner) @ right.reshape(inner, columns)
    assert numpy.array_equal(found.reshape(rows, columns), expected)
    return linear
