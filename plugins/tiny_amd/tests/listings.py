"""LLVM's own listing of machine code: each instruction as words and as text.

`+dumpcode` has LLVM put a listing into the object, in a section `.AMDGPU.disasm`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import llvmlite.binding as llvm

SECTION: Final = ".AMDGPU.disasm"
SUFFIXES: Final = ("_e64_dpp", "_e32", "_e64", "_sdwa", "_dpp")


def listed(source: str, arch: str, features: str = "") -> list[tuple[str, bytes]]:
    """Mnemonic, without the encoding that it may name, and code of each instruction of a module."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("amdgcn-amd-amdhsa")
    wanted = ",".join(word for word in (features, "+dumpcode") if word)
    machine = target.create_target_machine(cpu=arch, features=wanted, opt=2, reloc="pic")
    module = llvm.parse_assembly(source)
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
