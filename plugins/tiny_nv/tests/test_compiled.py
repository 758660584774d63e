"""Kernels of every kind compiled for cards that are not there, by NVIDIA's own compiler.

Our own PTX is read by ptxas, where a toolkit is installed, as the driver reads it.

Nothing runs. What a kernel computes is tested in test_tensors.py; that registers suffice, vectors
are loaded as such and nothing is spilled is what only a real compiler says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pluggy
import pytest
from assembling import assembled

from tiny_nv.program import NvrtcCompiler, PtxCompiler
from tiny_nv.ptx import Ptx
from tinycore import Context, Tensor, dtypes
from tinycore._lru import Lru
from tinycore.dtype import DType
from tinycore.errors import CompileError
from tinycore.plugin import register_observer, unregister_observer
from tinycore.render.base import Limits, LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
TYPES = [d for d in dtypes.all if d not in (dtypes.bool,)]


class Watch:
    """Notes the source of every kernel that is compiled."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    @pluggy.HookimplMarker("tinycore")
    def tinycore_kernel_compiled(self, kernel: str, source: str, binary: bytes) -> None:
        assert binary.startswith((b"\x7fELF", b".version"))
        self.sources[kernel] = source


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    noted = Watch()
    # what another test has compiled is compiled again
    monkeypatch.setattr("tinycore.engine.compile.programs", Lru(1024))
    register_observer(noted)
    yield noted
    unregister_observer(noted)


def empty(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype).realize()


def attention() -> Tensor:
    q, k, v = (empty(2, 4, 64, 32) for _ in range(3))
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def gradient() -> Tensor:
    a, b = Tensor.empty(64, 48, requires_grad=True), Tensor.empty(48, 80, requires_grad=True)
    (a @ b).relu().sum().backward()
    assert a.grad is not None
    return a.grad


PROGRAMS: dict[str, Callable[[], Any]] = {
    "elementwise": lambda: (empty(1000) * 2 + 1).relu() - 1,
    "shifted": lambda: empty(1001)[1:] + 1,
    "large sum": lambda: empty(1 << 20).sum(),
    "rows": lambda: empty(512, 1024).sum(1),
    "columns": lambda: empty(1024, 512).sum(0),
    "softmax": lambda: empty(512, 1024).softmax(),
    "layernorm": lambda: empty(512, 1024).layernorm(),
    "matmul": lambda: empty(1024, 1024) @ empty(1024, 1024),
    "ragged matmul": lambda: empty(510, 513) @ empty(513, 514),
    "vector": lambda: empty(1, 1024) @ empty(1024, 1024),
    "bfloat16 matmul": lambda: (
        empty(256, 256, dtype=dtypes.bfloat16) @ empty(256, 256, dtype=dtypes.bfloat16)
    ),
    "half matmul": lambda: empty(256, 256, dtype=dtypes.half) @ empty(256, 256, dtype=dtypes.half),
    "convolution": lambda: empty(2, 16, 30, 30).conv2d(empty(32, 16, 3, 3), padding=1),
    "attention": attention,
    "gradient": gradient,
    "functions": lambda: empty(100).exp() + empty(100).log() + empty(100).sin(),
    "sorted": lambda: empty(16, 100).sort(1)[0],
    "running sum": lambda: empty(16, 1000).cumsum(1),
    "random": lambda: Tensor.rand(1000),
    "wide": lambda: empty((1 << 31) + 8, dtype=dtypes.int8) + 1,
}


@pytest.mark.sample(30)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compile_and_spill_nothing(name: str, watch: Watch, nvrtc: None) -> None:
    with Context(DEV="NULL:NVRTC:sm_90"):
        PROGRAMS[name]().realize()

    assert watch.sources
    for source in watch.sources.values():
        assembly = NvrtcCompiler("sm_90").assembly(source)
        assert ".local" not in assembly, f"an array of a thread's own in\n{source}"


@pytest.mark.sample(9)
@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_compile_for_every_architecture(arch: str, watch: Watch, nvrtc: None) -> None:
    with Context(DEV=f"NULL:NVRTC:{arch}"):
        for name in ("matmul", "half matmul", "bfloat16 matmul", "softmax", "convolution"):
            PROGRAMS[name]().realize()

    assert len(watch.sources) >= 5


@pytest.mark.sample(12)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_every_type_is_computed_and_converted(dtype: DType, watch: Watch, nvrtc: None) -> None:
    with Context(DEV="NULL:NVRTC:sm_90"):
        x = empty(256, dtype=dtype)
        results = [x * x + 1, x.maximum(3) < 2, x.cast(dtypes.float32), x.cast(dtypes.int8)]
        results += [empty(256).cast(dtype), x.cast(dtypes.uint64), x.cast(dtypes.bool), x.min()]
        Tensor.realize(*results)

    assert watch.sources


def assembly_of(watch: Watch, tensor: Tensor) -> str:
    """The PTX of a tensor's longest kernel: kernels of one tensor are compiled in any order."""
    before = watch.sources.copy()
    tensor.realize()
    made = [text for name, text in watch.sources.items() if before.get(name) != text]
    return NvrtcCompiler("sm_90").assembly(max(made, key=len))


def accesses(assembly: str) -> set[str]:
    return set(re.findall(r"\b(?:ld|st)\.(?:global|shared)[.\w]*", assembly))


def test_vectors_are_loaded_and_stored_at_once(watch: Watch, nvrtc: None) -> None:
    with Context(DEV="NULL:NVRTC:sm_90"):
        product = assembly_of(watch, empty(1024, 1024) @ empty(1024, 1024))
        single = assembly_of(watch, empty(1 << 24) + 1)
        halves = assembly_of(watch, empty(1 << 24, dtype=dtypes.half) + 1)

    assert {"ld.shared.v4.f32", "st.global.v4.f32"} <= accesses(product)
    assert "cp.async.cg.shared.global" in product  # 16 bytes
    assert accesses(single) == {"ld.global.nc.v4.f32", "st.global.v4.f32"}
    assert {"ld.global.nc.v4.u32"} <= accesses(halves)


# PTX of our own


def ptx_of(watch: Watch, arch: str, *names: str) -> list[str]:
    """The kernels of some programs as PTX."""
    with Context(DEV=f"NULL:PTX:{arch}"):
        for name in names:
            PROGRAMS[name]().realize()
    assert watch.sources
    return list(watch.sources.values())


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", PROGRAMS)
def test_our_ptx_is_assembled_and_spills_nothing(
    name: str, watch: Watch, ptxas: str, tmp_path: Path
) -> None:
    for source in ptx_of(watch, "sm_90", name):
        said = assembled(source, "sm_90", ptxas, tmp_path)
        assert "0 bytes spill stores, 0 bytes spill loads" in said
        assert ".local" not in source


@pytest.mark.sample(9)
@pytest.mark.parametrize("arch", ARCHS)
def test_our_ptx_is_assembled_for_every_architecture(
    arch: str, watch: Watch, ptxas: str, tmp_path: Path
) -> None:
    for source in ptx_of(watch, arch, "matmul", "half matmul", "softmax", "convolution"):
        assembled(source, arch, ptxas, tmp_path)


@pytest.mark.sample(10)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_our_ptx_has_every_type(dtype: DType, watch: Watch, ptxas: str, tmp_path: Path) -> None:
    with Context(DEV="NULL:PTX:sm_90"):
        x = empty(256, dtype=dtype)
        results = [x * x + 1, x.maximum(3) < 2, x.cast(dtypes.float32), x.cast(dtypes.int8)]
        results += [empty(256).cast(dtype), x.cast(dtypes.uint64), x.cast(dtypes.bool), x.min()]
        Tensor.realize(*results)
    for source in watch.sources.values():
        assembled(source, "sm_90", ptxas, tmp_path)


def test_our_ptx_moves_vectors_at_once(watch: Watch) -> None:
    product = max(ptx_of(watch, "sm_90", "matmul"), key=len)  # the other adds up its parts

    assert {"ld.shared.v4.f32", "st.global.v4.f32"} <= accesses(product)
    assert "cp.async.cg.shared.global" in product  # 16 bytes


def test_what_is_no_ptx_is_a_compile_error(ptxas: str) -> None:
    with pytest.raises(CompileError, match="begins with its"):
        PtxCompiler("sm_90", assembles=False).compile("nonsense")
    with pytest.raises(CompileError, match="cannot assemble a kernel") as caught:
        PtxCompiler("sm_90").compile(".version 8.0\n.target sm_90\nnonsense\n")
    assert "line 3" in caught.value.log


def test_a_toolkit_assembles_and_else_the_driver_does(ptxas: str) -> None:
    source = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n"

    assert PtxCompiler("sm_90").compile(source).startswith(b"\x7fELF")
    assert PtxCompiler("sm_90", assembles=False).compile(source) == source.encode() + b"\0"


def test_much_shared_memory_is_sized_at_the_launch() -> None:
    array = UOp(Op.DEFINE_LOCAL, dtypes.float32.ptr(20_000, "local"), (), 0)
    kernel = LinearKernel("k", (array,))

    assert ".extern .shared .align 16 .b8 shared[];" in Ptx(Limits()).render(kernel)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.float16], ids=lambda d: d.name)
def test_vectors_of_32_bytes_are_moved_by_two_instructions(
    dtype: DType, ptxas: str, tmp_path: Path
) -> None:
    """Cards before Blackwell have no access that is wider, though PTX has the words for it."""
    source, target = (UOp(Op.DEFINE_GLOBAL, dtype.ptr(64), (), number) for number in (1, 0))
    count = 32 // dtype.itemsize
    first = UOp.const(dtypes.int32, count)
    value = UOp(Op.LOAD, dtype.vec(count), (UOp(Op.INDEX, source.dtype, (source, first)),))
    place = UOp(Op.INDEX, target.dtype, (target, first))
    store = UOp(Op.STORE, dtypes.void, (place, value))
    order = (target, source, first, value.src[0], value, place, store)

    text = Ptx(Limits(), arch="sm_80").render(LinearKernel("k", order))

    assert len(re.findall(r"ld\.global[.\w]*\.v4\.b32 .*\+(?:32|48)\]", text)) == 2
    assert len(re.findall(r"st\.global\.v4\.b32 \[.*\+(?:32|48)\]", text)) == 2
    assembled(text, "sm_80", ptxas, tmp_path)


HEADER = 3
"""Lines about the version, the architecture and the size of addresses."""


@pytest.mark.parametrize("name", ["shifted", "matmul", "softmax", "bfloat16 matmul", "functions"])
def test_our_ptx_of_a_plan_is_the_same_for_every_architecture(
    name: str, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Architecture independence, by which test_nvk_conformance.py runs most kernels on one card."""
    right, texts = Ptx.render, []

    def render(renderer: Ptx, kernel: LinearKernel) -> str:
        sources = [right(replace(renderer, arch=arch), kernel) for arch in ARCHS]
        texts.append({tuple(source.splitlines()[HEADER:]) for source in sources})
        return sources[0]

    monkeypatch.setattr(Ptx, "render", render)
    ptx_of(watch, "sm_80", name)

    assert texts
    assert all(len(found) == 1 for found in texts)
