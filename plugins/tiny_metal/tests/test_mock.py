"""The mock itself: it stops what Apple's validation stops, and knows what was freed and what leaks.

Messages are sent by hand, as the plugin sends them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from metal_kernels import ADD

from tiny_metal import _lib
from tiny_metal._lib import NIL, Metal, Pool, ffi, metal

if TYPE_CHECKING:
    from mock_metal.metal import Mac

pytestmark = pytest.mark.usefixtures("mock")


class Hand:
    """Metal by hand: a device, a queue, a pipeline and two buffers."""

    def __init__(self, mac: Mac) -> None:
        self.mac = mac
        self.metal: Metal = metal()
        self.send = self.metal.send
        self.device = mac.MTLCreateSystemDefaultDevice()
        self.queue = self.send(self.device, "newCommandQueue")
        self.buffers = [self.buffer(256), self.buffer(256)]
        self.pipeline = self.made()

    def buffer(self, size: int, options: int = 0) -> Any:
        return self.send(self.device, "newBufferWithLength:options:", size, options)

    def made(self, source: str = ADD, indirect: int = 0) -> Any:
        """A pipeline."""
        with Pool(self.metal):
            options = self.metal.new("MTLCompileOptions")
            self.send(options, "setMathMode:", 0)
            self.send(options, "setLanguageVersion:", 3 << 16 | 1)
            place = (self.metal.string(source), options, NIL)
            error = ffi.new("id *")
            library = self.send(
                self.device, "newLibraryWithSource:options:error:", *place[:2], error
            )
            function = self.send(library, "newFunctionWithName:", self.metal.string("add_"))
            described = self.metal.new("MTLComputePipelineDescriptor")
            self.send(described, "setComputeFunction:", function)
            self.send(described, "setSupportIndirectCommandBuffers:", indirect)
            selector = "newComputePipelineStateWithDescriptor:options:reflection:error:"
            pipeline = self.send(self.device, selector, described, 0, NIL, error)
            for item in (options, library, function, described):
                self.send(item, "release")
            return pipeline

    def encode(self, encoder: Any) -> None:
        """A whole launch."""
        self.send(encoder, "setComputePipelineState:", self.pipeline)
        for slot, buffer in enumerate(self.buffers):
            self.send(encoder, "setBuffer:offset:atIndex:", buffer, 0, slot)
        self.send(encoder, "setBytes:length:atIndex:", bytes(8), 8, 2)
        sizes = ((2, 1, 1), (32, 1, 1))
        self.send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:", *sizes)

    def close(self) -> None:
        for item in (self.pipeline, *self.buffers, self.queue, self.device):
            self.send(item, "release")


@pytest.fixture
def hand(mac: Mac) -> Iterator[Hand]:
    made = Hand(mac)
    yield made
    made.close()
    mac.world.misuses.clear()


def run(hand: Hand, encode: Any) -> int:
    """The status of a command buffer that something was encoded in."""
    with Pool(hand.metal):
        commands = hand.send(hand.queue, "commandBuffer")
        encoder = hand.send(commands, "computeCommandEncoder")
        encode(encoder)
        hand.send(encoder, "endEncoding")
        hand.send(commands, "commit")
        hand.send(commands, "waitUntilCompleted")
        return int(hand.send(commands, "status"))


def test_a_whole_launch_completes(hand: Hand) -> None:
    assert run(hand, hand.encode) == 4
    assert hand.mac.misuses == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("setComputePipelineState:",), "a launch without a pipeline"),
        (("setBuffer:offset:atIndex:",), "nothing is bound to data0 in slot 0"),
        (("setBytes:length:atIndex:",), "nothing is bound to values in slot 2"),
    ],
)
def test_what_was_not_set_is_missed(hand: Hand, change: tuple[str], words: str) -> None:
    send = hand.send

    def without(receiver: Any, selector: str, *arguments: Any) -> Any:
        return None if selector in change else send(receiver, selector, *arguments)

    hand.send = without
    assert run(hand, hand.encode) == 5
    hand.send = send
    assert any(words in misuse for misuse in hand.mac.misuses)


@pytest.mark.parametrize(
    ("selector", "arguments", "words"),
    [
        ("setBuffer:offset:atIndex:", ("buffer", 0, 31), "slot 31: there are 31"),
        ("setBuffer:offset:atIndex:", ("buffer", 256, 0), "offset 256 of a buffer of 256 bytes"),
        ("setBuffer:offset:atIndex:", ("nil", 0, 0), "a Buffer is needed, not nil"),
        ("setBuffer:offset:atIndex:", ("queue", 0, 0), "a Buffer is needed, not CommandQueue"),
        ("setBytes:length:atIndex:", (b"", 4097, 3), "setBytes of 4097 bytes"),
        ("setComputePipelineState:", ("buffer",), "a Pipeline is needed, not Buffer"),
        ("dispatchThreadgroups:threadsPerThreadgroup:", ((1, 1, 1), (2048, 1, 1)), "2048"),
        ("useResources:count:usage:", ("array", 1, 0), "usage 0"),
    ],
)
@pytest.mark.sample(4)
def test_wrong_arguments_are_refused(
    hand: Hand, selector: str, arguments: tuple[Any, ...], words: str
) -> None:
    known = {
        "buffer": hand.buffers[0],
        "nil": NIL,
        "queue": hand.queue,
        "array": ffi.new("id[]", hand.buffers[:1]),
    }

    def encode(encoder: Any) -> None:
        hand.encode(encoder)
        given = [known.get(x, x) if isinstance(x, str) else x for x in arguments]
        hand.send(encoder, selector, *given)

    run(hand, encode)
    assert any(words in misuse for misuse in hand.mac.misuses), hand.mac.misuses


def test_states_are_strict(hand: Hand) -> None:
    send = hand.send
    with Pool(hand.metal):
        commands = send(hand.queue, "commandBuffer")
        send(commands, "waitUntilCompleted")
        encoder = send(commands, "computeCommandEncoder")
        send(commands, "blitCommandEncoder")
        send(commands, "commit")
        send(commands, "GPUStartTime")
        send(encoder, "endEncoding")
        send(encoder, "endEncoding")
        send(commands, "commit")
        send(commands, "commit")
        send(commands, "computeCommandEncoder")
        send(commands, "waitUntilCompleted")  # the queue holds it until then
    said = "\n".join(hand.mac.misuses)
    for words in (
        "waited for before its commit",
        "begun before the one before has ended",
        "commit before endEncoding",
        "times of a command buffer that has not ended",
        "used after endEncoding",
        "committed twice",
        "an encoder of a command buffer that is committed",
    ):
        assert words in said


def test_messages_to_what_was_freed_or_has_no_such_method(hand: Hand) -> None:
    buffer = hand.buffer(16)
    hand.send(buffer, "release")
    assert hand.send(buffer, "length") == 0
    assert hand.mac.misuses == ["length is sent to a Buffer that was freed"]
    hand.send(hand.queue, "contents")
    assert hand.mac.misuses[1].startswith("contents is sent to a CommandQueue")
    assert hand.send(NIL, "length") == 0


def test_what_is_freed_while_it_is_used_stays(hand: Hand) -> None:
    """A command buffer holds what was encoded until it has ended."""
    hand.mac.plan.delay = (0.01, 0.02)
    extra = hand.buffer(256)
    mine, hand.buffers[0] = hand.buffers[0], extra
    with Pool(hand.metal):
        commands = hand.send(hand.queue, "commandBuffer")
        encoder = hand.send(commands, "computeCommandEncoder")
        hand.encode(encoder)
        hand.send(encoder, "endEncoding")
        hand.send(commands, "commit")
        hand.send(extra, "release")
        assert hand.mac.left["Buffer"] >= 3
        hand.send(commands, "waitUntilCompleted")
        assert hand.send(commands, "status") == 4
    hand.buffers[0] = mine


def test_pools_are_of_their_thread_and_leaks_are_told(hand: Hand) -> None:
    hand.send(hand.queue, "commandBuffer")
    assert hand.mac.misuses == ["CommandBuffer is autoreleased without a pool: it leaks"]
    assert hand.mac.left["CommandBuffer"] == 1
    for item in list(hand.mac.world.alive.values()):
        if type(item).__name__ == "CommandBuffer":
            item.release()
    pool = hand.mac.objc_autoreleasePoolPush()
    worker = threading.Thread(target=hand.mac.objc_autoreleasePoolPop, args=(pool,))
    worker.start()
    worker.join()
    assert "this thread has not pushed" in hand.mac.misuses[1]
    hand.mac.objc_autoreleasePoolPop(pool)


def test_pools_nest(hand: Hand) -> None:
    """Ending a pool ends those inside, and releases what each has."""
    outer = hand.mac.objc_autoreleasePoolPush()
    hand.send(hand.queue, "commandBuffer")
    inner = hand.mac.objc_autoreleasePoolPush()
    hand.send(hand.queue, "commandBuffer")
    assert hand.mac.left["CommandBuffer"] == 2
    hand.mac.objc_autoreleasePoolPop(inner)
    assert hand.mac.left["CommandBuffer"] == 1
    hand.mac.objc_autoreleasePoolPush()
    hand.send(hand.queue, "commandBuffer")
    hand.mac.objc_autoreleasePoolPop(outer)
    assert "CommandBuffer" not in hand.mac.left
    assert hand.mac.misuses == []


def test_times_of_command_buffers_follow_each_other(hand: Hand) -> None:
    hand.mac.plan.delay = (0.0, 0.001)
    times = []
    with Pool(hand.metal):
        given = [hand.send(hand.queue, "commandBuffer") for _ in range(5)]
        for commands in given:
            encoder = hand.send(commands, "computeCommandEncoder")
            hand.encode(encoder)
            hand.send(encoder, "endEncoding")
            hand.send(commands, "commit")
        for commands in given:
            hand.send(commands, "waitUntilCompleted")
            times += [hand.send(commands, "GPUStartTime"), hand.send(commands, "GPUEndTime")]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_queues_are_independent_and_wait_by_events(hand: Hand) -> None:
    """The first queue waits for what the second signals later."""
    send, order = hand.send, []
    other = send(hand.device, "newCommandQueue")
    event = send(hand.device, "newSharedEvent")
    with Pool(hand.metal):
        first = send(hand.queue, "commandBuffer")
        send(first, "encodeWaitForEvent:value:", event, 7)
        send(first, "commit")
        second = send(other, "commandBuffer")
        send(second, "encodeSignalEvent:value:", event, 7)
        order.append(int(send(first, "status")))
        send(second, "commit")
        send(first, "waitUntilCompleted")
        order.append(int(send(first, "status")))
        send(second, "waitUntilCompleted")
        assert order[0] < 4 <= order[1]
        assert send(first, "GPUEndTime") >= send(first, "GPUStartTime")
    send(other, "release")
    send(event, "release")
    assert hand.mac.misuses == []


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        ((0, 0, 1, 0, 257), "257 bytes from 0 of 256"),
        ((0, 200, 1, 0, 100), "100 bytes from 200 of 256"),
        ((0, 0, 1, 200, 100), "100 bytes to 200 of 256"),
        ((0, 0, 0, 8, 16), "a copy of bytes onto themselves"),
        ((0, 0, 1, 0, 0), "a copy of no bytes"),
    ],
)
def test_copies_stay_inside(hand: Hand, copy: tuple[int, ...], words: str) -> None:
    source, start, target, place, size = copy
    with Pool(hand.metal):
        commands = hand.send(hand.queue, "commandBuffer")
        encoder = hand.send(commands, "blitCommandEncoder")
        selector = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:"
        given = (hand.buffers[source], start, hand.buffers[target], place, size)
        hand.send(encoder, selector, *given)
        hand.send(encoder, "endEncoding")
        hand.send(commands, "commit")
        hand.send(commands, "waitUntilCompleted")
        assert hand.send(commands, "status") == 5
    assert hand.mac.misuses == [words]


def test_fast_math_is_refused(hand: Hand) -> None:
    with Pool(hand.metal):
        options = hand.metal.new("MTLCompileOptions")
        error = ffi.new("id *")
        place = (hand.metal.string(ADD), options, error)
        assert hand.send(hand.device, "newLibraryWithSource:options:error:", *place) == NIL
        hand.send(options, "release")
    assert "fast math" in hand.mac.misuses[0]


def test_an_indirect_command_needs_all_that_a_gpu_needs(hand: Hand) -> None:
    """On an M1: resident buffers, and its pipeline set on the encoder before."""
    send = hand.send
    plain, hand.pipeline = hand.pipeline, hand.made(indirect=1)
    described = hand.metal.new("MTLIndirectCommandBufferDescriptor")
    send(described, "setCommandTypes:", 32)
    send(described, "setInheritBuffers:", 0)
    send(described, "setMaxKernelBufferBindCount:", 3)
    selector = "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"
    indirect = send(hand.device, selector, described, 1, 0)
    command = send(indirect, "indirectComputeCommandAtIndex:", 0)
    values = hand.buffer(8)
    buffers = [*hand.buffers, values]

    def refused(encoder: Any) -> None:
        send(encoder, "executeCommandsInBuffer:withRange:", indirect, (0, 1))

    assert run(hand, refused) == 5
    send(command, "setComputePipelineState:", plain)
    send(command, "setComputePipelineState:", hand.pipeline)
    for slot, buffer in enumerate(buffers):
        send(command, "setKernelBuffer:offset:atIndex:", buffer, 0, slot)
    assert run(hand, refused) == 5
    sizes = ((2, 1, 1), (32, 1, 1))
    send(command, "concurrentDispatchThreadgroups:threadsPerThreadgroup:", *sizes)
    assert run(hand, refused) == 5

    def resident(encoder: Any) -> None:
        send(encoder, "useResources:count:usage:", ffi.new("id[]", buffers), 3, 3)
        refused(encoder)

    assert run(hand, resident) == 5

    def right(encoder: Any) -> None:
        send(encoder, "setComputePipelineState:", hand.pipeline)
        none = ((0, 0, 0), (0, 0, 0))
        send(encoder, "dispatchThreadgroups:threadsPerThreadgroup:", *none)
        resident(encoder)

    assert run(hand, right) == 4
    said = "\n".join(hand.mac.misuses)
    for words in (
        "an indirect command without a pipeline",
        "was not made for indirect command buffers",
        "an indirect command that launches nothing",
        "not made resident",
        "a pipeline is not set on the encoder before",
    ):
        assert words in said
    for item in (plain, values, indirect, described):
        send(item, "release")


def test_commands_without_barriers_run_in_any_order(mac: Mac) -> None:
    from mock_metal.metal import IndirectCommand, batches  # noqa: PLC0415

    commands = [IndirectCommand(1) for _ in range(5)]
    for place in (2, 3):
        commands[place].set_barrier()
    assert [len(batch) for batch in batches(commands)] == [2, 1, 2]
    for command in commands:
        command.release()


def test_a_mac_without_the_runtime_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lib, "_opened", [])
    if sys.platform != "darwin":
        with pytest.raises(Exception, match="Metal is a part of macOS"):
            metal()
