"""The numbers of KGSL's calls, and headers of PM4, against tables of their own."""

from __future__ import annotations

import pytest

from tiny_qcom import kgsl, pm4

COMMAND = (
    "flags@0 cmdlist@8 cmdsize@16 numcmds@20 objlist@24 objsize@32 numobjs@36 synclist@40 "
    "syncsize@48 numsyncs@52 context_id@56 timestamp@60"
)
REQUESTS = {
    "DEVICE_GETPROPERTY": (0xC0180902, "type@0 value@8 sizebytes@16"),
    "SETPROPERTY": (0x40180932, "type@0 value@8 sizebytes@16"),
    "DEVICE_WAITTIMESTAMP_CTXTID": (0x400C0907, "context_id@0 timestamp@4 timeout_ms@8"),
    "DRAWCTXT_CREATE": (0xC0080913, "flags@0 drawctxt_id@4"),
    "DRAWCTXT_DESTROY": (0x40040914, "drawctxt_id@0"),
    "MAP_USER_MEM": (
        0xC0300915,
        "fd@0 gpuaddr@8 len@16 offset@24 hostptr@32 memtype@40 flags@44",
    ),
    "SHAREDMEM_FREE": (0x40080921, "gpuaddr@0"),
    "GPUOBJ_ALLOC": (
        0xC0300945,
        "size@0 flags@8 va_len@16 mmapsize@24 id@32 metadata_len@36 metadata@40",
    ),
    "GPUOBJ_FREE": (0x40200946, "flags@0 priv@8 id@16 type@20 len@24"),
    "GPU_COMMAND": (0xC040094A, COMMAND),
}


@pytest.mark.parametrize("call", kgsl.CALLS, ids=lambda call: call.name)
def test_a_call_has_the_number_and_the_places_of_the_header(call: kgsl.Call) -> None:
    request, places = REQUESTS[call.name]
    assert call.request == request
    found, offset = [], 0
    for name, letter in call.fields:
        found += [f"{name}@{offset}"] if name != "_" else []
        offset += kgsl.LETTERS[letter]
    assert " ".join(found) == places
    assert offset == request >> 16 & 0x3FFF


HEADERS = [
    (0x26, 0, 0x70268000),
    (0x12, 0, 0x70928000),
    (0x10, 1, 0x70100001),
    (0x46, 1, 0x70460001),
    (0x46, 4, 0x70460004),
    (0x65, 1, 0x70E50001),
    (0x34, 3, 0x70348003),
    (0x33, 4, 0x70B30004),
    (0x31, 1, 0x70310001),
    (0x3C, 6, 0x70BC8006),
    (0x3E, 3, 0x703E8003),
    (0x3D, 3, 0x703D8003),
]
WRITES = [
    (0xA9B0, 1, 0x40A9B001),
    (0xA9B0, 10, 0x40A9B08A),
    (0xB990, 7, 0x40B99007),
    (0xB990, 12, 0x40B9908C),
    (0xBB08, 1, 0x40BB0801),
    (0xA9BB, 1, 0x48A9BB01),
    (0xB997, 2, 0x48B99702),
]


@pytest.mark.parametrize(("opcode", "operands", "header"), HEADERS)
def test_headers_of_operations(opcode: int, operands: int, header: int) -> None:
    assert pm4.operation(opcode, operands) == header


@pytest.mark.parametrize(("register", "count", "header"), WRITES)
def test_headers_of_writes(register: int, count: int, header: int) -> None:
    assert pm4.write(register, count) == header
