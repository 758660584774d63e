"""LLVM's own listing of machine code, each instruction as words and as text, and our decoder's.

`+dumpcode` has LLVM put a listing into the object, in a section `.AMDGPU.disasm`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import llvmlite.binding as llvm
from emulation.faults import SyntaxFault
from emulator import cdna3, rdna2
from emulator.cdna3 import Cdna3Decoder
from emulator.decode import Decoder, decode
from emulator.rdna2 import Rdna2Decoder
from emulator.rdna4 import Rdna4Decoder

from tiny_amd.arch import arch_of

TRIPLE: Final = "amdgcn-amd-amdhsa"
SECTION: Final = ".AMDGPU.disasm"
DECODERS: Final[Mapping[str, type[Decoder]]] = {
    "gfx1030": Rdna2Decoder,
    "gfx1100": Decoder,
    "gfx1201": Rdna4Decoder,
    "gfx942": Cdna3Decoder,
}
LIKE_RDNA3: Final = {
    **{f"s_{op}_co_{kind}": f"s_{op}_{kind}" for op in ("add", "sub") for kind in ("u32", "i32")},
    "s_addk_co_i32": "s_addk_i32",
    "s_add_co_ci_u32": "s_addc_u32",
    "s_sub_co_ci_u32": "s_subb_u32",
    "v_mad_co_u64_u32": "v_mad_u64_u32",
    "v_mad_co_i64_i32": "v_mad_i64_i32",
}
"""Operations of RDNA4 that the emulator calls as RDNA3 does."""
WMMA: Final = re.compile(r"v_wmma_(\w+?)_16x16x16_(\w+)")
"""Matrix instructions, which have the names of RDNA3 and other operands."""
SUFFIXES: Final = ("_e64_dpp", "_e32", "_e64", "_sdwa", "_dpp")


def listed(source: str, arch: str, features: str = "") -> list[tuple[str, bytes]]:
    """Mnemonic, without the encoding that it may name, and code of each instruction of a module."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    wanted = ",".join(word for word in (features, *arch_of(arch).features, "+dumpcode") if word)
    machine = target.create_target_machine(cpu=arch, features=wanted, opt=2, reloc="pic")
    module = llvm.parse_assembly(source)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return [*instructions(section(machine.emit_object(module), SECTION).decode())]


def instructions(listing: str) -> Iterator[tuple[str, bytes]]:
    """Lines of a listing: text, a semicolon and words in hexadecimal."""
    for line in listing.splitlines():
        text, _, words = line.rpartition(" ; ")
        if text.startswith("\t"):
            code = b"".join(struct.pack("<I", int(word, 16)) for word in words.split())
            yield plain(text.split()[0]), code


def plain(mnemonic: str) -> str:
    """The name of an operation without that of its encoding."""
    for suffix in SUFFIXES:
        mnemonic = mnemonic.removesuffix(suffix)
    return mnemonic


def emulated_name(mnemonic: str, arch: str) -> str:
    """The emulator's name of what LLVM calls otherwise."""
    if arch == "gfx1030":
        return rdna2.renamed(mnemonic)
    if arch == "gfx942":
        return cdna3.renamed(mnemonic)
    if arch == "gfx1201":
        mnemonic = WMMA.sub(r"v_wmma12_\1_\2", mnemonic)
        return LIKE_RDNA3.get(mnemonic, mnemonic.replace("_num_", "_"))
    return mnemonic


@cache
def disagreement(mnemonic: str, code: bytes, arch: str) -> str:
    """Disagreement of the decoder with a listed instruction, in words; "" for none."""
    try:
        instruction = decode(code + bytes(12), 0, DECODERS[arch])
    except SyntaxFault as fault:
        return f"{mnemonic} ({code.hex()}): {fault}"
    found = (instruction.name, instruction.size)
    if found == (emulated_name(mnemonic, arch), len(code)):
        return ""
    return f"{mnemonic} of {len(code)} bytes ({code.hex()}) is read as {found}"


def section(data: bytes, name: str) -> bytes:
    """A section of an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    strings = headers[names][4]
    for header in headers:
        start = strings + header[0]
        if data[start : data.index(b"\0", start)].decode() == name:
            return data[header[4] : header[4] + header[5]]
    raise LookupError(f"no section {name}")
