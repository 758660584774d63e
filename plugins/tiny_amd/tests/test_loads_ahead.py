"""Groups that are alone on a compute unit load operands of the next step before they multiply."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy
import pytest

pytest.importorskip("llvmlite")

from kfd_standin import Machine
from kfd_standin.cards import NAVI31
from matrix_programs import for_few_threads, noted, small_integers
from simulated_amd import backend_of

from tiny_amd.device import toolchain
from tiny_amd.llvm import LlvmCompiler
from tinycore import Context, Tensor, dtypes
from tinycore.lower.pipeline import lower
from tinycore.plugin import register, unregister

EDGE = "@llvm.amdgcn.sched.barrier(i32 0)"


@pytest.fixture(scope="module")
def card() -> Iterator[None]:
    """A card with more units than products of the tests have tiles."""
    register(for_few_threads(backend_of(Machine((NAVI31,))), units=8, threads=512))
    with Context(DEV="AMD"):
        yield
    unregister("AMD")


@pytest.mark.sample(4)
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("sizes", [(32, 160, 48), (20, 200, 33)], ids=str)
def test_products_are_those_of_numpy(
    sizes: tuple[int, int, int], turned: tuple[bool, bool], card: None
) -> None:
    rows, steps, columns = sizes
    a, b = small_integers(rows, steps), small_integers(steps, columns, seed=1)

    def operand(values: numpy.ndarray, across: bool) -> Tensor:
        held = Tensor(values.T.copy() if across else values).cast(dtypes.half).realize()
        return held.T if across else held

    x, y = operand(a, turned[0]), operand(b, turned[1])
    with noted() as sources:
        found = x.matmul(y, dtype=dtypes.float32).numpy()

    assert numpy.array_equal(found, a @ b)
    assert sources.count(EDGE) == 1


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_llvm_keeps_loads_before_products(arch: str) -> None:
    """It waits for what it loads, in each step but the first, behind the products of the step."""
    with Context(DEV=f"NULL:LLVM:{arch}"):
        a, b = (Tensor.empty(512, 512, dtype=dtypes.half) for _ in "ab")
        (item,) = (a @ b).schedule()
    renderer = toolchain(arch).renderer
    text = LlvmCompiler(arch).assembly(renderer.render(lower(item.ast, renderer, "product")))
    told = re.findall(
        r"^\s+(global_load|v_wmma|v_mfma|s_barrier|s_waitcnt vmcnt)", text, re.MULTILINE
    )
    steps = [step.split() for step in " ".join(t.split()[-1] for t in told).split("s_barrier")]
    ahead = [step for step in steps[1:] if "global_load" in step]

    assert ahead
    for step in ahead:
        products = [n for n, name in enumerate(step) if name.startswith("v_")]
        loads = [n for n, name in enumerate(step) if name == "global_load"]
        waits = [n for n, name in enumerate(step) if name == "vmcnt"]
        assert max(loads) < min(products) < max(products) < min(waits)
    assert re.findall(r"vgpr_spill_count:\s+(\d+)", text) == ["0"]
