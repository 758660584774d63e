"""Discovery of cards and their properties: KFD's topology in sysfs.

Linux, Documentation/ABI/testing/sysfs-devices-... and drivers/gpu/drm/amd/amdkfd/kfd_topology.c: a
folder per node, with `gpu_id` (0 for processors) and `properties`, a name and a number a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiny_amd.arch import DRIVEN
from tiny_hcq import system
from tinycore.errors import DeviceUnavailable

__all__ = ["Card", "cards", "count", "reason"]

KFD: Final = "/dev/kfd"
TOPOLOGY: Final = "/sys/devices/virtual/kfd/kfd/topology"
FRAMEBUFFERS: Final = (1, 2)
"""Heap types of memory banks: of the card, seen by the host or not."""
ELSEWHERE: Final = (
    "DEV=NULL:LLVM:gfx1100 compiles kernels and runs nothing; a card with an OpenCL driver can be "
    "used by tiny-cl, DEV=CL"
)


@dataclass(frozen=True)
class Card:
    """A card as its node describes it."""

    node: int
    gpu_id: int
    """Identifier of the card in ioctls."""
    arch: str
    """As LLVM calls it: gfx1100."""
    render_minor: int
    """Its render node is /dev/dri/renderD and this number."""
    simd_count: int
    simd_per_cu: int
    array_count: int
    arrays_per_engine: int
    scratch_slots_per_cu: int
    xccs: int
    """Partitions that compute, each with a command processor of its own."""
    sdma_engines: int
    memory_bytes: int

    @property
    def units(self) -> int:
        """Compute units of one partition."""
        return self.simd_count // self.simd_per_cu // self.xccs

    @property
    def engines(self) -> int:
        """Shader engines."""
        return max(self.array_count // self.arrays_per_engine, 1)

    @property
    def render_node(self) -> str:
        """The file that its memory is mapped from."""
        return f"/dev/dri/renderD{self.render_minor}"

    def __str__(self) -> str:
        gib = f", {self.memory_bytes / 2**30:.0f} GiB" if self.memory_bytes else ""
        return f"{self.arch} ({self.units * self.xccs} compute units{gib})"


def properties_of(path: str) -> dict[str, int]:
    """The numbers of a properties file, by name."""
    lines = (line.split() for line in system().read_text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def card_at(node: int) -> Card | None:
    """Card of a node; None for a processor, and for a card that this process may not use."""
    folder = f"{TOPOLOGY}/nodes/{node}"
    gpu_id = system().read_text(f"{folder}/gpu_id").strip()
    if not gpu_id.isdigit() or not int(gpu_id):
        return None
    found = properties_of(f"{folder}/properties")
    version = found.get("gfx_target_version", 0)
    banks = f"{folder}/mem_banks"
    memory = [properties_of(f"{banks}/{bank}/properties") for bank in system().names(banks)]
    return Card(
        node=node,
        gpu_id=int(gpu_id),
        arch=f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}",
        render_minor=found.get("drm_render_minor", 0),
        simd_count=found.get("simd_count", 0),
        simd_per_cu=found.get("simd_per_cu", 0) or 1,
        array_count=found.get("array_count", 0),
        arrays_per_engine=found.get("simd_arrays_per_engine", 0) or 1,
        scratch_slots_per_cu=found.get("max_slots_scratch_cu", 0),
        xccs=found.get("num_xcc", 0) or 1,
        sdma_engines=found.get("num_sdma_engines", 0),
        memory_bytes=sum(
            bank.get("size_in_bytes", 0) for bank in memory if bank.get("heap_type") in FRAMEBUFFERS
        ),
    )


def known_cards() -> list[Card]:
    """Every card of the driver, also those of other architectures."""
    nodes = sorted(int(name) for name in system().names(f"{TOPOLOGY}/nodes") if name.isdigit())
    return [card for node in nodes if (card := card_at(node)) is not None]


def is_supported(card: Card) -> bool:
    """True if the plugin supports the card's architecture."""
    return card.arch in DRIVEN and card.units > 0 and card.xccs == 1


def cards() -> list[Card]:
    """The cards that can be used, in KFD's order. Raises DeviceUnavailable where there is none."""
    found = [card for card in known_cards() if is_supported(card)]
    if why := obstacle(found):
        raise DeviceUnavailable(why)
    return found


def obstacle(found: list[Card]) -> str:
    """Why none of the cards can be used, and what to do; "" when they can."""
    machine = system()
    if not machine.exists(KFD):
        return (
            f"no AMD card: there is no {KFD}, which the kernel's driver amdgpu makes where it "
            f"finds a card. {ELSEWHERE}"
        )
    for path in (KFD, *(card.render_node for card in found)):
        if not machine.is_usable(path):
            return (
                f"{path} cannot be opened by this user. Add the user to its group: "
                "sudo usermod -a -G render,video $USER, then log in anew"
            )
    if found:
        return ""
    joined = [card for card in known_cards() if card.arch in DRIVEN and card.xccs > 1]
    if joined:
        return (
            f"{joined[0]} joins {joined[0].xccs} partitions (XCC) to one card, which tiny-amd does "
            "not drive. Make them cards of their own: sudo amd-smi set --compute-partition CPX"
        )
    others = ", ".join(dict.fromkeys(str(card) for card in known_cards()))
    what = f"these are of other architectures: {others}" if others else "its topology names no card"
    return f"no AMD card that tiny-amd drives ({', '.join(DRIVEN)}): {what}. {ELSEWHERE}"


def count() -> int:
    """Number of usable cards; 0 without a driver."""
    found = [card for card in known_cards() if is_supported(card)]
    return 0 if obstacle(found) else len(found)


def reason() -> str:
    """Why there is no card, with what to do; "" when there is one."""
    return obstacle([card for card in known_cards() if is_supported(card)])
