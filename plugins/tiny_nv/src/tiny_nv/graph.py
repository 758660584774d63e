"""Command graphs: launches in a CUDA graph, which one call runs.

Each launch waits for the one before it, as on a stream. What changes from run to run is put into
the instantiated graph before it is launched.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tiny_nv._lib import ffi
from tiny_nv.program import Arguments, CudaProgram
from tinycore.errors import UnsupportedError
from tinycore.plugin import Launch

if TYPE_CHECKING:
    from tiny_nv.device import CudaDevice

__all__ = ["CudaGraph"]


class Node:
    """One launch of a graph, with arguments of its own."""

    def __init__(self, program: CudaProgram, buffers: Sequence[int], values: Sequence[int]) -> None:
        self.program = program
        self.arguments = Arguments(program.device, program.info)
        self.arguments.fill(buffers, values)
        self.values = list(values)
        info, shared = program.info, program.shared_bytes
        parameters = [program.function, *info.groups(values), *info.block, shared]
        parameters += [self.arguments.parameters, self.arguments.extra, ffi.NULL, ffi.NULL]
        self.parameters: Any = ffi.new("CUDA_KERNEL_NODE_PARAMS *", parameters)
        self.handle: Any = None

    def set_value(self, position: int, value: int) -> None:
        """Use another value of a variable, and launch as many groups as it asks for."""
        info, parameters = self.program.info, self.parameters
        self.values[position] = value
        self.arguments.set_value(info.buffers + position, value)
        if info.grid_extents:
            groups = info.groups(self.values)
            parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = groups


class CudaGraph:
    """Launches of one card's programs, in order."""

    def __init__(self, device: CudaDevice, launches: Sequence[Launch]) -> None:
        self._device = device
        self._nodes: list[Node] = []
        self._changed: set[int] = set()
        for program, buffers, values in launches:
            if not isinstance(program, CudaProgram) or program.device is not device:
                raise UnsupportedError(f"a graph holds programs of its own card, not {program!r}")
            self._nodes.append(Node(program, buffers, values))
        self._names = (
            f"a graph of {', '.join(dict.fromkeys(n.program.info.name for n in self._nodes))}"
        )
        graph = device.got("CUgraph *", "cuGraphCreate", 0)
        # Its nodes name what is changed in the executable graph: it lives as long.
        weakref.finalize(self, device.quietly, "cuGraphDestroy", graph)
        self._executable = self._instantiated(graph)
        weakref.finalize(self, device.quietly, "cuGraphExecDestroy", self._executable)

    def _instantiated(self, graph: Any) -> Any:
        device, before = self._device, list[Any]()
        for node in self._nodes:
            waits = ffi.new("CUgraphNode[]", before) if before else ffi.NULL
            place = (graph, waits, len(before), node.parameters)
            node.handle = device.got("CUgraphNode *", "cuGraphAddKernelNode_v2", *place)
            before = [node.handle]
        return device.got("CUgraphExec *", "cuGraphInstantiateWithFlags", graph, 0)

    def set_buffer(self, launch: int, slot: int, handle: int) -> None:
        """From now on, launch number `launch` uses `handle` in this slot."""
        self._nodes[launch].arguments.set_buffer(slot, handle)
        self._changed.add(launch)

    def set_value(self, launch: int, position: int, value: int) -> None:
        """From now on, launch number `launch` uses this value for its variable at `position`."""
        self._nodes[launch].set_value(position, value)
        self._changed.add(launch)

    def __call__(self, *, wait: bool = False) -> float | None:
        """Launch them all, in order. With `wait`, wait for the end and return the seconds."""
        device = self._device
        device.enter()
        if self._changed:
            self._update()
        if not wait:
            device.launch_graph(self._names, self._executable)
            return None
        with device.timed() as seconds:
            device.launch_graph(self._names, self._executable)
        return seconds()

    def _update(self) -> None:
        """Put the arguments of changed nodes into the graph; the context is current."""
        update, executable = self._device.driver.cuGraphExecKernelNodeSetParams_v2, self._executable
        for number in self._changed:
            node = self._nodes[number]
            if status := update(executable, node.handle, node.parameters):
                self._device.fail(status, "cuGraphExecKernelNodeSetParams_v2", self._names)
        self._changed.clear()
