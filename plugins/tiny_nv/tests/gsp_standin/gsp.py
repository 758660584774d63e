"""The GSP of a card: both falcons, its start, and its answers.

open-gpu-kernel-modules 570.144: gsp_init_args.h, gsp_static_config.h, rpc_global_enums.h,
g_rpc-structures.h, rmgspseq.h, dev_vm.h.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rm_standin import Machine, Mistake, Status
from rm_standin.gpu import Pages
from rm_standin.layouts import Record
from rm_standin.objects import Channel, VaSpace
from rm_standin.status import Refused

from gsp_standin import fsp
from gsp_standin.falcon import MAILBOX0, MAILBOX1, FalconModel
from gsp_standin.fsp import FspModel, LockedFalcon
from gsp_standin.images import BOOT_VERSION, BOOTER, FORMS, FUSE, FWSEC
from gsp_standin.memory import PAGE, Memory
from gsp_standin.messages import Queues
from gsp_standin.programs import check_meta, frts_of
from gsp_standin.resources import GspResources

if TYPE_CHECKING:
    from nv_pci_standin import Chip
    from rm_standin.cards import CardFacts

__all__ = ["Gsp"]

GSP, SEC2, SIZE = 0x110000, 0x840000, 0x2000
QUEUE_HEAD: Final = 0x110C00
INVALIDATE: Final = 0xB830B0
DOORBELLS: Final = 0xBB0000
FUSES: Final = {0x8241C0 + 4 * (FWSEC.number - 1), 0x824140 + 4 * (BOOTER.number - 1)}
FRTS_ERROR: Final = 0x1438
SCRATCH: Final = (0x1400, 0x1404)
LOGS: Final = (b"LOGINIT", b"LOGINTR", b"LOGRM", b"LOGMNOC", b"LOGKRNL")
SYSTEM_INFO, REGISTRY, INIT_DONE, SEQUENCE = 0x48, 0x49, 0x1001, 0x1002
CHANNEL_ERROR, ERROR_LOG = 0x1004, 0x1006
ALLOC, CONTROL, FREE, SET_DIRECTORY, UNLOADING, UPDATE_BAR = 0x67, 0x4C, 0x0A, 0x36, 0x2F, 0x46
BY_POINTER: Final = {0x800201, 0x20801201, 0x205, 0x2080014A}
"""Controls that the host's half of the driver answers, or that hold pointers of a process."""
CONTEXT_SIZES: Final = {0x00: 0x20000, 0x10: 0x4000, 0x11: 0x3000, 0x12: 0x8000, 0x13: 0x40000,
                        0x14: 0, 0x17: 0x1000, 0x18: 0x80000}  # fmt: skip
NEEDED: Final = {0: 0x00, 2: 0x10, 3: 0x11, 4: 0x12, 5: 0x13, 9: 0x17, 10: 0x18, 11: 0x18}
"""Context buffers that a channel needs, and which size each has."""
FILLED: Final = {0, 2, 9, 10, 11}


class Gsp:
    """A card's own processor, from reset on."""

    def __init__(self, chip: Chip, facts: CardFacts, memory: Memory, wpr2: int) -> None:
        """`wpr2`: the register with the end of the memory that is protected."""
        self.chip, self.memory, self.wpr2 = chip, memory, wpr2
        self.machine = Machine((facts,), version="570.144")
        self.machine.resources = self.resources = GspResources(self.machine, memory)
        page = chip.bytes[DOORBELLS : DOORBELLS + 0x10000]
        self.resources.doorbells[self.machine.gpus[0]] = Pages(len(page), page)
        self.complaint = ""
        """The fault that the booter found."""
        self.booter_status = 0
        """A status that the booter ends with, whatever it finds."""
        self.fwsec_error = 0
        self.is_silent = False
        """True if it takes messages and answers none."""
        self.refused: dict[str, int] = {}
        """Statuses of allocations and controls, by their names as rm_standin has them."""
        self.sequence: list[int] = [
            *(0, SCRATCH[0], 0xFF00),
            *(1, SCRATCH[0], 0xF0, 0x50),
            *(2, SCRATCH[0], 0xFFFF, 0xFF50, 10, 1),
            *(3, 1),
            *(4, SCRATCH[0], 2),
            *(() if chip.architecture in FORMS else (5, 6, 7, 8)),
        ]
        """Requests to the host while it starts."""
        self.reset()

    def reset(self) -> None:
        """The state after a reset of the function."""
        has_riscv = True
        self.gsp_of_fsp = LockedFalcon()
        self.gsp_of_booter = FalconModel(self.memory, FWSEC, self.run_fwsec, riscv=has_riscv)
        self.booter = FalconModel(self.memory, BOOTER, self.run_booter, riscv=False)
        form = FORMS.get(self.chip.architecture)
        self.fsp = (
            FspModel(self.memory, form, self.gsp_of_fsp, self.protect, self.begin) if form else None
        )
        self.falcons: dict[int, FalconModel | LockedFalcon] = (
            {GSP: self.gsp_of_fsp} if form else {GSP: self.gsp_of_booter, SEC2: self.booter}
        )
        self.queues: Queues | None = None
        self.told: list[int] = []
        """Functions of the messages so far."""
        self.frts = 0
        self.starts = 0
        self.bar1 = 0
        self.invalidated = 0
        self.resources.clients.clear()
        self.resources.channels.clear()
        self.resources.roots.clear()
        self.resources.promoted.clear()
        self.resources.doorbells[self.machine.gpus[0]].data[:] = 0xFF

    # --- registers

    def read(self, register: int) -> int | None:
        """A register that is not only kept."""
        if self.fsp is not None and fsp.BASE <= register < fsp.END:
            return self.fsp.read(register)
        for base, falcon in self.falcons.items():
            if base <= register < base + SIZE and register != QUEUE_HEAD:
                return falcon.read(register - base)
        if register in FUSES:
            return (1 << FUSE) - 1
        if register == INVALIDATE:
            self.invalidated += 1
            return 0 if self.invalidated % 2 == 0 else 1 << 31
        return None

    def write(self, register: int, value: int) -> bool:
        """Set a register; False for one that is only kept."""
        if register == QUEUE_HEAD:
            self.serve()
            return True
        if self.fsp is not None and fsp.BASE <= register < fsp.END:
            self.fsp.write(register, value)
            return True
        for base, falcon in self.falcons.items():
            if base <= register < base + SIZE:
                falcon.write(register - base, value)
                return True
        if register == INVALIDATE:
            if value != 1 << 31 | 1 << 6 | 3:
                raise Mistake(f"TLBs are invalidated by {value:#x}")
            self.invalidated = 0
            self.resources.refresh_all()
            if self.bar1:
                self.memory.show(self.bar1)
            return True
        if register in SCRATCH:
            self.chip.set(register, value)
        return register in SCRATCH

    @property
    def falcon(self) -> FalconModel | LockedFalcon:
        """The GSP's own."""
        return self.gsp_of_booter if self.fsp is None else self.gsp_of_fsp

    # --- start

    def protect(self, low: int, high: int) -> None:
        """Show which memory is protected."""
        self.chip.set(self.wpr2 - 4, low >> 12 << 4)
        self.chip.set(self.wpr2, high >> 12 << 4)

    def run_fwsec(self, falcon: FalconModel) -> None:
        """FWSEC: FRTS."""
        found = frts_of(falcon.data, self.memory.size)
        if found is None or self.fwsec_error:
            self.chip.set(FRTS_ERROR, (self.fwsec_error or 1) << 16)
            return
        self.frts, end = found
        self.protect(self.frts, end)

    def run_booter(self, falcon: FalconModel) -> None:
        """The booter: verify, copy, start."""
        if self.starts:  # again, for the GSP that asked for it
            falcon.registers[MAILBOX0] = 0
            self.gsp_of_booter.is_active = True
            return
        meta = falcon.registers[MAILBOX1] << 32 | falcon.registers[MAILBOX0]
        content = self.memory.read(meta, 256)
        self.complaint = check_meta(self.memory, content, self.frts, self.memory.size)
        falcon.registers[MAILBOX0] = self.booter_status or (0x31 if self.complaint else 0)
        if falcon.registers[MAILBOX0]:
            return
        registers = self.gsp_of_booter.registers
        self.arguments = registers[MAILBOX1] << 32 | registers[MAILBOX0]
        self.starts += 1
        self.gsp_of_booter.is_active = True
        self.begin(self.arguments)

    def begin(self, arguments: int) -> None:
        """Start the GSP's system: find its regions and its queues."""
        rows = struct.iter_unpack("<QQQBB6x", self.memory.read(arguments, 6 * 32))
        regions = {}
        for name, at, size, kind, location in rows:
            if (kind, location) != (1, 1) or at % PAGE:
                raise Mistake(f"a region of kind {kind} in {location} at {at:#x}")
            regions[name.to_bytes(8, "big").lstrip(b"\0")] = (at, size)
        for log in LOGS:
            at, size = regions[log]
            pages = struct.unpack(f"<{size // PAGE}Q", self.memory.read(at + 8, size // PAGE * 8))
            if size != 0x10000 or pages != tuple(range(at, at + size, PAGE)):
                raise Mistake(f"region {log!r} has {size} bytes, and pages {pages[:2]}")
        at, size = regions[b"RMARGS"]
        self.queues = Queues(self.memory, self.memory.read(at, 72))
        self.serve()

    def check_memory(self) -> None:
        """Raise Mistake if memory was taken back that the card still addresses."""
        self.resources.refresh_all()
        if self.queues is not None and self.falcon.is_active:
            for page in (*self.queues.commands, *self.queues.status):
                self.memory.host_of(page, PAGE)

    def serve(self) -> None:
        """Answer all messages that have come."""
        if self.fsp is not None and self.fsp.answer:
            raise Mistake("an answer of the security processor is not taken")
        while self.queues is not None and self.falcon.is_active:
            found = self.queues.receive()
            if found is None:
                return
            function, content = found
            self.told.append(function)
            if len(self.told) <= 2:
                self.learn(function, content)
            elif not self.is_silent:
                self.queues.send(function, self.answer(function, content))

    def learn(self, function: int, content: bytes) -> None:
        """The first two messages, then the rest of the start."""
        assert self.queues is not None
        if function != (SYSTEM_INFO, REGISTRY)[len(self.told) - 1]:
            raise Mistake(f"message {len(self.told)} is {function:#x}")
        if function == SYSTEM_INFO:
            self.check_system(content)
            return
        size, count = struct.unpack_from("<II", content)
        for index in range(count):
            name, kind, _, length = struct.unpack_from("<IB3xII", content, 8 + 16 * index)
            if kind != 1 or length != 4 or not content[name : content.index(b"\0", name)].isalnum():
                raise Mistake(f"setting {index} is of kind {kind}")
        if size != len(content):
            raise Mistake(f"settings of {size} bytes in {len(content)}")
        if self.is_silent:
            return
        words = self.sequence
        packed = struct.pack(f"<2I8I{len(words)}I", len(words), len(words), *[0] * 8, *words)
        self.queues.send(SEQUENCE, packed)
        self.queues.send(INIT_DONE, b"")

    def check_system(self, content: bytes) -> None:
        """SET_SYSTEM_INFO."""
        bars = self.chip.bars
        fields = struct.unpack_from("<5Q", content)
        bus, device = self.chip.address.split(":")[1:]
        place = int(bus, 16) << 8 | int(device[:2], 16) << 3
        ids = struct.unpack_from("<5I", content, 80)
        expected = (bars[0][0], bars[1][0], bars[3][0], 0, place)
        if len(content) != 928 or fields != expected:
            raise Mistake(f"the system is told as {len(content)} bytes, {fields}")
        device_id = self.machine.gpus[0].facts.device_id
        mirror = 0x88000 if self.fsp is None else 0x92000
        if ids != (mirror, 0x1000, device_id << 16 | 0x10DE, 0x14C31043, 0xA1):
            raise Mistake(f"the card is told as {ids}")

    # --- answers

    def answer(self, function: int, content: bytes) -> bytes:
        """The content of an answer."""
        if self.falcon.version != BOOT_VERSION:
            raise Mistake("the version of the bootloader was not told")
        if function == ALLOC:
            return self.alloc(content)
        if function == CONTROL:
            return self.control(content)
        if function == FREE:
            return self.free(content)
        if function == SET_DIRECTORY:
            self.set_directory(content)
        elif function == UPDATE_BAR:
            kind, entry, shift = struct.unpack("<I4xQQ", content)
            if (kind, shift) != (0, self.memory.entries.SHIFTS[0]):
                raise Mistake(f"BAR {kind} gets an entry of level {shift}")
            self.bar1 = entry
            self.memory.show(entry)
        elif function == UNLOADING:
            if content != bytes(8) or self.resources.channels:
                raise Mistake("the GSP is told to end with channels that are there")
            self.told.append(0)
        else:
            raise Mistake(f"message {function:#x}")
        return content

    def record(self, name: str, **values: int) -> tuple[Record, object]:
        """A request of rm_standin's, and what keeps its memory."""
        layout = self.machine.layouts[name]
        memory = ctypes.create_string_buffer(layout.size)
        record = Record(layout, ctypes.addressof(memory))
        for field, value in values.items():
            record[field] = value
        return record, memory

    def alloc(self, content: bytes) -> bytes:
        """GSP_RM_ALLOC."""
        client, parent, handle, number, _, size, flags, _ = struct.unpack_from("<8I", content)
        if flags or size != len(content) - 32 or not handle:
            raise Mistake(f"an object of class {number:#x} with {size} bytes of parameters")
        params = ctypes.create_string_buffer(content[32:], max(size, 1))
        record, memory = self.record(
            "alloc",
            hRoot=client,
            hObjectParent=parent,
            hObjectNew=handle,
            hClass=number,
            pAllocParms=ctypes.addressof(params) if size else 0,
            paramsSize=size,
        )
        status = self.refused.get(f"alloc {number:#x}", 0)
        if not status:
            status = self.status_of(lambda: self.resources.alloc(0, record))
        del memory
        head = (client, parent, handle, number, status, size, 0, 0)
        return struct.pack("<8I", *head) + params.raw[:size]

    def status_of(self, action: Callable[[], int | None]) -> int:
        """The status that an action ends with."""
        try:
            return int(action() or 0)
        except Refused as refused:
            return int(refused.status)

    def free(self, content: bytes) -> bytes:
        """FREE."""
        client, parent, handle, _ = struct.unpack("<4I", content)
        record, memory = self.record("free", hRoot=client, hObjectParent=parent, hObjectOld=handle)
        status = self.status_of(lambda: self.resources.free(record))
        del memory
        objects = [o for c in self.resources.clients.values() for o in c.objects.values()]
        for space in [s for s in self.resources.roots if s not in objects]:
            del self.resources.roots[space]
        alive = {*self.resources.channels}
        for channel in [c for c in self.resources.promoted if c not in alive]:
            del self.resources.promoted[channel]
        return struct.pack("<4I", client, parent, handle, status)

    def control(self, content: bytes) -> bytes:
        """GSP_RM_CONTROL."""
        client, target, command, _, size, flags = struct.unpack_from("<6I", content)
        params = bytearray(content[24:])
        if flags or size != len(params):
            raise Mistake(f"control {command:#x} with {size} bytes in {len(params)}")
        if command in BY_POINTER:
            raise Mistake(f"control {command:#x} is for the host, and the GSP gets it")
        status = self.refused.get(f"control {command:#x}", 0)
        own: dict[int, Callable[[int, bytearray], int | None]] = {
            0x2080012B: self.promote,
            0x20800A2A: self.gr_info,
            0x20800A32: self.contexts,
        }
        if status:
            pass
        elif command in own:
            status = self.status_of(lambda: own[command](client, params))
        else:
            status = self.ask(client, target, command, params)
        return struct.pack("<6I", client, target, command, status, size, 0) + bytes(params)

    def ask(self, client: int, target: int, command: int, params: bytearray) -> int:
        """A control that rm_standin answers."""
        size = len(params)
        memory = ctypes.create_string_buffer(bytes(params), max(size, 1))
        record, kept = self.record(
            "control",
            hClient=client,
            hObject=target,
            cmd=command,
            params=ctypes.addressof(memory),
            paramsSize=size,
        )
        status = self.status_of(lambda: self.resources.control(record))
        del kept
        params[:] = memory.raw[:size]
        return status

    def gr_info(self, client: int, params: bytearray) -> None:
        """INTERNAL_STATIC_KGR_GET_INFO."""
        if len(params) != 8 * 58 * 8:
            raise Mistake(f"facts of the graphics engine in {len(params)} bytes")
        facts = self.machine.gpus[0].facts
        known = {
            12: facts.sm_version,
            13: facts.warps,
            20: facts.gpcs,
            23: facts.tpcs,
            32: facts.sms,
        }
        for index in range(58):
            struct.pack_into("<II", params, 8 * index, index, known.get(index, 0))

    def contexts(self, client: int, params: bytearray) -> None:
        """INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO."""
        if len(params) != 8 * 26 * 8:
            raise Mistake(f"sizes of context buffers in {len(params)} bytes")
        for index, size in CONTEXT_SIZES.items():
            struct.pack_into("<II", params, 8 * index, size, PAGE)

    def promote(self, client: int, params: bytearray) -> int:
        """GPU_PROMOTE_CTX."""
        engine, _, _, owner, handle, _, _, _, count = struct.unpack_from("<6IQQI", params)
        found = self.resources.client(client).get(handle, Channel)
        if engine != 1 or owner != client or len(params) != 560:
            return Status.INVALID_ARGUMENT
        self.resources.refresh(found.space)
        buffers = {}
        for index in range(count):
            entry = struct.unpack_from("<QQQIHBB", params, 48 + 32 * index)
            physical, virtual, size, attributes, number, is_filled, is_hidden = entry
            least = CONTEXT_SIZES[NEEDED[number]]
            if bool(is_filled) != (number in FILLED) or bool(is_hidden) != (number == 10):
                raise Mistake(f"context buffer {number} is promoted as {entry}")
            if is_filled and (size < least + (0x40000 if not number else 0) or attributes != 4):
                raise Mistake(f"context buffer {number} has {size} bytes")
            if is_filled:
                ctypes.memset(self.memory.video(physical, size), 0xC7, size)
            if not is_hidden:
                self.check_mapped(found.space, virtual, least, physical if is_filled else None)
            buffers[number] = (virtual, physical, size)
        if {*buffers} != {*NEEDED}:
            raise Mistake(f"context buffers {sorted(buffers)} are promoted")
        self.resources.promoted[found] = buffers
        return 0

    def check_mapped(self, space: VaSpace, address: int, size: int, physical: int | None) -> None:
        """A context buffer that channels address."""
        region = space.memory.region_at(address)
        if region is None or address + size > region.address + region.data.nbytes:
            raise Mistake(f"a context buffer at {address:#x} is not mapped")
        host = region.data.ctypes.data + address - region.address
        if physical is not None and host != self.memory.video(physical, size):
            raise Mistake(f"a context buffer at {address:#x} is not the one at {physical:#x}")

    def set_directory(self, content: bytes) -> None:
        """SET_PAGE_DIRECTORY."""
        client, device, pasid, root, count, flags, handle, _, part, _ = struct.unpack(
            "<III4xQ6I", content
        )
        space = self.resources.client(client).get(handle, VaSpace)
        if space.parent is None or space.parent.handle != device or pasid != 0xFFFFFFFF:
            raise Mistake(f"page tables for address space {handle:#x} of device {device:#x}")
        if (count, flags, part) != (self.memory.entries.ROOT, 1 << 3 | 1, 1):
            raise Mistake(f"page tables of {count} entries with flags {flags:#x}")
        self.resources.roots[space] = root
        self.resources.refresh(space)
