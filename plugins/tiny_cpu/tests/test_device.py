"""The device as the core sees it: found by its entry point, chosen by DEV, from UOps to results."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny_cpu import BACKEND, clang
from tiny_cpu.arch import host_machine
from tiny_cpu.clang import find_clang, is_clang_installed
from tinycore.config import Context
from tinycore.device.open_device import OpenDevice
from tinycore.device.registry import Registry
from tinycore.dtype import dtypes
from tinycore.errors import CompilerUnavailable, SettingError
from tinycore.plugin import ProgramInfo
from tinycore.render import LinearKernel
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import AxisKind, Op

ROWS, LANES = 1000, 16


@pytest.fixture
def devices() -> Iterator[Registry]:
    """A registry of the test's own that knows the CPU."""
    registry = Registry()
    registry.register(BACKEND)
    yield registry
    registry.close()


@pytest.fixture
def no_clang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(clang, "zig", lambda: None)
    find_clang.cache_clear()
    yield
    find_clang.cache_clear()


def scale_rows() -> LinearKernel:
    """out[i, lane] = a[i, lane] * 1.5 + a[i, lane], rows shared among threads."""
    pointer = dtypes.float32.ptr(ROWS * LANES)
    out, a = (UOp(Op.DEFINE_GLOBAL, pointer, (), slot) for slot in range(2))
    rows, lanes = (UOp(Op.CONST, dtypes.index, (), number) for number in (ROWS, LANES))
    row = UOp(Op.RANGE, dtypes.index, (rows,), Axis((0,), AxisKind.PARALLEL))
    start = UOp(Op.MUL, dtypes.index, (row, lanes))
    source, target = (UOp(Op.INDEX, pointer, (buffer, start)) for buffer in (a, out))
    vector = dtypes.float32.vec(LANES)
    loaded = UOp(Op.LOAD, vector, (source,))
    factor = UOp(Op.CONST, dtypes.float32, (), 1.5)
    factors = UOp(Op.VECTORIZE, vector, (factor,) * LANES)
    scaled = UOp(Op.MULACC, vector, (loaded, factors, loaded))
    store = UOp(Op.STORE, dtypes.void, (target, scaled))
    end = UOp(Op.END, dtypes.void, (store, row))
    body = (rows, row, lanes, start, source, target, loaded, factor, factors, scaled, store, end)
    return LinearKernel("scale_rows", (out, a, *body))


def run(device: OpenDevice, kernel: LinearKernel, content: list[float]) -> list[float]:
    """Render, compile, load and launch a kernel of two buffers."""
    toolchain = device.toolchain
    binary = toolchain.compiler.compile(toolchain.renderer.render(kernel))
    program = device.load(binary, ProgramInfo(kernel.name, 2, (), kernel.parallel))
    memory = device.runtime.allocator
    out, a = memory.alloc(len(content) * 4), memory.alloc(len(content) * 4)
    floats = device.ability("host_memory").map(a, len(content) * 4).cast("f")
    for place, number in enumerate(content):
        floats[place] = number
    program([out, a], [], wait=True)
    found: list[float] = device.ability("host_memory").map(out, len(content) * 4).cast("f").tolist()
    return found


@pytest.mark.parametrize("dev", ["CPU:CLANG", "CPU:LLVM", "CPU:LLVM:x86_64", "CPU:CLANG:x86_64"])
@pytest.mark.parametrize("name", ["CPU", "CPU:1"])
def test_a_kernel_runs_from_uops_to_results(devices: Registry, dev: str, name: str) -> None:
    if "CLANG" in dev and not is_clang_installed():
        pytest.skip("no clang")
    if "x86_64" in dev and host_machine() != "x86_64":
        pytest.skip("needs an x86-64 machine")
    content = [float(number) for number in range(ROWS * LANES)]

    with Context(DEV=dev):
        found = run(devices[name], scale_rows(), content)

    assert found == [number * 2.5 for number in content]


def test_clang_is_preferred(devices: Registry) -> None:
    if not is_clang_installed():
        pytest.skip("no clang")
    with Context(DEV="CPU"):
        assert devices["CPU"].toolchain.name == "CLANG"


def test_without_clang_llvm_compiles(devices: Registry, no_clang: None) -> None:
    with Context(DEV="CPU"):
        assert devices["CPU"].toolchain.name == "LLVM"


def test_an_explicit_choice_never_falls_back(devices: Registry, no_clang: None) -> None:
    with Context(DEV="CPU:CLANG"), pytest.raises(CompilerUnavailable, match="no clang 15 or newer"):
        _ = devices["CPU"].toolchain


def test_a_malformed_processor_is_refused(devices: Registry) -> None:
    with Context(DEV="CPU:LLVM:x86_64,znvr2"), pytest.raises(SettingError, match="did you mean"):
        _ = devices["CPU"].toolchain


def test_every_claimed_ability_is_there(devices: Registry) -> None:
    device = devices["CPU"]

    assert all(device.ability(word) for word in BACKEND.capabilities)
