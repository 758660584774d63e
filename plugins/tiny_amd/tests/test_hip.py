"""HIP: source through COMGR where it is, and through zig's clang, which takes the same language.

Kernels that clang makes of it run on the emulator through the driver, as those of LLVM IR do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("ziglang")

from code_object import run
from emulator.dispatch import Emulator
from hip_by_clang import ZigCompiler, of_hip_by_clang, toolchain
from kfd_standin import Machine
from kfd_standin.cards import MI300, NAVI31, NAVI48
from listings import DECODERS
from matrix_programs import SIZES, small_integers
from simulated_amd import backend_of
from tensor_programs import TensorPrograms

from tiny_amd import comgr
from tiny_amd.arch import ARCHS, limits_of
from tiny_amd.hip import AmdHip
from tiny_amd.matrix import Instruction
from tinycore import Context, Tensor, dtypes
from tinycore.errors import CompileError, CompilerUnavailable
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.plugin import SupportsAssembly, register, unregister
from tinycore.render.base import LinearKernel
from tinycore.tensor.host_bytes import encode
from tinycore.testing.suite.case import Level, Trial, trials
from tinycore.testing.suite.subject import Subject

PROGRAMS: Final = TensorPrograms("AMD")


CARDS: Final = {"gfx1100": NAVI31, "gfx1201": NAVI48, "gfx942": MI300}


@pytest.fixture(scope="module", params=CARDS)
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A card whose kernels are HIP."""
    register(of_hip_by_clang(backend_of(Machine((CARDS[request.param],)))))
    with Context(DEV="AMD:HIP"):
        yield
    unregister("AMD")


def test_elements_and_sums(card: None) -> None:
    PROGRAMS.elements()
    PROGRAMS.sums(0)


def test_softmax(card: None) -> None:
    PROGRAMS.softmax()


def test_products_with_shared_memory(card: None) -> None:
    PROGRAMS.matmul(65, 50, 130)


def test_integers(card: None) -> None:
    PROGRAMS.integers()


def test_halves_and_bools(card: None) -> None:
    values = numpy.linspace(-4, 4, 100, dtype="e")
    found = (Tensor(values) > 1).where(Tensor(values).sqrt(), 0)
    expected = numpy.where(values > 1, numpy.sqrt(numpy.maximum(values, 0)), 0)
    assert numpy.allclose(found.cast(dtypes.float32).numpy(), expected, 2e-3)


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


def test_accesses_that_may_lie_anywhere_are_of_bytes() -> None:
    """LLVM would join them, counting on a setting of the kernel's driver."""
    check_accesses_of_bytes(ZigCompiler("gfx1100").compile(ANYWHERE))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "trial", trials(Level.COMPUTE, "test_lanes_exchange_values"), ids=lambda trial: trial.name
)
def test_lanes_exchange_values_as_the_suite_says(trial: Trial, card: None) -> None:
    trial.run(Subject("AMD"))


# --- matrix instructions


def product_of(arch: str, found: Instruction, size: tuple[int, int, int]) -> LinearKernel:
    """A product of matrices that takes an instruction, however small it is."""
    limits = replace(limits_of(ARCHS[arch]), threads=1, units=1)
    rows, inner, columns = size
    shapes = ((rows, inner), (inner, columns))
    left, right = (Tensor.empty(*shape, dtype=found.unit.a, device="NULL") for shape in shapes)
    ast = left.matmul(right, dtype=found.unit.out).schedule()[-1].ast
    return lower(ast, AmdHip(limits), "k", plan_for(ast, limits))


@pytest.mark.sample(6)
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

    emulator = run(
        *(tools.compiler.compile(tools.renderer.render(linear)), [sums, *given]),
        *(linear.launch("grid"), linear.launch("block"), "k", Emulator(decoder=DECODERS[arch])),
    )

    assert numpy.array_equal(sums.reshape(rows, columns), a @ b)
    assert any(name.startswith(("v_wmma", "v_mfma")) for name in emulator.executed)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [name for name, facts in ARCHS.items() if facts.matrix])
def test_products_of_each_architecture_compile(arch: str) -> None:
    for found in ARCHS[arch].matrix:
        source = toolchain(arch).renderer.render(product_of(arch, found, (64, 64, 64)))
        assert found.unit.name in source
        assert ZigCompiler(arch).compile(source)[:4] == b"\x7fELF"


# --- COMGR itself


def test_what_is_said_without_comgr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comgr, "_opened", [])
    monkeypatch.setenv(comgr.VARIABLE, "/nowhere/libamd_comgr.so")
    with pytest.raises(CompilerUnavailable) as raised:
        comgr.ComgrCompiler("gfx1100")

    said = str(raised.value)
    assert "DEV=AMD:HIP needs AMD's compiler library COMGR, which is not here" in said
    assert "apt install libamd-comgr2" in said
    assert "Tried: /nowhere/libamd_comgr.so" in said


def comgr_of(*archs: str) -> tuple[comgr.ComgrCompiler, str]:
    """The library that is here, for the first architecture that it knows; skips where there is
    none, and where an OpenCL driver has loaded clang: LLVM ends a process with two of them."""
    if "libclang-cpp" in Path("/proc/self/maps").read_text("utf-8"):
        pytest.skip("a driver has loaded clang, beside which Debian's COMGR ends the process")
    said = ""
    for arch in archs:
        try:
            return comgr.ComgrCompiler(arch), arch
        except CompilerUnavailable as why:
            said = str(why)
    pytest.skip(said)


def test_comgr_compiles_where_it_is() -> None:
    compiler, arch = comgr_of("gfx1100", "gfx1030")
    found = compiler.compile('extern "C" __attribute__((global)) void k(float *p) { *p = 1; }')

    assert found[:4] == b"\x7fELF"
    if arch == "gfx1100":
        check_accesses_of_bytes(compiler.compile(ANYWHERE))
    with pytest.raises(CompileError, match="COMGR cannot compile a kernel") as raised:
        compiler.compile("void k( {")
    assert "error:" in raised.value.log


def test_comgr_shows_the_machine_code() -> None:
    compiler, _ = comgr_of("gfx1100", "gfx1030")
    shown = compiler.assembly('extern "C" __attribute__((global)) void k(float *p) { *p = 1; }')

    assert "s_endpgm" in shown
    assert ".amdhsa_next_free_vgpr" in shown
    assert isinstance(compiler, SupportsAssembly)


def test_comgr_has_the_builtins_of_matrix_instructions() -> None:
    compiler, arch = comgr_of("gfx1100", "gfx90a")
    for found in ARCHS[arch].matrix:
        source = toolchain(arch).renderer.render(product_of(arch, found, (64, 64, 64)))
        assert re.search(r"v_mfma_|v_wmma_", compiler.assembly(source)), found.unit.name


def test_an_architecture_that_comgr_does_not_know() -> None:
    comgr_of("gfx1100", "gfx1030")
    with pytest.raises(CompilerUnavailable, match=r"does not compile for gfx1, but for .*gfx900"):
        comgr.ComgrCompiler("gfx1")


@pytest.mark.parametrize(
    ("version", "language", "actions"), [(2, 4, [2, 6, 2, 7]), (3, 3, [2, 4, 2, 5])]
)
def test_versions_of_comgr_number_languages_and_actions(
    version: int, language: int, actions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROCm's amd_comgr.h.in of both: two actions are gone in version 3."""
    library = Recorded(version)
    monkeypatch.setattr(comgr, "_opened", [library])
    compiler = comgr.ComgrCompiler("gfx1100")
    compiler.compile("")
    compiler.assembly("")

    assert library.language == language
    assert library.actions == actions


class Recorded:
    """A library that compiles nothing, and notes what it is asked for."""

    def __init__(self, version: int) -> None:
        self.version, self.actions, self.language = version, list[int](), 0
        self.name = comgr.ffi.new("char[]", f"{comgr.PREFIX}gfx1100".encode())

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 0

    def amd_comgr_get_version(self, major: Any, minor: Any) -> None:
        major[0], minor[0] = self.version, 0

    def amd_comgr_get_isa_count(self, count: Any) -> int:
        count[0] = 1
        return 0

    def amd_comgr_get_isa_name(self, index: int, name: Any) -> int:
        name[0] = self.name
        return 0

    def amd_comgr_action_info_set_language(self, info: Any, language: int) -> int:
        self.language = language
        return 0

    def amd_comgr_do_action(self, kind: int, *others: Any) -> int:
        self.actions.append(kind)
        return 0
