"""Controls: questions and orders to objects of the resource manager.

open-gpu-kernel-modules 580.142: ctrl/ctrl0000, ctrl0080, ctrl2080, ctrla06c, ctrlc36f, ctrl83de.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rm_standin.layouts import Record
from rm_standin.objects import (
    Channel,
    Client,
    Debugger,
    Device,
    Engine,
    Group,
    Memory,
    Object,
    Subdevice,
)
from rm_standin.status import Refused, Status

if TYPE_CHECKING:
    from rm_standin.machine import Machine
    from rm_standin.resources import Resources

__all__ = ["Controls"]


@dataclass(frozen=True)
class Control:
    """A control: what it is asked of, its structure, and the method that answers."""

    kind: type[Object]
    layout: str
    name: str
    passes_sandbox: bool = True


CONTROLS: Final = {
    0x101: Control(Client, "build_version", "build_version"),
    0x13E: Control(Client, "build_version_2", "build_version_2", passes_sandbox=False),
    0x201: Control(Client, "attached_ids", "gpu_ids"),
    0x214: Control(Client, "probed_ids", "gpu_ids"),
    0x205: Control(Client, "id_info", "id_info"),
    0x800201: Control(Device, "class_list", "class_list"),
    0x800292: Control(Device, "class_list_2", "class_list_2"),
    0x2080014A: Control(Subdevice, "gid_info", "gid_info"),
    0x20800110: Control(Subdevice, "name_string", "name_string"),
    0x20800301: Control(Subdevice, "set_notification", "set_notification"),
    0x2080200A: Control(Subdevice, "boost", "boost"),
    0x20801201: Control(Subdevice, "gr_info", "gr_info"),
    0x20801218: Control(Subdevice, "context_size", "context_size"),
    0x20801303: Control(Subdevice, "fb_info", "fb_info"),
    0x2080130E: Control(Subdevice, "flush_cache", "flush_cache", passes_sandbox=False),
    0xA06C0101: Control(Group, "schedule", "schedule_group"),
    0xA06F0103: Control(Channel, "schedule", "schedule_channel"),
    0xA06F0104: Control(Channel, "bind", "bind", passes_sandbox=False),
    0xC36F0108: Control(Channel, "token", "token"),
    0x906F0102: Control(Channel, "reset_channel", "reset_channel"),
    0x906F0106: Control(Channel, "channel_fault", "channel_fault", passes_sandbox=False),
    0x83DE0309: Control(Debugger, "exception_mask", "nothing"),
    0x83DE030C: Control(Debugger, "sm_errors", "sm_errors"),
    0x83DE0310: Control(Debugger, "clear_sm_errors", "clear_sm_errors"),
    0x83DE0328: Control(Debugger, "mmu_fault", "mmu_fault", passes_sandbox=False),
}
SM_STATE: Final = struct.Struct("<IIIIIIQQII")
MOST_SMS: Final = 100
BOOST_FLAGS: Final = 0x7F


class Controls:
    """Answers to RM_CONTROL."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources

    @property
    def machine(self) -> Machine:
        """Whose driver this is."""
        return self.resources.machine

    def answer(self, r: Record) -> int:
        """Answer a request. The status."""
        client = self.resources.client(r["hClient"])
        found = client.objects.get(r["hObject"])
        if found is None:
            raise Refused(Status.INVALID_OBJECT_HANDLE)
        control = CONTROLS.get(r["cmd"])
        if control is None or (self.machine.sandbox and not control.passes_sandbox):
            raise Refused(Status.NOT_SUPPORTED)
        if not isinstance(found, control.kind):
            raise Refused(Status.NOT_SUPPORTED)
        layout = self.machine.layouts[control.layout]
        if r["paramsSize"] != layout.size:
            raise Refused(Status.INVALID_PARAM_STRUCT)
        if not r["params"]:
            raise Refused(Status.INVALID_ARGUMENT)
        if not isinstance(found, Client) and found.gpu.is_lost:
            raise Refused(Status.GPU_IS_LOST)
        handler: Callable[[Object, Record], None] = getattr(self, control.name)
        handler(found, Record(layout, r["params"]))
        return Status.OK

    def set_notification(self, found: Object, p: Record) -> None:
        """Arm a notification of a subdevice, or take that back."""
        armed = self.machine.armed.setdefault(found.handle, set())
        if p["action"] not in (0, 1, 2):
            raise Refused(Status.INVALID_ARGUMENT)
        if p["action"] and p["event"] in armed:
            raise Refused(Status.INVALID_STATE)
        (armed.add if p["action"] else armed.discard)(p["event"])

    def nothing(self, found: Object, p: Record) -> None:
        """Accept."""

    # --- the driver and its cards

    def build_version(self, found: Object, p: Record) -> None:
        text = self.machine.version.encode() + b"\0"
        if p["size"] < len(text):
            raise Refused(Status.INVALID_ARGUMENT)
        for name in ("driver", "version", "title"):
            ctypes.memmove(p[name], text, len(text))

    def build_version_2(self, found: Object, p: Record) -> None:
        p.bytes[:256] = self.machine.version.encode().ljust(256, b"\0")

    def gpu_ids(self, found: Object, p: Record) -> None:
        ids = [gpu.gpu_id for gpu in self.machine.gpus]
        room = p.kind.size // 4
        p.bytes[:] = struct.pack(f"<{room}I", *ids, *[0xFFFFFFFF] * (room - len(ids)))

    def id_info(self, found: Object, p: Record) -> None:
        gpu = next((gpu for gpu in self.machine.gpus if gpu.gpu_id == p["gpuId"]), None)
        if gpu is None or not self.resources.is_open(gpu):
            raise Refused(Status.INVALID_ARGUMENT)
        p["deviceInstance"], p["subDeviceInstance"] = gpu.index, 0

    def class_list(self, found: Object, p: Record) -> None:
        classes = found.gpu.facts.classes
        if p["list"]:
            if p["count"] < len(classes):
                raise Refused(Status.INVALID_ARGUMENT)
            (ctypes.c_uint32 * len(classes)).from_address(p["list"])[:] = list(classes)
        p["count"] = len(classes)

    def class_list_2(self, found: Object, p: Record) -> None:
        classes = found.gpu.facts.classes
        p["count"] = len(classes)
        p.bytes[4 : 4 + 4 * len(classes)] = struct.pack(f"<{len(classes)}I", *classes)

    def gid_info(self, found: Object, p: Record) -> None:
        if p["index"] or p["flags"] != 2:
            raise Refused(Status.NOT_SUPPORTED if p["index"] else Status.INVALID_ARGUMENT)
        p["length"] = 16
        p.bytes[12:28] = found.gpu.identity

    def name_string(self, found: Object, p: Record) -> None:
        if p["flags"]:
            raise Refused(Status.NOT_SUPPORTED)
        p.bytes[4:68] = found.gpu.facts.name.encode().ljust(64, b"\0")

    def boost(self, found: Object, p: Record) -> None:
        if p["flags"] & ~BOOST_FLAGS:
            raise Refused(Status.INVALID_ARGUMENT)

    def gr_info(self, found: Object, p: Record) -> None:
        facts = found.gpu.facts
        known = {
            12: facts.sm_version,
            13: facts.warps,
            20: facts.gpcs,
            23: facts.tpcs,
            29: facts.gpcs * facts.tpcs * facts.sms * 128,
            32: facts.sms,
        }
        for index in range(p["listSize"]):
            entry = (ctypes.c_uint32 * 2).from_address(p["list"] + 8 * index)
            if entry[0] > 0x3A:
                raise Refused(Status.INVALID_ARGUMENT)
            entry[1] = known.get(entry[0], 0)

    def fb_info(self, found: Object, p: Record) -> None:
        gpu = found.gpu
        known = {
            5: gpu.facts.bar1_bytes >> 10,
            7: gpu.facts.memory_bytes >> 10,
            8: gpu.facts.memory_bytes >> 10,
            9: gpu.facts.memory_bytes >> 10,
            0x16: gpu.facts.memory_bytes - gpu.used_bytes >> 10,
        }
        if p["listSize"] * 8 + 4 > p.kind.size:
            raise Refused(Status.INVALID_ARGUMENT)
        for index in range(p["listSize"]):
            place = slice(4 + 8 * index, 12 + 8 * index)
            number, _ = struct.unpack("<II", p.bytes[place])
            p.bytes[place] = struct.pack("<II", number, known.get(number, 0))

    def flush_cache(self, found: Object, p: Record) -> None:
        if p["flags"] >> 4 & 1 == 0 and not p["count"]:
            raise Refused(Status.INVALID_ARGUMENT)

    def context_size(self, found: Object, p: Record) -> None:
        parent = found.parent
        while not isinstance(parent, Client):
            assert parent is not None
            parent = parent.parent
        p["totalBufferSize"] = self.resources.context_bytes(parent.get(p["hChannel"], Channel))

    # --- channels

    def schedule_group(self, found: Object, p: Record) -> None:
        assert isinstance(found, Group)
        channels = [c for c in found.children.values() if isinstance(c, Channel)]
        if not channels:
            raise Refused(Status.INVALID_STATE)
        for channel in channels:
            self.check_bound(channel)
        found.is_scheduled = bool(p["bEnable"])
        for channel in channels:
            channel.is_scheduled = bool(p["bEnable"])

    def check_bound(self, channel: Channel) -> None:
        """A channel in an address space of UVM has a context only once UVM knows it."""
        if channel.space.is_external and not channel.is_registered:
            raise Refused(Status.INVALID_STATE)

    def schedule_channel(self, found: Object, p: Record) -> None:
        assert isinstance(found, Channel)
        if found.group is not None or found.fault.get("bound") is None:
            raise Refused(Status.INVALID_STATE)
        self.check_bound(found)
        found.is_scheduled = bool(p["bEnable"])

    def bind(self, found: Object, p: Record) -> None:
        assert isinstance(found, Channel)
        if found.group is not None or p["engineType"] != found.engine:
            raise Refused(Status.INVALID_STATE)
        found.fault["bound"] = p["engineType"]

    def token(self, found: Object, p: Record) -> None:
        assert isinstance(found, Channel)
        if not any(isinstance(child, Engine) for child in found.children.values()):
            raise Refused(Status.INVALID_STATE)
        p["token"] = found.token

    def reset_channel(self, found: Object, p: Record) -> None:
        assert isinstance(found, Channel)
        assert found.ring is not None
        found.ring.fail(43)

    def channel_fault(self, found: Object, p: Record) -> None:
        assert isinstance(found, Channel)
        address = found.fault.get("address", 0)
        p["addrHi"], p["addrLo"] = address >> 32, address & 0xFFFFFFFF
        p["type"] = found.fault.get("type", 0)

    # --- errors of multiprocessors

    def channel_of(self, found: Object, handle: int) -> Channel:
        """A channel of the client that debugs."""
        parent = found.parent
        while not isinstance(parent, Client):
            assert parent is not None
            parent = parent.parent
        return parent.get(handle, Channel)

    def sm_errors(self, found: Object, p: Record) -> None:
        channel = self.channel_of(found, p["hTargetChannel"])
        facts = channel.gpu.facts
        units, first, count = (
            facts.gpcs * facts.tpcs * facts.sms - facts.absent_sms,
            p["startingSM"],
            p["numSMsToRead"],
        )
        if not 0 < count <= MOST_SMS or first + count > units:
            raise Refused(Status.INVALID_ARGUMENT)
        for index in range(count):
            state = channel.fault.get("sms", {}).get(first + index, (0, 0, 0))
            esr, pc, where = state
            packed = SM_STATE.pack(0, esr, pc & 0xFFFFFFFF, 0, 0, 0, where, pc, 0, 0)
            p.bytes[8 + 48 * index : 56 + 48 * index] = packed
        is_fault = "address" in channel.fault
        p["valid"], p["info"] = int(is_fault), channel.fault.get("type", 0)

    def clear_sm_errors(self, found: Object, p: Record) -> None:
        self.channel_of(found, p["hTargetChannel"]).fault.pop("sms", None)

    def mmu_fault(self, found: Object, p: Record) -> None:
        channels = [c for c in self.resources.channels if c.gpu is found.gpu]
        faults = [c.fault for c in channels if "address" in c.fault][:4]
        for index, fault in enumerate(faults):
            packed = struct.pack("<QII", fault["address"], fault["type"], fault["access"])
            p.bytes[16 * index : 16 * index + 16] = packed
        p["count"] = len(faults)


def notify(memory: Memory | None, code: int, engine: int, nanoseconds: int) -> None:
    """Fill the error notifier of a channel."""
    if memory is not None:
        packed = struct.pack("<QIHH", nanoseconds, code, engine, 0xFFFF)
        memory.pages.data[:16] = list(packed)
