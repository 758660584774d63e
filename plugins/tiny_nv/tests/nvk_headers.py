"""Structures and launch descriptors of NV beside NVIDIA's own headers, measured by a C compiler.

    git clone https://github.com/NVIDIA/open-gpu-kernel-modules modules
    git clone https://github.com/NVIDIA/open-gpu-doc doc
    python plugins/tiny_nv/tests/nvk_headers.py modules doc --page FILE

Each field of `tiny_nv.nvk.layouts` is measured by `offsetof` and `sizeof` on a release of each
branch, and each span of `tiny_nv.nvk.qmd` is looked up in the header of its class. The status is 1
where one differs. `test_nvk_layouts.py` and `test_nvk_qmd.py` compare the page with the tables.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tiny_nv.nvk.layouts import Layout, layouts_of
from tiny_nv.nvk.qmd import FIELDS

__all__ = ["PAGE", "Measured", "qmd_rows", "structure_rows"]

PAGE: Final = Path(__file__).parents[3] / "benchmarks/results/2026-11-26-nv-headers.md"
TAGS: Final = {570: "570.144", 580: "580.142", 590: "590.48.01", 595: "595.45.04"}
"""A release of each branch whose source is published; 610 was not at hand."""
FOLDERS: Final = (
    "src/common/sdk/nvidia/inc",
    "src/nvidia/arch/nvalloc/unix/include",
    "kernel-open/nvidia-uvm",
    "kernel-open/common/inc",
)
INCLUDES: Final = (
    "stddef.h stdio.h nvtypes.h nvos.h nv-ioctl.h nv-unix-nvos-params-wrappers.h "
    "alloc/alloc_channel.h class/cl0080.h class/cl2080.h class/cl0005.h class/cl83de.h "
    "class/clc661.h ctrl/ctrl0000/ctrl0000gpu.h ctrl/ctrl0080/ctrl0080gpu.h ctrl/ctrl2080.h "
    "ctrl/ctrla06c.h ctrl/ctrlc36f.h ctrl/ctrl83de.h ctrl/ctrl906f.h uvm_ioctl.h uvm_linux_ioctl.h"
).split()
STRUCTURES: Final[Mapping[str, str]] = {
    "card_info": "nv_ioctl_card_info_t domain=pci_info.domain bus=pci_info.bus slot=pci_info.slot "
    "func=pci_info.function vendor=pci_info.vendor_id device=pci_info.device_id",
    "check_version": "nv_ioctl_rm_api_version_t string=versionString",
    "register_fd": "nv_ioctl_register_fd_t",
    "NVOS00": "NVOS00_PARAMETERS",
    "NVOS02": "nv_ioctl_nvos02_parameters_with_fd *=params. fd=fd",
    "NVOS21": "NVOS21_PARAMETERS",
    "NVOS33": "nv_ioctl_nvos33_parameters_with_fd *=params. fd=fd",
    "NVOS34": "NVOS34_PARAMETERS",
    "NVOS46": "NVOS46_PARAMETERS",
    "NVOS47": "NVOS47_PARAMETERS",
    "NVOS54": "NVOS54_PARAMETERS",
    "device": "NV0080_ALLOC_PARAMETERS vaStart=vaStartInternal vaLimit=vaLimitInternal",
    "subdevice": "NV2080_ALLOC_PARAMETERS",
    "usermode": "NV_HOPPER_USERMODE_A_PARAMS",
    "va_space": "NV_VASPACE_ALLOCATION_PARAMETERS",
    "memory": "NV_MEMORY_ALLOCATION_PARAMS",
    "channel_group": "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
    "context_share": "NV_CTXSHARE_ALLOCATION_PARAMETERS",
    "channel": "NV_CHANNEL_ALLOC_PARAMS hUserdMemory=hUserdMemory[0] userdOffset=userdOffset[0]",
    "debugger": "NV83DE_ALLOC_PARAMETERS hDebuggerClient=hDebuggerClient_Obsolete",
    "alloc_os_event": "nv_ioctl_alloc_os_event_t status=Status",
    "event": "NV0005_ALLOC_PARAMETERS",
    "set_notification": "NV2080_CTRL_EVENT_SET_NOTIFICATION_PARAMS",
    "id_info": "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS",
    "class_list": "NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS",
    "gid_info": "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS uuid=data",
    "perf_boost": "NV2080_CTRL_PERF_BOOST_PARAMS",
    "gr_info": "NV2080_CTRL_GR_GET_INFO_PARAMS listSize=grInfoListSize list=grInfoList",
    "ctx_buffer_size": "NV2080_CTRL_GR_GET_CTX_BUFFER_SIZE_PARAMS",
    "work_submit_token": "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS "
    "token=workSubmitToken",
    "schedule": "NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS",
    "sm_errors": "NV83DE_CTRL_DEBUG_READ_ALL_SM_ERROR_STATES_PARAMS states=smErrorStateArray[0] "
    "mmuFaultValid=mmuFault.valid mmuFault=mmuFault.faultInfo",
    "mmu_faults": "NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_PARAMS faults=mmuFaultInfoList[0]",
    "channel_fault": "NV906F_CTRL_GET_MMU_FAULT_INFO_PARAMS type=faultType",
    "uvm_initialize": "UVM_INITIALIZE_PARAMS",
    "uvm_mm_initialize": "UVM_MM_INITIALIZE_PARAMS",
    "uvm_register_gpu": "UVM_REGISTER_GPU_PARAMS uuid=gpu_uuid",
    "uvm_register_gpu_vaspace": "UVM_REGISTER_GPU_VASPACE_PARAMS uuid=gpuUuid",
    "uvm_register_channel": "UVM_REGISTER_CHANNEL_PARAMS uuid=gpuUuid",
    "uvm_unregister_channel": "UVM_UNREGISTER_CHANNEL_PARAMS uuid=gpuUuid",
    "uvm_create_external_range": "UVM_CREATE_EXTERNAL_RANGE_PARAMS",
    "uvm_map_external": "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS attributes=perGpuAttributes[0] "
    "count=gpuAttributesCount",
    "uvm_mapping": "UvmGpuMappingAttributes uuid=gpuUuid mappingType=gpuMappingType "
    "cachingType=gpuCachingType formatType=gpuFormatType elementBits=gpuElementBits "
    "compressionType=gpuCompressionType",
    "uvm_unmap_external": "UVM_UNMAP_EXTERNAL_PARAMS uuid=gpuUuid",
    "uvm_free": "UVM_FREE_PARAMS",
    "uvm_enable_peer": "UVM_ENABLE_PEER_ACCESS_PARAMS uuidA=gpuUuidA uuidB=gpuUuidB",
    "uvm_unregister_gpu": "UVM_UNREGISTER_GPU_PARAMS uuid=gpu_uuid",
}
"""C names of structures, and of fields whose names differ; `*` is put before all others."""
PREFIXES: Final = {("gid_info", "uuid"): "the first 16 bytes of 256 that depend on a flag"}
"""Fields that are a part of the header's."""
HEADERS: Final = {
    3: ("clc6c0qmd.h", "03_00"),
    4: ("clcbc0qmd.h", "04_00"),
    5: ("clcec0qmd.h", "05_00"),
}
DEFINITION: Final = re.compile(
    r"^#define NV\w+?_QMDV(\d\d_\d\d)_(\w+?)(\(i\))?\s+MW\(([^:\n]*):([^:\n]*)\)", re.MULTILINE
)
INDICES: Final = 8
RENAMED: Final = (
    ("GRID_", "CTA_RASTER_"),
    ("RELEASE_ADDRESS", "RELEASE_SEMAPHORE_ADDR"),
    ("RELEASE_PAYLOAD_", "RELEASE_SEMAPHORE_PAYLOAD_"),
)
"""Names of ours, and the header's; numbers within names are left out of both."""


class Measured(NamedTuple):
    """A structure as a compiler lays it out."""

    size: int
    fields: Mapping[str, tuple[int, int]]


def measure(modules: Path, tag: str, layouts: Mapping[str, Layout]) -> dict[str, Measured]:
    """The structures of a release, by gcc."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "-C", str(modules), "archive", tag, *FOLDERS]
        packed = subprocess.run(command, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        source = Path(folder) / "measure.c"
        lines = [*(f"#include <{name}>" for name in INCLUDES), "int main(void) {"]
        lines += [line for name, each in layouts.items() for line in measurements(name, each)]
        source.write_text("\n".join([*lines, "return 0; }"]), "utf-8")
        program = source.with_suffix("")
        paths = [f"-I{folder}/{name}" for name in FOLDERS]
        options = ["-w", "-DNV_UNIX", "-DNV_LINUX", *paths]
        subprocess.run(["gcc", *options, str(source), "-o", str(program)], check=True)
        told = subprocess.run([program], capture_output=True, check=True, text=True).stdout
    return parsed(told)


def measurements(name: str, layout: Layout) -> Iterator[str]:
    """Statements that print a structure."""
    kind, *pairs = STRUCTURES[name].split()
    names = dict(pair.split("=") for pair in pairs)
    before = names.pop("*", "")
    yield f'printf("{name} . %zu 0\\n", sizeof({kind}));'
    for field in layout.fields:
        member = names.get(field, before + field)
        size = f"sizeof((({kind} *)0)->{member})"
        yield f'printf("{name} {field} %zu %zu\\n", offsetof({kind}, {member}), {size});'


def parsed(told: str) -> dict[str, Measured]:
    """Structures from the lines that were printed."""
    found: dict[str, Measured] = {}
    for line in told.splitlines():
        name, field, *numbers = line.split()
        first, second = map(int, numbers)
        if field == ".":
            found[name] = Measured(first, fields := {})
        else:
            part = 16 if (name, field) in PREFIXES else second
            fields[field] = (first, part)
    return found


def structure_rows(found: Mapping[str, Mapping[str, Measured]]) -> list[str]:
    """Rows of the page, one for each layout of a structure, from structures by tags and names."""
    rows = []
    for name in STRUCTURES:
        by_layout: dict[str, list[str]] = {}
        for tag, structures in found.items():
            measured = structures[name]
            fields = (f"{f}@{at}:{size}" for f, (at, size) in measured.fields.items())
            by_layout.setdefault(f"{measured.size} | {' '.join(fields)}", []).append(tag)
        kind = STRUCTURES[name].split()[0]
        for shown, tags in by_layout.items():
            rows.append(f"| {name} | `{kind}` | {', '.join(tags)} | {shown} |")
    return rows


def own(branch: int) -> dict[str, Measured]:
    """The structures as NV has them."""
    return {name: Measured(each.size, each.fields) for name, each in layouts_of(branch).items()}


# --- launch descriptors


def header_spans(doc: Path, version: int) -> dict[tuple[int, int], set[str]]:
    """Names of fields by their highest and lowest bits, without the numbers in the names."""
    file, prefix = HEADERS[version]
    command = ["git", "-C", str(doc), "show", f"HEAD:classes/compute/{file}"]
    text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found: dict[tuple[int, int], set[str]] = {}
    for told, name, indexed, *bits in DEFINITION.findall(text):
        for index in range(INDICES if indexed else 1) if told == prefix else ():
            high, low = (bit_of(each, index) for each in bits)
            found.setdefault((high, low), set()).add(re.sub(r"\d", "", name))
    return found


def bit_of(text: str, index: int) -> int:
    """A bit as a header writes it: a number, or a first one and a step of `i`."""
    first, *steps = map(int, re.findall(r"\d+", text))
    return first + steps[-1] * index if steps else first


def qmd_spans() -> dict[tuple[int, str], list[tuple[int, int]]]:
    """Spans of NV's table, by version and name."""
    return {
        (version, name): [(span.high + by, span.low + by) for by in span.offsets]
        for version in HEADERS
        for name, by_version in FIELDS.items()
        if (span := by_version.get(version)) is not None
    }


def is_named(name: str, told: set[str]) -> bool:
    """True if one of the header's names means the field."""
    wanted = re.sub(r"\d", "", name)
    for ours, theirs in RENAMED:
        wanted = wanted.replace(ours, theirs)
    names = {wanted, re.sub(r"\d", "", name)}
    return any(each in other for each in names for other in told)


def qmd_rows(spans: Mapping[tuple[int, str], list[tuple[int, int]]]) -> list[str]:
    """Rows of the page, one for each field of a version."""
    return [
        f"| {version} | {name} | {' '.join(f'{high}:{low}' for high, low in found)} |"
        for (version, name), found in spans.items()
    ]


# --- the page


def main(arguments: list[str]) -> int:
    """Compare, and write the page; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", type=Path)
    parser.add_argument("doc", type=Path)
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(arguments)
    found = {tag: measure(asked.modules, tag, layouts_of(branch)) for branch, tag in TAGS.items()}
    wrong = [
        f"{tag} {name}: {structures[name]}, NV has {ours}"
        for (branch, tag), structures in zip(TAGS.items(), found.values(), strict=True)
        for name, ours in own(branch).items()
        if structures[name] != ours
    ]
    told = {version: header_spans(asked.doc, version) for version in HEADERS}
    spans = qmd_spans()
    wrong += [
        f"descriptors of version {version}: {name} is not at {span}"
        for (version, name), each in spans.items()
        for span in each
        if not is_named(name, told[version].get(span, set()))
    ]
    fields = sum(len(each.fields) for structures in found.values() for each in structures.values())
    count = sum(map(len, spans.values()))
    print("\n".join(wrong) or f"{fields} fields and {count} spans are where the headers have them")
    if asked.page is not None and not wrong:
        asked.page.write_text(page_of(found, fields, count), "utf-8")
    return int(bool(wrong))


def page_of(found: Mapping[str, Mapping[str, Measured]], fields: int, spans: int) -> str:
    """The page."""
    lines = (
        "# Structures and launch descriptors of NV, by NVIDIA's headers",
        "",
        "Written by `python plugins/tiny_nv/tests/nvk_headers.py MODULES DOC --page FILE`: gcc",
        f"lays out the structures of open-gpu-kernel-modules {', '.join(found)},",
        "the headers of open-gpu-doc tell where fields of descriptors lie.",
        "",
        f"{fields} fields of structures and {spans} spans of descriptors are where NV has them,",
        "and none is elsewhere. No source of branch 610 was at hand: its structures are those of",
        "the facts.",
        "",
        "## Structures",
        "",
        "| structure | in C | releases | bytes | fields, with their first byte and bytes |",
        "| --- | --- | --- | --- | --- |",
        *structure_rows(found),
        "",
        "## Launch descriptors",
        "",
        "| version | field | bits, of each index |",
        "| --- | --- | --- |",
        *qmd_rows(qmd_spans()),
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
