"""Structures of NVIDIA's kernel driver, by their offsets, and what differs between its branches.

NVIDIA/open-gpu-kernel-modules, tags 570.144, 575.64.05, 580.142, 595.45.04, 610.43.03: nvos.h,
alloc_channel.h, ctrl*.h, nv-ioctl*.h, uvm_ioctl.h. The driver checks sizes exactly, so a branch
that is not known is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final, TypeAlias

from tiny_hcq import address_of
from tinycore.errors import DeviceUnavailable

__all__ = ["BRANCHES", "Layout", "Layouts", "Record", "branch_of", "layouts_of"]

_FIELD: Final = re.compile(r"(\w+)@(\d+)(?::(\d+))?")
_WORD: Final = 4


@dataclass(frozen=True)
class Layout:
    """A structure: its size, and where its fields lie."""

    name: str
    size: int
    fields: Mapping[str, tuple[int, int]]
    """Offset and bytes of each field."""


Layouts: TypeAlias = Mapping[str, Layout]


def layout(name: str, size: int, text: str) -> Layout:
    """A row of the tables: `field@offset` for 4 bytes, `field@offset:bytes` for others."""
    found = _FIELD.findall(text)
    fields = {field: (int(at), int(size or _WORD)) for field, at, size in found}
    return Layout(name, size, MappingProxyType(fields))


class Record:
    """One structure in memory. Fields are numbers, those of more than 8 bytes are bytes."""

    __slots__ = ("_layout", "data")

    def __init__(self, layout: Layout, **values: int | bytes) -> None:
        self._layout = layout
        self.data = bytearray(layout.size)
        for name, value in values.items():
            self.put(name, value)

    @property
    def address(self) -> int:
        """Address of the structure."""
        return address_of(self.data)

    @property
    def size(self) -> int:
        """Bytes of the structure."""
        return len(self.data)

    def place(self, name: str, index: int = 0) -> slice:
        """The bytes of a field; of one of several that follow each other."""
        offset, size = self._layout.fields[name]
        begin = offset + index * size
        return slice(begin, begin + size)

    def put(self, name: str, value: int | bytes, index: int = 0) -> None:
        """Set a field."""
        place = self.place(name, index)
        size = place.stop - place.start
        self.data[place] = (
            value if isinstance(value, bytes) else value.to_bytes(size, "little", signed=value < 0)
        )

    def number(self, name: str, index: int = 0) -> int:
        """A field as a number."""
        return int.from_bytes(self.data[self.place(name, index)], "little")

    def content(self, name: str) -> bytes:
        """A field as bytes."""
        return bytes(self.data[self.place(name)])


_CHANNEL_TAIL: Final = (
    "instanceMem@{0}:24 userdMem@{1}:24 ramfcMem@{2}:24 mthdbufMem@{3}:24 hPhysChannelGroup@{4} "
    "internalFlags@{5}"
)

_COMMON: Final = (
    layout("card_info", 72, "valid@0:1 domain@4 bus@8:1 slot@9:1 func@10:1 vendor@12:2 "
           "device@14:2 gpu_id@16 reg_size@32:8 fb_size@48:8 minor_number@56"),
    layout("check_version", 72, "cmd@0 reply@4 string@8:64"),
    layout("register_fd", 4, "ctl_fd@0"),
    layout("NVOS00", 16, "hRoot@0 hObjectParent@4 hObjectOld@8 status@12"),
    layout("NVOS02", 56, "hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 flags@16 pMemory@24:8 "
           "limit@32:8 status@40 fd@48"),
    layout("NVOS21", 32, "hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 pAllocParms@16:8 "
           "paramsSize@24 status@28"),
    layout("NVOS33", 56, "hClient@0 hDevice@4 hMemory@8 offset@16:8 length@24:8 "
           "pLinearAddress@32:8 status@40 flags@44 fd@48"),
    layout("NVOS34", 32, "hClient@0 hDevice@4 hMemory@8 pLinearAddress@16:8 status@24 flags@28"),
    layout("NVOS46", 64, "hClient@0 hDevice@4 hDma@8 hMemory@12 offset@16:8 length@24:8 flags@32 "
           "flags2@36 kindOverride@40 dmaOffset@48:8 status@56"),
    layout("NVOS47", 48, "hClient@0 hDevice@4 hDma@8 hMemory@12 flags@16 dmaOffset@24:8 size@32:8 "
           "status@40"),
    layout("NVOS54", 32, "hClient@0 hObject@4 cmd@8 flags@12 params@16:8 paramsSize@24 status@28"),
    layout("device", 56, "deviceId@0 hClientShare@4 hTargetClient@8 hTargetDevice@12 flags@16 "
           "vaSpaceSize@24:8 vaStart@32:8 vaLimit@40:8 vaMode@48"),
    layout("subdevice", 4, "subDeviceId@0"),
    layout("usermode", 2, "bBar1Mapping@0:1 bPriv@1:1"),
    layout("va_space", 56, "index@0 flags@4 vaSize@8:8 vaStartInternal@16:8 vaLimitInternal@24:8 "
           "bigPageSize@32 vaBase@40:8 pasid@48"),
    layout("memory", 128, "owner@0 type@4 flags@8 attr@24 attr2@28 format@32 size@64:8 "
           "alignment@72:8 offset@80:8 limit@88:8"),
    layout("channel_group", 20, "hObjectError@0 hObjectEccError@4 hVASpace@8 engineType@12"),
    layout("context_share", 12, "hVASpace@0 flags@4 subctxId@8"),
    layout("channel", 368, "hObjectError@0 hObjectBuffer@4 gpFifoOffset@8:8 gpFifoEntries@16 "
           "flags@20 hContextShare@24 hVASpace@28 hUserdMemory@32 userdOffset@64:8 engineType@128 "
           "cid@132 subDeviceId@136 hObjectEccError@140 "
           + _CHANNEL_TAIL.format(144, 168, 192, 216, 240, 244)),
    layout("debugger", 12, "hDebuggerClient@0 hAppClient@4 hClass3dObject@8"),
    layout("alloc_os_event", 16, "hClient@0 hDevice@4 fd@8 status@12"),
    layout("event", 24, "hParentClient@0 hSrcResource@4 hClass@8 notifyIndex@12 data@16:8"),
    layout("set_notification", 20, "event@0 action@4 bNotifyState@8:1 info32@12 info16@16:2"),
    layout("id_info", 32, "gpuId@0 deviceInstance@8 subDeviceInstance@12"),
    layout("class_list", 16, "numClasses@0 classList@8:8"),
    layout("gid_info", 268, "index@0 flags@4 length@8 uuid@12:16"),
    layout("perf_boost", 8, "flags@0 duration@4"),
    layout("gr_info", 32, "listSize@0 list@8:8"),
    layout("ctx_buffer_size", 16, "hChannel@0 totalBufferSize@8:8"),
    layout("work_submit_token", 4, "token@0"),
    layout("schedule", 3, "bEnable@0:1 bSkipSubmit@1:1 bSkipEnable@2:1"),
    layout("sm_errors", 4824, "hTargetChannel@0 numSMsToRead@4 states@8:48 mmuFaultInfo@4808 "
           "mmuFaultValid@4812:1 mmuFault@4816 startingSM@4820"),
    layout("mmu_faults", 72, "faults@0:16 count@64"),
    layout("channel_fault", 104, "addrHi@0 addrLo@4 type@8"),
    layout("uvm_initialize", 16, "flags@0:8 rmStatus@8"),
    layout("uvm_mm_initialize", 8, "uvmFd@0 rmStatus@4"),
    layout("uvm_register_gpu", 40, "uuid@0:16 numaEnabled@16:1 numaNodeId@20 rmCtrlFd@24 "
           "hClient@28 hSmcPartRef@32 rmStatus@36"),
    layout("uvm_register_gpu_vaspace", 32, "uuid@0:16 rmCtrlFd@16 hClient@20 hVaSpace@24 "
           "rmStatus@28"),
    layout("uvm_register_channel", 56, "uuid@0:16 rmCtrlFd@16 hClient@20 hChannel@24 base@32:8 "
           "length@40:8 rmStatus@48"),
    layout("uvm_unregister_channel", 28, "uuid@0:16 hClient@16 hChannel@20 rmStatus@24"),
    layout("uvm_create_external_range", 24, "base@0:8 length@8:8 rmStatus@16"),
    layout("uvm_map_external", 9264, "base@0:8 length@8:8 offset@16:8 attributes@24:36 "
           "count@9240:8 rmCtrlFd@9248 hClient@9252 hMemory@9256 rmStatus@9260"),
    layout("uvm_mapping", 36, "uuid@0:16 mappingType@16 cachingType@20 formatType@24 "
           "elementBits@28 compressionType@32"),
    layout("uvm_unmap_external", 40, "base@0:8 length@8:8 uuid@16:16 rmStatus@32"),
    layout("uvm_free", 24, "base@0:8 length@8:8 rmStatus@16"),
    layout("uvm_enable_peer", 36, "uuidA@0:16 uuidB@16:16 rmStatus@32"),
    layout("uvm_unregister_gpu", 20, "uuid@0:16 rmStatus@16"),
)  # fmt: skip
"""As branch 580 has them."""

_UNTIL_575: Final = (
    layout("NVOS46", 56, "hClient@0 hDevice@4 hDma@8 hMemory@12 offset@16:8 length@24:8 flags@32 "
           "dmaOffset@40:8 status@48"),
    layout("va_space", 48, "index@0 flags@4 vaSize@8:8 vaStartInternal@16:8 vaLimitInternal@24:8 "
           "bigPageSize@32 vaBase@40:8"),
)  # fmt: skip

_OF_570: Final = (layout("schedule", 2, "bEnable@0:1 bSkipSubmit@1:1"),)

_SINCE_590: Final = (
    layout("uvm_free", 16, "base@0:8 rmStatus@8"),
    layout("uvm_unregister_channel", 12, "hClient@0 hChannel@4 rmStatus@8"),
)

_SINCE_610: Final = (
    layout("channel", 376, "hObjectError@0 hObjectBuffer@4 gpFifoOffset@8:8 gpFifoEntries@16 "
           "flags@20 hContextShare@24 hVASpace@28 hHandleVASpace@32 hUserdMemory@36 "
           "userdOffset@72:8 engineType@136 cid@140 subDeviceId@144 hObjectEccError@148 "
           + _CHANNEL_TAIL.format(152, 176, 200, 224, 248, 252)),
)  # fmt: skip

BRANCHES: Final[Mapping[int, tuple[Layout, ...]]] = {
    570: (*_COMMON, *_UNTIL_575, *_OF_570),
    575: (*_COMMON, *_UNTIL_575),
    580: _COMMON,
    590: (*_COMMON, *_SINCE_590),
    595: (*_COMMON, *_SINCE_590),
    610: (*_COMMON, *_SINCE_590, *_SINCE_610),
}
"""By the first number of the driver's version."""


def branch_of(version: str) -> int:
    """The branch of a version such as 580.159.03. Raises DeviceUnavailable for an unknown one."""
    found = re.match(r"(\d+)\.\d", version)
    branch = int(found[1]) if found else 0
    if branch not in BRANCHES:
        known = ", ".join(map(str, BRANCHES))
        raise DeviceUnavailable(
            f"NVIDIA's kernel driver is of version {version or '(none told)'}, and NV knows the "
            f"structures of branches {known} only: install one of these, or use DEV=CUDA"
        )
    return branch


@cache
def layouts_of(branch: int) -> Layouts:
    """The structures of a branch, by name."""
    return MappingProxyType({each.name: each for each in BRANCHES[branch]})
