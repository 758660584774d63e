"""WMMA and MFMA: each unit against NumPy on a card that the emulator plays, through the driver.

The emulator has from the manual where lanes hold elements, as formulas; the units have it as maps.
Kernels of RDNA4 and CDNA3 run on the emulator alone too. What only LLVM can say is asked of it:
that it takes the calls, and spills nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy
import pytest

pytest.importorskip("llvmlite")

from code_object import run
from emulator.cdna3 import Cdna3Decoder
from emulator.dispatch import Emulator
from emulator.rdna4 import Rdna4Decoder
from kfd_standin import Machine
from kfd_standin.cards import NAVI31
from matrix_programs import (
    SIZES,
    MatrixPrograms,
    Sources,
    for_few_threads,
    noted,
    small_integers,
)
from simulated_amd import backend_of
from tensor_programs import TensorPrograms

from tiny_amd.arch import ARCHS
from tiny_amd.device import toolchain
from tiny_amd.llvm import LlvmCompiler
from tiny_amd.matrix import CDNA2, CDNA3, CDNA4, RDNA3, RDNA4, Instruction
from tiny_amd.render import AmdLlvm
from tinycore import Context, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.plugin import register, unregister
from tinycore.uop.host_bytes import encode

DECODERS: Final = {"gfx1201": Rdna4Decoder, "gfx942": Cdna3Decoder}
OPERANDS: Final = {found.unit.a: found for found in RDNA3}
PROGRAMS: Final = MatrixPrograms(
    TensorPrograms("AMD"),
    {dtype: found.intrinsic.name for dtype, found in OPERANDS.items()},
    {dtype: found.unit.out for dtype, found in OPERANDS.items()},
)
NARROW: Final = [dtypes.half, dtypes.bfloat16]

each_operand = pytest.mark.parametrize("dtype", OPERANDS, ids=lambda dtype: dtype.name)
each_narrow = pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)


@pytest.fixture(scope="module")
def card() -> Iterator[None]:
    """A card that few threads keep busy."""
    register(for_few_threads(backend_of(Machine((NAVI31,)))))
    with Context(DEV="AMD"):
        yield
    unregister("AMD")


@pytest.fixture
def sources(card: None) -> Iterator[Sources]:
    """Sources of kernels on the card."""
    with noted() as found:
        yield found


# --- where elements are

Array = numpy.ndarray[Any, Any]
Places = Callable[[Array, Array, int], tuple[Array, Array]]
"""Rows and columns by lane, element and elements of a lane; of B columns and rows."""


def repeated(lane: Array, element: Array, count: int) -> tuple[Array, Array]:
    """A and B of RDNA3: all steps of a row in a lane, and again in the lane 16 further."""
    return lane % 16 + 0 * element, 0 * lane + element


def shared_out(lane: Array, element: Array, count: int) -> tuple[Array, Array]:
    """A and B of RDNA4 and of MFMA: each 16 lanes hold the next steps."""
    return lane % 16 + 0 * element, lane // 16 * count + element


def in_turns(lane: Array, element: Array, count: int) -> tuple[Array, Array]:
    """Sums of RDNA3: the two halves of a wave hold even and odd rows."""
    return 2 * element + lane // 16, lane % 16 + 0 * element


def in_blocks(lane: Array, element: Array, count: int) -> tuple[Array, Array]:
    """Sums of RDNA4 and of MFMA: each 16 lanes hold the next rows."""
    return count * (lane // 16) + element, lane % 16 + 0 * element


@pytest.mark.parametrize(
    ("family", "operands", "sums"),
    [
        (RDNA3, repeated, in_turns),
        *((family, shared_out, in_blocks) for family in (RDNA4, CDNA2, CDNA3, CDNA4)),
    ],
)
def test_lanes_hold_what_the_manuals_say(
    family: tuple[Instruction, ...], operands: Places, sums: Places
) -> None:
    for unit in (found.unit for found in family):
        lane = numpy.arange(unit.threads)[:, None]
        for name, axes, places in (
            ("a", "mk", operands),
            ("b", "nk", operands),
            ("out", "mn", sums),
        ):
            held = unit.fragment(name)
            element = numpy.arange(held.count)[None]
            expected = places(lane, element, held.count)
            for axis, where in zip(axes, expected, strict=True):
                found = held.map.place(axis, lane, element) + 0 * where
                assert numpy.array_equal(found, where), (unit.name, name, axis)
            repeats = unit.threads // 16 if name != "out" and family is RDNA3 else 1
            whole = {*zip(expected[0].flat, expected[1].flat, strict=True)}
            assert len(whole) * repeats == lane.size * held.count


# --- products


@pytest.mark.sample(15)
@pytest.mark.parametrize("size", SIZES, ids=str)
@each_operand
def test_a_product_is_numpys(dtype: DType, size: tuple[int, int, int], sources: Sources) -> None:
    PROGRAMS.is_numpys(dtype, size, sources)


@pytest.mark.slow
@each_narrow
def test_sums_of_narrow_products_are_single(dtype: DType, sources: Sources) -> None:
    PROGRAMS.is_summed_in_single(dtype, sources)


@each_narrow
def test_what_is_around_a_product_is_in_its_kernel(dtype: DType, sources: Sources) -> None:
    PROGRAMS.takes_its_surroundings(dtype, sources)


@pytest.mark.sample(2)
@pytest.mark.parametrize("transposed", ["", "left", "right", "both"])
def test_operands_that_lie_the_other_way(transposed: str, sources: Sources) -> None:
    PROGRAMS.is_transposed(dtypes.half, transposed, sources)


def test_many_products_at_once(sources: Sources) -> None:
    PROGRAMS.is_batched(dtypes.half, sources)


@each_narrow
def test_a_convolution_is_a_product(dtype: DType, sources: Sources) -> None:
    PROGRAMS.convolves(dtype, sources)


@each_narrow
def test_attention_over_any_number_of_keys_is_one_kernel(dtype: DType, sources: Sources) -> None:
    PROGRAMS.attends(dtype, sources)


# --- RDNA4 and CDNA3, by the emulator alone


@pytest.mark.sample(24)
@pytest.mark.parametrize("size", SIZES[:4], ids=str)
@pytest.mark.parametrize(
    ("arch", "found"),
    [
        pytest.param(arch, found, id=found.unit.name)
        for arch, family in (("gfx1201", RDNA4), ("gfx942", CDNA3))
        for found in family
    ],
)
def test_a_product_of_another_family_is_numpys(
    arch: str, found: Instruction, size: tuple[int, int, int]
) -> None:
    unit, tools = found.unit, toolchain(arch)
    rows, inner, columns = size
    limits = replace(tools.renderer.limits, threads=1, units=1)
    shapes = ((rows, inner), (inner, columns))
    left, right = (Tensor.empty(*shape, dtype=unit.a, device="NULL") for shape in shapes)
    ast = left.matmul(right, dtype=unit.out).schedule()[-1].ast
    linear = lower(ast, AmdLlvm(limits), "k", plan_for(ast, limits))
    a, b = (small_integers(*shape, seed=seed) for seed, shape in enumerate(shapes))
    sums = numpy.zeros(rows * columns, "i" if unit.out is dtypes.int32 else "f")
    given = [encode(x.astype("f").ravel(), unit.a) for x in (a, b)]

    binary = tools.compiler.compile(tools.renderer.render(linear))
    launch = linear.launch("grid"), linear.launch("block")
    emulator = run(binary, [sums, *given], *launch, emulator=Emulator(decoder=DECODERS[arch]))

    assert numpy.array_equal(sums.reshape(rows, columns), a @ b)
    assert any(name.startswith(("v_wmma", "v_mfma")) for name in emulator.executed)


# --- compiled, with nothing executed


@pytest.mark.sample(9)
@pytest.mark.parametrize("arch", [name for name, facts in ARCHS.items() if facts.matrix])
def test_products_of_each_architecture_compile_without_spills(arch: str) -> None:
    of_products = {found.unit.a: found for found in reversed(ARCHS[arch].matrix)}
    for found in of_products.values():  # others of the same type are for chains
        with Context(DEV=f"NULL:LLVM:{arch}"), noted() as sources:
            left, right = (Tensor.empty(512, 512, dtype=found.unit.a).realize() for _ in range(2))
            left.matmul(right, dtype=found.unit.out).realize()
        (source,) = (text for text in sources.texts if found.intrinsic.name in text)
        assembly = LlvmCompiler(arch).assembly(source)
        stated = dict(re.findall(r"\.(\w+):\s+(\d+)", assembly))
        assert re.search(r"v_wmma_|v_mfma_", assembly)
        assert stated["private_segment_fixed_size"] == stated["vgpr_spill_count"] == "0"


def test_no_lane_is_left_out_of_a_product() -> None:
    """LLVM 22 moves WMMA to where its sum is stored, even if some lanes do not get there."""
    with Context(DEV="NULL:LLVM:gfx1100"), noted() as sources:
        left, right = (Tensor.empty(*s, dtype="half").realize() for s in ((500, 64), (64, 250)))
        left.matmul(right, dtype=dtypes.float32).realize()
    source = next(text for text in sources.texts if "wmma" in text)  # others may end meanwhile
    assembly = LlvmCompiler("gfx1100").assembly(source)
    masked = re.search(r"v_cmpx|saveexec|s_\w+ exec", assembly)
    assert masked is not None
    assert assembly.rindex("v_wmma_") < masked.start()
