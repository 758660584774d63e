"""Mistakes of kernels, each of which the executor of PTX finds and names; seeded in its checks too.

`executor_faults.py` takes a check away at a time, and these tests must notice.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy
import pytest
from emulation.faults import (
    BarrierFault,
    ConvergenceFault,
    Fault,
    IllegalAddress,
    LaunchFault,
    MisalignedAddress,
    RaceFault,
)
from emulation.memory import Region
from executor.launch import Dims, Executor, Limits
from executor.syntax import parse

Array = numpy.ndarray[Any, Any]
ADDRESS: Final = 0x7000_0000_0000
START: Final = """
    .reg .pred %p<4>; .reg .b32 %r<32>; .reg .b64 %rd<8>; .reg .f32 %f<16>; .reg .b16 %h<2>;
    ld.param.u64 %rd0, [k_param_0]; mov.u32 %r0, %tid.x; mov.u32 %r5, tile; mov.u32 %r6, signal;
    setp.eq.u32 %p1, %r0, 0; and.b32 %r1, %r0, 1; setp.eq.u32 %p2, %r1, 0;
"""
"""%rd0 memory of 4096 bytes, %r0 thread, %p1 the first, %p2 the even ones."""
SHARED: Final = ".shared .align 1024 .b8 tile[2048]; .shared .align 8 .b8 signal[16];"
READY: Final = "@%p1 mbarrier.init.shared.b64 [%r6], 1; bar.sync 0;"
BULK: Final = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
LINE: Final = "@%p1 cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"
WAIT: Final = "$wait: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra $wait;"
COPY: Final = "cp.async.cg.shared.global"


def kernel(body: str, directives: str = "") -> str:
    """A module with one kernel."""
    head = ".version 8.7\n.target sm_90a\n.address_size 64\n"
    entry = f".visible .entry k(.param .u64 k_param_0) {directives}"
    return f"{head}{entry} {{ {SHARED} {START} {body} ret; }}"


def run(
    body: str,
    threads: int | Dims = 32,
    grid: Dims = (1, 1, 1),
    directives: str = "",
    executor: Executor | None = None,
    parameters: int = 1,
) -> Array:
    """Launch a kernel on 1024 words of memory; what they are afterwards."""
    executor = executor or Executor()
    memory = numpy.arange(1024, dtype=numpy.uint32)
    executor.memory.add(Region(ADDRESS, memory.view(numpy.uint8), "words"))
    words = struct.pack("<Q", ADDRESS) * parameters
    block = (threads, 1, 1) if isinstance(threads, int) else threads
    executor.launch(parse(kernel(body, directives)), "k", grid, block, words)
    return memory


PRODUCT: Final = (
    "mov.u64 %rd1, 0x4000000800010040; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    " {%f0, %f1, %f2, %f3}, %rd1, %rd1, %p1, 1, 1, 0, 0;"
)

MISTAKES: Final[dict[str, tuple[str, int, type[Fault], str]]] = {
    "a warp reaches a barrier in parts": (
        "@%p2 bra $even; bar.sync 0; bra $out; $even: bar.sync 0; $out:",
        *(64, BarrierFault, "16 of 32 threads of a warp reach the barrier together"),
    ),
    "warps wait at different barriers": (
        "setp.lt.u32 %p3, %r0, 32; @%p3 bra $low; bar.sync 1; bra $out; $low: bar.sync 0; $out:",
        *(64, BarrierFault, "wait at barrier 0, 1"),
    ),
    "a warp leaves before a barrier": (
        "setp.lt.u32 %p3, %r0, 32; @%p3 bra $out; bar.sync 0; $out:",
        *(64, BarrierFault, "32 of 64 threads of block 0 wait"),
    ),
    "a thread outside of a mask shuffles": (
        "shfl.sync.bfly.b32 %r2, %r0, 1, 31, 0xFFFF;",
        *(32, ConvergenceFault, "is not who executes it"),
    ),
    "a thread of a mask does not shuffle": (
        "@%p2 shfl.sync.bfly.b32 %r2, %r0, 2, 31, -1;",
        *(32, ConvergenceFault, "is not who executes it"),
    ),
    "a product of a block of a warp and a half": (
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3},"
            " {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f0, %f1, %f2, %f3};"
        ),
        *(48, ConvergenceFault, "whole warps"),
    ),
    "a product of two warps of four": (
        (
            "mov.u64 %rd1, 0x40; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
            " {%f0, %f1, %f2, %f3}, %rd1, %rd1, %p1, 1, 1, 0, 0;"
        ),
        *(64, ConvergenceFault, "a part of four warps"),
    ),
    "a copy to an odd place": (
        f"add.u32 %r5, %r5, 8; {COPY} [%r5], [%rd0], 16;",
        *(1, MisalignedAddress, "16 bytes"),
    ),
    "a copy from an odd place": (
        f"{COPY} [%r5], [%rd0+8], 16;",
        *(1, MisalignedAddress, "16 bytes"),
    ),
    "a copy from outside": (f"{COPY} [%r5], [%rd0+4096], 16;", 1, IllegalAddress, "read of"),
    "a copy that only its group's neighbor waited for": (
        (
            f"@%p1 {COPY} [%r5], [%rd0], 16; cp.async.commit_group;"
            "setp.eq.u32 %p3, %r0, 1; @%p3 cp.async.wait_group 0; bar.sync 0;"
            " ld.shared.b32 %r2, [%r5];"
        ),
        *(2, RaceFault, "unfinished copy"),
    ),
    "a copy in a group that is not complete": (
        f"{COPY} [%r5], [%rd0], 16; cp.async.wait_group 0; ld.shared.b32 %r2, [%r5];",
        *(1, RaceFault, "unfinished copy"),
    ),
    "a copy whose group another thread completes": (
        (
            f"@!%p1 cp.async.commit_group; @%p1 {COPY} [%r5], [%rd0], 16; bar.sync 0;"
            "@!%p1 cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;"
            " ld.shared.b32 %r2, [%r5];"
        ),
        *(2, RaceFault, "unfinished copy"),
    ),
    "a copy that is one group too late": (
        (
            f"{COPY} [%r5], [%rd0], 16; cp.async.commit_group; cp.async.wait_group 1;"
            "ld.shared.b32 %r2, [%r5];"
        ),
        *(1, RaceFault, "unfinished copy"),
    ),
    "a copy over what is read": (
        f"ld.shared.b32 %r2, [%r5+16]; setp.eq.u32 %p3, %r0, 1; @%p3 {COPY} [%r5+16], [%rd0], 16;",
        *(64, RaceFault, "writes"),
    ),
    "a write over what others read": (
        "ld.shared.b32 %r2, [%r5]; @%p1 st.shared.b32 [%r5], %r0;",
        *(64, RaceFault, "writes"),
    ),
    "a read of what another wrote": (
        "@%p1 st.shared.b32 [%r5], %r0; ld.shared.b32 %r2, [%r5];",
        *(64, RaceFault, "reads"),
    ),
    "a barrier of a warp between warps": (
        "@%p1 st.shared.b32 [%r5], %r0; bar.warp.sync -1; ld.shared.b32 %r2, [%r5];",
        *(64, RaceFault, "reads"),
    ),
    "an mbarrier at an odd place": (
        "@%p1 mbarrier.init.shared.b64 [%r6+4], 1;",
        *(1, MisalignedAddress, "8 bytes"),
    ),
    "an mbarrier that is none": (
        "mbarrier.arrive.shared.b64 %rd1, [%r6];",
        *(1, BarrierFault, "no mbarrier was initialized"),
    ),
    "more arrivals than an mbarrier takes": (
        (
            "@%p1 mbarrier.init.shared.b64 [%r6], 2; bar.sync 0;"
            "mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 16;"
        ),
        *(3, BarrierFault, "more than 2 arrivals"),
    ),
    "a bulk copy of an odd size": (
        f"{READY} {BULK} [%r5], [%rd0], 24, [%r6];",
        *(1, MisalignedAddress, "16 bytes"),
    ),
    "a bulk copy beyond shared memory": (
        f"{READY} {BULK} [%r5], [%rd0], 4096, [%r6];",
        *(1, IllegalAddress, "bulk copy"),
    ),
    "an mbarrier whose bytes have not come": (
        f"{READY} @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r6], 16; {WAIT}",
        *(32, BarrierFault, "nobody completes"),
    ),
    "a bulk copy that is read before it came": (
        f"{READY} {BULK} [%r5], [%rd0], 64, [%r6]; bar.sync 0; ld.shared.b32 %r2, [%r5];",
        *(32, RaceFault, "unfinished copy"),
    ),
    "a product of a bulk copy before it came": (
        (
            f"{READY} {BULK} [%r5], [%rd0], 2048, [%r6]; bar.sync 0; mov.u64 %rd1, 0x40;"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3},"
            " %rd1, %rd1, %p1, 1, 1, 0, 0;"
        ),
        *(128, RaceFault, "a matrix unit reads shared memory whose copy is unfinished"),
    ),
    "a product of what was stored without a fence of its proxy": (
        f"@%p1 st.shared.b32 [%r5], %r0; bar.sync 0; {PRODUCT}",
        *(128, RaceFault, "thread 0 has stored to it since its last fence.proxy.async"),
    ),
    "a product of what was stored without a fence before the barrier": (
        f"@%p1 st.shared.b32 [%r5], %r0; bar.sync 0; @%p1 st.shared.b32 [%r5+64], %r0; {PRODUCT}",
        *(128, RaceFault, "thread 0 has stored to it since its last fence.proxy.async"),
    ),
    "a product of what was stored without a barrier": (
        f"setp.eq.u32 %p3, %r0, 5; @%p3 st.shared.b32 [%r5], %r0; fence.proxy.async; {PRODUCT}",
        *(128, RaceFault, "no barrier after thread 5's write"),
    ),
    "a store to what a product under way reads": (
        f"{PRODUCT} wgmma.commit_group.sync.aligned; @%p1 st.shared.b32 [%r5], %r0;",
        *(128, RaceFault, "is written that a product under way reads"),
    ),
    "a box to blocks beyond a cluster": (
        (
            "mov.b16 %h0, 3; mov.u64 %rd1, %rd0; mov.u32 %r3, 999;"
            f"{READY} {LINE}.multicast::cluster [%r5], [%rd0, {{%r3}}], [%r6], %h0;"
        ),
        *(1, IllegalAddress, "names blocks beyond a cluster of 1"),
    ),
    "a tensor map at an odd place": (
        f"{READY} add.u64 %rd1, %rd0, 32; {LINE} [%r5], [%rd1, {{%r1}}], [%r6];",
        *(1, MisalignedAddress, "64 bytes"),
    ),
    "a box to an odd place": (
        f"{READY} add.u32 %r5, %r5, 64; mov.u32 %r3, 999; {LINE} [%r5], [%rd0, {{%r3}}], [%r6];",
        *(1, MisalignedAddress, "128 bytes"),
    ),
    "words outside of every allocation": (
        "st.global.b32 [%rd0+4096], %r0;",
        *(1, IllegalAddress, "write of 4 bytes"),
    ),
    "words before every allocation": (
        "st.global.b32 [%rd0+-4], %r0;",
        *(1, IllegalAddress, "write of 4 bytes"),
    ),
    "words that go beyond an allocation": (
        (
            "mul.wide.u32 %rd1, %r0, 8; add.u64 %rd1, %rd1, %rd0; ld.global.v2.b32 {%r2, %r3},"
            " [%rd1+3848];"
        ),
        *(32, IllegalAddress, "read of 8 bytes"),
    ),
    "two words at an odd place": (
        "ld.global.v2.b32 {%r2, %r3}, [%rd0+4];",
        *(1, MisalignedAddress, "8 bytes"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str) -> None:
    body, threads, fault, told = MISTAKES[name]

    with pytest.raises(fault, match=told):
        run(body, threads)


CORRECT: Final[dict[str, tuple[str, int]]] = {
    "a product of what all have stored": (
        (
            "shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r5; st.shared.b32 [%r2], %r0;"
            f"fence.proxy.async.shared::cta; bar.sync 0; {PRODUCT}"
        ),
        128,
    ),
    "warps come to a barrier one after the other": (
        (
            "shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r5; st.shared.b32 [%r2], %r0;"
            "setp.lt.u32 %p3, %r0, 32; @%p3 bra $low; bar.sync 0; bra $on; $low: bar.sync 0;"
            "$on: xor.b32 %r3, %r0, 63; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r5;"
            "ld.shared.b32 %r4, [%r3];"
        ),
        64,
    ),
    "a warp's own barrier": (
        "@%p1 st.shared.b32 [%r5], %r0; bar.warp.sync -1; ld.shared.b32 %r4, [%r5];",
        32,
    ),
    "threads that share a place read it": ("ld.shared.b32 %r4, [%r5];", 64),
    "a copy that was waited for": (
        (
            f"@%p1 {COPY} [%r5], [%rd0], 16; cp.async.commit_group; cp.async.wait_group 0;"
            "bar.sync 0; ld.shared.b32 %r4, [%r5];"
        ),
        64,
    ),
    "the older of two copies": (
        (
            f"@%p1 {COPY} [%r5], [%rd0], 16; cp.async.commit_group;"
            f" @%p1 {COPY} [%r5+16], [%rd0], 16;"
            "cp.async.commit_group; cp.async.wait_group 1; bar.sync 0; ld.shared.b32 %r4, [%r5];"
        ),
        64,
    ),
}


@pytest.mark.parametrize("name", CORRECT)
def test_no_mistake_is_seen_where_there_is_none(name: str) -> None:
    body, threads = CORRECT[name]

    run(body, threads)


@pytest.mark.parametrize(
    ("grid", "threads", "directives", "told"),
    [
        ((0, 1, 1), 32, "", "has a size below 1"),
        ((1, 1 << 16, 1), 32, "", "is too large"),
        ((1, 1, 1), 1025, "", "is too large"),
        ((1, 1, 1), (32, 33, 1), "", "is too large"),
        ((1, 1, 1), 64, ".maxntid 32, 1, 1", r"but \.maxntid"),
        ((1, 1, 1), 32, ".reqntid 64, 1, 1", r"but \.reqntid"),
    ],
)
def test_a_launch_that_is_refused(
    grid: Dims, threads: int | Dims, directives: str, told: str
) -> None:
    with pytest.raises(LaunchFault, match=told):
        run("", threads, grid, directives)


def test_a_launch_with_too_few_parameters() -> None:
    with pytest.raises(LaunchFault, match="takes 8 bytes of parameters, not 0"):
        run("", parameters=0)


def test_a_launch_with_more_shared_memory_than_there_is() -> None:
    executor = Executor(limits=Limits(shared_bytes=1024))

    with pytest.raises(LaunchFault, match="bytes of shared memory; the most is 1024"):
        run("", executor=executor)


def test_memory_that_was_freed() -> None:
    executor = Executor()
    executor.memory.add(Region(ADDRESS - 4096, numpy.zeros(64, numpy.uint8), "gone"))
    executor.memory.remove(ADDRESS - 4096)

    with pytest.raises(IllegalAddress, match="read of 4 bytes"):
        run("ld.global.b32 %r2, [%rd0+-4096];", 1, executor=executor)


def test_accesses_of_two_allocations_at_once() -> None:
    executor = Executor()
    executor.memory.add(Region(ADDRESS + 8192, numpy.zeros(64, numpy.uint8), "far"))
    body = "mul.wide.u32 %rd1, %r0, STEP; add.u64 %rd1, %rd1, %rd0; ld.global.b32 %r2, [%rd1];"

    run(body.replace("STEP", "8192"), 2, executor=executor)
    executor = Executor()
    executor.memory.add(Region(ADDRESS + 8192, numpy.zeros(64, numpy.uint8), "far"))
    with pytest.raises(IllegalAddress, match="read of 4 bytes"):
        run(body.replace("STEP", "4096"), 3, executor=executor)
