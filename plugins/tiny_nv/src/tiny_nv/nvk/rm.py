"""Calls of NVIDIA's kernel driver (the resource manager), each with one check.

A call that the system takes may still be refused by the driver: the status in its structure says
so. Objects are handles below a root, freed with what lies below them.
"""

from __future__ import annotations

from mmap import MAP_SHARED, PROT_READ, PROT_WRITE
from typing import Final

from tiny_hcq import System, errno_text
from tiny_nv.nvk.classes import STATUSES, Class, Control, Escape
from tiny_nv.nvk.layouts import Record, branch_of, layouts_of
from tinycore.errors import DeviceError, DeviceUnavailable, OutOfMemory

__all__ = ["CONTROL_NODE", "CardInfo", "Refused", "ResourceManager"]

CONTROL_NODE: Final = "/dev/nvidiactl"
MOST_CARDS: Final = 32
OUR_HANDLES: Final = 0x7C000000
"""From which on objects are numbered where the driver does not choose a number itself."""
_QUERY: Final = ord("2")
_NO_MEMORY: Final = (0x51, 0x1A)
_FLAGS_OF_HOST_PAGES: Final = 1 << 4 | 1 << 12 | 1 << 30
"""Not contiguous, cached, not to be mapped by the driver."""
_ATTACHES: Final = 3


class Refused(DeviceError):
    """The driver refused a call, with a status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class CardInfo:
    """A card as CARD_INFO lists it."""

    def __init__(self, record: Record) -> None:
        self.gpu_id = record.number("gpu_id")
        self.minor = record.number("minor_number")
        self.pci_device = record.number("device")
        self.bus = f"{record.number('domain'):04x}:{record.number('bus'):02x}"
        self.memory_bytes = record.number("fb_size")

    @property
    def node(self) -> str:
        """Its device file."""
        return f"/dev/nvidia{self.minor}"


class ResourceManager:
    """The driver as this process uses it: nvidiactl, and a root object."""

    def __init__(self, machine: System) -> None:
        self.machine = machine
        self._next_handle = OUR_HANDLES
        self._parents: dict[int, int] = {}
        try:
            self.file = machine.open(CONTROL_NODE)
        except OSError as error:
            raise DeviceUnavailable(f"{CONTROL_NODE} cannot be opened: {error}") from error
        try:
            self.layouts = layouts_of(580)  # what the first calls need is the same in all
            self.version = self._version()
            self.layouts = layouts_of(branch_of(self.version))
            self.root = self.alloc(0, Class.NV01_ROOT_CLIENT, what="a client")
        except BaseException:
            machine.close(self.file)
            raise

    def record(self, layout: str, **values: int | bytes) -> Record:
        """A structure of the driver's branch."""
        return Record(self.layouts[layout], **values)

    # --- requests

    def request(self, number: Escape, record: Record, what: str, file: int = -1) -> None:
        """Make a request, and check what the system and the driver say.

        Raises OutOfMemory, and Refused with the status.
        """
        code = _ATTACHES << 30 | record.size << 16 | ord("F") << 8 | number
        target = self.file if file < 0 else file
        failed = self.machine.ioctl(target, code, record.address)
        if failed:
            text = f"{number.name} for {what} returned {errno_text(failed)}"
            raise Refused(f"the system refused a call of NVIDIA's kernel driver: {text}", -failed)

    def verify(self, record: Record, what: str, field: str = "status") -> None:
        """Raise for a status that is not 0."""
        status = record.number(field)
        if not status:
            return
        name = f"{STATUSES.get(status, 'status')} ({status:#x})"
        if status in _NO_MEMORY:
            raise OutOfMemory(f"the card has no memory left: {what} returned {name}. Free tensors.")
        raise Refused(f"NVIDIA's kernel driver refused {what}: {name}", status)

    def _version(self) -> str:
        record = self.record("check_version", cmd=_QUERY)
        self.request(Escape.CHECK_VERSION_STR, record, "the driver's version")
        return record.content("string").partition(b"\0")[0].decode("ascii", "replace")

    def cards(self) -> list[CardInfo]:
        """The cards there are."""
        one = self.layouts["card_info"]
        data = bytearray(one.size * MOST_CARDS)
        listed = Record(one)
        listed.data = data
        self.request(Escape.CARD_INFO, listed, "the list of cards")
        found = []
        for start in range(0, len(data), one.size):
            entry = Record(one)
            entry.data[:] = data[start : start + one.size]
            if entry.number("valid"):
                found.append(CardInfo(entry))
        return found

    # --- objects

    def new_handle(self) -> int:
        """A number for an object that the caller has to number."""
        self._next_handle += 1
        return self._next_handle

    def alloc(self, parent: int, kind: int, params: Record | None = None, *, what: str) -> int:
        """Make an object. Raises OutOfMemory and Refused."""
        record = self.record(
            "NVOS21",
            hRoot=0 if kind == Class.NV01_ROOT_CLIENT else self.root,
            hObjectParent=parent,
            hClass=kind,
            pAllocParms=params.address if params else 0,
            paramsSize=params.size if params else 0,
        )
        self.request(Escape.RM_ALLOC, record, what)
        self.verify(record, f"{what} (class {kind:#x})")
        handle = record.number("hObjectNew")
        self._parents[handle] = parent
        return handle

    def alloc_host_pages(self, device: int, file: int, address: int, size: int) -> int:
        """An object for pages of this process, which get pinned. Raises as `alloc` does."""
        handle = self.new_handle()
        record = self.record(
            "NVOS02",
            hRoot=self.root,
            hObjectParent=device,
            hObjectNew=handle,
            hClass=Class.NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
            flags=_FLAGS_OF_HOST_PAGES,
            pMemory=address,
            limit=size - 1,
            fd=-1,
        )
        what = f"{size:,} bytes of host memory"
        self.request(Escape.RM_ALLOC_MEMORY, record, what, file)
        self.verify(record, what)
        self._parents[handle] = device
        return handle

    def free(self, handle: int) -> None:
        """Free an object and what lies below it."""
        parent = self._parents.pop(handle, self.root)
        record = self.record("NVOS00", hRoot=self.root, hObjectParent=parent, hObjectOld=handle)
        self.request(Escape.RM_FREE, record, "an object that is freed")
        self.verify(record, f"to free object {handle:#x}")

    def control(self, target: int, command: Control, params: Record) -> Record:
        """Ask something of an object. Raises OutOfMemory and Refused."""
        record = self.record(
            "NVOS54",
            hClient=self.root,
            hObject=target,
            cmd=command,
            params=params.address,
            paramsSize=params.size,
        )
        self.request(Escape.RM_CONTROL, record, command.name)
        self.verify(record, command.name)
        return params

    # --- mappings

    def map(
        self, owner: int, memory: int, size: int, node: str, *, write_only: bool = False
    ) -> int:
        """Map an object into this process, and return where. Raises Refused and DeviceError.

        `owner` is its device or subdevice; `node` the file: the card's for memory of the card,
        nvidiactl for memory of the system. Each mapping has a file of its own.
        """
        what = f"to map {size:,} bytes"
        try:
            file = self.machine.open(node)
        except OSError as error:
            raise DeviceError(f"{node} cannot be opened again: {error}") from error
        try:
            if node != CONTROL_NODE:
                self.register(file)
            record = self.record(
                "NVOS33",
                hClient=self.root,
                hDevice=owner,
                hMemory=memory,
                length=size,
                fd=file,
            )
            self.request(Escape.RM_MAP_MEMORY, record, what)
            self.verify(record, what)
            protection = PROT_WRITE if write_only else PROT_READ | PROT_WRITE
            return self.machine.map(0, size, protection, MAP_SHARED, file, 0)
        except OSError as error:
            raise DeviceError(f"{size:,} bytes cannot be mapped: {error}") from error
        finally:
            self.machine.close(file)

    def register(self, file: int) -> None:
        """Let a card's file belong to this client."""
        record = self.record("register_fd", ctl_fd=self.file)
        self.request(Escape.REGISTER_FD, record, "a file of a card", file)

    def close(self) -> None:
        """Give up everything."""
        try:
            self.free(self.root)
        finally:
            self.machine.close(self.file)
