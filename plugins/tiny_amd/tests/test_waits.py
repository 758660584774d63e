"""Waits: without one that a kernel needs, its counter being left out, the emulator raises.

Kernels are LLVM's for three families. Each count that a wait states is loosened, one at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy
import pytest

pytest.importorskip("llvmlite")

from code_object import CODE, compile_kernel, load, run
from emulation.faults import RaceFault, SyntaxFault
from emulator.decode import Instruction, decode
from emulator.dispatch import Emulator, make
from ir_programs import BARRIER, SHARED, at, kernel
from listings import DECODERS

from tiny_amd.llvm import FEATURES

Array = numpy.ndarray[Any, Any]
GROUP: Final = 128
"""Threads of a group: waves of 32 and of 64 meet others."""
LOADED: Final = "is used before s_waitcnt says that its load has arrived"
ENDED: Final = "a barrier is reached before s_waitcnt"


@dataclass(frozen=True)
class Count:
    """A field of a wait, which is loosened by ones in all of its bits."""

    counter: str
    mask: int


ONE: Final = 0x3F
FIELDS: Final[Mapping[str, tuple[Count, ...]]] = {
    "s_waitcnt": (Count("vm", ONE << 10), Count("lgkm", ONE << 4)),
    "s_waitcnt_vscnt": (Count("vs", ONE),),
    "s_waitcnt_gfx10": (Count("vm", 0xC00F), Count("lgkm", ONE << 8)),
    "s_waitcnt_gfx9": (Count("vm", 0xC00F), Count("lgkm", 0xF << 8)),
    "s_wait_loadcnt": (Count("load", ONE),),
    "s_wait_storecnt": (Count("store", ONE),),
    "s_wait_dscnt": (Count("ds", ONE),),
    "s_wait_kmcnt": (Count("km", 0x1F),),
    "s_wait_loadcnt_dscnt": (Count("load", ONE << 8), Count("ds", ONE)),
    "s_wait_storecnt_dscnt": (Count("store", ONE << 8), Count("ds", ONE)),
}
"""Counts of each wait: ISA of RDNA3, RDNA4 and CDNA3, sections on SOPP."""


def sums() -> str:
    """Two arrays added: scalar loads of addresses, loads of numbers."""
    return kernel(
        f"""{at("a", "%p1", "i32")} %v = load i32, ptr addrspace(1) %a
  {at("b", "%p2", "i32")} %w = load i32, ptr addrspace(1) %b
  %r = add i32 %v, %w
  {at("o", "%p0", "i32")} store i32 %r, ptr addrspace(1) %o""",
        3,
        size=GROUP,
    )


def turned_in_shared() -> str:
    """An array turned around in LDS: a store there, a barrier, a load."""
    return kernel(
        f"""{at("a", "%p1", "i32")} %v = load i32, ptr addrspace(1) %a
  {at("w", "@tile", "i32", "%t", 3)} store i32 %v, ptr addrspace(3) %w
  {BARRIER}
  %n = sub i32 {GROUP - 1}, %t
  {at("q", "@tile", "i32", "%n", 3)} %u = load i32, ptr addrspace(3) %q
  {at("o", "%p0", "i32")} store i32 %u, ptr addrspace(1) %o""",
        3,
        SHARED,
        GROUP,
    )


def turned_in_global() -> str:
    """An array turned around in global memory: a store there, a barrier, a load."""
    return kernel(
        f"""{at("a", "%p1", "i32")} %v = load i32, ptr addrspace(1) %a
  {at("w", "%p2", "i32")} store i32 %v, ptr addrspace(1) %w
  {BARRIER}
  %n = sub i32 {GROUP - 1}, %t
  {at("q", "%p2", "i32", "%n")} %u = load i32, ptr addrspace(1) %q
  {at("o", "%p0", "i32")} store i32 %u, ptr addrspace(1) %o""",
        3,
        size=GROUP,
    )


def counted() -> str:
    """Numbers added to one place, each work-item told the sum before."""
    return kernel(
        f"""{at("a", "%p1", "i32")} %v = load i32, ptr addrspace(1) %a
  %old = atomicrmw add ptr addrspace(1) %p2, i32 %v syncscope("agent") monotonic
  {at("o", "%p0", "i32")} store i32 %old, ptr addrspace(1) %o""",
        3,
        size=GROUP,
    )


def through_any_address() -> str:
    """Loads through addresses that are LDS's for some lanes: either counter may tell of them."""
    return kernel(
        f"""{at("w", "@tile", "i32", "%t", 3)} store i32 %t, ptr addrspace(3) %w
  {BARRIER}
  %near = addrspacecast ptr addrspace(3) %w to ptr
  {at("a", "%p1", "i32")} %far = addrspacecast ptr addrspace(1) %a to ptr
  %half = and i32 %t, 1
  %c = icmp eq i32 %half, 0
  %x = select i1 %c, ptr %near, ptr %far
  %v = load i32, ptr %x
  {at("o", "%p0", "i32")} store i32 %v, ptr addrspace(1) %o""",
        3,
        SHARED,
        GROUP,
    )


def kept_in_private() -> str:
    """A number stored to private memory at an index, and loaded at another."""
    return kernel(
        f"""%m = alloca [512 x i32], addrspace(5)
  {at("a", "%p1", "i32")} %v = load i32, ptr addrspace(1) %a
  {at("w", "%m", "i32", "%v", 5)} store i32 %i, ptr addrspace(5) %w
  %high = lshr i32 %v, 31
  %n = or i32 %v, %high
  {at("q", "%m", "i32", "%n", 5)} %u = load i32, ptr addrspace(5) %q
  {at("o", "%p0", "i32")} store i32 %u, ptr addrspace(1) %o""",
        3,
        size=GROUP,
    )


PROGRAMS: Final[tuple[Callable[[], str], ...]] = (
    sums,
    turned_in_shared,
    turned_in_global,
    counted,
    through_any_address,
    kept_in_private,
)
NEEDED: Final = {
    ("gfx1100", "sums"): {"vm", "lgkm"},
    ("gfx1100", "turned_in_shared"): {"vm", "lgkm"},
    ("gfx1100", "turned_in_global"): {"vm", "lgkm", "vs"},
    ("gfx1100", "counted"): {"vm", "lgkm"},
    ("gfx1100", "through_any_address"): {"vm", "lgkm"},
    ("gfx1100", "kept_in_private"): {"vm", "lgkm"},
    **{
        ("gfx1030", name): needed
        for name, needed in {
            "sums": {"vm", "lgkm"},
            "turned_in_shared": {"vm", "lgkm"},
            "turned_in_global": {"vm", "lgkm", "vs"},
            "counted": {"vm", "lgkm"},
            "through_any_address": {"vm", "lgkm"},
            "kept_in_private": {"vm", "lgkm"},
        }.items()
    },
    ("gfx942", "sums"): {"vm", "lgkm"},
    ("gfx942", "turned_in_shared"): {"vm", "lgkm"},
    ("gfx942", "turned_in_global"): {"vm", "lgkm"},
    ("gfx942", "counted"): {"vm", "lgkm"},
    ("gfx942", "through_any_address"): {"vm", "lgkm"},
    ("gfx942", "kept_in_private"): {"vm", "lgkm"},
    ("gfx1201", "sums"): {"load", "km"},
    ("gfx1201", "turned_in_shared"): {"load", "ds", "km"},
    ("gfx1201", "turned_in_global"): {"load", "store", "km"},
    ("gfx1201", "counted"): {"load", "km"},
    ("gfx1201", "through_any_address"): {"load", "ds", "km"},
    ("gfx1201", "kept_in_private"): {"load", "km"},
}
"""Counters that a program cannot do without."""


def waits_of(code: bytes, arch: str) -> Iterator[tuple[int, Instruction]]:
    """Waits of a kernel, with their places in the object."""
    loaded = load(code)
    place = loaded.symbols["k"] - CODE
    start = code.index(loaded.image[place : place + 16].tobytes()) - place
    name = ""
    while name != "s_endpgm":
        instruction = decode(loaded.image[place : place + 16].tobytes(), place, DECODERS[arch])
        name = instruction.name
        if name.startswith("s_wait"):
            yield start + place, instruction
        place += instruction.size


def execute(code: bytes, arch: str) -> Array:
    """The program's result."""
    found, given = numpy.zeros(GROUP, numpy.uint32), numpy.arange(GROUP, dtype=numpy.uint32)
    arrays = [found, given, numpy.zeros(GROUP, numpy.uint32)]
    run(code, arrays, 1, GROUP, emulator=Emulator(decoder=DECODERS[arch]))
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("arch", DECODERS)
def test_a_wait_that_is_left_out_is_found(program: Callable[[], str], arch: str) -> None:
    code, name = compile_kernel(program(), arch, FEATURES), program.__name__
    execute(code, arch)
    missed = set()
    for place, wait in waits_of(code, arch):
        for count in FIELDS.get(wait.name, ()):
            word = wait.words[0]
            if word & count.mask == count.mask:
                continue  # it waits for nothing
            loose = struct.pack("<I", word | count.mask)
            changed = code[:place] + loose + code[place + 4 :]
            with pytest.raises(RaceFault, match=f"{LOADED}|{ENDED}"):
                execute(changed, arch)
            missed.add(count.counter)

    assert missed == NEEDED[arch, name]


OTHERS: Final = {
    "gfx1030": {"EXP": 0xF8000000, "MIMG": 0xF0000000, "VINTRP": 0xC8000000, "GDS": 0xD8DA0000},
    "gfx1100": {"EXP": 0xF8000000, "MIMG": 0xF0000000, "LDSDIR": 0xCE000000, "GDS": 0xD8DA0000},
    "gfx1201": {"EXP": 0xF8000000, "VIMAGE": 0xD0000000, "VSAMPLE": 0xE4000000},
    "gfx942": {"EXP": 0xC4000000, "MIMG": 0xF0000000, "GDS": 0xD8710000},
}
"""Instructions that expcnt, samplecnt and bvhcnt count: none is in a kernel that computes."""


@pytest.mark.parametrize(
    ("arch", "word"),
    [pytest.param(a, w, id=f"{a}-{n}") for a, words in OTHERS.items() for n, w in words.items()],
)
def test_what_other_counters_count_is_not_executed(arch: str, word: int) -> None:
    with pytest.raises(SyntaxFault):
        make(decode(struct.pack("<4I", word, 0, 0, 0), 0, DECODERS[arch]))
