"""Structures of NVIDIA's kernel driver, by the sizes and offsets that its headers give (gcc, gdb on
tags 570.144, 580.142, 595.45.04, 610.43.03).
"""

from __future__ import annotations

import pytest
from nvk_headers import (
    PAGE,
    TAGS,
    bit_of,
    gsp_layouts,
    gsp_rows,
    is_named,
    measured,
    own,
    structure_rows,
)

from tiny_nv.nvk.layouts import BRANCHES, Record, branch_of, layouts_of
from tinycore.errors import DeviceUnavailable

SIZES: dict[str, int | dict[int, int]] = {
    "card_info": 72,
    "check_version": 72,
    "register_fd": 4,
    "NVOS00": 16,
    "NVOS02": 56,
    "NVOS21": 32,
    "NVOS33": 56,
    "NVOS34": 32,
    "NVOS46": {570: 56, 575: 56, 580: 64, 590: 64, 595: 64, 610: 64},
    "NVOS47": 48,
    "NVOS54": 32,
    "device": 56,
    "subdevice": 4,
    "va_space": {570: 48, 575: 48, 580: 56, 590: 56, 595: 56, 610: 56},
    "memory": 128,
    "channel_group": 20,
    "context_share": 12,
    "channel": {570: 368, 575: 368, 580: 368, 590: 368, 595: 368, 610: 376},
    "debugger": 12,
    "id_info": 32,
    "gid_info": 268,
    "gr_info": 32,
    "schedule": {570: 2, 575: 3, 580: 3, 590: 3, 595: 3, 610: 3},
    "sm_errors": 4824,
    "mmu_faults": 72,
    "uvm_initialize": 16,
    "uvm_register_gpu": 40,
    "uvm_register_gpu_vaspace": 32,
    "uvm_register_channel": 56,
    "uvm_unregister_channel": {570: 28, 575: 28, 580: 28, 590: 12, 595: 12, 610: 12},
    "uvm_create_external_range": 24,
    "uvm_map_external": 9264,
    "uvm_mapping": 36,
    "uvm_unmap_external": 40,
    "uvm_free": {570: 24, 575: 24, 580: 24, 590: 16, 595: 16, 610: 16},
    "uvm_enable_peer": 36,
    "uvm_unregister_gpu": 20,
}
OFFSETS: dict[tuple[str, str], int | dict[int, int]] = {
    ("NVOS21", "hClass"): 12,
    ("NVOS21", "pAllocParms"): 16,
    ("NVOS21", "paramsSize"): 24,
    ("NVOS21", "status"): 28,
    ("NVOS54", "cmd"): 8,
    ("NVOS54", "params"): 16,
    ("NVOS54", "paramsSize"): 24,
    ("NVOS54", "status"): 28,
    ("NVOS00", "hObjectOld"): 8,
    ("NVOS00", "status"): 12,
    ("NVOS02", "pMemory"): 24,
    ("NVOS02", "limit"): 32,
    ("NVOS02", "status"): 40,
    ("NVOS02", "fd"): 48,
    ("NVOS33", "hMemory"): 8,
    ("NVOS33", "length"): 24,
    ("NVOS33", "status"): 40,
    ("NVOS33", "fd"): 48,
    ("NVOS46", "flags"): 32,
    ("NVOS46", "dmaOffset"): {570: 40, 575: 40, 580: 48, 590: 48, 595: 48, 610: 48},
    ("NVOS46", "status"): {570: 48, 575: 48, 580: 56, 590: 56, 595: 56, 610: 56},
    ("NVOS47", "dmaOffset"): 24,
    ("NVOS47", "status"): 40,
    ("card_info", "gpu_id"): 16,
    ("card_info", "minor_number"): 56,
    ("memory", "attr"): 24,
    ("memory", "attr2"): 28,
    ("memory", "format"): 32,
    ("memory", "size"): 64,
    ("memory", "alignment"): 72,
    ("memory", "limit"): 88,
    ("va_space", "flags"): 4,
    ("va_space", "vaSize"): 8,
    ("va_space", "vaBase"): 40,
    ("channel", "gpFifoOffset"): 8,
    ("channel", "gpFifoEntries"): 16,
    ("channel", "hContextShare"): 24,
    ("channel", "hUserdMemory"): {570: 32, 575: 32, 580: 32, 590: 32, 595: 32, 610: 36},
    ("channel", "userdOffset"): {570: 64, 575: 64, 580: 64, 590: 64, 595: 64, 610: 72},
    ("channel", "engineType"): {570: 128, 575: 128, 580: 128, 590: 128, 595: 128, 610: 136},
    ("channel", "instanceMem"): {570: 144, 575: 144, 580: 144, 590: 144, 595: 144, 610: 152},
    ("channel", "internalFlags"): {570: 244, 575: 244, 580: 244, 590: 244, 595: 244, 610: 252},
    ("uvm_map_external", "attributes"): 24,
    ("uvm_map_external", "count"): 9240,
    ("uvm_map_external", "hMemory"): 9256,
    ("uvm_map_external", "rmStatus"): 9260,
    ("uvm_free", "rmStatus"): {570: 16, 575: 16, 580: 16, 590: 8, 595: 8, 610: 8},
    ("uvm_unregister_channel", "hChannel"): {570: 20, 575: 20, 580: 20, 590: 4, 595: 4, 610: 4},
    ("sm_errors", "mmuFaultInfo"): 4808,
    ("sm_errors", "startingSM"): 4820,
    ("mmu_faults", "count"): 64,
}


def of_branch(value: int | dict[int, int], branch: int) -> int:
    return value[branch] if isinstance(value, dict) else value


@pytest.mark.parametrize("branch", BRANCHES)
def test_sizes_are_those_of_the_headers(branch: int) -> None:
    layouts = layouts_of(branch)

    assert {name: layouts[name].size for name in SIZES} == {
        name: of_branch(size, branch) for name, size in SIZES.items()
    }


@pytest.mark.parametrize("branch", BRANCHES)
def test_fields_are_where_the_headers_have_them(branch: int) -> None:
    layouts = layouts_of(branch)

    found = {(name, field): layouts[name].fields[field][0] for name, field in OFFSETS}

    assert found == {key: of_branch(offset, branch) for key, offset in OFFSETS.items()}


@pytest.mark.parametrize("branch", BRANCHES)
def test_no_field_lies_in_another_or_behind_the_structure(branch: int) -> None:
    for layout in layouts_of(branch).values():
        spans = sorted(layout.fields.values())
        ends = [offset + size for offset, size in spans]

        assert all(end <= begin for end, (begin, _) in zip(ends, spans[1:], strict=False))
        assert ends[-1] <= layout.size


@pytest.mark.parametrize(
    ("version", "branch"),
    [
        ("570.144", 570),
        ("575.64.05", 575),
        ("580.159.03", 580),
        ("590.48.01", 590),
        ("595.45.04", 595),
    ],
)
def test_the_version_decides_the_branch(version: str, branch: int) -> None:
    assert branch_of(version) == branch


@pytest.mark.parametrize("version", ["560.35.03", "620.10", "", "unknown"])
def test_another_branch_is_refused(version: str) -> None:
    with pytest.raises(DeviceUnavailable, match=r"570, 575, 580, 590, 595, 610.*DEV=CUDA"):
        branch_of(version)


def test_a_record_holds_numbers_and_bytes() -> None:
    record = Record(layouts_of(580)["uvm_register_gpu"], uuid=bytes(range(16)), rmCtrlFd=-1)

    assert record.data[:16] == bytes(range(16))
    assert record.data[24:28] == b"\xff" * 4
    assert record.number("rmCtrlFd") == 0xFFFFFFFF
    assert record.size == 40


def test_structures_are_those_that_a_compiler_lays_out() -> None:
    part = PAGE.read_text("utf-8").partition("## Structures")[2].partition("## Structures for")[0]
    rows = [line for line in part.splitlines() if line.startswith("| ")][2:]

    assert structure_rows({tag: own(branch) for branch, tag in TAGS.items()}) == rows
    assert {row.split(" | ")[0][2:] for row in rows} == layouts_of(580).keys()


def test_structures_for_firmware_are_those_that_a_compiler_lays_out() -> None:
    part = PAGE.read_text("utf-8").partition("for firmware")[2].partition("## Launch")[0]
    rows = [line for line in part.splitlines() if line.startswith("| ")][2:]

    assert gsp_rows(measured(gsp_layouts())) == rows


def test_headers_are_read_as_they_are_written() -> None:
    assert bit_of("927", 3) == 927
    assert bit_of("(1055+(i)*64)", 2) == 1183
    assert is_named("RELEASE_ADDRESS_LOWER", {"RELEASE_SEMAPHORE_ADDR_LOWER"})
    assert is_named("GRID_WIDTH", {"CTA_RASTER_WIDTH"})
    assert not is_named("GRID_WIDTH", {"CTA_RASTER_HEIGHT"})
    assert not is_named("BARRIER_COUNT", set())
