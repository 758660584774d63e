"""Cards: what the driver says of them, and what they take.

Classes: the class lists of open-gpu-kernel-modules 580.142, g_gpu_class_list.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["A100", "AD102", "B200", "CARDS", "GA102", "GB202", "H200", "CardFacts"]


@dataclass(frozen=True)
class Bank:
    """Offsets of the driver's words in constant bank 0, as an architecture's code expects them."""

    parameters: int
    """Offset of a kernel's own parameters."""
    block: int = 0x0
    grid: int = 0xC
    shared_window: int = 0x18
    local_window: int = 0x20
    stack: int = 0x28
    descriptor: int = 0x118
    own_address: int | None = None


BANK_AMPERE: Final = Bank(0x160)
BANK_HOPPER: Final = Bank(0x210, descriptor=0x208, own_address=0x198)
BANK_BLACKWELL: Final = Bank(
    0x380,
    block=0x360,
    grid=0x370,
    shared_window=0x2F0,
    local_window=0x2F8,
    stack=0x37C,
    descriptor=0x358,
    own_address=0x348,
)
OLD_CHANNELS: Final = (0xC36F, 0xC46F)
OLD_USERMODES: Final = (0xC361, 0xC461)


@dataclass(frozen=True)
class CardFacts:
    """A card."""

    name: str
    device_id: int
    arch: int
    """Its compute capability: 90 is 9.0."""
    sm_version: int
    """As GR_GET_INFO tells it."""
    compute: int
    copy: int
    channels: tuple[int, ...]
    usermodes: tuple[int, ...]
    qmd: tuple[int, int]
    """Major version and bytes of the launch descriptors it takes."""
    bank: Bank
    shared_choices: tuple[int, ...]
    """Sizes in KiB that the shared memory of a multiprocessor can be set to."""
    block_shared_kib: int
    """The most that a block can have, without the KiB of the system."""
    gpcs: int = 2
    tpcs: int = 2
    """Per GPC."""
    sms: int = 2
    """Per TPC."""
    absent_sms: int = 0
    """Multiprocessors that the counts of units have, and the card has not."""
    warps: int = 48
    """Warps that a multiprocessor holds."""
    address_bits: int = 49
    semaphore_bits: int = 40
    has_extended_base: bool = False
    memory_bytes: int = 4 << 30
    bar1_bytes: int = 4 << 30
    token_bits: int = 0
    """Bits that every doorbell token has."""

    @property
    def classes(self) -> tuple[int, ...]:
        """The class list of its device, in no order that means anything."""
        general = (0x80, 0x2080, 0x90F1, 0xA06C, 0x9067, 0x3E, 0x40, 0x70, 0x50A0, 0x71, 0x83DE)
        return (*self.channels, *general, self.compute, *self.usermodes, self.copy, 0x5, 0x79)


GA102: Final = CardFacts(
    "NVIDIA GeForce RTX 3090",
    0x2204,
    86,
    0x806,
    compute=0xC7C0,
    copy=0xC7B5,
    channels=(*OLD_CHANNELS, 0xC56F),
    usermodes=(*OLD_USERMODES, 0xC561),
    qmd=(3, 256),
    bank=BANK_AMPERE,
    shared_choices=(8, 16, 32, 64, 100),
    block_shared_kib=99,
)
A100: Final = CardFacts(
    "NVIDIA A100-SXM4-80GB",
    0x20B2,
    80,
    0x802,
    compute=0xC6C0,
    copy=0xC6B5,
    channels=(*OLD_CHANNELS, 0xC56F),
    usermodes=(*OLD_USERMODES, 0xC561),
    qmd=(3, 256),
    bank=BANK_AMPERE,
    shared_choices=(8, 16, 32, 64, 100, 132, 164),
    block_shared_kib=163,
    warps=64,
)
AD102: Final = CardFacts(
    "NVIDIA GeForce RTX 4090",
    0x2684,
    89,
    0x809,
    compute=0xC9C0,
    copy=0xC7B5,
    channels=(*OLD_CHANNELS, 0xC56F),
    usermodes=(*OLD_USERMODES, 0xC561),
    qmd=(3, 256),
    bank=BANK_AMPERE,
    shared_choices=(8, 16, 32, 64, 100),
    block_shared_kib=99,
)
H200: Final = CardFacts(
    "NVIDIA H200",
    0x2335,
    90,
    0x900,
    compute=0xCBC0,
    copy=0xC8B5,
    channels=(*OLD_CHANNELS, 0xC56F, 0xC86F),
    usermodes=(*OLD_USERMODES, 0xC561, 0xC661),
    qmd=(4, 384),
    bank=BANK_HOPPER,
    shared_choices=(0, 8, 16, 32, 64, 100, 132, 164, 196, 228),
    block_shared_kib=227,
    warps=64,
    address_bits=57,
    semaphore_bits=57,
    has_extended_base=True,
)
B200: Final = CardFacts(
    "NVIDIA B200",
    0x2901,
    100,
    0xA00,
    compute=0xCDC0,
    copy=0xC9B5,
    channels=(*OLD_CHANNELS, 0xC56F, 0xC86F, 0xC96F),
    usermodes=(*OLD_USERMODES, 0xC561, 0xC661),
    qmd=(5, 384),
    bank=BANK_BLACKWELL,
    shared_choices=(0, 8, 16, 32, 64, 100, 132, 164, 196, 228),
    block_shared_kib=227,
    warps=64,
    address_bits=57,
    semaphore_bits=57,
    has_extended_base=True,
)
GB202: Final = CardFacts(
    "NVIDIA GeForce RTX 5090",
    0x2B85,
    120,
    0xA04,
    compute=0xCEC0,
    copy=0xCAB5,
    channels=(*OLD_CHANNELS, 0xC56F, 0xC86F, 0xC96F, 0xCA6F),
    usermodes=(*OLD_USERMODES, 0xC561, 0xC661, 0xC761),
    qmd=(5, 384),
    bank=BANK_BLACKWELL,
    shared_choices=(8, 16, 32, 64, 100),
    block_shared_kib=99,
    address_bits=57,
    semaphore_bits=57,
    has_extended_base=True,
    token_bits=1 << 30,
)
CARDS: Final = {"ampere": GA102, "a100": A100, "ada": AD102, "hopper": H200, "b200": B200}
CARDS["blackwell"] = GB202
