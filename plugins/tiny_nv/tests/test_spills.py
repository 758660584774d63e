"""Kernels that spill, assembled again for fewer blocks side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pluggy
import pytest

from tiny_nv.program import NvrtcCompiler
from tiny_nv.spills import promises, spilled_bytes, unspilled
from tinycore import Context, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.plugin import register_observer, unregister_observer

C: Final = 'extern "C" __global__ void __launch_bounds__(128) k(float *x) {}'
PTX: Final = ".visible .entry k() .maxntid 16, 8, 1 {}"


def log_of(spilled: int) -> str:
    """Log of ptxas for a kernel."""
    return f"    0 bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads\n"


def test_bytes_are_stored_and_loaded() -> None:
    assert spilled_bytes(log_of(12)) == 24


def test_launch_bounds_of_cuda_c_get_a_number_of_blocks() -> None:
    assert [text.count("(128, 4)") for text in promises(C)] == [1, 0]
    assert [text.count("(128, 2)") for text in promises(C)] == [0, 1]


def test_bounds_of_ptx_get_a_number_of_blocks() -> None:
    assert list(promises(PTX)) == [
        ".visible .entry k() .maxntid 16, 8, 1 .minnctapersm 4 {}",
        ".visible .entry k() .maxntid 16, 8, 1 .minnctapersm 2 {}",
    ]


def test_a_large_block_is_alone() -> None:
    assert list(promises(".maxntid 1024, 1, 1")) == [".maxntid 1024, 1, 1 .minnctapersm 1"]


@pytest.mark.parametrize(
    ("spilled", "chosen"),
    [((0,), 0), ((8, 0), 1), ((8, 4, 0), 2), ((8, 8, 8), 0), ((8, 12, 4), 2)],
)
def test_the_first_that_spills_least_is_taken(spilled: tuple[int, ...], chosen: int) -> None:
    tried: list[str] = []

    def assemble(source: str) -> tuple[bytes, str]:
        tried.append(source)
        return source.encode(), log_of(spilled[len(tried) - 1])

    assert unspilled(PTX, assemble)[0] == tried[chosen].encode()
    assert len(tried) == len(spilled)


def attention_and_gradient(dtype: DType = dtypes.float32) -> None:
    q, k, v, weight = (Tensor.empty(4, 16, 2048, 64, dtype=dtype).realize() for _ in range(4))
    loss = (q.scaled_dot_product_attention(k, v) * weight).sum()
    Tensor.realize(*loss.gradient(q, k, v))


def attention_of_halves() -> None:
    attention_and_gradient(dtypes.bfloat16)


def decoding() -> None:
    for width in (64, 128):
        token = Tensor.empty(1, 32, 1, width, dtype=dtypes.bfloat16).realize()
        shape = (1, 8, 4096, width)
        keys, values = (Tensor.empty(*shape, dtype=dtypes.bfloat16).realize() for _ in "kv")
        token.scaled_dot_product_attention(keys, values, enable_gqa=True).realize()


def wide_heads() -> None:
    for width in (160, 192, 256):
        queries, keys = ((1, 16, n, width) for n in (2000, 1000))
        shapes = queries, keys, keys
        q, k, v = (Tensor.empty(*shape, dtype=dtypes.half).realize() for shape in shapes)
        q.scaled_dot_product_attention(k, v, is_causal=True).realize()


PROGRAMS = [attention_and_gradient, attention_of_halves, decoding, wide_heads]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_kernel_of_attention_and_its_gradient_spills(
    program: Callable[[], None], nvrtc: None
) -> None:
    found: dict[str, str] = {}

    class Kernels:
        @pluggy.HookimplMarker("tinycore")
        def tinycore_kernel_compiled(self, kernel: str, source: str) -> None:
            found[source] = kernel

    observer = Kernels()
    register_observer(observer)
    try:
        with Context(DEV="NULL:NVRTC:sm_80", CCACHE=0, ALLOW_TF32=1):
            program()
    finally:
        unregister_observer(observer)
    compiler = NvrtcCompiler("sm_80")

    def spills(source: str) -> int:
        return spilled_bytes(unspilled(source, compiler.built)[1])

    assert found
    assert not any(map(spills, found))
