"""Kernels on a WebGPU device: pipelines, what is bound to them, and the clock of the device.

A kernel finds everything in bind group 0: the buffer of slot n at binding n, and at ARGUMENTS
words of 32 bits: where each bound buffer starts, in bytes from its binding, two words for each
variable, the low one first, and one that is 0.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

from tiny_webgpu._lib import BindingType, BufferUsage, Pointer, ffi, new, owned, string
from tiny_webgpu.memory import WORD_BYTES, Block, DeviceMemory
from tinycore.plugin import ProgramInfo

if TYPE_CHECKING:
    from tiny_webgpu.device import WebGpuDevice

__all__ = ["ARGUMENTS", "ENTRY", "Clock", "Pipeline", "WebGpuProgram", "bindings_of"]

ARGUMENTS: Final = 100
"""The binding of a kernel's arguments, above those of any buffer."""
ENTRY: Final = "main"
"""The entry point of every kernel: their names may be words of WGSL."""
_COMPUTE_STAGE: Final = 4
_SHADER_SOURCE_WGSL: Final = 2
_TIMESTAMP: Final = 2
_MOST_GROUPS: Final = 16
"""Bind groups that a program keeps for the buffers it was launched with last."""
_WRITTEN: Final = b"var<storage, read_write>"
_DECLARED: Final = re.compile(r"@binding\((\d+)\) var<storage, (read|read_write)>")


class Span(NamedTuple):
    """The part of a buffer that is bound."""

    block: Block
    start: int
    size: int


def are_disjoint(spans: Sequence[Span]) -> bool:
    """True if no two of them have a byte in common."""
    ordered = sorted(spans, key=lambda span: (id(span.block), span.start))
    return all(a.block is not b.block or a.start + a.size <= b.start for a, b in pairwise(ordered))


def bindings_of(source: str) -> dict[int, BindingType]:
    """The slots that a kernel declares, and how it uses each."""
    kinds = {"read": BindingType.READ_ONLY_STORAGE, "read_write": BindingType.STORAGE}
    return {int(slot): kinds[access] for slot, access in _DECLARED.findall(source)}


class Pipeline:
    """A compiled kernel, and the layout of what is bound to it. The caller looks for errors."""

    def __init__(self, device: WebGpuDevice, source: bytes, name: str) -> None:
        lib = device.lib
        self._made_of = device, source, name
        text = source.decode("utf-8")
        self.bindings = bindings_of(text)
        self.has_arguments = "var<uniform>" in text
        code, entry = ffi.new("char[]", source), ffi.new("char[]", ENTRY.encode())
        label = ffi.new("char[]", name.encode())
        chain = {"sType": _SHADER_SOURCE_WGSL}
        chained = new("WGPUShaderSourceWGSL", chain=chain, code=string(code))
        plain = new("WGPUPlainDescriptor", nextInChain=chained, label=string(label))
        module = lib.wgpuDeviceCreateShaderModule(device.pointer, plain)
        self.layout = owned(self._group_layout(device), lib.wgpuBindGroupLayoutRelease)
        layouts = ffi.new("void *[]", [self.layout])
        plan = new("WGPUPipelineLayoutDescriptor", bindGroupLayoutCount=1, bindGroupLayouts=layouts)
        layout = lib.wgpuDeviceCreatePipelineLayout(device.pointer, plan)
        stage = {"module": module, "entryPoint": string(entry)}
        descriptor = new("WGPUComputePipelineDescriptor", layout=layout, compute=stage)
        pointer = lib.wgpuDeviceCreateComputePipeline(device.pointer, descriptor)
        self.pointer = owned(pointer, lib.wgpuComputePipelineRelease)
        lib.wgpuPipelineLayoutRelease(layout)
        lib.wgpuShaderModuleRelease(module)

    @cached_property
    def all_written(self) -> Pipeline:
        """The same kernel, which says of every buffer that it may write it.

        WebGPU lets a launch bind parts of one buffer that do not overlap if all are used alike.
        """
        device, source, name = self._made_of
        return Pipeline(device, source.replace(b"var<storage, read>", _WRITTEN), name)

    def _group_layout(self, device: WebGpuDevice) -> Pointer:
        rows = [
            {"binding": slot, "visibility": _COMPUTE_STAGE, "buffer": {"type": int(kind)}}
            for slot, kind in self.bindings.items()
        ]
        if self.has_arguments:
            uniform = {"type": int(BindingType.UNIFORM), "hasDynamicOffset": 1}
            rows.append({"binding": ARGUMENTS, "visibility": _COMPUTE_STAGE, "buffer": uniform})
        entries = ffi.new("WGPUBindGroupLayoutEntry[]", rows)
        descriptor = new("WGPUBindGroupLayoutDescriptor", entryCount=len(rows), entries=entries)
        return device.lib.wgpuDeviceCreateBindGroupLayout(device.pointer, descriptor)


class WebGpuProgram:
    """A kernel, launched by calling it."""

    def __init__(self, device: WebGpuDevice, pipeline: Pipeline, info: ProgramInfo) -> None:
        self.info = info
        self._device = device
        self._pipeline = pipeline
        self._groups: OrderedDict[tuple[Span, ...], Pointer] = OrderedDict()
        words = len(pipeline.bindings) + 2 * len(info.values)
        self._argument_bytes = (words // 4 + 1) * 16
        self._pack = struct.Struct(f"<{len(pipeline.bindings)}I{len(info.values)}q").pack

    def __call__(
        self, buffers: Sequence[DeviceMemory], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Launch. With `wait`, the seconds the device took, by its own clock where it has one."""
        device = self._device
        with device.lock:
            clock = device.clock if wait else None
            if wait and clock is None:
                device.synchronize()
            began = perf_counter()
            self._record(buffers, values, ffi.NULL if clock is None else clock.writes)
            if clock is not None:
                return clock.seconds()
            if not wait:
                device.recorded()
                return None
            device.synchronize()
            return perf_counter() - began

    def _record(
        self, buffers: Sequence[DeviceMemory], values: Sequence[int], timestamps: Pointer
    ) -> None:
        """Record one launch, with the copies around it, all in what is submitted together."""
        device, lib = self._device, self._device.lib
        device.make_room(self._argument_bytes)
        handles = {slot: buffers[slot] for slot in self._pipeline.bindings}
        spans = tuple([self._span(handle) for handle in handles.values()])
        pipeline, borrowed = self._pipeline, []
        if len({span.block for span in spans}) < len(spans):
            if are_disjoint(spans):
                pipeline = pipeline.all_written
            else:
                borrowed = self._apart(handles)
                spans = tuple([self._span(handle) for handle in handles.values()])
        starts = [h.start - s.start for h, s in zip(handles.values(), spans, strict=True)]
        offsets = []
        if self._pipeline.has_arguments:
            words = self._pack(*starts, *values)
            offsets = [device.argue(words.ljust(self._argument_bytes, b"\0"))]
        descriptor = new("WGPUComputePassDescriptor", timestampWrites=timestamps)
        passing = lib.wgpuCommandEncoderBeginComputePass(device.encoder(), descriptor)
        lib.wgpuComputePassEncoderSetPipeline(passing, pipeline.pointer)
        lib.wgpuComputePassEncoderSetBindGroup(
            passing, 0, self._group(pipeline, spans), len(offsets), ffi.new("uint32_t[]", offsets)
        )
        lib.wgpuComputePassEncoderDispatchWorkgroups(passing, *self.info.groups(values))
        lib.wgpuComputePassEncoderEnd(passing)
        lib.wgpuComputePassEncoderRelease(passing)
        self._give_back(borrowed)

    def _span(self, handle: DeviceMemory) -> Span:
        """The part of a buffer that is bound: from where a binding may start to whole words."""
        start = handle.start - handle.start % self._device.storage_alignment
        end = handle.start + handle.size
        return Span(handle.block, start, end + -end % WORD_BYTES - start)

    def _group(self, pipeline: Pipeline, spans: tuple[Span, ...]) -> Pointer:
        """The bind group of some buffers, made at the first launch with them."""
        found = self._groups.get(spans)
        if found is not None:
            self._groups.move_to_end(spans)
            return found
        device = self._device
        rows = [
            {"binding": slot, "buffer": span.block.pointer, "offset": span.start, "size": span.size}
            for slot, span in zip(pipeline.bindings, spans, strict=True)
        ]
        if self._pipeline.has_arguments:
            size = self._argument_bytes
            rows.append({"binding": ARGUMENTS, "buffer": device.arguments.pointer, "size": size})
        entries = ffi.new("WGPUBindGroupEntry[]", rows)
        descriptor = new(
            "WGPUBindGroupDescriptor",
            layout=pipeline.layout,
            entryCount=len(rows),
            entries=entries,
        )
        pointer = device.lib.wgpuDeviceCreateBindGroup(device.pointer, descriptor)
        self._groups[spans] = group = owned(pointer, device.lib.wgpuBindGroupRelease)
        if len(self._groups) > _MOST_GROUPS:
            self._groups.popitem(last=False)
        return group

    # --- one buffer in several slots

    def _apart(self, handles: dict[int, DeviceMemory]) -> list[tuple[DeviceMemory, DeviceMemory]]:
        """Exchange handles for copies where a written buffer is bound twice, which WebGPU forbids.

        The pairs (copy, original) of those that are written.
        """
        written = {s for s, kind in self._pipeline.bindings.items() if kind is BindingType.STORAGE}
        in_place = {handles[slot].block: slot for slot in sorted(written, reverse=True)}
        borrowed = []
        for slot, handle in list(handles.items()):
            if in_place.get(handle.block, slot) != slot:
                handles[slot] = copy = self._copy(handle)
                if slot in written:
                    borrowed.append((copy, handle))
        return borrowed

    def _copy(self, handle: DeviceMemory) -> DeviceMemory:
        """The words around a handle in a buffer of their own, given back when it is not needed."""
        start, end = handle.words(handle.size)
        copy = self._device.temporary(end - start)
        self._device.copy(copy, 0, handle.block, start, end - start)
        return DeviceMemory(copy, handle.start - start, handle.size)

    def _give_back(self, borrowed: list[tuple[DeviceMemory, DeviceMemory]]) -> None:
        """Copy what was written to a copy back to where it belongs."""
        for copy, original in borrowed:
            start, end = original.words(original.size)
            self._device.copy(original.block, start, copy.block, 0, end - start)


class Clock:
    """Two timestamps around a launch, in nanoseconds of the device."""

    _BYTES: Final = 16

    def __init__(self, device: WebGpuDevice) -> None:
        self._device = device
        descriptor = new("WGPUQuerySetDescriptor", type=_TIMESTAMP, count=2)
        pointer = device.lib.wgpuDeviceCreateQuerySet(device.pointer, descriptor)
        self._queries = owned(pointer, device.lib.wgpuQuerySetRelease)
        usage = BufferUsage.QUERY_RESOLVE | BufferUsage.COPY_SRC
        self._times = device.create_block(self._BYTES, usage)
        self.writes = new(
            "WGPUComputePassTimestampWrites",
            querySet=self._queries,
            beginningOfPassWriteIndex=0,
            endOfPassWriteIndex=1,
        )
        """The timestamp writes of a timed pass."""

    def seconds(self) -> float:
        """The time between the two of the launch recorded last; waits for it."""
        device = self._device
        device.lib.wgpuCommandEncoderResolveQuerySet(
            device.encoder(), self._queries, 0, 2, self._times.pointer, 0
        )
        read = bytearray(self._BYTES)
        device.read(self._times, 0, memoryview(read))
        began, ended = struct.unpack("<2Q", read)
        nanoseconds: int = max(ended - began, 0)
        return nanoseconds * 1e-9
