"""Queue meta data: the fields of launch descriptors, by version.

open-gpu-doc: clc6c0qmd.h (03_00), clcbc0qmd.h (04_00), clcdc0qmd.h and clcec0qmd.h (05_00). Bits
are counted from bit 0 of byte 0. `+n` is the distance to the same field of the next index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FIELDS", "Qmd"]

TABLE: Final = """
major                  583:580         583:580         471:468
minor                  579:576         579:576         467:464
type                   -               25:23           153:151
call_limit             378:378         568:568         456:456
sass_version           1663:1656       543:536         455:448
invalidate_data        189:189         605:605         475:475
invalidate_code        190:190         606:606         476:476
invalidate_constants   191:191         607:607         477:477
membar                 369:368         1137:1136       625:624
grid_x                 415:384         1055:1024       1279:1248
grid_y                 431:416         1071:1056       1295:1280
grid_z                 463:448         1103:1088       1327:1312
block_x                607:592         1167:1152       1103:1088
block_y                623:608         1183:1168       1119:1104
block_z                639:624         1199:1184       1127:1120
registers              656:648         1208:1200       1136:1128
barriers               767:763         1215:1211       1141:1137
shared                 561:544         601:584         1162:1152
shared_min             567:562         613:608         1168:1163
shared_max             574:569         619:614         1174:1169
shared_target          662:657         625:620         1180:1175
local_low              759:736         535:512         1199:1184
local_high             1623:1600       567:544         1215:1200
program_low            1567:1536       1247:1216       1055:1024
program_high           1584:1568       1272:1248       1076:1056
constants_valid        640:640+1       416:416+4       1856:1856+4
constants_low          1055:1024+64    1567:1536+64    1375:1344+64
constants_high         1072:1056+64    1586:1568+64    1394:1376+64
constants_size         1087:1075+64    1599:1587+64    1407:1395+64
constants_invalidate   1074:1074+64    419:419+4       1859:1859+4
dependent_enable       512:512+5       368:368+5       336:336+8
dependent_action       515:513+5       371:369+5       339:337+8
dependent_pointer      511:480         479:448+32      415:384+32
cluster_x              -               2149:2144       2053:2048
cluster_y              -               2157:2152       2061:2056
cluster_z              -               2165:2160       2069:2064
"""
RELEASES: Final = """
release_enable         823:823         320:320+16      288:288+16
release_structure      831:830         322:321+16      290:289+16
release_membar         819:819         323:323+16      291:291+16
release_reduces        826:826         324:324+16      292:292+16
release_traps          828:827         331:330+16      299:298+16
release_long           829:829         332:332+16      300:300+16
"""
RELEASE_PLACES: Final = {
    3: ((768, 800, 8, 832), (896, 928, 8, 960), (1664, 1696, 8, 1728)),
    4: ((640, 672, 25, 704), (768, 800, 25, 832), (896, 928, 25, 960)),
    5: ((480, 512, 25, 544), (768, 800, 25, 832), (896, 928, 25, 960)),
}
"""First bits of the address' low and high part, the bits of the latter, and of the payload."""
RELEASE_BLOCKS_3: Final = (0, 128, 896)
"""Offsets of the blocks of version 3 from the first one."""
Place = tuple[int, int, int]


def places(text: str, column: int) -> dict[str, Place]:
    """First bit, bits and distance of each field of a version."""
    found = {}
    for line in text.split("\n"):
        words = line.split()
        if not words or words[column] == "-":
            continue
        span, _, distance = words[column].partition("+")
        last, first = map(int, span.split(":"))
        found[words[0]] = (first, last - first + 1, int(distance or 0))
    return found


FIELDS: Final = {version: places(TABLE, version - 2) for version in (3, 4, 5)}
RELEASE_FIELDS: Final = {version: places(RELEASES, version - 2) for version in (3, 4, 5)}
SHIFTED: Final[dict[int, dict[str, int]]] = {
    3: {},
    4: {"constants": 6},
    5: {"constants": 6, "program": 4, "local": 4},
}
SHARED_SHIFT: Final = {3: 0, 4: 0, 5: 7}
DEPENDENTS: Final = {3: 1, 4: 2, 5: 2}


@dataclass(frozen=True)
class Release:
    """A semaphore that the end of a kernel writes."""

    address: int
    payload: int
    structure: int
    is_long: bool
    has_membar: bool


@dataclass(frozen=True)
class Qmd:
    """A descriptor in memory."""

    version: int
    data: bytes
    address: int

    def bits(self, first: int, count: int) -> int:
        """A number, by its first bit."""
        number = int.from_bytes(self.data[first // 8 : (first + count + 7) // 8], "little")
        return number >> first % 8 & (1 << count) - 1

    def get(self, name: str, index: int = 0, default: int = 0) -> int:
        """A field; the default where this version has none."""
        place = FIELDS[self.version].get(name)
        if place is None:
            return default
        first, count, distance = place
        return self.bits(first + index * distance, count)

    def pair(self, name: str, index: int = 0) -> int:
        """An address of two fields."""
        low, high = self.get(f"{name}_low", index), self.get(f"{name}_high", index)
        return (low | high << 32) << SHIFTED[self.version].get(name, 0)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return self.get("grid_x"), self.get("grid_y"), self.get("grid_z")

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a block."""
        return self.get("block_x"), self.get("block_y"), self.get("block_z")

    @property
    def shared(self) -> int:
        """Bytes of shared memory, those of the system included."""
        return self.get("shared") << SHARED_SHIFT[self.version]

    @property
    def local(self) -> int:
        """Bytes of local memory of a thread."""
        shift = SHIFTED[self.version].get("local", 0)
        return self.get("local_low") + self.get("local_high") << shift

    @property
    def dependents(self) -> list[tuple[int, int]]:
        """Descriptors that this one's end launches: address, action."""
        return [
            (self.get("dependent_pointer", index) << 8, self.get("dependent_action", index))
            for index in range(DEPENDENTS[self.version])
            if self.get("dependent_enable", index)
        ]

    def releases(self) -> list[Release]:
        """Semaphores of the end."""
        found = []
        for index, place in enumerate(RELEASE_PLACES[self.version]):
            if not self.of_release("release_enable", index):
                continue
            low, high, high_bits, payload = place
            is_long = bool(self.of_release("release_long", index))
            found.append(
                Release(
                    address=self.bits(low, 32) | self.bits(high, high_bits) << 32,
                    payload=self.bits(payload, 64 if is_long else 32),
                    structure=self.of_release("release_structure", index),
                    is_long=is_long,
                    has_membar=bool(self.of_release("release_membar", index)),
                )
            )
        return found

    def of_release(self, name: str, index: int) -> int:
        """A field of the block of one semaphore."""
        first, count, distance = RELEASE_FIELDS[self.version][name]
        behind = RELEASE_BLOCKS_3[index] if self.version == 3 else index * distance
        return self.bits(first + behind, count)
