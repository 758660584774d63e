"""Mistakes in calls of libcuda, and the status that the stand-in gives each, as the driver does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from standin import (
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_PTX,
    INVALID_VALUE,
    NOT_FOUND,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    Card,
    Driver,
    Mistake,
)

from tiny_nv._native import ffi

IMAGE: Final = b"\x7fELF add_"
NOWHERE: Final = 0x99999


class Program:
    """A program of a card that calls the driver as it should; a test does one thing otherwise."""

    def __init__(self, cards: tuple[Card, ...] = (Card(), Card())) -> None:
        self.driver = Driver(cards)
        self.driver.cuInit(0)
        for number in range(len(cards)):
            context = ffi.new("CUcontext *")
            assert self.driver.cuDevicePrimaryCtxRetain(context, number) == 0
        self.enter(0)
        self.stream = self.made("CUstream", "cuStreamCreate", 0)
        self.module = self.loaded(IMAGE)
        self.function = self.made("CUfunction", "cuModuleGetFunction", self.module, b"add_")
        self.block = ffi.new("char[]", 8)
        self.size = ffi.new("size_t *", 8)
        self.extra = self.extra_of(1)

    def enter(self, card: int) -> int:
        """Make the context of a card current."""
        return int(self.driver.cuCtxSetCurrent(ffi.cast("CUcontext", 0x1000 + card)))

    def made(self, kind: str, name: str, *arguments: Any) -> Any:
        """The object that a call makes."""
        place = ffi.new(f"{kind} *")
        assert getattr(self.driver, name)(place, *arguments) == 0
        return place[0]

    def status(self, kind: str, name: str, *arguments: Any) -> int:
        """The status of a call that should make something."""
        return int(getattr(self.driver, name)(ffi.new(f"{kind} *"), *arguments))

    def loaded(self, image: bytes) -> Any:
        """A module."""
        return self.made("CUmodule", "cuModuleLoadDataEx", *self.options(image))

    def options(self, image: bytes, *numbers: int) -> tuple[Any, ...]:
        """Arguments of cuModuleLoadDataEx behind the first."""
        self.kept = ffi.new("char[]", 64)
        values = ffi.new("void *[]", [ffi.cast("void *", self.kept), ffi.cast("void *", 64)])
        wanted = ffi.new("int[]", list(numbers or (5, 6)))
        return ffi.from_buffer(image), 2, wanted, values

    def extra_of(self, first: int) -> Any:
        """The `extra` of a launch."""
        words = [
            *(ffi.cast("void *", first), ffi.cast("void *", self.block)),
            *(ffi.cast("void *", 2), ffi.cast("void *", self.size), ffi.NULL),
        ]
        return ffi.new("void *[]", words)

    def launch(self, **other: Any) -> int:
        """The status of a launch, of which something is otherwise."""
        given = {
            "function": self.function,
            "grid": (1, 1, 1),
            "block": (32, 1, 1),
            "shared": 0,
            "stream": self.stream,
            "parameters": ffi.NULL,
            "extra": self.extra,
        } | other
        words = (given["shared"], given["stream"], given["parameters"], given["extra"])
        return int(
            self.driver.cuLaunchKernel(given["function"], *given["grid"], *given["block"], *words)
        )

    def memory(self, size: int = 64) -> int:
        """An allocation."""
        return int(self.made("CUdeviceptr", "cuMemAlloc_v2", size))

    def graph(self) -> tuple[Any, Any]:
        """A graph of one launch, and its node."""
        graph = self.made("CUgraph", "cuGraphCreate", 0)
        return graph, self.made("CUgraphNode", "cuGraphAddKernelNode_v2", *self.node(graph))

    def node(self, graph: Any, *before: int, **other: Any) -> tuple[Any, ...]:
        """Arguments of a kernel node behind the first."""
        given = {"func": self.function, "block": 32} | other
        self.parameters = ffi.new("CUDA_KERNEL_NODE_PARAMS *")
        p = self.parameters
        p.func, p.extra = given["func"], self.extra
        p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimY = p.blockDimZ = 1
        p.blockDimX = given["block"]
        waits = ffi.new("CUgraphNode[]", [ffi.cast("CUgraphNode", n) for n in before])
        return graph, waits, len(before), p

    def started(self) -> Any:
        """A graph ready to be launched."""
        return self.made("CUgraphExec", "cuGraphInstantiateWithFlags", self.graph()[0], 0)


@pytest.fixture
def program() -> Program:
    """A program with two cards."""
    return Program()


def handle(kind: str, number: int = NOWHERE) -> Any:
    """A handle of nothing."""
    return ffi.cast(kind, number)


def event(p: Program, flags: int = 0) -> Any:
    """An event, recorded."""
    made = p.made("CUevent", "cuEventCreate", flags)
    assert p.driver.cuEventRecord(made, p.stream) == 0
    return made


def elapsed(p: Program, start: Any, end: Any) -> int:
    """The status of a question for the time between events."""
    return int(p.driver.cuEventElapsedTime(ffi.new("float *"), start, end))


def on_other(p: Program, call: Callable[[], int]) -> int:
    """The status of a call while the other card's context is current."""
    p.enter(1)
    return call()


def after(p: Program, first: Callable[[], int], then: Callable[[], int]) -> int:
    """The status of a call behind one that went well."""
    assert first() == 0
    return then()


def twice(p: Program, name: str, *arguments: Any) -> int:
    """The status of a call that went well before."""
    call = getattr(p.driver, name)
    return after(p, lambda: call(*arguments), lambda: call(*arguments))


def copied_back(p: Program) -> int:
    """The status of a copy by the first card's stream while the other's context is current."""
    address = p.memory()
    p.enter(1)
    return int(p.driver.cuMemcpyDtoHAsync_v2(p.block, address, 8, p.stream))


Case = Callable[[Program], int]
CASES: Final[dict[str, tuple[Case, int]]] = {
    "a device beyond the last": (
        lambda p: p.status("CUdevice", "cuDeviceGet", 2),
        INVALID_DEVICE,
    ),
    "an attribute that is none": (
        lambda p: p.driver.cuDeviceGetAttribute(ffi.new("int *"), 9999, 0),
        INVALID_VALUE,
    ),
    "a context that nobody retained": (lambda p: p.enter(7), INVALID_CONTEXT),
    "a context that was released": (
        lambda p: after(p, lambda: p.driver.cuDevicePrimaryCtxRelease_v2(1), lambda: p.enter(1)),
        INVALID_CONTEXT,
    ),
    "a context released twice": (
        lambda p: twice(p, "cuDevicePrimaryCtxRelease_v2", 1),
        INVALID_CONTEXT,
    ),
    "a card as its own peer": (
        lambda p: p.driver.cuDeviceCanAccessPeer(ffi.new("int *"), 1, 1),
        INVALID_DEVICE,
    ),
    "access to a card's own memory as a peer's": (
        lambda p: p.driver.cuCtxEnablePeerAccess(handle("CUcontext", 0x1000), 0),
        217,
    ),
    "access to a peer twice": (
        lambda p: twice(p, "cuCtxEnablePeerAccess", handle("CUcontext", 0x1001), 0),
        704,
    ),
    "access to a peer with flags": (
        lambda p: p.driver.cuCtxEnablePeerAccess(handle("CUcontext", 0x1001), 1),
        INVALID_CONTEXT,
    ),
    "a stream that is none": (
        lambda p: p.driver.cuStreamSynchronize(handle("CUstream")),
        INVALID_HANDLE,
    ),
    "a stream of another card": (
        lambda p: on_other(p, lambda: p.driver.cuStreamSynchronize(p.stream)),
        INVALID_CONTEXT,
    ),
    "a stream destroyed twice": (
        lambda p: twice(p, "cuStreamDestroy_v2", p.stream),
        INVALID_HANDLE,
    ),
    "an event that is none": (
        lambda p: p.driver.cuEventRecord(handle("CUevent"), p.stream),
        INVALID_HANDLE,
    ),
    "a wait for an event that is none": (
        lambda p: p.driver.cuEventSynchronize(handle("CUevent")),
        INVALID_HANDLE,
    ),
    "a stream that waits for an event that is none": (
        lambda p: p.driver.cuStreamWaitEvent(p.stream, handle("CUevent"), 0),
        INVALID_HANDLE,
    ),
    "a stream that is none, waiting": (
        lambda p: p.driver.cuStreamWaitEvent(handle("CUstream"), event(p), 0),
        INVALID_HANDLE,
    ),
    "the time of an event that was not recorded": (
        lambda p: elapsed(p, event(p), p.made("CUevent", "cuEventCreate", 0)),
        INVALID_HANDLE,
    ),
    "the time of an event without times": (
        lambda p: elapsed(p, event(p), event(p, 2)),
        INVALID_HANDLE,
    ),
    "no bytes of memory": (
        lambda p: p.status("CUdeviceptr", "cuMemAlloc_v2", 0),
        INVALID_VALUE,
    ),
    "more memory than there is": (
        lambda p: after(
            p,
            lambda: int(p.memory(600 << 20) == 0),
            lambda: p.status("CUdeviceptr", "cuMemAlloc_v2", 600 << 20),
        ),
        OUT_OF_MEMORY,
    ),
    "memory freed twice": (
        lambda p: twice(p, "cuMemFree_v2", p.memory()),
        INVALID_VALUE,
    ),
    "an address inside of memory freed": (
        lambda p: p.driver.cuMemFree_v2(p.memory() + 8),
        INVALID_VALUE,
    ),
    "the host's memory freed that is none": (
        lambda p: p.driver.cuMemFreeHost(handle("void *")),
        INVALID_VALUE,
    ),
    "a copy by a stream that is none": (
        lambda p: p.driver.cuMemcpyHtoDAsync_v2(p.memory(), p.block, 8, handle("CUstream")),
        INVALID_HANDLE,
    ),
    "a copy back by another card's stream": (copied_back, INVALID_CONTEXT),
    "a copy between cards by a stream that is none": (
        lambda p: p.driver.cuMemcpyPeerAsync(
            p.memory(), NOWHERE, p.memory(), NOWHERE, 8, handle("CUstream")
        ),
        INVALID_HANDLE,
    ),
    "an address that is nobody's": (
        lambda p: p.driver.cuPointerGetAttribute(ffi.new("int *"), 9, NOWHERE),
        INVALID_VALUE,
    ),
    "options of a module that the driver has not": (
        lambda p: p.status("CUmodule", "cuModuleLoadDataEx", *p.options(IMAGE, 5, 9)),
        INVALID_VALUE,
    ),
    "an image that is none": (
        lambda p: p.status("CUmodule", "cuModuleLoadDataEx", *p.options(b"nonsense")),
        INVALID_IMAGE,
    ),
    "a module unloaded twice": (
        lambda p: twice(p, "cuModuleUnload", p.module),
        INVALID_HANDLE,
    ),
    "a function of a module that is none": (
        lambda p: p.status("CUfunction", "cuModuleGetFunction", handle("CUmodule"), b"add_"),
        INVALID_HANDLE,
    ),
    "a function that the module has not": (
        lambda p: p.status("CUfunction", "cuModuleGetFunction", p.module, b"sub_"),
        NOT_FOUND,
    ),
    "an attribute of a function that is none": (
        lambda p: p.driver.cuFuncGetAttribute(ffi.new("int *"), 0, handle("CUfunction")),
        INVALID_HANDLE,
    ),
    "more shared memory than a card has, asked for": (
        lambda p: p.driver.cuFuncSetAttribute(p.function, 8, 228 << 10),
        INVALID_VALUE,
    ),
    "an attribute that cannot be set": (
        lambda p: p.driver.cuFuncSetAttribute(p.function, 1, 1),
        INVALID_VALUE,
    ),
    "a launch of a function that is none": (
        lambda p: p.launch(function=handle("CUfunction")),
        INVALID_HANDLE,
    ),
    "a launch of a function whose module was unloaded": (
        lambda p: after(p, lambda: p.driver.cuModuleUnload(p.module), p.launch),
        INVALID_HANDLE,
    ),
    "a launch by a stream that is none": (
        lambda p: p.launch(stream=handle("CUstream")),
        INVALID_HANDLE,
    ),
    "a launch by another card's stream": (
        lambda p: on_other(p, p.launch),
        INVALID_CONTEXT,
    ),
    "a launch of no blocks": (lambda p: p.launch(grid=(1, 0, 1)), INVALID_VALUE),
    "a launch of more blocks than a grid has": (
        lambda p: p.launch(grid=(1, 65_536, 1)),
        INVALID_VALUE,
    ),
    "a launch of no threads": (lambda p: p.launch(block=(0, 1, 1)), INVALID_VALUE),
    "a launch of too many threads": (lambda p: p.launch(block=(32, 33, 1)), INVALID_VALUE),
    "a launch with more shared memory than was asked for": (
        lambda p: p.launch(shared=(48 << 10) + 1),
        INVALID_VALUE,
    ),
    "a launch with arguments in two ways": (
        lambda p: p.launch(parameters=p.extra),
        INVALID_VALUE,
    ),
    "a launch with arguments in a way that is none": (
        lambda p: p.launch(extra=p.extra_of(3)),
        INVALID_VALUE,
    ),
    "a graph that is none": (
        lambda p: p.status("CUgraphExec", "cuGraphInstantiateWithFlags", handle("CUgraph"), 0),
        INVALID_HANDLE,
    ),
    "a node of a graph that is none": (
        lambda p: p.status("CUgraphNode", "cuGraphAddKernelNode_v2", *p.node(handle("CUgraph"))),
        INVALID_HANDLE,
    ),
    "a node behind one that is none": (
        lambda p: p.status("CUgraphNode", "cuGraphAddKernelNode_v2", *p.node(p.graph()[0], 5)),
        INVALID_VALUE,
    ),
    "a node of a function that is none": (
        lambda p: p.status(
            "CUgraphNode",
            "cuGraphAddKernelNode_v2",
            *p.node(p.graph()[0], func=handle("CUfunction")),
        ),
        INVALID_HANDLE,
    ),
    "new arguments of a node that is none": (
        lambda p: p.driver.cuGraphExecKernelNodeSetParams_v2(
            p.started(), handle("CUgraphNode"), p.parameters
        ),
        INVALID_HANDLE,
    ),
    "a graph launched that was not made ready": (
        lambda p: p.driver.cuGraphLaunch(handle("CUgraphExec"), p.stream),
        INVALID_HANDLE,
    ),
    "a graph launched by a stream that is none": (
        lambda p: p.driver.cuGraphLaunch(p.started(), handle("CUstream")),
        INVALID_HANDLE,
    ),
    "a graph destroyed twice": (
        lambda p: twice(p, "cuGraphDestroy", p.graph()[0]),
        INVALID_HANDLE,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_has_the_status_of_the_driver(program: Program, name: str) -> None:
    call, status = CASES[name]

    assert call(program) == status
    assert not program.driver.launches


def test_without_a_mistake_a_program_runs(program: Program) -> None:
    assert program.launch() == 0
    assert program.driver.cuGraphLaunch(program.started(), program.stream) == 0
    assert len(program.driver.launches) == 2


def test_calls_before_the_first_are_refused() -> None:
    driver = Driver()

    assert driver.cuDeviceGetCount(ffi.new("int *")) == NOT_INITIALIZED


def test_calls_without_a_context_are_refused() -> None:
    driver = Driver()
    driver.cuInit(0)

    assert driver.cuStreamCreate(ffi.new("CUstream *"), 0) == INVALID_CONTEXT
    assert driver.cuMemAlloc_v2(ffi.new("CUdeviceptr *"), 8) == INVALID_CONTEXT


def test_text_of_ptx_ends_in_a_zero(program: Program) -> None:
    with pytest.raises(Mistake, match="does not end in a zero byte"):
        program.loaded(b".version 8.0")


def test_what_the_assembler_refuses_is_no_module(program: Program) -> None:
    program.driver.log = b"error"

    assert program.status("CUmodule", "cuModuleLoadDataEx", *program.options(IMAGE)) == INVALID_PTX


def test_copies_stay_within_an_allocation(program: Program) -> None:
    address = program.memory(64)
    with pytest.raises(Mistake, match="beyond the allocation's end"):
        program.driver.cuMemcpyHtoDAsync_v2(address + 60, program.block, 8, program.stream)
    with pytest.raises(Mistake, match="in no allocation"):
        program.driver.cuMemcpyDtoHAsync_v2(program.block, NOWHERE, 8, program.stream)


def test_a_lost_context_answers_every_call(program: Program) -> None:
    program.driver.lose(700)

    assert program.launch() == 700
    assert program.driver.cuStreamSynchronize(program.stream) == 700


def test_a_status_that_a_test_asks_for_is_given_once(program: Program) -> None:
    program.driver.fail("cuLaunchKernel", 701)

    assert [program.launch(), program.launch()] == [701, 0]
