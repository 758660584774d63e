"""Structures of requests by their offsets, as each branch of the driver has them.

open-gpu-kernel-modules 570.144, 575.64.05, 580.142, 595.45.04 and 610.43: nvos.h, nv-ioctl.h,
uvm_ioctl.h, ctrl*.h and alloc_channel.h. Written independently of the driver under test.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

__all__ = ["BRANCHES", "Layout", "Record", "branch_of", "layouts_of"]

BRANCHES: Final = (570, 575, 580, 590, 610)
"""The first version of each branch whose structures differ."""


@dataclass(frozen=True)
class Layout:
    """A structure: its size, and the offset and width of each field."""

    size: int
    fields: dict[str, tuple[int, int]]


def layout(size: int, text: str) -> Layout:
    """A structure written as `field@offset`, with `:8` after it unless it has four bytes."""
    fields = {}
    for word in text.split():
        name, _, place = word.partition("@")
        offset, _, width = place.partition(":")
        fields[name] = (int(offset), int(width or 4))
    return Layout(size, fields)


class Record:
    """A structure in the memory of the process."""

    def __init__(self, kind: Layout, address: int) -> None:
        self.kind, self.address = kind, address
        self.bytes = memoryview((ctypes.c_char * kind.size).from_address(address)).cast("B")

    def __contains__(self, name: str) -> bool:
        return name in self.kind.fields

    def __getitem__(self, name: str) -> int:
        offset, width = self.kind.fields[name]
        return int.from_bytes(self.bytes[offset : offset + width], "little")

    def __setitem__(self, name: str, value: int) -> None:
        offset, width = self.kind.fields[name]
        self.bytes[offset : offset + width] = (value % (1 << 8 * width)).to_bytes(width, "little")


def branch_of(version: str) -> int:
    """The branch whose structures a version of the driver has."""
    major = int(version.split(".", maxsplit=1)[0])
    return max(branch for branch in BRANCHES if branch <= max(major, BRANCHES[0]))


COMMON: Final = {
    # --- requests to nvidiactl and nvidiaN
    "register_fd": layout(4, "ctl_fd@0"),
    "alloc_os_event": layout(16, "hClient@0 hDevice@4 fd@8 status@12"),
    "check_version": layout(72, "cmd@0 reply@4"),
    "xfer": layout(16, "nr@0 size@4 ptr@8:8"),
    "sys_params": layout(8, "memblock_size@0:8"),
    "wait_open": layout(8, "rc@0 adapterStatus@4"),
    "alloc_memory": layout(
        56,
        "hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 flags@16 pMemory@24:8 limit@32:8 "
        "status@40 fd@48",
    ),
    "free": layout(16, "hRoot@0 hObjectParent@4 hObjectOld@8 status@12"),
    "control": layout(32, "hClient@0 hObject@4 cmd@8 flags@12 params@16:8 paramsSize@24 status@28"),
    "alloc": layout(
        32,
        "hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 pAllocParms@16:8 paramsSize@24 status@28",
    ),
    "alloc_64": layout(
        48,
        "hRoot@0 hObjectParent@4 hObjectNew@8 hClass@12 pAllocParms@16:8 pRightsRequested@24:8 "
        "paramsSize@32 flags@36 status@40",
    ),
    "map_memory": layout(
        56,
        "hClient@0 hDevice@4 hMemory@8 offset@16:8 length@24:8 pLinearAddress@32:8 status@40 "
        "flags@44 fd@48",
    ),
    "unmap_memory": layout(
        32, "hClient@0 hDevice@4 hMemory@8 pLinearAddress@16:8 status@24 flags@28"
    ),
    "map_dma": layout(
        64,
        "hClient@0 hDevice@4 hDma@8 hMemory@12 offset@16:8 length@24:8 flags@32 flags2@36 "
        "kindOverride@40 dmaOffset@48:8 status@56",
    ),
    "unmap_dma": layout(
        48,
        "hClient@0 hDevice@4 hDma@8 hMemory@12 flags@16 dmaOffset@24:8 size@32:8 status@40",
    ),
    "card_info": layout(
        72,
        "valid@0:1 domain@4 bus@8:1 slot@9:1 func@10:1 vendor@12:2 device@14:2 gpu_id@16 irq@20:2 "
        "reg_address@24:8 reg_size@32:8 fb_address@40:8 fb_size@48:8 minor_number@56",
    ),
    # --- parameters of classes
    "device": layout(
        56,
        "deviceId@0 hClientShare@4 hTargetClient@8 hTargetDevice@12 flags@16 vaSpaceSize@24:8 "
        "vaStart@32:8 vaLimit@40:8 vaMode@48",
    ),
    "subdevice": layout(4, "subDeviceId@0"),
    "usermode": layout(2, "bBar1Mapping@0:1 bPriv@1:1"),
    "vaspace": layout(
        56,
        "index@0 flags@4 vaSize@8:8 vaStartInternal@16:8 vaLimitInternal@24:8 bigPageSize@32 "
        "vaBase@40:8 pasid@48",
    ),
    "group": layout(20, "hObjectError@0 hObjectEccError@4 hVASpace@8 engineType@12"),
    "context_share": layout(12, "hVASpace@0 flags@4 subctxId@8"),
    "channel": layout(
        368,
        "hObjectError@0 hObjectBuffer@4 gpFifoOffset@8:8 gpFifoEntries@16 flags@20 "
        "hContextShare@24 hVASpace@28 hUserdMemory@32 userdOffset@64:8 engineType@128 cid@132 "
        "subDeviceId@136 hObjectEccError@140",
    ),
    "memory": layout(
        128,
        "owner@0 type@4 flags@8 width@12 height@16 pitch@20 attr@24 attr2@28 format@32 "
        "rangeLo@48:8 rangeHi@56:8 size@64:8 alignment@72:8 offset@80:8 limit@88:8 address@96:8 "
        "hVASpace@108 internalflags@112 tag@116 numaNode@120",
    ),
    "virtual": layout(24, "offset@0:8 limit@8:8 hVASpace@16"),
    "debugger": layout(12, "hDebuggerClient@0 hAppClient@4 hClass3dObject@8"),
    "copy_engine": layout(8, "version@0 engineType@4"),
    "compute_engine": layout(16, "version@0 flags@4 size@8 caps@12"),
    "event": layout(24, "hParentClient@0 hSrcResource@4 hClass@8 notifyIndex@12 data@16:8"),
    # --- parameters of controls
    "id_info": layout(32, "gpuId@0 gpuFlags@4 deviceInstance@8 subDeviceInstance@12"),
    "build_version": layout(40, "size@0 driver@8:8 version@16:8 title@24:8"),
    "build_version_2": layout(1032, ""),
    "class_list": layout(16, "count@0 list@8:8"),
    "class_list_2": layout(804, "count@0"),
    "attached_ids": layout(128, ""),
    "probed_ids": layout(384, ""),
    "gid_info": layout(268, "index@0 flags@4 length@8"),
    "boost": layout(8, "flags@0 duration@4"),
    "gr_info": layout(32, "listSize@0 list@8:8"),
    "context_size": layout(16, "hChannel@0 totalBufferSize@8:8"),
    "name_string": layout(132, "flags@0"),
    "fb_info": layout(1028, "listSize@0"),
    "flush_cache": layout(4024, "count@4000 align@4004 blockSize@4008:8 flags@4016"),
    "schedule": layout(3, "bEnable@0:1 bSkipSubmit@1:1 bSkipEnable@2:1"),
    "bind": layout(4, "engineType@0"),
    "token": layout(4, "token@0"),
    "sm_errors": layout(
        4824, "hTargetChannel@0 numSMsToRead@4 valid@4812:1 info@4816 startingSM@4820"
    ),
    "set_notification": layout(20, "event@0 action@4 bNotifyState@8:1 info32@12 info16@16:2"),
    "clear_sm_errors": layout(8, "hTargetChannel@0 numSMsToClear@4"),
    "exception_mask": layout(4, "exceptionMask@0"),
    "mmu_fault": layout(72, "count@64"),
    "channel_fault": layout(104, "addrHi@0 addrLo@4 type@8"),
    "reset_channel": layout(16, "engineID@0 subdeviceInstance@4"),
    # --- requests to nvidia-uvm
    "uvm_initialize": layout(16, "flags@0:8 rmStatus@8"),
    "uvm_mm_initialize": layout(8, "uvmFd@0 rmStatus@4"),
    "uvm_register_gpu": layout(
        40, "numaEnabled@16:1 numaNodeId@20 rmCtrlFd@24 hClient@28 hSmcPartRef@32 rmStatus@36"
    ),
    "uvm_unregister_gpu": layout(20, "rmStatus@16"),
    "uvm_register_vaspace": layout(32, "rmCtrlFd@16 hClient@20 hVaSpace@24 rmStatus@28"),
    "uvm_unregister_vaspace": layout(20, "rmStatus@16"),
    "uvm_register_channel": layout(
        56, "rmCtrlFd@16 hClient@20 hChannel@24 base@32:8 length@40:8 rmStatus@48"
    ),
    "uvm_unregister_channel": layout(28, "hClient@16 hChannel@20 rmStatus@24"),
    "uvm_create_range": layout(24, "base@0:8 length@8:8 rmStatus@16"),
    "uvm_map": layout(
        9264,
        "base@0:8 length@8:8 offset@16:8 count@9240:8 rmCtrlFd@9248 hClient@9252 hMemory@9256 "
        "rmStatus@9260",
    ),
    "uvm_map_attributes": layout(
        36, "mappingType@16 cachingType@20 formatType@24 elementBits@28 compressionType@32"
    ),
    "uvm_unmap": layout(40, "base@0:8 length@8:8 rmStatus@32"),
    "uvm_free": layout(24, "base@0:8 length@8:8 rmStatus@16"),
    "uvm_enable_peer": layout(36, "rmStatus@32"),
    "uvm_disable_peer": layout(36, "rmStatus@32"),
    "uvm_validate_range": layout(24, "base@0:8 length@8:8 rmStatus@16"),
}
"""As in 580."""

OF_570: Final = {
    "map_dma": layout(
        56,
        "hClient@0 hDevice@4 hDma@8 hMemory@12 offset@16:8 length@24:8 flags@32 dmaOffset@40:8 "
        "status@48",
    ),
    "vaspace": layout(
        48,
        "index@0 flags@4 vaSize@8:8 vaStartInternal@16:8 vaLimitInternal@24:8 bigPageSize@32 "
        "vaBase@40:8",
    ),
    "schedule": layout(2, "bEnable@0:1 bSkipSubmit@1:1"),
    "class_list_2": layout(404, "count@0"),
    "probed_ids": layout(256, ""),
    "fb_info": layout(460, "listSize@0"),
}
SINCE_590: Final = {
    "uvm_free": layout(16, "base@0:8 rmStatus@8"),
    "uvm_unregister_channel": layout(12, "hClient@0 hChannel@4 rmStatus@8"),
    "name_string": layout(68, "flags@0"),
}
SINCE_610: Final = {
    "channel": layout(
        376,
        "hObjectError@0 hObjectBuffer@4 gpFifoOffset@8:8 gpFifoEntries@16 flags@20 "
        "hContextShare@24 hVASpace@28 hHandleVASpace@32 hUserdMemory@36 userdOffset@72:8 "
        "engineType@136 cid@140 subDeviceId@144 hObjectEccError@148",
    ),
}


def layouts_of(branch: int) -> dict[str, Layout]:
    """All structures of a branch."""
    found = dict(COMMON)
    if branch < 580:
        found |= OF_570
    if branch == 575:
        found["schedule"] = COMMON["schedule"]
    if branch >= 590:
        found |= SINCE_590
    if branch >= 610:
        found |= SINCE_610
    return found
