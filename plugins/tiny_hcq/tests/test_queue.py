"""Queues by themselves: words, symbols, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from queue_machine import SIGNAL, QueuedDevice

from tiny_hcq import HCQSignal, Symbol, Word, halves
from tinycore.errors import ArgumentError, UnsupportedError

Make = Callable[..., QueuedDevice]


def test_a_word_is_a_symbol_plus_a_constant() -> None:
    place = Symbol("place")

    assert (place + 8).value(100) == 108
    assert (place - 1 + 3).value(100) == 102


def test_halves_are_those_of_the_sum() -> None:
    low, high = halves(Symbol("place") + 1)

    assert isinstance(low, Word)
    assert isinstance(high, Word)
    assert (low.value(0xFFFFFFFF), high.value(0xFFFFFFFF)) == (0, 1)
    assert halves(0x500000007) == (7, 5)


def test_a_word_is_a_multiple_of_a_symbol() -> None:
    groups = Symbol("groups")

    assert (groups * 64).value(3) == 192
    assert ((groups + 1) * 64 + 2).value(3) == 258
    assert halves(groups * 64)[0].value(1 << 30) == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("binds", [False, True])
def test_a_queue_is_submitted_again_with_other_multiples(make: Make, binds: bool) -> None:
    device = make(binds=binds)
    value, signal = Symbol("value"), device.new_signal()
    queue = device.compute_queue().signal(signal, value * 64).bind()

    for number in (1, 2, 3):
        queue.submit({value: number})
        signal.wait(number * 64, timeout_ms=5000)


def test_commands_chain_and_are_executed_in_order(device: QueuedDevice) -> None:
    first, second = device.new_signal(), device.new_signal()

    device.compute_queue().wait(first, 3).signal(second, 4).timestamp(second).submit()
    assert second.value == 0
    first.value = 3
    second.wait(4, timeout_ms=5000)
    device.compute_queue().signal(second, 5).submit()
    second.wait(5, timeout_ms=5000)

    assert second.timestamp > 0
    assert second.seconds == second.timestamp / 1e9


@pytest.mark.parametrize("binds", [False, True])
def test_a_queue_is_submitted_again_with_other_numbers(make: Make, binds: bool) -> None:
    device = make(binds=binds)
    value, signal = Symbol("value"), device.new_signal()
    queue = device.compute_queue().signal(signal, value + 10).bind()

    for number in (1, 2, 1 << 40):
        queue.submit({value: number})
        signal.wait(number + 10, timeout_ms=5000)

    assert isinstance(queue.words, memoryview) == binds


def test_only_words_that_changed_are_written(device: QueuedDevice) -> None:
    same, other, signal = Symbol("same"), Symbol("other"), device.new_signal()
    queue = device.copy_queue().signal(signal, same + 1).signal(signal, other + 1)
    queue.submit({same: 1, other: 1})

    queue.words[2] = 99  # what the first submission wrote, spoilt
    queue.submit({same: 1, other: 2})

    assert list(queue.words) == [SIGNAL, signal.address, 99, SIGNAL, signal.address, 3]


def test_a_missing_number_is_told_by_name(device: QueuedDevice) -> None:
    queue = device.compute_queue().signal(device.new_signal(), Symbol("the tide") + 0)

    with pytest.raises(ArgumentError, match="the tide"):
        queue.submit()


def test_a_queue_refuses_what_it_cannot_do(device: QueuedDevice) -> None:
    program = device.function(lambda memories, values: None, 1)
    memory = device.allocator.alloc_visible(64)
    arguments = program.arguments(memory, [memory], ())

    with pytest.raises(UnsupportedError, match="use the copy queue"):
        device.compute_queue().copy(0, 0, 1)
    with pytest.raises(UnsupportedError, match="use the compute queue"):
        device.copy_queue().exec(program, arguments, (1, 1, 1), (1, 1, 1))


def test_slots_of_dropped_signals_are_used_again(device: QueuedDevice) -> None:
    kept = device.new_signal(7)

    addresses = {device.new_signal().address for _ in range(2000)}

    assert len(addresses) < 300
    assert kept.address not in addresses
    assert kept.value == 7


def test_a_driver_says_where_timestamps_lie(
    device: QueuedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As engines that write them at multiples of 32 bytes want."""

    class Wide(HCQSignal):
        """A signal of 64 bytes."""

        __slots__ = ()
        BYTES = 64
        TIMESTAMP_OFFSET = 32

    monkeypatch.setattr(device, "SIGNAL", Wide)
    device.free_slots.clear()
    signals = [device.new_signal(5) for _ in range(300)]
    program = device.function(lambda memories, values: None, 1)
    memory = device.allocator.alloc(8)

    seconds = program([memory], [], wait=True)

    assert seconds is not None
    assert 0 <= seconds < 5
    assert {signal.address % 64 for signal in signals} == {0}
    assert {(signal.value, signal.timestamp) for signal in signals} == {(5, 0)}
