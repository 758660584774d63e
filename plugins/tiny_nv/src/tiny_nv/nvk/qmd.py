"""Launch descriptors (QMDs) of versions 3, 4 and 5, from one table of their fields.

NVIDIA/open-gpu-doc, classes/compute: clc6c0qmd.h (03_00: Ampere, Ada), clcbc0qmd.h (04_00: Hopper),
clcec0qmd.h (05_00: Blackwell). Bits are counted from the lowest of byte 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from struct import pack_into, unpack_from
from typing import Any, Final, NamedTuple, TypeAlias

from tiny_nv.arch import number_of

__all__ = [
    "BYTES",
    "FIELDS",
    "GRID",
    "RELEASES",
    "Launch",
    "Span",
    "bank_word",
    "descriptor",
    "payload_at",
    "put",
    "put_bank",
    "put_constants",
    "put_grid",
    "put_next",
    "put_release",
    "put_wide",
    "read",
]

Version: TypeAlias = int
"""The version of descriptors: 3, 4 or 5."""
BYTES: Final[Mapping[Version, int]] = {3: 256, 4: 384, 5: 384}
RELEASES: Final = 3
CONSTANTS: Final = 8


class Span(NamedTuple):
    """Bit range of a field: its highest and lowest bit; of several fields, by how much each of them
    lies behind the first.
    """

    high: int
    low: int
    offsets: tuple[int, ...] = (0,)


def every(step: int, count: int = CONSTANTS) -> tuple[int, ...]:
    """Offsets of fields that follow each other."""
    return tuple(range(0, step * count, step))


_IN_3: Final = (0, 128, 896)
"""Bit offsets of the three releases in version 3."""
_IN_5: Final = (0, 288, 416)
_BY_16: Final = every(16, RELEASES)
_BY_128: Final = every(128, RELEASES)

_ROWS: Final[tuple[tuple[str, Any, Any, Any], ...]] = (
    ("MAJOR_VERSION", (583, 580), (583, 580), (471, 468)),
    ("QMD_TYPE", (), (25, 23), (153, 151)),
    ("QMD_GROUP_ID", (133, 128), (21, 16), (149, 144)),
    ("SM_GLOBAL_CACHING_ENABLE", (134, 134), (), ()),
    ("API_VISIBLE_CALL_LIMIT", (378, 378), (568, 568), (456, 456)),
    ("SAMPLER_INDEX", (382, 382), (569, 569), (457, 457)),
    ("SASS_VERSION", (1663, 1656), (543, 536), (455, 448)),
    ("INVALIDATE_TEXTURE_HEADER_CACHE", (186, 186), (602, 602), (472, 472)),
    ("INVALIDATE_TEXTURE_SAMPLER_CACHE", (187, 187), (603, 603), (473, 473)),
    ("INVALIDATE_TEXTURE_DATA_CACHE", (188, 188), (604, 604), (474, 474)),
    ("INVALIDATE_SHADER_DATA_CACHE", (189, 189), (605, 605), (475, 475)),
    ("INVALIDATE_INSTRUCTION_CACHE", (190, 190), (606, 606), (476, 476)),
    ("INVALIDATE_SHADER_CONSTANT_CACHE", (191, 191), (607, 607), (477, 477)),
    ("CWD_MEMBAR_TYPE", (369, 368), (1137, 1136), (625, 624)),
    ("GRID_WIDTH", (415, 384), (1055, 1024), (1279, 1248)),
    ("GRID_HEIGHT", (431, 416), (1071, 1056), (1295, 1280)),
    ("GRID_DEPTH", (463, 448), (1103, 1088), (1327, 1312)),
    ("CTA_THREAD_DIMENSION0", (607, 592), (1167, 1152), (1103, 1088)),
    ("CTA_THREAD_DIMENSION1", (623, 608), (1183, 1168), (1119, 1104)),
    ("CTA_THREAD_DIMENSION2", (639, 624), (1199, 1184), (1127, 1120)),
    ("REGISTER_COUNT", (656, 648), (1208, 1200), (1136, 1128)),
    ("BARRIER_COUNT", (767, 763), (1215, 1211), (1141, 1137)),
    ("SHARED_MEMORY_SIZE", (561, 544), (601, 584), (1162, 1152)),
    ("MIN_SM_CONFIG_SHARED_MEM_SIZE", (567, 562), (613, 608), (1168, 1163)),
    ("MAX_SM_CONFIG_SHARED_MEM_SIZE", (574, 569), (619, 614), (1174, 1169)),
    ("TARGET_SM_CONFIG_SHARED_MEM_SIZE", (662, 657), (625, 620), (1180, 1175)),
    ("SHADER_LOCAL_MEMORY_LOW_SIZE", (759, 736), (535, 512), (1199, 1184)),
    ("SHADER_LOCAL_MEMORY_HIGH_SIZE", (1623, 1600), (567, 544), (1215, 1200)),
    ("PROGRAM_ADDRESS_LOWER", (1567, 1536), (1247, 1216), (1055, 1024)),
    ("PROGRAM_ADDRESS_UPPER", (1584, 1568), (1272, 1248), (1076, 1056)),
    ("PROGRAM_PREFETCH_ADDR_LOWER", (287, 256), (1375, 1344), (1919, 1888)),
    ("PROGRAM_PREFETCH_ADDR_UPPER", (1640, 1632), (1392, 1376), (1936, 1920)),
    ("PROGRAM_PREFETCH_SIZE", (1649, 1641), (1401, 1393), (1085, 1077)),
    (
        "CONSTANT_BUFFER_VALID",
        (640, 640, every(1)),
        (416, 416, every(4)),
        (1856, 1856, every(4)),
    ),
    (
        "CONSTANT_BUFFER_ADDR_LOWER",
        (1055, 1024, every(64)),
        (1567, 1536, every(64)),
        (1375, 1344, every(64)),
    ),
    (
        "CONSTANT_BUFFER_ADDR_UPPER",
        (1072, 1056, every(64)),
        (1586, 1568, every(64)),
        (1394, 1376, every(64)),
    ),
    (
        "CONSTANT_BUFFER_SIZE",
        (1087, 1075, every(64)),
        (1599, 1587, every(64)),
        (1407, 1395, every(64)),
    ),
    (
        "CONSTANT_BUFFER_INVALIDATE",
        (1074, 1074, every(64)),
        (419, 419, every(4)),
        (1859, 1859, every(4)),
    ),
    ("DEPENDENT_QMD_ENABLE", (512, 512), (368, 368), (336, 336)),
    ("DEPENDENT_QMD_ACTION", (515, 513), (371, 369), (339, 337)),
    ("DEPENDENT_QMD_PREFETCH", (516, 516), (372, 372), (340, 340)),
    ("DEPENDENT_QMD_POINTER", (511, 480), (479, 448), (415, 384)),
    ("RELEASE_ENABLE", (823, 823, _IN_3), (320, 320, _BY_16), (288, 288, _BY_16)),
    ("RELEASE_STRUCTURE_SIZE", (831, 830, _IN_3), (322, 321, _BY_16), (290, 289, _BY_16)),
    ("RELEASE_MEMBAR_TYPE", (819, 819, _IN_3), (323, 323, _BY_16), (291, 291, _BY_16)),
    ("RELEASE_PAYLOAD64B", (829, 829, _IN_3), (332, 332, _BY_16), (300, 300, _BY_16)),
    ("RELEASE_ADDRESS_LOWER", (799, 768, _IN_3), (671, 640, _BY_128), (511, 480, _IN_5)),
    ("RELEASE_ADDRESS_UPPER", (807, 800, _IN_3), (696, 672, _BY_128), (536, 512, _IN_5)),
    ("RELEASE_PAYLOAD_LOWER", (863, 832, _IN_3), (735, 704, _BY_128), (575, 544, _IN_5)),
    ("RELEASE_PAYLOAD_UPPER", (895, 864, _IN_3), (767, 736, _BY_128), (607, 576, _IN_5)),
    ("GPC_CGA_WIDTH", (), (2149, 2144), (2053, 2048)),
    ("GPC_CGA_HEIGHT", (), (2157, 2152), (2061, 2056)),
    ("GPC_CGA_DEPTH", (), (2165, 2160), (2069, 2064)),
)
"""A name, and where it lies in versions 3, 4 and 5; () where there is none."""

FIELDS: Final[Mapping[str, Mapping[Version, Span]]] = {
    name: {version: Span(*place) for version, place in zip((3, 4, 5), places, strict=True) if place}
    for name, *places in _ROWS
}
"""By name and version. The tables of NVIDIA have more."""

_CONSTANT_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 6, 5: 6}
"""By how much addresses of constants are shifted."""
_PROGRAM_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 0, 5: 4}
_SHARED_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 0, 5: 7}
_LOCAL_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 0, 5: 4}
_PREFETCH_SHIFT: Final = 8
_MOST_PREFETCHED: Final = 0x1FF
_SHARED_UNIT: Final = 128
_ANY_GROUP: Final = 0x3F
_GRID, _CLUSTERED = 2, 3
_SYSTEM_BARRIER: Final = 1
_WITHOUT_TIME: Final = 2
"""Structure of a release: two words. 0 is four, with the time."""
_SCHEDULE: Final = 1

SHARED_KIB: Final[Mapping[int, tuple[int, ...]]] = {
    80: (8, 16, 32, 64, 100, 132, 164),
    86: (8, 16, 32, 64, 100),
    87: (8, 16, 32, 64, 100, 132, 164),
    89: (8, 16, 32, 64, 100),
    90: (0, 8, 16, 32, 64, 100, 132, 164, 196, 228),
    120: (8, 16, 32, 64, 100),
}
"""Configurable sizes of a multiprocessor's shared memory, by architecture: an
architecture that is not named has what the one before it has."""


def read(memory: memoryview | bytes, version: Version, name: str, index: int = 0) -> int:
    """A field."""
    first, last, shift, mask = _place(version, name, index)
    return int.from_bytes(memory[first:last], "little") >> shift & mask


def put(memory: memoryview, version: Version, name: str, value: int, index: int = 0) -> None:
    """Set a field."""
    first, last, shift, mask = _place(version, name, index)
    if value & ~mask:
        raise ValueError(f"{name} of a launch descriptor cannot be {value:#x}")
    around = int.from_bytes(memory[first:last], "little") & ~(mask << shift)
    memory[first:last] = (around | value << shift).to_bytes(last - first, "little")


@cache
def _place(version: Version, name: str, index: int) -> tuple[int, int, int, int]:
    """First byte, end, bits below, and the mask of a field."""
    high, low, offsets = FIELDS[name][version]
    start = low + offsets[index]
    end = high + offsets[index]
    return start // 8, end // 8 + 1, start % 8, (1 << high - low + 1) - 1


def put_wide(memory: memoryview, version: Version, name: str, value: int, index: int = 0) -> None:
    """Set a number in two fields, NAME_LOWER and NAME_UPPER."""
    put(memory, version, f"{name}_LOWER", value & 0xFFFFFFFF, index)
    put(memory, version, f"{name}_UPPER", value >> 32, index)


@dataclass(frozen=True)
class Launch:
    """Fields of a descriptor that depend on the kernel; the rest is the same for all."""

    arch: str
    sm_version: int
    address: int
    code_bytes: int
    registers: int
    barriers: int
    shared_bytes: int
    """With what the system takes."""
    local_bytes: int
    """Bytes of a thread."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    constants: Mapping[int, tuple[int, int]]
    """Address and bytes of the banks but the first."""
    parameter_bytes: int
    """Bytes of bank 0, whose address `put_constants` sets."""


def descriptor(version: Version, launch: Launch) -> bytes:
    """The descriptor of a kernel, without the address of its parameters."""
    memory = bytearray(BYTES[version])
    view = memoryview(memory)
    number = number_of(launch.arch)
    kib = SHARED_KIB[max(each for each in SHARED_KIB if each <= number)]
    shared = -(-launch.shared_bytes // _SHARED_UNIT) * _SHARED_UNIT
    wanted = next(each for each in kib if each * 1024 >= shared)
    sm = launch.sm_version
    fields = {
        "MAJOR_VERSION": version,
        "QMD_TYPE": _CLUSTERED if launch.cluster else _GRID,
        "QMD_GROUP_ID": _ANY_GROUP,
        "SM_GLOBAL_CACHING_ENABLE": 1,
        "API_VISIBLE_CALL_LIMIT": 1,
        "SAMPLER_INDEX": 1,
        "SASS_VERSION": (sm >> 4 & 0xF0) + (sm & 0xF),
        "INVALIDATE_TEXTURE_HEADER_CACHE": 1,
        "INVALIDATE_TEXTURE_SAMPLER_CACHE": 1,
        "INVALIDATE_TEXTURE_DATA_CACHE": 1,
        "INVALIDATE_SHADER_DATA_CACHE": 1,
        "INVALIDATE_SHADER_CONSTANT_CACHE": 1,
        "CWD_MEMBAR_TYPE": _SYSTEM_BARRIER,
        "REGISTER_COUNT": launch.registers,
        "BARRIER_COUNT": launch.barriers,
        "SHARED_MEMORY_SIZE": shared >> _SHARED_SHIFTS[version],
        "MIN_SM_CONFIG_SHARED_MEM_SIZE": wanted // 4 + 1,
        "MAX_SM_CONFIG_SHARED_MEM_SIZE": kib[-1] // 4 + 1,
        "TARGET_SM_CONFIG_SHARED_MEM_SIZE": wanted // 4 + 1,
        "SHADER_LOCAL_MEMORY_HIGH_SIZE": launch.local_bytes >> _LOCAL_SHIFTS[version],
        "PROGRAM_PREFETCH_SIZE": min(launch.code_bytes >> _PREFETCH_SHIFT, _MOST_PREFETCHED),
        **dict(zip(_BLOCK, launch.block, strict=True)),
        **dict(zip(_CLUSTER, launch.cluster or (0, 0, 0), strict=True)),
    }
    for name, value in fields.items():
        if version in FIELDS[name]:
            put(view, version, name, value)
    put_wide(view, version, "PROGRAM_ADDRESS", launch.address >> _PROGRAM_SHIFTS[version])
    put_wide(view, version, "PROGRAM_PREFETCH_ADDR", launch.address >> _PREFETCH_SHIFT)
    for index, (address, size) in launch.constants.items():
        put_constants(view, version, index, address, size)
    put_constants(view, version, 0, 0, launch.parameter_bytes)
    put_grid(view, version, launch.grid)
    return bytes(memory)


GRID: Final = ("GRID_WIDTH", "GRID_HEIGHT", "GRID_DEPTH")
_BLOCK: Final = tuple(f"CTA_THREAD_DIMENSION{axis}" for axis in range(3))
_CLUSTER: Final = ("GPC_CGA_WIDTH", "GPC_CGA_HEIGHT", "GPC_CGA_DEPTH")


def put_grid(view: memoryview, version: Version, grid: tuple[int, ...]) -> None:
    """Set the number of groups."""
    for name, value in zip(GRID, grid, strict=True):
        put(view, version, name, value)


def bank_word(content: bytes, version: Version) -> tuple[int, int]:
    """Position of the address of bank 0 in a descriptor that has none, and the bits around it."""
    at = _place(version, "CONSTANT_BUFFER_ADDR_LOWER", 0)[0]
    return at, unpack_from("<Q", content, at)[0]


def put_bank(view: memoryview, version: Version, word: tuple[int, int], address: int) -> None:
    """Set the address of bank 0 in a copy of the descriptor that `word` is of."""
    pack_into("<Q", view, word[0], word[1] | address >> _CONSTANT_SHIFTS[version])


def put_constants(view: memoryview, version: Version, index: int, address: int, size: int) -> None:
    """Set the place of a bank of constants."""
    put_wide(view, version, "CONSTANT_BUFFER_ADDR", address >> _CONSTANT_SHIFTS[version], index)
    put(view, version, "CONSTANT_BUFFER_SIZE", -(-size // 16), index)
    put(view, version, "CONSTANT_BUFFER_VALID", 1, index)
    put(view, version, "CONSTANT_BUFFER_INVALIDATE", 1, index)


class ReleaseForm(NamedTuple):
    """Packed words of a release: its address with the bits around it, its value, its bits."""

    address_at: int
    around_address: int
    value_at: int
    bits_at: int
    bits: int


@cache
def release_form(version: Version, index: int, timed: bool) -> ReleaseForm:
    """The bytes that `put_release` writes, with their constant bits."""
    content = bytearray(BYTES[version])
    view = memoryview(content)
    put(view, version, "RELEASE_STRUCTURE_SIZE", 0 if timed else _WITHOUT_TIME, index)
    put(view, version, "RELEASE_MEMBAR_TYPE", 1, index)
    put(view, version, "RELEASE_PAYLOAD64B", 1, index)
    put(view, version, "RELEASE_ENABLE", 1, index)
    address_at = _place(version, "RELEASE_ADDRESS_LOWER", index)[0]
    bits_at = _place(version, "RELEASE_ENABLE", index)[0] & ~1
    return ReleaseForm(
        address_at,
        unpack_from("<Q", content, address_at)[0],
        _place(version, "RELEASE_PAYLOAD_LOWER", index)[0],
        bits_at,
        unpack_from("<H", content, bits_at)[0],
    )


def put_release(
    view: memoryview, version: Version, index: int, address: int, value: int, *, timed: bool
) -> None:
    """Set a value, or note the time beside a value, when the kernel has ended."""
    form = release_form(version, index, timed)
    pack_into("<H", view, form.bits_at, form.bits)
    pack_into("<Q", view, form.address_at, form.around_address | address)
    pack_into("<Q", view, form.value_at, value)


def payload_at(version: Version, index: int) -> int:
    """Position of the 64 bits of a release's value."""
    return release_form(version, index, timed=False).value_at


def put_next(view: memoryview, version: Version, address: int) -> None:
    """Launch what another descriptor says when this kernel has ended."""
    put(view, version, "DEPENDENT_QMD_POINTER", address >> 8)
    put(view, version, "DEPENDENT_QMD_ACTION", _SCHEDULE)
    put(view, version, "DEPENDENT_QMD_PREFETCH", 1)
    put(view, version, "DEPENDENT_QMD_ENABLE", 1)
