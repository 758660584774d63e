"""The table of IP discovery of a Navi 31, and files of firmware for it, made up but for their form.

Written from the structures of Linux (include/discovery.h, amdgpu/amdgpu_ucode.h), with offsets
counted by `struct`; the driver's readers were not looked at. Contents of images are random.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence

BLOCKS: tuple[tuple[int, int, tuple[int, int, int], tuple[int, ...]], ...] = (
    (1, 0, (13, 0, 0), (0x16000, 0x0243FC00, 0x00DC0000)),
    (11, 0, (11, 0, 0), (0x1260, 0xA000, 0x1C000, 0x02402C00)),
    (34, 0, (3, 0, 0), (0x1A000, 0x02408800)),
    (40, 0, (6, 0, 0), (0x10A0, 0x0240A000)),
    (41, 0, (6, 0, 0), (0x0F20, 0x0240A400)),
    (42, 0, (6, 0, 0), (0x1260, 0xA000, 0x1C000, 0x02402C00)),
    (42, 1, (6, 0, 0), (0x1260, 0xA000, 0x1C000, 0x02402C00)),
    (108, 0, (4, 3, 0), (0x0, 0x14, 0xD20, 0x10400, 0x0241B000, 0x04040000)),
    (255, 0, (13, 0, 0), (0x16000, 0x0243FC00, 0x00DC0000, 0x00E00000)),
)
"""Hardware id, instance, version and register segments."""
GRAPHICS = {0: 6, 1: 4, 2: 0, 3: 4, 4: 24, 11: 32, 12: 16, 13: 32, 14: 64, 16: 2}
"""Words of gc_info_v1_0: 6 engines of 2 arrays of 4 workgroup processors, waves of 32."""
HARVESTED = ((42, 1),)


def total(content: bytes) -> int:
    return sum(content) & 0xFFFF


def discovery_table(
    blocks: Sequence[tuple[int, int, tuple[int, int, int], tuple[int, ...]]] = BLOCKS,
    *,
    wide: bool = False,
    version: int = 1,
    graphics: dict[int, int] | None = None,
    harvested: Sequence[tuple[int, int]] = HARVESTED,
) -> bytes:
    """The table with right checksums, and zeros up to 10 KiB."""
    header = 60 if version == 1 else 16 + 8 * 6
    entries = b""
    for hardware, instance, numbers, bases in blocks:
        entries += struct.pack("<HBBBBBB", hardware, instance, len(bases), *numbers, 0)
        entries += struct.pack(f"<{len(bases)}{'Q' if wide else 'I'}", *bases)
    list_bytes = 80 + 4 + len(entries)
    dies = [(0, header + 80)] + [(0, 0)] * 15
    listed = struct.pack("<IHHIH", 0x53445049, 4 if wide else 3, list_bytes, 0, 1)
    listed += b"".join(struct.pack("<HH", *die) for die in dies)
    listed += struct.pack("<BB", int(wide), 0) + struct.pack("<HH", 0, len(blocks)) + entries
    numbers_of_core = GRAPHICS | (graphics or {})
    core = struct.pack("<IHHI", 0x4347, 1, 0, 12 + 19 * 4)
    core += struct.pack("<19I", *(numbers_of_core.get(place, 0) for place in range(19)))
    off = struct.pack("<II", 0x56524148, 0)
    off += b"".join(struct.pack("<HBB", *entry, 0) for entry in harvested)
    off = off.ljust(8 + 4 * 32, b"\0")
    tables, body = b"", b""
    for content in (listed, core, off):
        at = header + len(body)
        tables += struct.pack("<HHHH", at, total(content), len(content), 0)
        body += content
    rest = (b"" if version == 1 else struct.pack("<HH", 6, 0)) + tables.ljust(48, b"\0") + body
    summed = struct.pack("<H", 10 + 2 + len(rest)) + rest
    made = struct.pack("<IHHH", 0x28211407, version, 0, total(summed)) + summed
    return made.ljust(10 << 10, b"\0")


def packed(major: int, minor: int, words: bytes, body: bytes, code: int | None = None) -> bytes:
    """A file: common header, further words, then at 256 its body, of which `code` bytes are code.

    `words` may name places in the body, which begins at 256.
    """
    after = (words.ljust(256 - 32, b"\0")) + body
    size = len(body) if code is None else code
    return (
        struct.pack(
            "<IIHHHHIIII",
            *(32 + len(after), 32 + len(words), major, minor, 11, 0, 1, size, 256),
            zlib.crc32(after),
        )
        + after
    )


def firmware_files(seed: int = 31) -> dict[str, bytes]:
    """Files of a 7900 XTX by path, each with images of some hundred bytes."""
    draw = random.Random(seed)
    made = {}
    bins, body = b"", b""
    for kind in (2, 1, 4, 3, 5, 6):
        content = draw.randbytes(draw.randrange(1, 60) * 16)
        bins += struct.pack("<IIII", kind, 1, len(body), len(content))
        body += content
    made["psp_13_0_0_sos.bin"] = packed(2, 0, struct.pack("<I", 6) + bins, body)
    smu, table = draw.randbytes(640), draw.randbytes(96)
    made["smu_13_0_0.bin"] = packed(2, 1, struct.pack("<III", 0, 1, 896), smu + table, len(smu))
    context, control = draw.randbytes(256), draw.randbytes(192)
    words = struct.pack("<8I", 60, len(context), 0, 0, 256 + len(context), len(control), 0, 0)
    made["sdma_6_0_0.bin"] = packed(2, 0, words, context + control)
    code, stack = draw.randbytes(512), draw.randbytes(128)
    words = struct.pack("<7I", 29, len(code), 256, len(stack), 256 + len(code), 0x3000, 0x70000)
    made["gc_11_0_0_mec.bin"] = packed(2, 0, words, code + stack)
    code, data = draw.randbytes(288), draw.randbytes(224)
    words = struct.pack("<4I", len(code), 256, len(data), 0)
    made["gc_11_0_0_imu.bin"] = packed(1, 0, words, code + data)
    main = draw.randbytes(320)
    parts = [draw.randbytes(16 * size) for size in (7, 5, 9, 3)]
    spans, at = [], 256 + len(main)
    for part in parts:
        spans.append((len(part), at))
        at += len(part)
    words = bytes(156 - 32) + struct.pack("<4I", *spans[0], *spans[1])
    words += struct.pack("<4I", 1, 1, *spans[2]) + struct.pack("<4I", 1, 1, *spans[3])
    made["gc_11_0_0_rlc.bin"] = packed(2, 3, words, main + b"".join(parts), len(main))
    return {f"/lib/firmware/amdgpu/{name}": content for name, content in made.items()}
