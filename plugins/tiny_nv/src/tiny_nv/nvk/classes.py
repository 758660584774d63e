"""Numbers of NVIDIA's kernel driver: classes, requests, statuses; and what each generation has.

NVIDIA/open-gpu-kernel-modules 580.142 (class/*.h, ctrl/*.h, nvstatuscodes.h, g_gpu_class_list.c).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tinycore.errors import DeviceUnavailable

__all__ = [
    "CHANNELS",
    "COPIES",
    "GENERATIONS",
    "SM_VERSIONS",
    "STATUSES",
    "USERMODES",
    "Class",
    "Control",
    "Escape",
    "Generation",
    "Uvm",
    "arch_of_sm",
    "newest",
]


class Escape(IntEnum):
    """Requests to nvidiactl and nvidia0."""

    RM_ALLOC_MEMORY = 0x27
    RM_FREE = 0x29
    RM_CONTROL = 0x2A
    RM_ALLOC = 0x2B
    RM_MAP_MEMORY = 0x4E
    RM_UNMAP_MEMORY = 0x4F
    RM_MAP_MEMORY_DMA = 0x57
    RM_UNMAP_MEMORY_DMA = 0x58
    CARD_INFO = 0xC8
    REGISTER_FD = 0xC9
    ALLOC_OS_EVENT = 0xCE
    FREE_OS_EVENT = 0xCF
    CHECK_VERSION_STR = 0xD2


class Uvm(IntEnum):
    """Requests to nvidia-uvm."""

    INITIALIZE = 0x30000001
    REGISTER_GPU_VASPACE = 0x19
    UNREGISTER_GPU_VASPACE = 0x1A
    REGISTER_CHANNEL = 0x1B
    UNREGISTER_CHANNEL = 0x1C
    ENABLE_PEER_ACCESS = 0x1D
    MAP_EXTERNAL_ALLOCATION = 0x21
    FREE = 0x22
    REGISTER_GPU = 0x25
    UNREGISTER_GPU = 0x26
    UNMAP_EXTERNAL = 0x42
    CREATE_EXTERNAL_RANGE = 0x49
    MM_INITIALIZE = 0x4B


class Class(IntEnum):
    """Classes of objects that every card has."""

    NV01_ROOT_CLIENT = 0x41
    NV01_DEVICE_0 = 0x80
    NV20_SUBDEVICE_0 = 0x2080
    NV01_EVENT_OS_EVENT = 0x79
    NV01_MEMORY_SYSTEM = 0x3E
    NV01_MEMORY_LOCAL_USER = 0x40
    NV50_MEMORY_VIRTUAL = 0x50A0
    NV01_MEMORY_SYSTEM_OS_DESCRIPTOR = 0x71
    FERMI_VASPACE_A = 0x90F1
    FERMI_CONTEXT_SHARE_A = 0x9067
    KEPLER_CHANNEL_GROUP_A = 0xA06C
    GT200_DEBUGGER = 0x83DE


class Control(IntEnum):
    """Commands of RM_CONTROL."""

    GPU_GET_ID_INFO_V2 = 0x205
    GET_CLASSLIST = 0x800201
    PERF_BOOST = 0x2080200A
    GET_GID_INFO = 0x2080014A
    EVENT_SET_NOTIFICATION = 0x20800301
    GR_GET_INFO = 0x20801201
    GR_GET_CTX_BUFFER_SIZE = 0x20801218
    GPU_PROMOTE_CTX = 0x2080012B
    STATIC_GR_GET_INFO = 0x20800A2A
    STATIC_GR_GET_CONTEXT_BUFFERS = 0x20800A32
    GPFIFO_SCHEDULE = 0xA06C0101
    GET_WORK_SUBMIT_TOKEN = 0xC36F0108
    GET_MMU_FAULT_INFO = 0x906F0106
    READ_ALL_SM_ERROR_STATES = 0x83DE030C
    READ_MMU_FAULT_INFO = 0x83DE0328


STATUSES: Final[Mapping[int, str]] = {
    0x0F: "GPU_IS_LOST",
    0x16: "ILLEGAL_ACTION",
    0x17: "IN_USE",
    0x1A: "INSUFFICIENT_RESOURCES",
    0x1B: "INSUFFICIENT_PERMISSIONS",
    0x1E: "INVALID_ADDRESS",
    0x1F: "INVALID_ARGUMENT",
    0x22: "INVALID_CLASS",
    0x23: "INVALID_CLIENT",
    0x24: "INVALID_COMMAND",
    0x26: "INVALID_DEVICE",
    0x33: "INVALID_OBJECT_HANDLE",
    0x3A: "INVALID_PARAM_STRUCT",
    0x40: "INVALID_STATE",
    0x51: "NO_MEMORY",
    0x56: "NOT_SUPPORTED",
    0x57: "OBJECT_NOT_FOUND",
    0x62: "RESET_REQUIRED",
    0x65: "TIMEOUT",
    0x6A: "LIB_RM_VERSION_MISMATCH",
}

USERMODES: Final = (0xC761, 0xC661, 0xC461, 0xC561)
"""Pages with doorbells: Blackwell, Hopper, Turing, Ampere, whose own a sandbox (gVisor) refuses."""
FIRST_OF_BAR1: Final = 0xC661
"""The first page that can be mapped through BAR1."""
CHANNELS: Final = (0xCA6F, 0xC96F, 0xC86F, 0xC56F)
COPIES: Final = (0xCAB5, 0xC9B5, 0xC8B5, 0xC7B5, 0xC6B5)


@dataclass(frozen=True)
class Generation:
    """Parameters of a compute class."""

    compute: int
    """The class."""
    name: str
    qmd: int
    """The version of launch descriptors: 3, 4 or 5."""


GENERATIONS: Final = (
    Generation(0xCEC0, "Blackwell (GB20x)", 5),
    Generation(0xCDC0, "Blackwell (GB10x)", 5),
    Generation(0xCBC0, "Hopper", 4),
    Generation(0xC9C0, "Ada", 3),
    Generation(0xC7C0, "Ampere (GA10x)", 3),
    Generation(0xC6C0, "Ampere (GA100)", 3),
)
"""The newest first."""

SM_VERSIONS: Final[Mapping[int, str]] = {
    0x800: "sm_80",
    0x802: "sm_80",
    0x806: "sm_86",
    0x807: "sm_87",
    0x809: "sm_89",
    0x900: "sm_90",
    0xA00: "sm_100",
    0xA01: "sm_100",
    0xA03: "sm_103",
    0xA04: "sm_120",
    0xC00: "sm_120",
    0xC01: "sm_121",
}
"""Architectures by what GR_GET_INFO calls SM_VERSION."""


def arch_of_sm(version: int) -> str:
    """The architecture of an SM_VERSION. Raises DeviceUnavailable for one that is not known."""
    if version not in SM_VERSIONS:
        raise DeviceUnavailable(
            f"the card's multiprocessors are of version {version:#x}, which NV does not know: "
            "use DEV=CUDA"
        )
    return SM_VERSIONS[version]


def newest(wanted: Collection[int], listed: Collection[int], what: str) -> int:
    """The first of the classes that a card has. Raises DeviceUnavailable for none."""
    for each in wanted:
        if each in listed:
            return each
    known = ", ".join(f"{each:#x}" for each in wanted)
    raise DeviceUnavailable(
        f"the card has no {what} that NV knows ({known}): it is older than Ampere or newer than "
        "Blackwell. Use DEV=CUDA"
    )
