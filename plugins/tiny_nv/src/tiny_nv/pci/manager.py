"""Resource manager of a card without NVIDIA's kernel driver: objects by messages to its GSP.

NVIDIA/open-gpu-kernel-modules 570.144: g_rpc-structures.h (rpc_gsp_rm_alloc, rpc_gsp_rm_control,
rpc_free), ctrl2080internal.h, ctrl2080gpu.h, ctrl0080dma.h. What is asked for by pointers of the
process elsewhere has a structure of its own here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tiny_nv.nvk.classes import STATUSES, Control
from tiny_nv.nvk.layouts import Layout, Record, layout, layouts_of
from tiny_nv.nvk.rm import Refused
from tiny_nv.pci.gsp import GspProcessor
from tinycore.errors import OutOfMemory
from tinycore.plugin import recursive_lock

__all__ = ["OF_GSP", "GspManager"]

BRANCH: Final = 570
"""Branch of the firmware."""
_ALLOC, _CONTROL, _FREE, _SET_PAGE_DIRECTORY = 0x67, 0x4C, 0x0A, 0x36
_ALLOC_HEADER: Final = struct.Struct("<8I")
"""Client, parent, object, class, status, bytes, flags."""
_CONTROL_HEADER: Final = struct.Struct("<6I")
"""Client, object, command, status, bytes, flags."""
_FREE_HEADER: Final = struct.Struct("<4I")
_DIRECTORY: Final = struct.Struct("<III4xQ6I")
_ROOT: Final = 0xC1000001
_FIRST_HANDLE: Final = 0xCF000001
_ROOT_CLASS: Final = 0
_NO_MEMORY: Final = (0x51, 0x1A)
_NO_PASID: Final = 0xFFFFFFFF
_ALL_CHANNELS: Final = 1 << 3
_SYSTEM_COHERENT: Final = 1
"""Field APERTURE of SET_PAGE_DIRECTORY."""
_ENGINES: Final = 8
GR_INFOS: Final = 0x3A
CONTEXT_BUFFERS: Final = 0x1A
PROMOTED: Final = 16

OF_GSP: Final = (
    layout("root", 120, "hClient@0 processID@4"),
    layout("static_gr_info", 8 * GR_INFOS * _ENGINES, "infos@0:8"),
    layout("context_buffers", 8 * CONTEXT_BUFFERS * _ENGINES, "buffers@0:8"),
    layout("promote", 48 + 32 * PROMOTED, "engineType@0 hClient@4 ChID@8 hChanClient@12 hObject@16 "
           "hVirtMemory@20 virtAddress@24:8 size@32:8 entryCount@40 entries@48:32"),
    layout("promoted", 32, "gpuPhysAddr@0:8 gpuVirtAddr@8:8 size@16:8 physAttr@24 bufferId@28:2 "
           "bInitialize@30:1 bNonmapped@31:1"),
    layout("memory_place", 24, "base@0:8 size@8:8 addressSpace@16 cacheAttrib@20"),
    layout("channel", 368, "hObjectError@0 hObjectBuffer@4 gpFifoOffset@8:8 gpFifoEntries@16 "
           "flags@20 hContextShare@24 hVASpace@28 hUserdMemory@32 userdOffset@64:8 engineType@128 "
           "cid@132 subDeviceId@136 hObjectEccError@140 instanceMem@144:24 userdMem@168:24 "
           "ramfcMem@192:24 mthdbufMem@216:24 hPhysChannelGroup@240 internalFlags@244 "
           "errorNotifierMem@248:24"),
)  # fmt: skip


class GspManager:
    """Objects of one card, below a root of our own number."""

    def __init__(self, processor: GspProcessor) -> None:
        self.processor = processor
        self.layouts: Mapping[str, Layout] = MappingProxyType(
            {**layouts_of(BRANCH), **{each.name: each for each in OF_GSP}}
        )
        self._lock = recursive_lock()
        self._next = _FIRST_HANDLE
        self._parents: dict[int, int] = {}
        self.root = 0
        root = self.record("root", hClient=_ROOT, processID=_NO_PASID)
        self.root = self._alloc(_ROOT, 0, _ROOT, _ROOT_CLASS, root, "a client")

    def record(self, layout: str, **values: int | bytes) -> Record:
        """A structure of the firmware's branch."""
        return Record(self.layouts[layout], **values)

    def _verify(self, status: int, what: str) -> None:
        if not status:
            return
        name = f"{STATUSES.get(status, 'status')} ({status:#x})"
        if status in _NO_MEMORY:
            raise OutOfMemory(f"the card has no memory left: {what} returned {name}. Free tensors.")
        raise Refused(f"the card's GSP refused {what}: {name}", status)

    # --- objects

    def alloc(self, parent: int, kind: int, params: Record | None = None, *, what: str) -> int:
        """Make an object. Raises OutOfMemory and Refused."""
        with self._lock:
            handle, self._next = self._next, self._next + 1
        return self._alloc(self.root, parent, handle, kind, params, what)

    def _alloc(
        self, client: int, parent: int, handle: int, kind: int, params: Record | None, what: str
    ) -> int:
        content = bytes(params.data) if params else b""
        header = (client, parent, handle, kind, 0, len(content), 0, 0)
        with self._lock:
            answer = self.processor.call(_ALLOC, _ALLOC_HEADER.pack(*header) + content, what)
        self._verify(_ALLOC_HEADER.unpack_from(answer)[4], f"{what} (class {kind:#x})")
        if params:
            params.data[:] = answer[_ALLOC_HEADER.size : _ALLOC_HEADER.size + len(content)]
        self._parents[handle] = parent
        return handle

    def free(self, handle: int) -> None:
        """Free an object and what lies below it."""
        parent = self._parents.pop(handle, self.root)
        what = f"to free object {handle:#x}"
        with self._lock:
            content = _FREE_HEADER.pack(self.root, parent, handle, 0)
            answer = self.processor.call(_FREE, content, what)
        self._verify(_FREE_HEADER.unpack_from(answer)[3], what)

    def control(self, target: int, command: Control, params: Record) -> Record:
        """Ask something of an object. Raises OutOfMemory and Refused."""
        header = (self.root, target, command, 0, params.size, 0)
        with self._lock:
            content = _CONTROL_HEADER.pack(*header) + bytes(params.data)
            answer = self.processor.call(_CONTROL, content, command.name)
        self._verify(_CONTROL_HEADER.unpack_from(answer)[3], command.name)
        params.data[:] = answer[_CONTROL_HEADER.size : _CONTROL_HEADER.size + params.size]
        return params

    def set_page_directory(self, device: int, space: int, root: int, entries: int) -> None:
        """Have an address space use page tables in the system's memory, by a bus address."""
        flags = _ALL_CHANNELS | _SYSTEM_COHERENT
        params = (root, entries, flags, space, 0, 1, _NO_PASID)
        content = _DIRECTORY.pack(self.root, device, _NO_PASID, *params)
        with self._lock:
            self.processor.call(_SET_PAGE_DIRECTORY, content, "page tables")
