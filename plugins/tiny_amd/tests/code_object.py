"""Compile LLVM IR for an AMD card by llvmlite, and load the object into an emulator's memory.

Relocations: LLVM, "User Guide for AMDGPU Backend", section "Relocation Records".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy
from emulation.memory import Region
from emulator.dispatch import Descriptor, Emulator

from tiny_amd.arch import arch_of
from tiny_amd.code import AMDGPU, AMDGPU_MACHINE, OF_HIP, UNIT_ID
from tiny_hcq import ElfImage

Array = numpy.ndarray[Any, Any]
Dims = tuple[int, int, int]

CODE, ARGUMENTS, SCRATCH, DATA = (n << 32 for n in (1, 2, 3, 0x7000))


def compile_kernel(text: str, cpu: str = "gfx1100", features: str = "") -> bytes:
    """A relocatable object of a module."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text)
    module.verify()
    target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
    wanted = ",".join(word for word in (features, *arch_of(cpu).features) if word)
    machine = target.create_target_machine(cpu=cpu, features=wanted, opt=2, reloc="pic")
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        module, llvm.create_pass_builder(machine, options)
    )
    found: bytes = machine.emit_object(module)
    return found


@dataclass
class Loaded:
    """An object in memory: its bytes, and addresses of its symbols."""

    image: Array
    symbols: dict[str, int]


def load(data: bytes, base: int = CODE) -> Loaded:
    """Lay out the loaded sections of an object and apply its relocations."""
    machine = OF_HIP if UNIT_ID in data else AMDGPU
    image = ElfImage(data, machines={AMDGPU_MACHINE: machine})
    placed = numpy.frombuffer(image.place(base) + bytes(256), numpy.uint8)
    return Loaded(placed, {name: base + at for name, at in image.symbols.items()})


def run(
    code: bytes,
    arrays: Sequence[Array],
    groups: int | Dims = 1,
    group: int | Dims = 32,
    name: str = "k",
    emulator: Emulator | None = None,
) -> Emulator:
    """Run a kernel whose arguments are addresses of arrays."""
    emulator = emulator or Emulator()
    loaded = load(code)
    emulator.memory.add(Region(CODE, loaded.image, "code"))
    addresses, address = [], DATA
    for number, array in enumerate(arrays):
        emulator.memory.add(Region(address, array.view(numpy.uint8).ravel(), f"array {number}"))
        addresses.append(address)
        address += -(-array.nbytes // 256) * 256 + 256
    packed = struct.pack(f"<{len(addresses)}Q", *addresses).ljust(512, b"\0")
    emulator.memory.add(Region(ARGUMENTS, numpy.frombuffer(packed, numpy.uint8), "arguments"))
    start = loaded.symbols[f"{name}.kd"]
    properties = Descriptor.read(emulator.memory, start).properties
    user: list[int] = []
    scratch = numpy.zeros(1 << 20 if properties >> 5 & 1 else 0, numpy.uint8)
    if scratch.size:
        emulator.memory.add(Region(SCRATCH, scratch, "scratch"))
    given = {3: ARGUMENTS, 5: SCRATCH}
    for bit, words in ((0, 4), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1)):
        if properties >> bit & 1:
            address = given.get(bit, 0)
            user += [address & 0xFFFFFFFF, address >> 32, *([0] * (words - 2))][:words]
    grid, block = ((n, 1, 1) if isinstance(n, int) else n for n in (groups, group))
    emulator.dispatch(start, grid, block, user)
    return emulator
