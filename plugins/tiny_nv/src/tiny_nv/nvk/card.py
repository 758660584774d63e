"""A card as this process has it open, memory of it, and memory of the host that cards see."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from tiny_hcq import System, address_of, bytes_at, system
from tiny_nv.arch import number_of
from tiny_nv.nvk.addresses import HIGH, HUGE_PAGE, LOW, PAGE, Addresses
from tiny_nv.nvk.classes import (
    CHANNELS,
    COPIES,
    FIRST_OF_BAR1,
    GENERATIONS,
    USERMODES,
    Class,
    Control,
    Generation,
    arch_of_sm,
    newest,
)
from tiny_nv.nvk.layouts import Record
from tiny_nv.nvk.mapping import (
    ADDRESS_BYTES,
    FIRST_ADDRESS,
    DmaMapping,
    Mapping,
    Unmanaged,
    UvmMapping,
    mapping_of,
)
from tiny_nv.nvk.rm import CONTROL_NODE, CardInfo, Refused, ResourceManager
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory
from tinycore.plugin import lock, recursive_lock

__all__ = ["Allocation", "Card", "Driver", "Units", "driver_of_process"]

USERMODE_BYTES: Final = 0x10000
DOORBELL: Final = 0x90
UUID_BYTES: Final = 16
_BINARY: Final = 2
_BOOST_TO_MAXIMUM: Final = 0x52
_FOREVER: Final = 0xFFFFFFFF
_HUGE_FROM: Final = 8 << 20
"""Size from which on memory of a card has huge pages."""
_CONTEXT_BYTES: Final = 64 << 20
"""Default size of a channel's contexts, if the driver does not tell it."""

# NV_MEMORY_ALLOCATION_PARAMS.
_IMAGE, _NOTIFIER = 0, 13
_OF_CARD: Final = 0x1C101
"""IGNORE_BANK, ALIGNMENT_FORCE, HANDLE_PROVIDED, MAP_NOT_REQUIRED, PERSISTENT_VIDMEM."""
_OF_SYSTEM: Final = 0xC101
_GENERIC: Final = 6
_SMALL_PAGES, _HUGE_PAGES = 1 << 23, 3 << 23
_SYSTEM, _CONTIGUOUS, _SCATTERED, _CACHED = 1 << 25, 2 << 27, 3 << 27, 1 << 29
_CARD_CACHES, _CARD_CACHES_NOT, _PAGES_OF_2_MB = 1 | 1 << 2, 1 | 2 << 2, 1 << 20

# Indices of GR_GET_INFO.
_SM_VERSION, _WARPS_PER_SM, _GPCS, _TPCS_PER_GPC, _SMS_PER_TPC = 12, 13, 20, 23, 32


@dataclass
class Allocation:
    """Memory at one address of every card that it is mapped to."""

    address: int
    size: int
    handle: int
    owner: Card | None = None
    """Card of NVIDIA's kernel driver; None for one without it, which has no peers."""
    host: int = 0
    """Host address; 0 if it is not mapped."""
    mapped: list[Card] = field(default_factory=list)
    """Cards that address it."""


@dataclass(frozen=True)
class Units:
    """Unit counts of a card."""

    sm_version: int
    warps_per_sm: int
    gpcs: int
    tpcs_per_gpc: int
    sms_per_tpc: int


class Driver:
    """The driver of NVIDIA, opened once in each process."""

    def __init__(self, machine: System) -> None:
        self.machine = machine
        self.process = os.getpid()
        self.lock = recursive_lock()
        self.rm = ResourceManager(machine)
        self.mapping: Mapping = mapping_of(self.rm)
        self.low, self.high = Addresses(LOW), Addresses(HIGH)
        self.cards: list[Card] = []
        """Cards that are open."""
        self.shared: dict[int, Allocation] = {}
        """Memory that all cards address, by address."""

    def infos(self) -> list[CardInfo]:
        """The cards there are, by the numbers of their files."""
        return sorted(self.rm.cards(), key=lambda info: info.minor)

    def open(self, info: CardInfo) -> Card:
        """A card, opened once for all its users; each closes it."""
        with self.lock, ExitStack() as undo:
            for each in self.cards:
                if each.info.gpu_id == info.gpu_id:
                    each.users += 1
                    return each
            card = self._card(info)
            undo.callback(card.close)
            for memory in self.shared.values():
                self.mapping.map(memory.address, memory.size, memory.handle, [card])
                memory.mapped.append(card)
            self.cards.append(card)
            undo.pop_all()
            return card

    def _card(self, info: CardInfo) -> Card:
        """A card, whose memory the resource manager maps if nvidia-uvm cannot and no card is open
        whose memory it manages.
        """
        try:
            return Card(self, info)
        except Unmanaged:
            if self.cards or not isinstance(self.mapping, UvmMapping):
                raise
        self.mapping.uvm.close()
        self.mapping = DmaMapping(self.rm)
        return Card(self, info)


class Card:
    """An open card: its objects in the resource manager, its page of doorbells, its memory."""

    def __init__(self, driver: Driver, info: CardInfo) -> None:
        self.driver, self.rm, self.info = driver, driver.rm, info
        self.users = 1
        with ExitStack() as undo:
            self._open(undo)
            self._opened = undo.pop_all()

    def __str__(self) -> str:
        return f"NVIDIA's card {self.info.bus}"

    def _open(self, undo: ExitStack) -> None:
        rm, info = self.rm, self.info
        try:
            self.file = rm.machine.open(info.node)
        except OSError as error:
            raise DeviceUnavailable(f"{info.node} cannot be opened: {error}") from error
        undo.callback(rm.machine.close, self.file)
        rm.register(self.file)
        found = rm.control(
            rm.root, Control.GPU_GET_ID_INFO_V2, rm.record("id_info", gpuId=info.gpu_id)
        )
        self.device = rm.alloc(
            rm.root,
            Class.NV01_DEVICE_0,
            rm.record("device", deviceId=found.number("deviceInstance"), hClientShare=rm.root),
            what=f"{self}",
        )
        undo.callback(self._free, self.device)
        self.subdevice = rm.alloc(
            self.device, Class.NV20_SUBDEVICE_0, rm.record("subdevice"), what=f"part 0 of {self}"
        )
        self.classes = self._class_list()
        self.generation = self._generation()
        self.channel_class = newest(CHANNELS, self.classes, "channel")
        self.copy_class = newest(COPIES, self.classes, "copy engine")
        self._map_doorbells(undo)
        with suppress(Refused):  # clocks are the driver's to choose where it does not allow this
            boost = rm.record("perf_boost", flags=_BOOST_TO_MAXIMUM, duration=_FOREVER)
            rm.control(self.subdevice, Control.PERF_BOOST, boost)
        self.va_space = rm.alloc(
            self.device,
            Class.FERMI_VASPACE_A,
            rm.record(
                "va_space",
                vaBase=FIRST_ADDRESS,
                vaSize=ADDRESS_BYTES,
                flags=self.driver.mapping.space_flags,
            ),
            what="an address space",
        )
        identity = rm.record("gid_info", flags=_BINARY, length=UUID_BYTES)
        rm.control(self.subdevice, Control.GET_GID_INFO, identity)
        self.uuid = identity.content("uuid")
        self.driver.mapping.enter(self)
        undo.callback(self.driver.mapping.leave, self)
        self.units = self._units()
        self.arch = arch_of_sm(self.units.sm_version)
        self.arch_number = number_of(self.arch)

    # --- facts

    def _class_list(self) -> frozenset[int]:
        rm = self.rm
        asked = rm.record("class_list")
        rm.control(self.device, Control.GET_CLASSLIST, asked)
        count = asked.number("numClasses")
        found = bytearray(4 * count)
        asked.put("classList", address_of(found))
        rm.control(self.device, Control.GET_CLASSLIST, asked)
        return frozenset(memoryview(found).cast("I"))

    def _generation(self) -> Generation:
        wanted = [each.compute for each in GENERATIONS]
        number = newest(wanted, self.classes, "compute class")
        return next(each for each in GENERATIONS if each.compute == number)

    def _units(self) -> Units:
        indices = (_SM_VERSION, _WARPS_PER_SM, _GPCS, _TPCS_PER_GPC, _SMS_PER_TPC)
        pairs = bytearray(8 * len(indices))
        words = memoryview(pairs).cast("I")
        for place, index in enumerate(indices):
            words[2 * place] = index
        words.release()
        asked = self.rm.record("gr_info", listSize=len(indices), list=address_of(pairs))
        self.rm.control(self.subdevice, Control.GR_GET_INFO, asked)
        return Units(*memoryview(pairs).cast("I")[1::2].tolist())

    def _map_doorbells(self, undo: ExitStack) -> None:
        """The newest page that the driver gives: through BAR1, which is faster, where it does."""
        newest(USERMODES, self.classes, "page of doorbells")
        forms = [
            (number, by_bar1)
            for number in USERMODES
            if number in self.classes
            for by_bar1 in ((True, False) if number >= FIRST_OF_BAR1 else (False,))
        ]
        refusals: list[DeviceError | OutOfMemory] = []
        for number, by_bar1 in forms:
            try:
                at = self._map_page(number, by_bar1)
            except (DeviceError, OutOfMemory) as error:
                refusals.append(error)
                continue
            undo.callback(self.rm.machine.unmap, at, USERMODE_BYTES)
            self.doorbell = bytes_at(at + DOORBELL, 4).cast("I")
            return
        raise refusals[0]

    def _map_page(self, number: int, by_bar1: bool) -> int:
        """Map a page of doorbells into this process, where it can only be written through BAR1."""
        rm = self.rm
        params = rm.record("usermode", bBar1Mapping=1) if by_bar1 else None
        page = rm.alloc(self.subdevice, number, params, what="a page of doorbells")
        try:
            return rm.map(self.subdevice, page, USERMODE_BYTES, self.info.node, write_only=by_bar1)
        except (DeviceError, OutOfMemory):
            self._free(page)
            raise

    # --- memory

    def allocate(
        self,
        size: int,
        *,
        is_system: bool = False,
        is_visible: bool = False,
        is_contiguous: bool = False,
        is_shared: bool = False,
    ) -> Allocation:
        """Memory of the card, or of the system; which the host sees if it `is_visible`, and every
        card if it `is_shared`.

        Raises OutOfMemory and DeviceError.
        """
        huge = size >= _HUGE_FROM and not is_system
        page = HUGE_PAGE if huge else PAGE
        size = -(-size // page) * page
        driver = self.driver
        with ExitStack() as undo:
            handle = self._alloc_memory(size, page, is_system, is_contiguous)
            undo.callback(self._free, handle)
            pool = driver.low if is_visible else driver.high
            address = pool.take(size, page)
            undo.callback(pool.give_back, address, size)
            made = Allocation(address, size, handle, self)
            driver.mapping.create(address, size)
            undo.callback(self._destroy, made)
            with driver.lock:
                is_shared = is_shared and driver.mapping.has_peers
                cards = [*driver.cards] if is_shared else []
                made.mapped = cards if self in cards else [*cards, self]
                driver.mapping.map(address, size, handle, made.mapped)
                if is_shared:
                    driver.shared[address] = made
            if is_visible:
                undo.callback(driver.shared.pop, address, None)
                node = CONTROL_NODE if is_system else self.info.node
                made.host = self.rm.map(self.device, handle, size, node)
            undo.pop_all()
        return made

    def _alloc_memory(self, size: int, page: int, is_system: bool, is_contiguous: bool) -> int:
        pages = _HUGE_PAGES if page == HUGE_PAGE else _SMALL_PAGES
        place = _CONTIGUOUS if is_contiguous else _SCATTERED
        record = self.rm.record(
            "memory",
            owner=self.rm.root,
            size=size,
            limit=size - 1,
            alignment=page,
            format=_GENERIC,
            type=_NOTIFIER if is_system else _IMAGE,
            flags=_OF_SYSTEM if is_system else _OF_CARD,
            attr=(_CACHED | _SCATTERED | _SYSTEM) if is_system else place | pages,
            attr2=(
                _CARD_CACHES_NOT
                if is_system
                else _CARD_CACHES | (_PAGES_OF_2_MB if page == HUGE_PAGE else 0)
            ),
        )
        kind = Class.NV01_MEMORY_SYSTEM if is_system else Class.NV01_MEMORY_LOCAL_USER
        where = "the system" if is_system else f"{self}"
        return self.rm.alloc(self.device, kind, record, what=f"{size:,} bytes of {where}")

    def pin(self, address: int, size: int) -> Allocation:
        """Whole pages of this process, as memory that the card addresses.

        Raises OutOfMemory and DeviceError.
        """
        driver = self.driver
        with ExitStack() as undo:
            handle = self.rm.alloc_host_pages(self.device, self.file, address, size)
            undo.callback(self._free, handle)
            at = driver.low.take(size, PAGE)
            undo.callback(driver.low.give_back, at, size)
            driver.mapping.create(at, size)
            made = Allocation(at, size, handle, self, mapped=[self])
            undo.callback(self._destroy, made)
            driver.mapping.map(at, size, handle, [self])
            undo.pop_all()
        return made

    def free(self, allocation: Allocation) -> None:
        """Give memory back. Its addresses may be given to others from now on."""
        driver = self.driver
        with driver.lock:
            driver.shared.pop(allocation.address, None)
        if allocation.host:
            self.rm.machine.unmap(allocation.host, allocation.size)
        self._destroy(allocation)
        self._free(allocation.handle)
        is_low = allocation.address < LOW[1]
        (driver.low if is_low else driver.high).give_back(allocation.address, allocation.size)

    def map_peer(self, allocation: Allocation) -> None:
        """Let this card address memory of another. Raises UnsupportedError."""
        driver = self.driver
        with driver.lock:
            if self in allocation.mapped:
                return
            assert allocation.owner is not None
            driver.mapping.meet(self, allocation.owner)
            driver.mapping.map(allocation.address, allocation.size, allocation.handle, [self])
            allocation.mapped.append(self)

    def unmap_peer(self, allocation: Allocation) -> None:
        """Take `map_peer` back."""
        driver = self.driver
        with driver.lock:
            if self in allocation.mapped and allocation.address not in driver.shared:
                allocation.mapped.remove(self)
                driver.mapping.unmap(allocation.address, allocation.size, allocation.handle, self)

    # --- channels

    def describe_channel(self, params: Record, ring: Allocation, notifier: Allocation) -> ExitStack:
        """Name a channel's memory by its handles."""
        params.put("hObjectError", notifier.handle)
        params.put("hUserdMemory", ring.handle)
        return ExitStack()

    def promote_context(self, handle: int, undo: ExitStack) -> None:
        """The driver does that itself."""

    channel_error: Final = 0
    """The driver tells of errors by notifiers alone."""
    channel_faults: Sequence[str] = ()

    def register_channel(self, handle: int, undo: ExitStack) -> None:
        """Have the contexts mapped that a channel needs."""
        size = _CONTEXT_BYTES
        with suppress(Refused):
            asked = self.rm.record("ctx_buffer_size", hChannel=handle)
            self.rm.control(self.subdevice, Control.GR_GET_CTX_BUFFER_SIZE, asked)
            size = max(size, -(-asked.number("totalBufferSize") // HUGE_PAGE) * HUGE_PAGE)
        driver = self.driver
        base = driver.high.take(size, HUGE_PAGE)
        undo.callback(driver.high.give_back, base, size)
        driver.mapping.register_channel(self, handle, base, size)
        undo.callback(driver.mapping.unregister_channel, self, handle)

    def _destroy(self, made: Allocation) -> None:
        self.driver.mapping.destroy(made.address, made.size, made.handle, made.mapped)
        made.mapped = []

    def _free(self, handle: int) -> None:
        with suppress(DeviceError, OutOfMemory):  # of a card that was lost
            self.rm.free(handle)

    def close(self) -> None:
        """Give up the card, when this was its last user."""
        driver = self.driver
        with driver.lock:
            self.users -= 1
            if self.users:
                return
            if self in driver.cards:
                driver.cards.remove(self)
            for each in driver.shared.values():
                if self in each.mapped:
                    each.mapped.remove(self)
        self._opened.close()


_KEPT: Final = "tiny_nv driver"
"""Attribute of a machine that holds its driver, so that both end together."""
_lock: Final = lock()


def driver_of_process() -> Driver:
    """The driver, opened once in each process. Raises DeviceUnavailable."""
    machine = system()
    with _lock:
        found: Driver | None = vars(machine).get(_KEPT)
        if found is None or found.process != os.getpid():
            found = vars(machine)[_KEPT] = Driver(machine)
        return found
