"""A complete backend in one file, registered from outside: Tensor code runs on it as on any other.

It renders kernels to Python source, compiles by `compile`, and runs by `exec`: all that a backend
needs is on the stable face.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy
import pytest

from tinycore import Context, Device, Tensor
from tinycore.plugin import Backend, ProgramInfo, Toolchain, register, unregister
from tinycore.render.base import LinearKernel, Renderer
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

FORMATS: Final = {"bool": "?", "int32": "i", "int64": "q", "uint32": "I", "uint64": "Q"} | {
    "uint8": "B", "int8": "b", "float32": "f", "float64": "d",
}  # fmt: skip

TEMPLATES: Final = {
    Op.NEG: "-{0}",
    Op.ADD: "({0} + {1})",
    Op.SUB: "({0} - {1})",
    Op.MUL: "({0} * {1})",
    Op.FDIV: "({0} / {1})",
    Op.IDIV: "int({0} / {1})",
    Op.MOD: "math.fmod({0}, {1})",
    Op.MAX: "max({0}, {1})",
    Op.MIN: "min({0}, {1})",
    Op.CMPLT: "({0} < {1})",
    Op.CMPNE: "({0} != {1})",
    Op.CMPEQ: "({0} == {1})",
    Op.AND: "({0} & {1})",
    Op.OR: "({0} | {1})",
    Op.XOR: "({0} ^ {1})",
    Op.SHL: "({0} << {1})",
    Op.SHR: "({0} >> {1})",
    Op.WHERE: "({1} if {0} else {2})",
    Op.SQRT: "math.sqrt({0})",
    Op.EXP: "math.exp({0})",
    Op.EXP2: "2.0 ** {0}",
    Op.LOG2: "math.log2({0})",
    Op.TRUNC: "math.trunc({0})",
    Op.RECIPROCAL: "(1.0 / {0})",
}


CONVERSIONS: Final = {"float": "float", "bool": "bool"}


class PythonText(Renderer):
    """Linear programs as a Python function over memoryviews."""

    name = "TEXT"
    native_ops: ClassVar[frozenset[Op]] = frozenset({*TEMPLATES, Op.CAST})

    def render(self, kernel: LinearKernel) -> str:
        names: dict[UOp, str] = {}
        lines = [f"def {kernel.name}(buffers, values):"]
        depth = 1
        for number, u in enumerate(kernel.uops):
            if u.op is Op.END:
                depth -= 1
                continue
            operands = [names.get(s, "") for s in u.src]
            if u.op is Op.INDEX:
                names[u] = f"{operands[0]}[{operands[1]}]"
                continue
            text = self.statement(u, operands, names, kernel)
            names[u] = f"v{number}"
            lines.append("  " * depth + text.format(name=names[u]))
            depth += u.op is Op.RANGE
        return "\n".join(lines) + "\n"

    def statement(
        self, u: UOp, operands: list[str], names: dict[UOp, str], kernel: LinearKernel
    ) -> str:
        gate = names[u.src[0].src[2]] if u.src and len(u.src[0].src) == 3 else "True"
        match u.op:
            case Op.RANGE:
                return f"for {{name}} in range({operands[0]}):"
            case Op.STORE:
                return f"if {gate}: {operands[0]} = {operands[1]}"
            case Op.DEFINE_GLOBAL:
                return f"{{name}} = buffers[{u.arg}].cast({FORMATS[u.dtype.name]!r})"
            case Op.DEFINE_REG:
                return "{name} = [None]"
            case Op.DEFINE_VAR:
                return f"{{name}} = values[{kernel.variables.index(u)}]"
            case Op.CONST:
                return "{name} = " + (
                    f"float('{u.arg}')" if u.dtype.kind == "float" else f"{u.arg}"
                )
            case Op.LOAD:
                return f"{{name}} = {operands[0]} if {gate} else {[*operands, '0'][1]}"
            case Op.CAST:
                return f"{{name}} = {CONVERSIONS.get(u.dtype.kind, 'int')}({operands[0]})"
        return "{name} = " + TEMPLATES[u.op].format(*operands)


class TextCompiler:
    name = "TEXT"
    key = "python text"

    def compile(self, source: str) -> bytes:
        compile(source, "kernel", "exec")
        return source.encode()


class Memory:
    """bytearrays, as device memory."""

    def alloc(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def free(self, handle: memoryview) -> None: ...

    def write(self, dst: memoryview, src: memoryview) -> None:
        dst[: src.nbytes] = src

    def read(self, dst: memoryview, src: memoryview) -> None:
        dst[:] = src[: dst.nbytes]

    def offset(self, handle: memoryview, size: int, start: int) -> memoryview:
        return handle[start : start + size]


class Runtime:
    launched = 0

    def __init__(self, index: int, interface: str) -> None:
        self.allocator = Memory()

    def load(self, binary: bytes, info: ProgramInfo) -> Callable[..., float | None]:
        scope: dict[str, Any] = {"math": math}
        exec(binary.decode(), scope)
        function = scope[info.name]

        def program(
            buffers: Sequence[memoryview], values: Sequence[int], *, wait: bool = False
        ) -> float | None:
            Runtime.launched += 1
            function(buffers, values)
            return 0.0 if wait else None

        return program

    def synchronize(self) -> None: ...

    def close(self) -> None: ...


def toolchain(arch: str) -> Toolchain[Renderer]:
    return Toolchain("TEXT", arch, PythonText(), TextCompiler())


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    backend = Backend(name="OUTSIDE", api=(1, 0), open=Runtime, renderers={"TEXT": toolchain})
    register(backend)
    with Context(DEV="OUTSIDE"):
        yield
    unregister("OUTSIDE")


def test_tensor_code_runs_on_it() -> None:
    before = Runtime.launched
    x = Tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])

    assert Device.DEFAULT == x.device == "OUTSIDE"
    assert (x.relu() * 2 + x.sum(axis=1, keepdim=True)).tolist() == [[4, 2, 8], [11, 13, 3]]
    assert Runtime.launched > before


def test_matrices_padding_and_softmax() -> None:
    a, b = numpy.arange(6.0).reshape(2, 3), numpy.arange(12.0).reshape(3, 4) / 5
    product = Tensor(a.astype(numpy.float32)) @ Tensor(b.astype(numpy.float32))

    assert numpy.allclose(product.numpy(), a @ b, atol=1e-5)
    assert Tensor([1.0, 2.0]).pad(((1, 1),)).tolist() == [0, 1, 2, 0]
    assert Tensor([1.0, 1.0]).softmax().tolist() == pytest.approx([0.5, 0.5])


def test_gradients_and_copies_to_another_device() -> None:
    x = Tensor([3.0, 4.0])
    (x * x).sum().backward()

    assert x.grad is not None
    assert x.grad.to("PYTHON").tolist() == [6, 8]
