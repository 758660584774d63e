"""Global, shared, local and parameter memory; every access is checked.

Generic addresses: PTX ISA 9.0, section 5.1.1. Windows of shared and local memory lie where no
global allocation does. A race is two accesses of one place in shared memory by two threads of a
block, one of them a write, with no barrier between. Each place remembers its last writer, its last
reader and the epochs of both; a block's epoch ends with a barrier, a warp's with bar.warp.sync.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Final

import numpy

from emulation.faults import IllegalAddress, MisalignedAddress, RaceFault

Array = numpy.ndarray[Any, Any]

SHARED_WINDOW: Final = 0x7F00_0000_0000_0000
LOCAL_WINDOW: Final = 0x7E00_0000_0000_0000
WINDOW: Final = 1 << 24
FIRST_SHARED: Final = 1024
"""Offset of variables in shared memory: the system keeps the first KiB on sm_90."""
FIRST_LOCAL: Final = 64
UNSIGNED: Final = {1: numpy.uint8, 2: numpy.uint16, 4: numpy.uint32, 8: numpy.uint64}
GARBAGE: Final = 0xCB
"""Byte of memory that nobody has written: floats of it are -2.7e7, indices are far outside."""


@dataclass
class Region:
    """An allocation: its address and its bytes, which the owner may look at."""

    address: int
    data: Array
    name: str = ""


class GlobalMemory:
    """Allocations by address."""

    def __init__(self) -> None:
        self.table: tuple[list[int], list[Region]] = ([], [])
        """Starts of allocations, and the allocations; replaced as one, so that others may read."""
        self.lock = threading.Lock()

    @property
    def starts(self) -> list[int]:
        """Addresses of all allocations, ascending."""
        return self.table[0]

    @property
    def regions(self) -> list[Region]:
        """All allocations, by address."""
        return self.table[1]

    def add(self, region: Region) -> None:
        """Make an allocation known. It must not overlap another."""
        with self.lock:
            starts, regions = self.table
            place = bisect_right(starts, region.address)
            self.table = (
                [*starts[:place], region.address, *starts[place:]],
                [*regions[:place], region, *regions[place:]],
            )

    def remove(self, address: int) -> None:
        """Forget an allocation: what touches it from now on is a fault."""
        with self.lock:
            starts, regions = self.table
            place = starts.index(address)
            self.table = (
                starts[:place] + starts[place + 1 :],
                regions[:place] + regions[place + 1 :],
            )

    def region_at(self, address: int) -> Region | None:
        """The allocation that an address lies in."""
        starts, regions = self.table
        place = bisect_right(starts, address) - 1
        if place < 0:
            return None
        region = regions[place]
        return region if address < region.address + region.data.nbytes else None

    def find(self, addresses: Array, width: int, action: str) -> tuple[Region, Array] | None:
        """The allocation that all addresses lie in, and offsets; None if there are several."""
        low, high = int(addresses.min()), int(addresses.max())
        region = self.region_at(low)
        if region is None:
            raise IllegalAddress(self.describe(low, width, action))
        if high + width > region.address + region.data.nbytes:
            if high < region.address + region.data.nbytes or self.region_at(high) is None:
                raise IllegalAddress(self.describe(high, width, action))
            return None
        return region, addresses - numpy.uint64(region.address)

    def describe(self, address: int, width: int, action: str) -> str:
        """An address beside the allocations around it."""
        place = bisect_right(self.starts, address) - 1
        near = self.regions[max(place, 0) : place + 2]
        around = ", ".join(
            f"{r.name or 'allocation'} {r.address:#x} to {r.address + r.data.nbytes:#x}"
            for r in near
        )
        return f"{action} of {width} bytes at {address:#x}; nearest: {around or 'nothing'}"

    def pieces(
        self, addresses: Array, width: int, action: str
    ) -> list[tuple[Region, Array | None, Array]]:
        """Per allocation: which of the addresses lie in it (None: all), and their offsets."""
        if not addresses.size:
            return []
        if (whole := self.find(addresses, width, action)) is not None:
            return [(whole[0], None, whole[1])]
        starts = numpy.array(self.starts, numpy.uint64)
        places = numpy.searchsorted(starts, addresses, "right") - 1
        found: list[tuple[Region, Array | None, Array]] = []
        for place in numpy.unique(places):
            which = numpy.flatnonzero(places == place)
            one = self.find(addresses[which], width, action)
            assert one is not None
            found.append((one[0], which, one[1]))
        return found

    def load(self, addresses: Array, width: int, count: int) -> list[Array]:
        """`count` words of `width` bytes from each address."""
        results = [numpy.empty(addresses.shape, UNSIGNED[width]) for _ in range(count)]
        for region, which, offsets in self.pieces(addresses, width * count, "read"):
            words = words_of(region.data, width)
            places = (offsets // numpy.uint64(width)).astype(numpy.int64)
            for index, result in enumerate(results):
                result[slice(None) if which is None else which] = words[places + index]
        return results

    def store(self, addresses: Array, width: int, values: list[Array]) -> None:
        """Words of `width` bytes to each address, side by side."""
        for region, which, offsets in self.pieces(addresses, width * len(values), "write"):
            words = words_of(region.data, width)
            places = (offsets // numpy.uint64(width)).astype(numpy.int64)
            for index, value in enumerate(values):
                words[places + index] = value if which is None else value[which]


def words_of(data: Array, width: int) -> Array:
    """Bytes as words; what is left over at the end cannot be reached by an aligned access."""
    return data[: data.nbytes // width * width].view(UNSIGNED[width])


def check_alignment(addresses: Array, bytes_at_once: int) -> None:
    """Raise MisalignedAddress where an address is no multiple."""
    wrong = addresses % addresses.dtype.type(bytes_at_once) != 0
    if wrong.any():
        which = int(numpy.flatnonzero(wrong)[0])
        raise MisalignedAddress(
            f"{bytes_at_once} bytes at {int(addresses[which]):#x}, which is no multiple of that"
        )


@dataclass
class Race:
    """Last access to each granule of shared memory: its thread and time. One row per block."""

    blocks: int
    granules: int
    writer: Array = field(init=False)
    write_epoch: Array = field(init=False)
    reader: Array = field(init=False)
    read_epoch: Array = field(init=False)

    def __post_init__(self) -> None:
        shape = self.blocks * self.granules
        self.writer = numpy.full(shape, -1, numpy.int32)
        self.write_epoch = numpy.full(shape, -1, numpy.int64)
        self.reader = numpy.full(shape, -1, numpy.int32)
        self.read_epoch = numpy.full(shape, -1, numpy.int64)


MANY_READERS: Final = -2
"""In place of a reader: several threads of different warps."""
READERS_OF_WARP: Final = -10
"""In place of a reader: several threads of warp w, written as this minus w."""


class SharedMemory:
    """Shared memory of all blocks that run: a row each, and what is known of its accesses."""

    def __init__(
        self,
        blocks: int,
        size: int,
        block_threads: int,
        granule: int,
        watched: int,
        first: int = FIRST_SHARED,
        warps_in_order: bool = False,
        warp_threads: int = 32,
    ) -> None:
        self.warp_threads = warp_threads
        self.warps_in_order = warps_in_order
        """True if accesses of one warp happen in the order of its instructions."""
        self.first = first
        """Its first address."""
        self.watched = min(watched, blocks)
        """Number of blocks, from the first on, that are watched for races."""
        self.size = first + size
        self.size += -self.size % 16
        self.block_threads = block_threads
        self.granule = granule
        self.data = numpy.full(blocks * self.size, GARBAGE, numpy.uint8)
        self.race = Race(self.watched, self.size // granule)
        self.in_flight = numpy.zeros(self.watched * self.size // granule, numpy.bool_)
        self.flying = 0
        """Asynchronous copies that have begun and not ended."""
        self.block_epoch = numpy.zeros(blocks, numpy.int64)
        self.warp_epoch = numpy.zeros(blocks * -(-block_threads // warp_threads), numpy.int64)

    def barrier(self, blocks: Array) -> None:
        """A barrier of whole blocks: what came before is seen by all that comes after."""
        self.block_epoch[blocks] += 1

    def places(self, threads: Array, addresses: Array, size: int, action: str) -> Array:
        """Byte offsets into `data`, checked against the block's memory."""
        wrong = (addresses < self.first) | (addresses + size > self.size)
        if wrong.any():
            which = int(numpy.flatnonzero(wrong)[0])
            raise IllegalAddress(
                f"{action} of {size} bytes at {int(addresses[which]):#x} of shared memory, which "
                f"ends at {self.size:#x} (thread {int(threads[which]) % self.block_threads})"
            )
        found: Array = addresses.astype(numpy.int64) + threads // self.block_threads * self.size
        return found

    def load(self, threads: Array, addresses: Array, width: int, count: int) -> list[Array]:
        """`count` words of `width` bytes from each address."""
        places = self.places(threads, addresses, width * count, "read")
        if threads.size:
            self.note_read(threads, places, width * count)
        words, first = self.data.view(UNSIGNED[width]), places // width
        return [words[first + index] for index in range(count)]

    def store(self, threads: Array, addresses: Array, width: int, values: list[Array]) -> None:
        """Words of `width` bytes to each address, side by side."""
        places = self.places(threads, addresses, width * len(values), "write")
        if threads.size:
            self.note_write(threads, places, width * len(values))
        words, first = self.data.view(UNSIGNED[width]), places // width
        for index, value in enumerate(values):
            words[first + index] = value

    # --- races

    def granules(self, threads: Array, places: Array, size: int) -> tuple[Array, Array]:
        """The granules that accesses of watched blocks touch, and the thread of each."""
        if self.watched * self.block_threads <= threads[-1]:  # threads are in ascending order
            count = int(numpy.searchsorted(threads, self.watched * self.block_threads))
            threads, places = threads[:count], places[:count]
        count = max(size // self.granule, 1)
        first = places // self.granule
        if count == 1:
            return first, threads
        return (first[:, None] + numpy.arange(count)).ravel(), numpy.repeat(threads, count)

    def epochs(self, threads: Array) -> Array:
        """The time of each thread: epoch of its block, then of its warp, in one number."""
        block = threads // self.block_threads
        warp = self.warps_of(threads)
        found: Array = (self.block_epoch[block] << 32) + self.warp_epoch[warp]
        return found

    def warps_of(self, threads: Array) -> Array:
        """The number of each thread's warp among all that run."""
        warps = -(-self.block_threads // self.warp_threads)
        within = threads % self.block_threads // self.warp_threads
        found: Array = threads // self.block_threads * warps + within
        return found

    def clashes(self, who: Array, threads: Array, when: Array, now: Array) -> Array:
        """Mask of earlier accesses by another thread that are not ordered before these."""
        same_epoch: Array = (when >> 32) == (now >> 32)
        if not same_epoch.any():
            return same_epoch
        group = numpy.where(who >= 0, self.warps_of(who), READERS_OF_WARP - who)
        same_warp = (group >= 0) & (group == self.warps_of(threads))
        later = (when & 0xFFFFFFFF) != (now & 0xFFFFFFFF)
        ordered = same_warp if self.warps_in_order else same_warp & later
        found: Array = same_epoch & (who != threads) & (when >= 0) & ~ordered
        return found

    def note_read(self, threads: Array, places: Array, size: int) -> None:
        """Remember reads; raise RaceFault where another thread wrote in the same epoch."""
        granules, readers = self.granules(threads, places, size)
        if not readers.size:
            return
        if self.flying and self.in_flight[granules].any():
            which = int(numpy.flatnonzero(self.in_flight[granules])[0])
            raise RaceFault(self.describe(granules, readers, which, "reads", "an unfinished copy"))
        now, race = self.epochs(readers), self.race
        bad = self.clashes(race.writer[granules], readers, race.write_epoch[granules], now)
        if bad.any():
            which = int(numpy.flatnonzero(bad)[0])
            other = f"thread {race.writer[granules[which]] % self.block_threads}'s write"
            raise RaceFault(self.describe(granules, readers, which, "reads", other))
        before, warps = race.reader[granules], self.warps_of(readers).astype(numpy.int32)
        fresh = (race.read_epoch[granules] >> 32) != (now >> 32)
        one_warp = (before == READERS_OF_WARP - warps) | (
            (before >= 0) & (self.warps_of(before) == warps)
        )
        mark = numpy.where(one_warp, READERS_OF_WARP - warps, MANY_READERS)
        mark = numpy.where(fresh | (before == readers), readers, mark).astype(numpy.int32)
        race.reader[granules] = mark
        others = race.reader[granules] != mark  # another thread reads the same place at once
        if others.any():
            self.mark_readers_of_one_place(granules[others], warps[others])
        race.read_epoch[granules] = now

    def mark_readers_of_one_place(self, granules: Array, warps: Array) -> None:
        """Several threads read a place in one instruction."""
        race = self.race
        winner = race.reader[granules]
        group = numpy.where(winner >= 0, self.warps_of(winner), READERS_OF_WARP - winner)
        race.reader[granules] = numpy.where(group == warps, READERS_OF_WARP - warps, MANY_READERS)
        apart = numpy.unique(granules[group != warps])
        race.reader[apart] = MANY_READERS

    def note_write(self, threads: Array, places: Array, size: int) -> None:
        """Remember writes; raise RaceFault where another thread read or wrote in the same epoch."""
        granules, writers = self.granules(threads, places, size)
        if not writers.size:
            return
        now, race = self.epochs(writers), self.race
        for who, when, what in (
            (race.writer, race.write_epoch, "write"),
            (race.reader, race.read_epoch, "read"),
        ):
            bad = self.clashes(who[granules], writers, when[granules], now)
            if bad.any():
                which = int(numpy.flatnonzero(bad)[0])
                number = int(who[granules[which]])
                one = (
                    "several threads'" if number < 0 else f"thread {number % self.block_threads}'s"
                )
                raise RaceFault(self.describe(granules, writers, which, "writes", f"{one} {what}"))
        race.writer[granules] = writers
        twice = race.writer[granules] != writers
        if twice.any():
            which = int(numpy.flatnonzero(twice)[0])
            raise RaceFault(self.describe(granules, writers, which, "writes", "another's write"))
        race.write_epoch[granules] = now

    def describe(self, granules: Array, threads: Array, which: int, does: str, other: str) -> str:
        """Both sides of a race."""
        place = int(granules[which]) * self.granule % self.size
        thread = int(threads[which])
        return (
            f"thread {thread % self.block_threads} of block {thread // self.block_threads} (of "
            f"those that run) {does} shared memory at {place:#x} with no barrier after {other}"
        )

    def copy_begins(self, threads: Array, addresses: Array, size: int) -> Array:
        """An asynchronous copy to here is under way; its bytes come with `copy_ends`."""
        places = self.places(threads, addresses, size, "copy")
        self.note_write(threads, places, size)
        granules, _ = self.granules(threads, places, size)
        self.in_flight[granules] = True
        self.flying += 1
        return places

    def copy_ends(self, threads: Array, places: Array, data: Array) -> None:
        """The bytes of asynchronous copies, a row each, are there."""
        size = data.shape[1]
        granules, writers = self.granules(threads, places, size)
        self.in_flight[granules] = False
        self.flying = max(self.flying - 1, 0) if not self.in_flight.any() else self.flying
        self.race.writer[granules] = writers
        self.race.write_epoch[granules] = self.epochs(writers)
        self.data[(places[:, None] + numpy.arange(size)).ravel()] = data.ravel()

    # --- bulk copies: an mbarrier orders them, so that epochs say nothing of them

    def bulk_begins(self, thread: int, address: int, size: int) -> Array:
        """A bulk copy to here is under way; its bytes come with `bulk_ends`."""
        self.places(numpy.array([thread]), numpy.array([address]), size, "bulk copy")
        block = thread // self.block_threads
        places = block * self.size + address + numpy.arange(size)
        if block < self.watched:
            self.in_flight[places // self.granule] = True
            self.flying += 1
        return places

    def bulk_ends(self, places: Array, data: Array) -> None:
        """The bytes of a bulk copy are there."""
        self.data[places] = data
        if places[0] < self.watched * self.size:
            granules = places // self.granule
            self.in_flight[granules] = False
            self.race.write_epoch[granules] = -1
            self.flying -= 1

    def bulk_reads(self, thread: int, addresses: Array) -> None:
        """A matrix unit reads; raise RaceFault where a copy is unfinished."""
        if thread // self.block_threads < self.watched and self.flying:
            granules = (addresses + thread // self.block_threads * self.size) // self.granule
            if self.in_flight[granules].any():
                raise RaceFault("a matrix unit reads shared memory whose copy is unfinished")


class LocalMemory:
    """Memory of each thread's own."""

    def __init__(self, threads: int, size: int, first: int = FIRST_LOCAL) -> None:
        self.first = first
        self.size = first + size
        self.size += -self.size % 16
        self.data = numpy.full(threads * self.size, GARBAGE, numpy.uint8)

    def places(self, threads: Array, addresses: Array, size: int, action: str) -> Array:
        """Byte offsets into `data`, checked."""
        wrong = (addresses < self.first) | (addresses + size > self.size)
        if wrong.any():
            which = int(numpy.flatnonzero(wrong)[0])
            raise IllegalAddress(
                f"{action} of {size} bytes at {int(addresses[which]):#x} of local memory, which "
                f"ends at {self.size:#x} (thread {int(threads[which])})"
            )
        found: Array = addresses.astype(numpy.int64) + threads * self.size
        return found

    def load(self, threads: Array, addresses: Array, width: int, count: int) -> list[Array]:
        """`count` words of `width` bytes from each address."""
        first = self.places(threads, addresses, width * count, "read") // width
        words = self.data.view(UNSIGNED[width])
        return [words[first + index] for index in range(count)]

    def store(self, threads: Array, addresses: Array, width: int, values: list[Array]) -> None:
        """Words of `width` bytes to each address, side by side."""
        first = self.places(threads, addresses, width * len(values), "write") // width
        words = self.data.view(UNSIGNED[width])
        for index, value in enumerate(values):
            words[first + index] = value
