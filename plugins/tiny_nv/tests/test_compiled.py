"""Kernels of every kind compiled for cards that are not there, by NVIDIA's own compiler.

Nothing runs. What a kernel computes is tested in test_tensors.py; that registers suffice, vectors
are loaded as such and nothing is spilled is what only a real compiler says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pluggy
import pytest

from tiny_nv.program import NvrtcCompiler
from tinycore import Context, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.engine.compile import programs
from tinycore.plugin import register_observer, unregister_observer

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
TYPES = [d for d in dtypes.all if d not in (dtypes.bool,)]


class Watch:
    """Notes the source of every kernel that is compiled."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    @pluggy.HookimplMarker("tinycore")
    def tinycore_kernel_compiled(self, kernel: str, source: str, binary: bytes) -> None:
        assert binary.startswith(b"\x7fELF")
        self.sources[kernel] = source


@pytest.fixture
def watch(nvrtc: None) -> Iterator[Watch]:
    noted = Watch()
    programs.clear()  # what another test has compiled is compiled again
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


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_compile_and_spill_nothing(name: str, watch: Watch) -> None:
    with Context(DEV="NULL:NVRTC:sm_90"):
        PROGRAMS[name]().realize()

    assert watch.sources
    for source in watch.sources.values():
        assembly = NvrtcCompiler("sm_90").assembly(source)
        assert ".local" not in assembly, f"an array of a thread's own in\n{source}"


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_compile_for_every_architecture(arch: str, watch: Watch) -> None:
    with Context(DEV=f"NULL:NVRTC:{arch}"):
        for name in ("matmul", "half matmul", "bfloat16 matmul", "softmax", "convolution"):
            PROGRAMS[name]().realize()

    assert len(watch.sources) >= 5


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
def test_every_type_is_computed_and_converted(dtype: DType, watch: Watch) -> None:
    with Context(DEV="NULL:NVRTC:sm_90"):
        x = empty(256, dtype=dtype)
        results = [x * x + 1, x.maximum(3) < 2, x.cast(dtypes.float32), x.cast(dtypes.int8)]
        results += [empty(256).cast(dtype), x.cast(dtypes.uint64), x.cast(dtypes.bool), x.min()]
        Tensor.realize(*results)

    assert watch.sources


def assembly_of(watch: Watch, tensor: Tensor) -> str:
    """The PTX of a tensor's last kernel."""
    tensor.realize()
    return NvrtcCompiler("sm_90").assembly(list(watch.sources.values())[-1])


def accesses(assembly: str) -> set[str]:
    return set(re.findall(r"\b(?:ld|st)\.(?:global|shared)[.\w]*", assembly))


def test_vectors_are_loaded_and_stored_at_once(watch: Watch) -> None:
    with Context(DEV="NULL:NVRTC:sm_90"):
        product = assembly_of(watch, empty(1024, 1024) @ empty(1024, 1024))
        single = assembly_of(watch, empty(1 << 24) + 1)
        halves = assembly_of(watch, empty(1 << 24, dtype=dtypes.half) + 1)

    assert {"ld.global.nc.v4.f32", "ld.shared.v4.f32", "st.global.v4.f32"} <= accesses(product)
    assert accesses(single) == {"ld.global.nc.v4.f32", "st.global.v4.f32"}
    assert {"ld.global.nc.v4.u32"} <= accesses(halves)
