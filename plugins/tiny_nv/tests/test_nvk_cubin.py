"""Cubins that NVIDIA's compiler makes, as a driver has to read them."""

from __future__ import annotations

import struct

import pytest

from tiny_nv import _nvrtc
from tiny_nv.nvk.constants import bank_of
from tiny_nv.nvk.cubin import PREFETCHED_BYTES, Cubin
from tinycore.errors import FileFormatError

pytestmark = pytest.mark.usefixtures("nvrtc")

ARCHS = (80, 86, 89, 90, 100, 120)
SOURCE = """
__device__ float table[4] = {1, 2, 3, 4};
__constant__ float weights[8];
extern "C" __global__ void __launch_bounds__(64) k_(float *o, const float *a, long long n) {
  __shared__ float s[64];
  s[threadIdx.x] = a[blockIdx.x * blockDim.x + threadIdx.x] + table[n & 3] + weights[n & 7];
  __syncthreads();
  float local[32];
  for (int i = 0; i < 32; i++) local[(i * n) & 31] = s[(i + threadIdx.x) & 63];
  o[blockIdx.x] = local[n & 31];
}"""
BASE = 0x123_4500_0000


def compiled(source: str, number: int) -> bytes:
    return _nvrtc.compiled(source, (f"--gpu-architecture=sm_{number}", "--std=c++17"))


@pytest.mark.parametrize("number", ARCHS)
def test_a_kernel_says_what_it_needs(number: int) -> None:
    kernel = Cubin(compiled(SOURCE, number), "k_").kernel

    assert kernel.parameter_base == bank_of(f"sm_{number}").parameters
    assert (kernel.parameter_bytes, kernel.offsets) == (24, (0, 8, 16))
    assert kernel.static_shared_bytes == 256 + (1024 if number >= 90 else 0)
    assert kernel.stack_bytes >= 128
    assert 16 <= kernel.registers <= 64
    assert kernel.barriers == 1
    assert set(kernel.constants) == {3, 4}


@pytest.mark.parametrize("number", [80, 90, 120])
def test_addresses_are_those_of_where_it_is_placed(number: int) -> None:
    cubin = Cubin(compiled(SOURCE, number), "k_")

    memory = cubin.place(BASE)

    assert len(memory) == cubin.size
    at, size = cubin.kernel.constants[4]
    (table,) = struct.unpack_from("<Q", memory, at)
    assert size == 8
    assert struct.unpack_from("<4f", memory, table - BASE) == (1, 2, 3, 4)
    end = cubin.kernel.entry + cubin.kernel.code_bytes
    assert any(memory[cubin.kernel.entry : end])
    assert len(memory) - end >= PREFETCHED_BYTES


def test_shared_memory_sized_at_launch_is_none_of_its_own() -> None:
    source = """extern "C" __global__ void k_(float *o) {
      extern __shared__ float s[];
      s[threadIdx.x] = o[threadIdx.x];
      __syncthreads();
      o[threadIdx.x] = s[threadIdx.x ^ 1];
    }"""

    assert Cubin(compiled(source, 80), "k_").kernel.static_shared_bytes == 0
    assert Cubin(compiled(source, 90), "k_").kernel.static_shared_bytes == 1024


def test_clusters_are_found() -> None:
    source = 'extern "C" __global__ void __cluster_dims__(2, 1, 1) k_(int *o) { *o = 1; }'

    assert Cubin(compiled(source, 90), "k_").kernel.cluster == (2, 1, 1)


def test_functions_that_only_cuda_has_are_refused() -> None:
    source = 'extern "C" int printf(const char *, ...); extern "C" __global__ void k_() {'

    with pytest.raises(FileFormatError, match="printf"):
        Cubin(compiled(source + ' printf("x"); }', 90), "k_")


def test_another_kernel_is_missing_by_name() -> None:
    with pytest.raises(FileFormatError, match=r"no kernel 'other_'; there are: k_"):
        Cubin(compiled(SOURCE, 90), "other_")


def test_a_file_that_is_cut_off_is_refused() -> None:
    whole = compiled(SOURCE, 90)
    for size in range(0, len(whole), 97):
        with pytest.raises(FileFormatError):
            Cubin(whole[:size], "k_").place(BASE)


def test_damage_raises_nothing_but_that_it_cannot_be_loaded() -> None:
    whole = bytearray(compiled(SOURCE, 90))
    for at in range(0, len(whole), 61):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        try:
            Cubin(bytes(damaged), "k_").place(BASE)
        except FileFormatError:
            continue
