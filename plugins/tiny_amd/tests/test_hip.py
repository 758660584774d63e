"""HIP: source through COMGR where it is, and through zig's clang, which takes the same language.

Kernels that clang makes of it run on the emulator through the driver, as those of LLVM IR do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("ziglang")

from code_object import run
from emulator.dispatch import Emulator
from hip_by_clang import ZigCompiler, of_hip_by_clang, toolchain
from hip_programs import ANYWHERE, check_accesses_of_bytes, product_of
from kfd_standin import Machine
from kfd_standin.cards import MI300, NAVI31, NAVI48
from listings import DECODERS
from matrix_programs import SIZES, MatrixPrograms, for_few_threads, noted, small_integers
from simulated_amd import backend_of
from tensor_programs import TensorPrograms

from tiny_amd.arch import ARCHS
from tiny_amd.matrix import Instruction
from tiny_testing.suite.case import Level, Trial, trials
from tiny_testing.suite.subject import Subject
from tinycore import Context, Tensor, dtypes
from tinycore.plugin import register, unregister
from tinycore.uop.host_bytes import encode

PROGRAMS: Final = TensorPrograms("AMD")


CARDS: Final = {"gfx1100": NAVI31, "gfx1201": NAVI48, "gfx942": MI300}


@pytest.fixture(params=CARDS)
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A card whose kernels are HIP."""
    register(of_hip_by_clang(backend_of(Machine((CARDS[request.param],)))))
    with Context(DEV="AMD:HIP"):
        yield
    unregister("AMD")


@pytest.mark.sample(3)
def test_elements_and_sums(card: None) -> None:
    PROGRAMS.elements()
    PROGRAMS.sums(0)


def test_softmax(card: None) -> None:
    PROGRAMS.softmax()


@pytest.mark.sample(3)
def test_products_with_shared_memory(card: None) -> None:
    PROGRAMS.matmul(65, 50, 130)


def test_integers(card: None) -> None:
    PROGRAMS.integers()


def test_halves_and_bools(card: None) -> None:
    values = numpy.linspace(-4, 4, 100, dtype="e")
    found = (Tensor(values) > 1).where(Tensor(values).sqrt(), 0)
    expected = numpy.where(values > 1, numpy.sqrt(numpy.maximum(values, 0)), 0)
    assert numpy.allclose(found.cast(dtypes.float32).numpy(), expected, 2e-3)


def test_accesses_that_may_lie_anywhere_are_of_bytes() -> None:
    """LLVM would join them, counting on a setting of the kernel's driver."""
    check_accesses_of_bytes(ZigCompiler("gfx1100").compile(ANYWHERE))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "trial", trials(Level.COMPUTE, "test_lanes_exchange_values"), ids=lambda trial: trial.name
)
def test_lanes_exchange_values_as_the_suite_says(trial: Trial, card: None) -> None:
    trial.run(Subject("AMD"))


# --- matrix instructions


@pytest.mark.sample(18)
@pytest.mark.parametrize("size", SIZES[:4], ids=str)
@pytest.mark.parametrize(
    ("arch", "found"),
    [
        pytest.param(arch, found, id=f"{arch}-{found.unit.name}")
        for arch in CARDS
        for found in ARCHS[arch].matrix
    ],
)
def test_a_product_is_numpys(arch: str, found: Instruction, size: tuple[int, int, int]) -> None:
    """Some sizes leave lanes without a place to store to: all of them execute WMMA nevertheless."""
    unit, tools = found.unit, toolchain(arch)
    rows, inner, columns = size
    linear = product_of(arch, found, size)
    a, b = small_integers(rows, inner), small_integers(inner, columns, seed=1)
    sums = numpy.zeros(rows * columns, "i" if unit.out is dtypes.int32 else "f")
    given = [encode(x.astype("f").ravel(), unit.a) for x in (a, b)]

    binary = tools.compiler.compile(tools.renderer.render(linear))
    launch = linear.launch("grid"), linear.launch("block")
    emulator = run(binary, [sums, *given], *launch, emulator=Emulator(decoder=DECODERS[arch]))

    assert numpy.array_equal(sums.reshape(rows, columns), a @ b)
    assert any(name.startswith(("v_wmma", "v_mfma")) for name in emulator.executed)


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
def test_attention_is_one_kernel(name: str) -> None:
    machine = Machine((CARDS[name],))
    register(for_few_threads(of_hip_by_clang(backend_of(machine))))
    programs = MatrixPrograms(
        TensorPrograms("AMD"), {dtypes.half: "16x16x16"}, {dtypes.half: dtypes.float32}
    )
    try:
        with Context(DEV="AMD:HIP"), noted() as sources:
            programs.attends(dtypes.half, sources)
    finally:
        unregister("AMD")
    assert sources.count("__builtin_amdgcn_exp2f") == 1


@pytest.mark.slow
@pytest.mark.parametrize("arch", [name for name, facts in ARCHS.items() if facts.matrix])
def test_products_of_each_architecture_compile(arch: str) -> None:
    for found in ARCHS[arch].matrix:
        source = toolchain(arch).renderer.render(product_of(arch, found, (64, 64, 64)))
        assert found.unit.name in source
        assert ZigCompiler(arch).compile(source)[:4] == b"\x7fELF"
