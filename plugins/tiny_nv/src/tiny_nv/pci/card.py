"""A card without a kernel driver, as channels and devices use it: memory, page tables, contexts.

Its address space has page tables of our own, its memory is given out by this process, and what the
host sees of it lies in windows of BAR1, which have page tables too. NVIDIA/open-gpu-kernel-modules
570.144: alloc_channel.h, ctrl2080gpu.h, g_rpc-structures.h (UPDATE_BAR_PDE), dev_vm.h.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from tiny_hcq import bytes_at, fence
from tiny_nv.arch import number_of
from tiny_nv.nvk.addresses import HIGH, HUGE_PAGE, LOW, PAGE, Addresses
from tiny_nv.nvk.card import DOORBELL, Allocation, Units
from tiny_nv.nvk.classes import GENERATIONS, Class, Control, arch_of_sm
from tiny_nv.nvk.layouts import Record
from tiny_nv.pci.gsp import UPDATE_BAR_PDE, GspProcessor
from tiny_nv.pci.manager import PROMOTED, GspManager
from tiny_nv.pci.page_tables import VERSION_2, VERSION_3, Aperture, PageTables
from tiny_nv.pci.pages import PinnedMemory, SystemMemory
from tiny_nv.pci.registers import Registers
from tinycore.errors import DeviceError, UnsupportedError

__all__ = ["ChipClasses", "GspCard"]

_USERMODE: Final = 0xBB0000
_INVALIDATE: Final = 0xB830B0
_ALL_ADDRESSES, _ALL_DIRECTORIES, _MEMORY_BARRIER, _TRIGGER = 1 << 0, 1 << 1, 1 << 6, 1 << 31
_INVALIDATE_SECONDS: Final = 2.0
_FIRST_BYTE: Final = 16 << 20
"""Memory below it is left to the card's own processor."""
_BAR1: Final = 0
_UPDATE_BAR: Final = struct.Struct("<I4xQQ")
_INSTANCE_BYTES, _RAMFC_BYTES, _METHOD_BYTES = 4096, 512, 0x5000
_IN_SYSTEM, _IN_VIDEO = 1, 2
_CACHED: Final = 1
_INTERNAL_FLAGS: Final = 0x1A
"""Privilege of the kernel, kinds of error notifiers."""
_USERD_BYTES: Final = 512
_GRAPHICS: Final = 1
_OWNED_BY_US: Final = 1 << 3
"""IS_EXTERNALLY_OWNED: the page tables of an address space are this process's."""
_FIRST_ADDRESS, _ADDRESS_BYTES = 0x1000, 0x1FFFFFB000000
_SM_VERSION, _WARPS_PER_SM, _GPCS, _TPCS_PER_GPC, _SMS_PER_TPC = 12, 13, 20, 23, 32
_MAIN_EXTRA_BYTES: Final = 0x40000
_PHYSICAL: Final = 4


@dataclass(frozen=True)
class ChipClasses:
    """Classes of the chips of one architecture."""

    compute: int
    copy: int
    channel: int


@dataclass(frozen=True)
class _Context:
    """A buffer of a graphics context: its number for PROMOTE_CTX, and which size it has."""

    number: int
    size_index: int
    is_filled: bool
    """True if the GSP fills it by its physical address."""
    is_mapped: bool = True


_CONTEXTS: Final = (
    _Context(0, 0x00, True),  # MAIN
    _Context(2, 0x10, True),  # PATCH
    _Context(3, 0x11, False),  # BUFFER_BUNDLE_CB
    _Context(4, 0x12, False),  # PAGEPOOL
    _Context(5, 0x13, False),  # ATTRIBUTE_CB
    _Context(6, 0x14, False),  # RTV_CB_GLOBAL
    _Context(9, 0x17, True),  # FECS_EVENT
    _Context(10, 0x18, True, is_mapped=False),  # PRIV_ACCESS_MAP
    _Context(11, 0x18, True),  # UNRESTRICTED_PRIV_ACCESS_MAP
)


@dataclass
class GspAllocation(Allocation):
    """Memory of the system or of the card, by physical addresses."""

    pinned: PinnedMemory | None = None
    physical: int = 0
    """First byte in the card's memory."""
    window: int | None = None
    """First byte in BAR1, of memory that the host sees through it."""


class Bar1Windows:
    """Windows of the host into the card's memory, through BAR1."""

    def __init__(self, card: GspCard, at: int, size: int) -> None:
        self.at, self.size = at, size
        entries = card.page_format
        self.tables = PageTables(card.system, entries, card.invalidate, first=1)
        self._free = Addresses((0, size))
        entry = entries.table(self.tables.root.memory.bus())
        content = _UPDATE_BAR.pack(_BAR1, entry, entries.shifts[0])
        card.processor.call(UPDATE_BAR_PDE, content, "page tables of BAR1")

    def open(self, physical: int, size: int) -> int:
        """Have bytes of the card's memory seen, and return their place in BAR1. Raises
        OutOfMemory.
        """
        page = HUGE_PAGE if size >= HUGE_PAGE else PAGE
        place = self._free.take(size, page)
        try:
            self.tables.map(place, [(physical, size)], Aperture.VIDEO)
        except BaseException:
            self._free.give_back(place, size)
            raise
        return place

    def shut(self, place: int, size: int) -> None:
        """Take `open` back."""
        self.tables.unmap(place, size)
        self._free.give_back(place, size)


class GspCard:
    """An open card: its objects behind the GSP, its memory, its page tables."""

    def __init__(
        self,
        registers: Registers,
        system: SystemMemory,
        processor: GspProcessor,
        classes: ChipClasses,
        bar1: tuple[int, int],
    ) -> None:
        """`bar1`: where BAR1 is mapped, and its size. Raises DeviceError and OutOfMemory."""
        self.registers, self.system, self.processor = registers, system, processor
        self.channel_class, self.copy_class = classes.channel, classes.copy
        self.generation = next(each for each in GENERATIONS if each.compute == classes.compute)
        self.doorbell = bytes_at(registers.at + _USERMODE + DOORBELL, 4).cast("I")
        self.low, self.high = Addresses(LOW), Addresses(HIGH)
        self.video = Addresses((_FIRST_BYTE, processor.way.first_protected))
        self.page_format = VERSION_3 if processor.architecture.trust else VERSION_2
        self.users = 1
        self.rm = GspManager(processor)
        self._open_objects()
        self.windows = Bar1Windows(self, *bar1)
        self.units = self._units()
        self.arch = arch_of_sm(self.units.sm_version)
        self.arch_number = number_of(self.arch)

    def __str__(self) -> str:
        return str(self.processor.card)

    def _open_objects(self) -> None:
        rm = self.rm
        device = rm.record("device", hClientShare=rm.root)
        self.device = rm.alloc(rm.root, Class.NV01_DEVICE_0, device, what=f"{self}")
        self.subdevice = rm.alloc(
            self.device, Class.NV20_SUBDEVICE_0, rm.record("subdevice"), what=f"part 0 of {self}"
        )
        self.tables = PageTables(self.system, self.page_format, self.invalidate)
        space = rm.record(
            "va_space", vaBase=_FIRST_ADDRESS, vaSize=_ADDRESS_BYTES, flags=_OWNED_BY_US
        )
        self.va_space = rm.alloc(self.device, Class.FERMI_VASPACE_A, space, what="an address space")
        root = self.tables.root.memory.bus()
        rm.set_page_directory(self.device, self.va_space, root, self.page_format.root_entries)

    def invalidate(self) -> None:
        """Have the card forget what it has cached of page tables. Raises DeviceUnavailable."""
        registers = self.registers
        fence()
        every = _ALL_ADDRESSES | _ALL_DIRECTORIES | _MEMORY_BARRIER
        registers.write(_INVALIDATE, every | _TRIGGER)
        registers.wait_until(
            lambda: not registers.read(_INVALIDATE) & _TRIGGER,
            _INVALIDATE_SECONDS,
            lambda: "it does not end to invalidate its TLBs",
        )

    def _units(self) -> Units:
        asked = self.rm.record("static_gr_info")
        self.rm.control(self.subdevice, Control.STATIC_GR_GET_INFO, asked)
        indices = (_SM_VERSION, _WARPS_PER_SM, _GPCS, _TPCS_PER_GPC, _SMS_PER_TPC)
        return Units(*(asked.number("infos", index) >> 32 for index in indices))

    # --- memory

    def allocate(
        self,
        size: int,
        *,
        is_system: bool = False,
        is_visible: bool = False,
        is_contiguous: bool = False,
        is_shared: bool = False,
    ) -> GspAllocation:
        """Memory of the card, always contiguous, or of the system, which the host sees always.

        Raises OutOfMemory and DeviceError.
        """
        huge = size >= HUGE_PAGE
        page = HUGE_PAGE if huge and not is_system else PAGE
        size = -(-size // page) * page
        with ExitStack() as undo:
            pool = self.low if is_visible else self.high
            address = pool.take(size, HUGE_PAGE if huge else PAGE)
            undo.callback(pool.give_back, address, size)
            made = GspAllocation(address, size, 0)
            if is_system:
                made.pinned = self.system.allocate(size)
                undo.callback(self.system.free, made.pinned)
                made.host = made.pinned.host
                self.tables.map(address, runs(made.pinned.pages()), Aperture.SYSTEM)
            else:
                made.physical = self.video.take(size, page)
                undo.callback(self.video.give_back, made.physical, size)
                self.tables.map(address, [(made.physical, size)], Aperture.VIDEO)
            undo.callback(self.tables.unmap, address, size)
            if is_visible and not is_system:
                made.window = self.windows.open(made.physical, size)
                made.host = self.windows.at + made.window
            undo.pop_all()
        return made

    def pin(self, address: int, size: int) -> Allocation:
        """Pages of this process are not pinned: the kernel may move them, but for huge ones."""
        raise DeviceError(f"{self} addresses memory only that was allocated for it")

    def free(self, allocation: Allocation) -> None:
        """Give memory back. Its addresses may be given to others from now on."""
        assert isinstance(allocation, GspAllocation)
        address, size = allocation.address, allocation.size
        if allocation.window is not None:
            self.windows.shut(allocation.window, size)
        self.tables.unmap(address, size)
        if allocation.pinned is not None:
            self.system.free(allocation.pinned)
        else:
            self.video.give_back(allocation.physical, size)
        (self.low if address < LOW[1] else self.high).give_back(address, size)

    def map_peer(self, allocation: Allocation) -> None:
        """Cards without a kernel driver do not see each other's memory."""
        raise UnsupportedError(f"{self} cannot address another card's memory: use DEV=NV")

    def unmap_peer(self, allocation: Allocation) -> None:
        """There is nothing to take back."""

    # --- channels

    def describe_channel(self, params: Record, ring: Allocation, notifier: Allocation) -> ExitStack:
        """Say where a channel's memory is, by physical addresses; what it needs besides is
        allocated. Raises OutOfMemory.
        """
        assert isinstance(ring, GspAllocation)
        assert isinstance(notifier, GspAllocation)
        assert notifier.pinned is not None
        with ExitStack() as undo:
            instance = self.allocate(_INSTANCE_BYTES)
            undo.callback(self.free, instance)
            methods = self.allocate(_METHOD_BYTES, is_system=True)
            undo.callback(self.free, methods)
            assert methods.pinned is not None
            userd = ring.physical + params.number("userdOffset")
            places = {
                "instanceMem": (instance.physical, _INSTANCE_BYTES, _IN_VIDEO, _CACHED),
                "ramfcMem": (instance.physical, _RAMFC_BYTES, _IN_VIDEO, _CACHED),
                "userdMem": (userd, _USERD_BYTES, _IN_VIDEO, _CACHED),
                "mthdbufMem": (methods.pinned.bus(), _METHOD_BYTES, _IN_SYSTEM, 0),
                "errorNotifierMem": (notifier.pinned.bus(), notifier.size, _IN_SYSTEM, 0),
            }
            for name, (base, size, space, cached) in places.items():
                place = self.rm.record(
                    "memory_place", base=base, size=size, addressSpace=space, cacheAttrib=cached
                )
                params.put(name, bytes(place.data))
            params.put("internalFlags", _INTERNAL_FLAGS)
            return undo.pop_all()

    def promote_context(self, handle: int, undo: ExitStack) -> None:
        """Give a channel of the graphics engine the buffers of its context. Raises OutOfMemory."""
        sizes = self._context_sizes()
        promoted = self.rm.record(
            "promote", engineType=_GRAPHICS, hChanClient=self.rm.root, hObject=handle
        )
        wanted = [each for each in _CONTEXTS if sizes[each.size_index]]
        assert len(wanted) <= PROMOTED
        for index, each in enumerate(wanted):
            size = sizes[each.size_index] + (0 if each.number else _MAIN_EXTRA_BYTES)
            memory = self.allocate(size)
            undo.callback(self.free, memory)
            entry = self.rm.record("promoted", bufferId=each.number, bNonmapped=not each.is_mapped)
            if each.is_mapped:
                entry.put("gpuVirtAddr", memory.address)
            if each.is_filled:
                values = {"gpuPhysAddr": memory.physical, "size": size, "physAttr": _PHYSICAL}
                for name, value in {**values, "bInitialize": 1}.items():
                    entry.put(name, value)
            promoted.put("entries", bytes(entry.data), index)
        promoted.put("entryCount", len(wanted))
        self.rm.control(self.subdevice, Control.GPU_PROMOTE_CTX, promoted)

    def _context_sizes(self) -> Mapping[int, int]:
        """Sizes of context buffers by their indices."""
        asked = self.rm.record("context_buffers")
        self.rm.control(self.subdevice, Control.STATIC_GR_GET_CONTEXT_BUFFERS, asked)
        indices = {each.size_index for each in _CONTEXTS}
        return {index: asked.number("buffers", index) & 0xFFFFFFFF for index in indices}

    def register_channel(self, handle: int, undo: ExitStack) -> None:
        """The GSP knows the channel already."""

    @property
    def channel_error(self) -> int:
        """Code of the error that the GSP has told of last; 0 without one."""
        with suppress(DeviceError):
            self.processor.next_message()
        return self.processor.channel_error

    @property
    def channel_faults(self) -> Sequence[str]:
        """Accesses of which the GSP has told with an error."""
        return self.processor.channel_faults

    def close(self) -> None:
        """Give up the objects, when this was its last user."""
        with suppress(DeviceError):
            self.rm.free(self.rm.root)


def runs(pages: list[int]) -> list[tuple[int, int]]:
    """Pages whose addresses follow each other, joined: addresses and sizes."""
    found: list[tuple[int, int]] = []
    for page in pages:
        if found and sum(found[-1]) == page:
            found[-1] = (found[-1][0], found[-1][1] + PAGE)
        else:
            found.append((page, PAGE))
    return found
