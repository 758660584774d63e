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

from tiny_nv.nvk.layouts import Layout, layout, layouts_of
from tiny_nv.nvk.qmd import FIELDS
from tiny_nv.pci.firmware import FIRMWARE_VERSION
from tiny_nv.pci.fsp import BOOT, CHAIN
from tiny_nv.pci.gsp import RM_ARGUMENTS
from tiny_nv.pci.layout import WPR_META
from tiny_nv.pci.manager import OF_GSP

__all__ = ["PAGE", "Measured", "gsp_rows", "qmd_rows", "structure_rows"]

PAGE: Final = Path(__file__).parents[3] / "benchmarks/results/2026-11-26-nv-headers.md"
TAGS: Final = {570: "570.144", 575: "575.64.05", 580: "580.142", 590: "590.48.01", 595: "595.45.04"}
"""A release of each branch whose source is published; 610 was not at hand."""
FOLDERS: Final = (
    "src/common/sdk/nvidia/inc",
    "src/nvidia/arch/nvalloc/unix/include",
    "kernel-open/nvidia-uvm",
    "kernel-open/common/inc",
)
GSP_FOLDERS: Final = (
    "src/common/sdk/nvidia/inc",
    "src/nvidia/arch/nvalloc/common/inc",
    "src/nvidia/inc",
)
GSP_INCLUDES: Final = (
    "stddef.h stdio.h nvtypes.h nvos.h alloc/alloc_channel.h class/cl0000.h "
    "ctrl/ctrl2080/ctrl2080internal.h ctrl/ctrl2080/ctrl2080gpu.h gsp/gsp_fw_wpr_meta.h "
    "gsp/gspifpub.h kernel/gpu/fsp/kern_fsp_cot_payload.h kernel/gpu/gsp/gsp_init_args.h"
).split()
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
GSP_STRUCTURES: Final[Mapping[str, str]] = {
    "root": "NV0000_ALLOC_PARAMETERS",
    "static_gr_info": "NV2080_CTRL_INTERNAL_STATIC_GR_GET_INFO_PARAMS "
    "infos=engineInfo[0].infoList[0]",
    "context_buffers": "NV2080_CTRL_INTERNAL_STATIC_GR_GET_CONTEXT_BUFFERS_INFO_PARAMS "
    "buffers=engineContextBuffersInfo[0].engine[0]",
    "promote": "NV2080_CTRL_GPU_PROMOTE_CTX_PARAMS entries=promoteEntry[0]",
    "promoted": "NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ENTRY",
    "memory_place": "NV_MEMORY_DESC_PARAMS",
    "channel": "NV_CHANNEL_ALLOC_PARAMS hUserdMemory=hUserdMemory[0] userdOffset=userdOffset[0]",
    "wpr_meta": "GspFwWprMeta",
    "chain_of_trust": "NVDM_PAYLOAD_COT",
    "boot_arguments": "GSP_FMC_BOOT_PARAMS descriptor=bootGspRmParams.gspRmDescOffset "
    "is_manager=bootGspRmParams.bIsGspRmBoot arguments=gspRmParams.bootArgsOffset",
    "arguments": "GSP_ARGUMENTS_CACHED",
}
"""The same of structures for the firmware of a card without a kernel driver."""
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


PACKED: Final = (
    layout(
        "wpr_meta",
        WPR_META.size,
        "magic@0:8 sysmemAddrOfRadix3Elf@16:8 bootloaderManifestOffset@64:8 nonWprHeapSize@104:8 "
        "gspFwHeapSize@128:8 frtsSize@160:8 fbSize@176:8 vgaWorkspaceSize@192:8 "
        "pmuReservedSize@244",
    ),
    layout(
        "chain_of_trust",
        CHAIN.size,
        "version@0:2 size@2:2 gspFmcSysmemOffset@4:8 frtsSysmemOffset@12:8 frtsSysmemSize@20 "
        "frtsVidmemOffset@24:8 frtsVidmemSize@32 hash384@36:48 publicKey@84:384 signature@468:384 "
        "gspBootArgsSysmemOffset@852:8",
    ),
    layout("boot_arguments", BOOT.size, "descriptor@16:8 is_manager@36:1 arguments@48:8"),
    layout(
        "arguments",
        RM_ARGUMENTS.size,
        "messageQueueInitArguments@0:32 srInitArguments@32:12 gpuInstance@44 profilerArgs@56:16",
    ),
)
"""Structures that are packed by `struct`, whose sizes are the driver's."""


def gsp_layouts() -> dict[str, Layout]:
    """Structures for the firmware."""
    return {each.name: each for each in (*OF_GSP, *PACKED)}


def measure(
    modules: Path,
    tag: str,
    layouts: Mapping[str, Layout],
    structures: Mapping[str, str] = STRUCTURES,
    folders: tuple[str, ...] = FOLDERS,
    includes: list[str] = INCLUDES,
) -> dict[str, Measured]:
    """The structures of a release, by gcc."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "-C", str(modules), "archive", tag, *folders]
        packed = subprocess.run(command, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        source = Path(folder) / "measure.c"
        lines = [*(f"#include <{name}>" for name in includes), "int main(void) {"]
        for each in layouts.values():
            lines += measurements(structures[each.name], each)
        source.write_text("\n".join([*lines, "return 0; }"]), "utf-8")
        program = source.with_suffix("")
        paths = [f"-I{folder}/{name}" for name in folders]
        options = ["-w", "-DNV_UNIX", "-DNV_LINUX", *paths]
        subprocess.run(["gcc", *options, str(source), "-o", str(program)], check=True)
        told = subprocess.run([program], capture_output=True, check=True, text=True).stdout
    return parsed(told)


def measurements(names_in_c: str, structure: Layout) -> Iterator[str]:
    """Statements that print a structure."""
    kind, *pairs = names_in_c.split()
    names = dict(pair.split("=") for pair in pairs)
    before = names.pop("*", "")
    name = structure.name
    yield f'printf("{name} . %zu 0\\n", sizeof({kind}));'
    for field in structure.fields:
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


def structure_rows(
    found: Mapping[str, Mapping[str, Measured]], names: Mapping[str, str] = STRUCTURES
) -> list[str]:
    """Rows of the page, one for each layout of a structure, from structures by tags and names."""
    rows = []
    for name in names:
        by_layout: dict[str, list[str]] = {}
        for tag, structures in found.items():
            one = structures[name]
            fields = (f"{f}@{at}:{size}" for f, (at, size) in one.fields.items())
            by_layout.setdefault(f"{one.size} | {' '.join(fields)}", []).append(tag)
        kind = names[name].split()[0]
        for shown, tags in by_layout.items():
            rows.append(f"| {name} | `{kind}` | {', '.join(tags)} | {shown} |")
    return rows


def gsp_rows(found: Mapping[str, Measured]) -> list[str]:
    """Rows of the page about structures for the firmware."""
    return structure_rows({FIRMWARE_VERSION: found}, GSP_STRUCTURES)


def measured(layouts: Mapping[str, Layout]) -> dict[str, Measured]:
    """Structures as NV has them."""
    return {name: Measured(each.size, each.fields) for name, each in layouts.items()}


def own(branch: int) -> dict[str, Measured]:
    """The structures of a branch as NV has them."""
    return measured(layouts_of(branch))


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
    firmware = measure(
        asked.modules, FIRMWARE_VERSION, gsp_layouts(), GSP_STRUCTURES, GSP_FOLDERS, GSP_INCLUDES
    )
    wrong += [
        f"firmware {FIRMWARE_VERSION}, {name}: {firmware[name]}, NV has {ours}"
        for name, ours in measured(gsp_layouts()).items()
        if firmware[name] != ours
    ]
    told = {version: header_spans(asked.doc, version) for version in HEADERS}
    spans = qmd_spans()
    wrong += [
        f"descriptors of version {version}: {name} is not at {span}"
        for (version, name), each in spans.items()
        for span in each
        if not is_named(name, told[version].get(span, set()))
    ]
    every = (*found.values(), firmware)
    fields = sum(len(each.fields) for structures in every for each in structures.values())
    count = sum(map(len, spans.values()))
    print("\n".join(wrong) or f"{fields} fields and {count} spans are where the headers have them")
    if asked.page is not None and not wrong:
        asked.page.write_text(page_of(found, firmware, fields, count), "utf-8")
    return int(bool(wrong))


def page_of(
    found: Mapping[str, Mapping[str, Measured]],
    firmware: Mapping[str, Measured],
    fields: int,
    spans: int,
) -> str:
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
        "## Structures for firmware",
        "",
        "Those that a card's own processors get where no kernel driver is between.",
        "",
        "| structure | in C | release | bytes | fields, with their first byte and bytes |",
        "| --- | --- | --- | --- | --- |",
        *gsp_rows(firmware),
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
