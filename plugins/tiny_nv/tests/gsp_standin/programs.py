"""Programs on falcons: FWSEC's command FRTS, and the booter, with what each checks.

open-gpu-kernel-modules 570.144: gsp_fw_wpr_meta.h; Linux, Documentation/gpu/nova/core/fwsec.rst.
"""

from __future__ import annotations

import struct
from typing import Final

from gsp_standin.images import BOOT_OFFSETS, BOOTLOADER, BUFFER, IMAGE, MAPPER, SIGNED, FmcForm
from gsp_standin.memory import PAGE, Memory

__all__ = ["META_FIELDS", "check_meta", "check_request", "frts_of", "read_radix3"]

MEBIBYTE: Final = 1 << 20
VERIFIED_AT: Final = 248
META_FIELDS: Final = (
    "magic revision radix3 image_bytes bootloader bootloader_bytes code data manifest signature "
    "signature_bytes reserved open_heap open_heap_bytes begin heap heap_bytes firmware boot frts "
    "frts_bytes end memory vga vga_bytes boot_count rpc"
).split()


def frts_of(data: bytearray, memory_bytes: int) -> tuple[int, int] | None:
    """Begin and end of the FRTS data that the command asks for; None for a wrong one."""
    (command,) = struct.unpack_from("<I", data, MAPPER + 44)
    version, size, _, _, flags = struct.unpack_from("<IIQII", data, BUFFER)
    region = struct.unpack_from("<5I", data, BUFFER + 24)
    if command != 0x15 or (version, size, flags) != (1, 24, 2):
        return None
    version, size, offset, pages, media = region
    if (version, size, pages, media) != (1, 20, 0x100, 2):
        return None
    begin, end = offset << 12, (offset + pages) << 12
    if begin % (128 << 10) or end > memory_bytes - MEBIBYTE:
        return None
    return begin, end


def read_radix3(memory: Memory, root: int, size: int) -> bytes:
    """Content of the pages that three levels of page tables name."""
    pages = [root]
    count = -(-size // PAGE)
    for level in (2, 1, 0):
        wanted = -(-count // 512**level)
        words: list[int] = []
        for page in pages:
            words += struct.unpack("<512Q", memory.read(page, PAGE))
        pages = words[:wanted]
    return b"".join(memory.read(page, PAGE) for page in pages)[:size]


def check_meta(memory: Memory, content: bytes, frts: int, memory_bytes: int) -> str:
    """The fault that the booter finds in GspFwWprMeta; "" for none."""
    m = dict(zip(META_FIELDS, struct.unpack_from("<27Q", content), strict=True))
    order = ("open_heap", "begin", "heap", "firmware", "boot", "frts", "end", "vga", "memory")
    places = [m[name] for name in order]
    aligned = m["begin"] % (128 << 10) or m["end"] % (128 << 10) or m["heap"] % MEBIBYTE
    sizes = (
        m["heap"] - m["begin"] >= 256,
        m["firmware"] - m["heap"] >= m["heap_bytes"] >= 0x8100000,
        m["boot"] - m["firmware"] >= m["image_bytes"],
        m["frts"] - m["boot"] >= m["bootloader_bytes"],
        m["end"] - m["frts"] == m["frts_bytes"] == MEBIBYTE,
        m["begin"] - m["open_heap"] == m["open_heap_bytes"],
        m["memory"] - m["vga"] == m["vga_bytes"],
        m["reserved"] == m["open_heap"],
    )
    found = {
        "magic": (m["magic"], m["revision"]) == (0xDC3AAE21371A60B3, 1),
        "verified": not any(content[VERIFIED_AT:]),
        "order": places == sorted(places),
        "alignment": not aligned,
        "sizes": all(sizes),
        "frts": m["frts"] == frts,
        "memory": m["memory"] == memory_bytes,
        **check_images(memory, m),
    }
    return ", ".join(name for name, holds in found.items() if not holds)


def check_images(memory: Memory, m: dict[str, int]) -> dict[str, bool]:
    """Parts of the firmware in the system's memory, and True for those that were signed."""
    return {
        "image": read_radix3(memory, m["radix3"], m["image_bytes"]) == IMAGE,
        "bootloader": memory.read(m["bootloader"], m["bootloader_bytes"]) == BOOTLOADER,
        "offsets": (m["code"], m["data"], m["manifest"]) == BOOT_OFFSETS,
        "signature": memory.read(m["signature"], m["signature_bytes"]) == SIGNED,
    }


PLACES: Final = "reserved open_heap begin heap firmware boot frts end memory vga boot_count rpc"
PMU_AT: Final = 244


def check_request(memory: Memory, content: bytes, form: FmcForm) -> str:
    """Complaints of the first program about GspFwWprMeta, whose places it chooses itself."""
    m = dict(zip(META_FIELDS, struct.unpack_from("<27Q", content), strict=True))
    (pmu,) = struct.unpack_from("<I", content, PMU_AT)
    gib = -(-memory.size >> 30)
    heap = 132 * MEBIBYTE + gib * (96 << 10)
    found = {
        "magic": (m["magic"], m["revision"]) == (0xDC3AAE21371A60B3, 1),
        "verified": not any(content[VERIFIED_AT:]) and not any(content[216:PMU_AT]),
        "places": not any(m[name] for name in PLACES.split()),
        "open heap": m["open_heap_bytes"] == form.open_heap,
        "heap": heap <= m["heap_bytes"] < heap + MEBIBYTE and not m["heap_bytes"] % MEBIBYTE,
        "frts": m["frts_bytes"] == MEBIBYTE,
        "workspace": m["vga_bytes"] == 128 << 10,
        "pmu": pmu == form.pmu,
        **check_images(memory, m),
    }
    return ", ".join(name for name, holds in found.items() if not holds)
