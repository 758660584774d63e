"""`AmDriver`: a card on the PCI bus with the same face as the kernel's compute driver.

Memory of the host lies at the same address for the card and for the process, as with KFD; so does
memory of the card, which the process reserves addresses for. There are no interrupts: who waits
asks the card now and then whether it has faulted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from tiny_amd.am.bring_up import RunningCard
from tiny_amd.am.bus import PAGE, Bus, SystemMemory
from tiny_amd.am.cards import CONSENT, TakenCard, cards_on_bus, verify_machine
from tiny_amd.am.discovery import HardwareId
from tiny_amd.am.engines import EngineQueue, RingPlaces
from tiny_amd.am.pages import HUGE_PAGE
from tiny_amd.hardware_queue import QueueType
from tiny_amd.kfd import OF_HOST, Allocation, Event, Kind, reserve_addresses
from tiny_amd.settings import settings
from tiny_amd.topology import Card
from tiny_hcq import system
from tinycore.errors import DeviceError, DeviceUnavailable, UnsupportedError
from tinycore.plugin import recursive_lock

if TYPE_CHECKING:
    from tiny_hcq import PciFunction, System

__all__ = ["AmDriver", "AmFaults", "card_count", "obstacle", "open_card"]

_GPU_ID: Final = 1
_EVENT: Final = 1
_SLEEP_SECONDS: Final = 1e-4
_SIMD_PER_UNIT: Final = 2


def card_count() -> int:
    """Number of cards on the bus, whoever has them."""
    return len(cards_on_bus(system()))


def obstacle() -> str:
    """Why there is no card, with what to do; empty when there is one. Opens nothing."""
    if card_count():
        return ""
    return "no card of AMD is on the PCI bus (/sys/bus/pci/devices)"


def verify_consent(card: PciFunction) -> None:
    """Raise DeviceUnavailable, saying what would be done, unless the user has named the card."""
    if card.address in settings.AMD_PCI_TAKE.split(","):
        return
    taken = f"take it from its driver {card.driver}, " if card.driver else ""
    again = f", and give it back to {card.driver}" if card.driver else ""
    raise DeviceUnavailable(
        f"DEV=PCI+AMD would use {card} without a kernel driver: {taken}enable it, map its "
        f"registers and memory, reset it if it runs, and load its firmware{again}. Every other "
        f"program that uses the card, a desktop too, fails meanwhile. This driver has run on no "
        f"card yet. To do it: {CONSENT}={card.address}, as root"
    )


def open_card(index: int) -> AmDriver:
    """A card of the PCI bus, taken from its driver and brought up. Raises DeviceUnavailable, with
    the card back where it was, as well for a step that fails.
    """
    machine = system()
    cards = cards_on_bus(machine)
    if index >= len(cards):
        names = ", ".join(map(str, cards)) or "none"
        raise DeviceUnavailable(f"there is no PCI+AMD:{index}; there are: {names}")
    card = cards[index]
    verify_consent(card)
    verify_machine(machine, card)
    taken = TakenCard(machine, card)
    try:
        return AmDriver(taken.open_bus(), machine, taken.give_back)
    except (DeviceUnavailable, DeviceError) as error:
        raise DeviceUnavailable(f"{error}.{taken.give_back()}") from error
    except BaseException:
        taken.give_back()
        raise


class AmDriver:
    """One card, reached over a bus."""

    def __init__(self, bus: Bus, machine: System, give_back: Callable[[], str]) -> None:
        """Bring a card up. `give_back` is called in the end, with the bus closed, and says what is
        left to do. Raises DeviceUnavailable and DeviceError, with the bus closed.
        """
        self.bus, self.machine, self._give_back = bus, machine, give_back
        self.lock = recursive_lock()
        self.shared: dict[int, Allocation] = {}
        """Memory that other cards could address: none does."""
        self._places: dict[int, SystemMemory | int] = {}
        """System memory, or the place in the card's memory, by address."""
        self._faults: AmFaults | None = None
        with ExitStack() as undo:
            undo.callback(bus.close)
            self.running = RunningCard(bus, machine)
            undo.pop_all()
        self.card = self._card()

    def _card(self) -> Card:
        discovery = self.running.discovery
        arrays = discovery.engines * discovery.arrays_per_engine
        units = arrays * discovery.units_per_array
        engines = sum(
            block.hardware_id == HardwareId.SDMA0
            and (block.hardware_id, block.instance) not in discovery.harvested
            for block in discovery.blocks
        )
        return Card(
            node=0,
            gpu_id=_GPU_ID,
            arch=self.running.arch,
            render_minor=0,
            simd_count=units * _SIMD_PER_UNIT,
            simd_per_cu=_SIMD_PER_UNIT,
            array_count=arrays,
            arrays_per_engine=discovery.arrays_per_engine,
            scratch_slots_per_cu=discovery.scratch_slots_per_unit,
            xccs=1,
            sdma_engines=engines,
            memory_bytes=self.running.vram.size,
        )

    # --- memory

    def allocate(self, card: Card, size: int, kind: Kind, *, is_shared: bool = False) -> Allocation:
        """Memory that the card addresses. Raises OutOfMemory and DeviceError."""
        size = -(-size // PAGE) * PAGE
        running = self.running
        address = reserve_addresses(self.machine, size)
        self._verify_outside(address, size)
        is_visible = bool(kind & Kind.PUBLIC)
        with self.lock, ExitStack() as undo:
            undo.callback(self.machine.unmap, address, size)
            if is_visible:
                memory = self.bus.allocate(size, address)
                running.pages.map_system(address, memory.pages)
                self._places[address] = memory
            else:
                place = running.vram.take(size, HUGE_PAGE if size >= HUGE_PAGE else PAGE)
                undo.callback(running.vram.give_back, place, size)
                running.pages.map_vram(address, place, size)
                self._places[address] = place
            running.flush()
            undo.pop_all()
        return Allocation(address, size, 0, is_visible, [card.gpu_id])

    def _verify_outside(self, address: int, size: int) -> None:
        """Raise DeviceError for addresses that the card has for its own memory."""
        begin = self.running.first
        if begin < address + size and address < begin + self.running.vram.size:
            self.machine.unmap(address, size)
            raise DeviceError(f"the system gives {address:#x}, where {self.bus.name} has memory")

    def free(self, allocation: Allocation) -> None:
        """Give memory back. Its addresses may be given to others from now on."""
        with self.lock:
            place = self._places.pop(allocation.address)
            self.running.pages.unmap(allocation.address, allocation.size)
            self._forget_translations()
            if isinstance(place, SystemMemory):
                self.bus.free(place)
            else:
                self.running.vram.give_back(place, allocation.size)
                self.machine.unmap(allocation.address, allocation.size)

    def _forget_translations(self) -> None:
        """Have the card not use what is unmapped; one that does not answer gets no access at all,
        as memory is given to others after this.
        """
        try:
            self.running.flush()
        except DeviceError:
            self.running.engines.has_failed = True
            self.running.set_bus_master(False)

    def map(self, allocation: Allocation, gpu_id: int) -> None:
        """Let another card address memory, which this driver does not do."""
        raise UnsupportedError(f"memory of {self.bus.name} is addressed by that card alone")

    def unmap(self, allocation: Allocation, gpu_id: int) -> None:
        """Take `map` back."""
        raise UnsupportedError(f"memory of {self.bus.name} is addressed by that card alone")

    # --- queues and faults

    def open_queue(
        self, kind: QueueType, ring: int, size: int, write_pointer: int, read_pointer: int
    ) -> EngineQueue:
        """A queue of the card: one of PM4, and one of SDMA. Raises DeviceError."""
        places = RingPlaces(ring, size, write_pointer, read_pointer)
        if kind is QueueType.COMPUTE:
            return self.running.engines.open_compute(places)
        if kind is QueueType.SDMA:
            return self.running.engines.open_copies(places)
        raise UnsupportedError(
            "queues of AQL packets need a kernel driver: DEV=KFD+AMD, or without AMD_AQL"
        )

    def open_faults(self) -> AmFaults:
        """The card's reports of faults."""
        self._faults = AmFaults(self)
        return self._faults

    @property
    def _has_faulted(self) -> bool:
        return self._faults is not None and bool(self._faults.found)

    def close(self) -> None:
        """End everything and give the card back; what is left to do by hand is a warning."""
        running = self.running
        try:
            if self._has_faulted or running.engines.has_failed:
                running.give_up()
            else:
                running.stop()
        except DeviceError as error:
            warnings.warn(f"{self.bus.name} was not stopped: {error}", stacklevel=2)
        self.bus.close()
        if complaint := self._give_back():
            warnings.warn(f"{self.bus.name} is left without a driver.{complaint}", stacklevel=2)


class AmFaults:
    """Faults of one card, by its registers; the same face as the events of KFD."""

    def __init__(self, driver: AmDriver) -> None:
        self.driver = driver
        self.found = ""
        """Description of the first fault; "" without one."""
        self.address = 0
        """The address of a memory fault."""
        self._page = driver.allocate(driver.card, PAGE, OF_HOST)
        self.done = Event(_EVENT, self._page.address)
        """Completion event: its mailbox is written, and nobody is interrupted."""

    def wait(self, milliseconds: int) -> None:
        """Wait for a moment, or for a fault."""
        self.poll()
        if not self.found:
            time.sleep(min(_SLEEP_SECONDS, milliseconds / 1e3))

    def poll(self) -> None:
        """Ask for a fault without waiting."""
        if self.found:
            return
        running = self.driver.running
        if running.registers.is_gone:
            self.found = f"{self.driver.bus.name} does not answer: it has lost power or its link"
            return
        if (fault := running.graphics_hub.fault()) is not None:
            self.address = fault.address
            access = "written to" if fault.is_write else "read"
            why = "nothing is mapped there" if fault.walker_error else "that is not allowed"
            self.found = (
                f"a memory fault in the page at {fault.address:#x}: it is {access}, and {why}"
            )

    def close(self) -> None:
        """Give the mailbox back."""
        with suppress(DeviceError):
            self.driver.free(self._page)
