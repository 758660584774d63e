"""docs/write-an-instruction.md: an instruction and a strategy of which the core has not heard."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy
import pytest

from tiny_testing.suite.case import Level, trials
from tiny_testing.suite.judge import Skips, Verdict
from tiny_testing.suite.run import run_here
from tiny_testing.suite.subject import Subject
from tinycore import Context, Device, Tensor
from tinycore.builtin.arithmetic import meaning_of
from tinycore.engine.compile import info_of
from tinycore.errors import CompilerUnavailable, PluginError, UnsupportedError, VerifyError
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.plugin import unregister
from tinycore.render.base import LinearKernel
from tinycore.uop.instruction import Instruction
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.parse import program_from_text
from tinycore.uop.text import to_text
from tinycore.uop.verify import verify

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    text = (DOCS / page).read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def hyp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the page, in a folder that was empty, with its device registered."""
    folder = tmp_path_factory.mktemp("hyp")
    (folder / "cee.py").write_text("\n".join(blocks("write-a-backend-in-c.md")[:-2]), "utf-8")
    *module, use = blocks("write-an-instruction.md")
    (folder / "hyp.py").write_text("\n".join(module), "utf-8")
    sys.path.insert(0, str(folder))
    try:
        importlib.import_module("cee").c_compiler()
        exec(use, {"__name__": "use"})
        yield sys.modules["hyp"]
        unregister("HYP")
    except CompilerUnavailable as error:
        pytest.skip(str(error))
    finally:
        sys.path.remove(str(folder))
        for name in ("cee", "hyp"):
            sys.modules.pop(name, None)


def lengths() -> UOp:
    """The kernel of the lengths of some vectors."""
    a, b = (Tensor.empty(8, device="HYP").realize() for _ in range(2))
    (item,) = (a * a + b * b).sqrt().schedule()
    return item.ast


def linear(kernel: UOp) -> LinearKernel:
    """A kernel as the renderer of the page gets it."""
    with Context(VERIFY=1):
        return lower(kernel, Device["HYP"].toolchain.renderer, "kernel")


def test_the_instruction_is_in_the_source(hyp: ModuleType) -> None:
    kernel = linear(lengths())

    assert [u.arg for u in kernel.uops if u.op is Op.INSTRUCTION] == [hyp.LENGTH]
    assert "hypotf(" in Device["HYP"].toolchain.renderer.render(kernel)


def test_the_plan_is_the_strategys(hyp: ModuleType) -> None:
    a = Tensor.empty(8, 8, device="HYP").realize()
    (item,) = (a @ a.T).schedule()
    limits = Device["HYP"].toolchain.renderer.limits

    assert [str(step) for step in plan_for(item.ast, limits)] != []
    assert not plan_for(item.ast, replace(limits, strategies=()))
    x = numpy.arange(64, dtype=numpy.float32).reshape(8, 8)
    t = Tensor(x, device="HYP")
    assert numpy.array_equal((t @ t.T).numpy(), x @ x.T)


def test_the_interpreter_computes_its_meaning(hyp: ModuleType) -> None:
    toolchain, device = Device["PYTHON"].toolchain, Device["PYTHON"].runtime
    kernel = linear(lengths())
    binary = toolchain.compiler.compile(toolchain.renderer.render(kernel))
    target, a, b = (numpy.arange(8, dtype=numpy.float32) for _ in range(3))
    handles = [device.allocator.alloc(32) for _ in range(3)]
    for handle, array in zip(handles, (target, a, b), strict=True):
        device.allocator.write(handle, memoryview(array.tobytes()))

    device.load(binary, info_of(kernel, 3))(handles, ())

    found = numpy.zeros(8, numpy.float32)
    device.allocator.read(memoryview(found.data).cast("B"), handles[0])
    assert numpy.array_equal(found, numpy.hypot(a, b))


def test_its_text_is_read_back_and_imports_nothing(
    hyp: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = linear(lengths()).uops
    (read,) = [u for u in program_from_text(to_text(program)) if u.op is Op.INSTRUCTION]

    assert read.arg == hyp.LENGTH
    assert read.arg.function is hyp.length
    monkeypatch.delitem(sys.modules, "hyp")
    with pytest.raises(PluginError, match=r"length.*no function of an imported module"):
        _ = read.arg.function


@pytest.mark.parametrize("meaning", ["builtins:exec", "hyp:numpy", "hyp:length", "gone:f", "hyp"])
def test_a_text_calls_nothing_but_meanings(hyp: ModuleType, meaning: str) -> None:
    """A text that names a function which no plugin declares as a meaning runs no code."""
    kinds = (hyp.dtypes.uint8,)
    one = UOp.const(hyp.dtypes.uint8, 1)
    wrong = UOp(Op.INSTRUCTION, kinds[0], (one,), Instruction("x", kinds, kinds[0], meaning))
    read = program_from_text(to_text((one, wrong)))[-1]

    assert read.arg == wrong.arg
    with pytest.raises(PluginError, match=f"x: '{meaning}' is no function of an imported module"):
        meaning_of(read.arg)(numpy.frombuffer(b"raise SystemExit", numpy.uint8))


def test_operands_of_other_types_are_refused(hyp: ModuleType) -> None:
    halves = UOp.const(hyp.dtypes.float16, 1.0)
    wrong = UOp(Op.INSTRUCTION, hyp.dtypes.float32, (halves, halves), hyp.LENGTH)

    with pytest.raises(VerifyError, match="length is of"):
        verify((halves, wrong), "linear")


def test_another_dialect_refuses_it(hyp: ModuleType) -> None:
    plain = sys.modules["cee"].PlainC()

    with pytest.raises(UnsupportedError, match="C has no instruction length"):
        plain.render(linear(lengths()))


def test_a_trial_proves_it(hyp: ModuleType) -> None:
    (trial,) = [t for t in trials(Level.COMPUTE) if "own_instructions" in t.name]
    (found,) = run_here(Subject("HYP", Skips()), [trial])
    assert found.judgement.verdict is Verdict.PASSED

    renderer = type(Device["HYP"].toolchain.renderer)
    right, wrong = renderer.instructions, {hyp.LENGTH: "hypotf({0}, {0})"}
    renderer.instructions = wrong
    try:
        (found,) = run_here(Subject("HYP", Skips()), [trial])
    finally:
        renderer.instructions = right
    assert found.judgement.verdict is Verdict.FAILED
    assert "length" in str(found.judgement)
