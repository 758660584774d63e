"""Faults of NV's cards in words: which kernel, which address, by whatever the driver tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from cubin import Code
from driver_memory import written
from rm_standin import Machine, Status
from rm_standin.cards import H200, CardFacts
from simulated_nv import opened
from test_nvk_driver import load, machine_of

from tiny_nv.nvk.device import NvDevice
from tinycore import Context
from tinycore.errors import DeviceError

MISALIGNED = 0xF
LARGE: CardFacts = replace(H200, gpcs=9, tpcs=9, absent_sms=30)
"""A card of 132 multiprocessors, whose counts of units multiply to 162."""


@pytest.fixture(params=[H200, replace(H200, absent_sms=3), LARGE], ids=["whole", "5", "132"])
def device(request: pytest.FixtureRequest) -> Iterator[NvDevice]:
    found = opened(Machine((request.param,)))
    machine_of(found).tells_faults = True
    yield found
    with Context(WAIT_TIMEOUT_MS=200):
        found.close()


def test_a_multiprocessor_names_kernel_and_address(device: NvDevice) -> None:
    program, source = load(device), written(device, range(65))
    device.synchronize()
    wrong = source.offset(2, 256)
    program([wrong, source], [1])
    code = program.memory.address + Code.ADDEND

    with pytest.raises(DeviceError) as raised:
        device.synchronize()
    assert f"kernel add at {code:#x}" in str(raised.value)
    assert f"an address that is not aligned ({wrong.address:#x})" in str(raised.value)


def test_the_last_multiprocessor_is_asked_too(device: NvDevice) -> None:
    program = load(device)
    device.synchronize()
    channel = machine_of(device).resources.channels[0]
    facts = channel.gpu.facts
    last = facts.gpcs * facts.tpcs * facts.sms - facts.absent_sms - 1
    channel.fault["sms"] = {last: (MISALIGNED, program.memory.address, 0x1234)}
    assert channel.ring is not None
    channel.ring.fail(13)

    assert "kernel add" in device.fault()
    assert "(0x1234)" in device.fault()


def freed(device: NvDevice) -> int:
    """Launch a kernel that reads memory which was given back: its address."""
    program, source = load(device), written(device, range(64))
    device.synchronize()
    device.allocator.free(source)
    program([source, source], [1])
    return source.address


def test_channels_are_asked_where_the_debugger_tells_no_accesses(device: NvDevice) -> None:
    machine_of(device).failures["control 0x83de0328"] = Status.NOT_SUPPORTED
    address = freed(device)
    with pytest.raises(DeviceError) as raised:
        device.synchronize()
    assert f"an access at {address:#x}: nothing is mapped there" in str(raised.value)
    assert "kernel add" in str(raised.value)


def test_a_card_without_a_debugger_tells_by_its_channels() -> None:
    machine = Machine((H200,))
    machine.failures["alloc 0x83de"] = Status.INSUFFICIENT_PERMISSIONS
    device = opened(machine)
    address = freed(device)
    with pytest.raises(DeviceError, match=f"an access at {address:#x}"):
        device.synchronize()


@pytest.mark.parametrize(
    ("code", "text"),
    [(40, "a copy failed"), (131, "a copy failed"), (154, "has to be reset"), (999, "an error")],
)
def test_codes_of_errors(code: int, text: str) -> None:
    device = opened(Machine((H200,)))
    ring = machine_of(device).resources.channels[0].ring
    assert ring is not None
    ring.fail(code)
    assert f"{text} (Xid {code})" in device.fault()
