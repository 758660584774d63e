"""Seeded faults: the interface PCI of NV with one thing wrong at a time, which its tests must find.

python plugins/tiny_nv/tests/pci_faults.py          all of them, some minutes
python plugins/tiny_nv/tests/pci_faults.py 3 7      numbers 3 to 6
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[3] / "tests/support"))  # where this is run as a program

from seeded_faults import Fault, Seeded

TESTS: Final = Path(__file__).parent
SOURCES: Final = TESTS.parent / "src/tiny_nv"
RUN: Final = ("test_pci_boot.py", "test_pci.py", "test_pci_conformance.py")
CHOSEN: Final = (
    "boot or test_pci or (test_memory and not freed) and not changes_one_text and not compressed"
)

FAULTS: Final[tuple[Fault, ...]] = (
    ("access.py", "old & ~_BUS_MASTER", "old"),
    ("access.py", "address // PAGE * 8", "address // PAGE * 4"),
    ("access.py", "(told & _FRAME) * PAGE", "(told & _FRAME) << 13"),
    ("vfio.py", "_READ_AND_WRITE, address, at, size", "_READ_AND_WRITE, at, address, size"),
    (
        "vfio.py",
        "_GROUP_SET_CONTAINER, _GROUP_GET_DEVICE = 0x3B67, 0x3B68, 0x3B6A",
        "_GROUP_SET_CONTAINER, _GROUP_GET_DEVICE = 0x3B67, 0x3B69, 0x3B6A",
    ),
    ("pages.py", "place // CHUNK_BYTES] + place % CHUNK_BYTES", "place // CHUNK_BYTES]"),
    (
        "page_tables.py",
        "VERSION_2: Final = Format(2, (47, 38, 29, 21, 12), 49)",
        "VERSION_2: Final = Format(2, (47, 38, 29, 20, 12), 49)",
    ),
    ("page_tables.py", "_TABLE_IN_SYSTEM: Final = 2", "_TABLE_IN_SYSTEM: Final = 1"),
    (
        "page_tables.py",
        "_TABLE_IN_SYSTEM << 1 | 1 << 3 | address >> 12 << 8",
        "_TABLE_IN_SYSTEM << 1 | address >> 12 << 8",
    ),
    ("page_tables.py", "volatile = aperture != Aperture.VIDEO", "volatile = False"),
    ("page_tables.py", "_GENERIC << 56", "_GENERIC << 48"),
    (
        "page_tables.py",
        "place = 2 * index + 1 if is_dual else index\n            assert",
        "place = 2 * index if is_dual else index\n            assert",
    ),
    ("page_tables.py", "                at += size\n", "                at += PAGE\n"),
    (
        "page_tables.py",
        "both % HUGE_PAGE == 0 and size - offset >= HUGE_PAGE",
        "both % HUGE_PAGE == 0",
    ),
    ("page_tables.py", "            raise\n        self.invalidate()\n", "            raise\n"),
    (
        "firmware.py",
        "        patch,\n        tuple(every",
        "        patch + 4,\n        tuple(every",
    ),
    ("firmware.py", "found[8], found[10], found[12]", "found[8], found[12], found[10]"),
    ("vbios.py", "        code_bytes + patch,\n", "        patch,\n"),
    (
        "vbios.py",
        "_COMMAND_AT, _COMMAND_BUFFER_AT = 44, 8",
        "_COMMAND_AT, _COMMAND_BUFFER_AT = 40, 8",
    ),
    ("vbios.py", "frts_at >> 12, FRTS_BYTES >> 12", "frts_at >> 16, FRTS_BYTES >> 12"),
    ("vbios.py", "begin = at + (header >> 16)", "begin = at + _DESCRIPTOR.size"),
    ("vbios.py", 'if kind in (_PC_AT, _FWSEC) else b""', 'if kind != 0xFF else b""'),
    ("vbios.py", "_IN_VIDEO_MEMORY: Final = 2", "_IN_VIDEO_MEMORY: Final = 1"),
    (
        "falcon.py",
        "# the reset lasts as long as reads of it\n        self._write(_ENGINE, 0)\n",
        "\n",
    ),
    ("falcon.py", "lambda: not self._read(_HARDWARE_CONFIG_2) & _IS_SCRUBBING", "lambda: True"),
    (
        "falcon.py",
        "            self.registers.write(boot, _SELECT_FALCON)\n            self._wait",
        "            self._wait",
    ),
    (
        "falcon.py",
        "image[program.patch_at : program.patch_at + len(signature)] = signature",
        "pass",
    ),
    ("falcon.py", "at + program.code_offset - program.code_at", "at + program.code_offset"),
    ("falcon.py", "_TO_CODE | _SECURE)", "_TO_CODE)"),
    ("falcon.py", "_ALLOW_PHYSICAL: Final = 1 << 7", "_ALLOW_PHYSICAL: Final = 1 << 6"),
    ("falcon.py", "_PHYSICAL_COHERENT: Final = 1 << 2 | 1", "_PHYSICAL_COHERENT: Final = 1 << 2"),
    ("falcon.py", "self._write(_DMA_BASE_HIGH, base >> 40)", "pass"),
    (
        "falcon.py",
        "_OF_256_BYTES, _SET_DATA_TAG = 1 << 2, 1 << 4, 6 << 8, 1 << 16",
        "_OF_256_BYTES, _SET_DATA_TAG = 1 << 2, 1 << 4, 5 << 8, 1 << 16",
    ),
    ("falcon.py", "lambda: bool(self._read(_DMA_COMMAND) & _DMA_IDLE)", "lambda: True"),
    ("falcon.py", "(program.versions & wanted - 1).bit_count()", "oldest"),
    ("falcon.py", "place = program.fuse_version - oldest", "place = oldest"),
    (
        "falcon.py",
        "signature_at = program.patch_at - program.data_offset",
        "signature_at = program.patch_at",
    ),
    ("falcon.py", "self.registers.write(second + _ALGORITHM, _RSA_3K)", "pass"),
    ("falcon.py", "self.registers.write(second + _ENGINE_MASK, program.engine_mask)", "pass"),
    ("falcon.py", "self._write(_BOOT_VECTOR, program.code_at)", "pass"),
    ("falcon.py", "_CPU_CONTROL_ALIAS if has_alias else _CPU_CONTROL", "_CPU_CONTROL"),
    ("layout.py", "frts = end - FRTS_BYTES", "frts = end - 2 * FRTS_BYTES"),
    (
        "layout.py",
        "firmware = bootloader - firmware_bytes & -(64 << 10)",
        "firmware = bootloader - (64 << 10) & -(64 << 10)",
    ),
    (
        "layout.py",
        "            *(self.begin, self.heap, _HEAP_BYTES),\n",
        "            *(self.heap, self.begin, _HEAP_BYTES),\n",
    ),
    (
        "layout.py",
        "_MAGIC, _REVISION = 0xDC3AAE21371A60B3, 1",
        "_MAGIC, _REVISION = 0xDC3AAE21371A60B3, 2",
    ),
    ("images.py", "for _ in range(3):", "for _ in range(2):"),
    (
        "booter.py",
        "self.falcon.write_mailboxes(*self._arguments_at)\n        self._run_booter()",
        "self._run_booter()",
    ),
    ("booter.py", "        self.falcon.set_version(self.firmware.bootloader.version)\n", ""),
    ("gsp.py", 'int.from_bytes(name.encode(), "big")', 'int.from_bytes(name.encode(), "little")'),
    ("gsp.py", "log.view[8 : 8 + 8 * len(pages)]", "log.view[: 8 * len(pages)]"),
    ("gsp.py", "SET_REGISTRY, registry_table", "SET_SYSTEM_INFO, registry_table"),
    ("gsp.py", "card.device_id << 16 | 0x10DE", "0x10DE << 16 | card.device_id"),
    ("booter.py", "if error or low != frts or high <= low:", "if error:"),
    ("fsp.py", "_DATA = 0x8F2AC0, 0x8F2AC4", "_DATA = 0x8F2AC0, 0x8F2AC8"),
    ("fsp.py", "_READS_ADVANCE = 1 << 24, 1 << 25", "_READS_ADVANCE = 1 << 25, 1 << 24"),
    ("fsp.py", "_COMMAND_TAIL = 0x8F2C00, 0x8F2C04", "_COMMAND_TAIL = 0x8F2C04, 0x8F2C00"),
    ("fsp.py", "_ANSWER_TAIL = 0x8F2C80, 0x8F2C84", "_ANSWER_TAIL = 0x8F2C88, 0x8F2C8C"),
    ("fsp.py", "_WHOLE: Final = 1 << 31 | 1 << 30", "_WHOLE: Final = 1 << 31"),
    ("fsp.py", "_VENDOR: Final = 0x10DE << 8 | 0x7E", "_VENDOR: Final = 0x10DE << 16 | 0x7E"),
    ("fsp.py", "_ANSWER = 0x14, 0x15", "_ANSWER = 0x15, 0x15"),
    ("fsp.py", '"<HHQQIQI48s384s384sQ"', '"<HHQQIQI384s48s384sQ"'),
    ("fsp.py", '"<I4x IIQQIB3x I4xQ I4xQI4x"', '"<I4x IIQQIB3x QI4x I4xQI4x"'),
    ("fsp.py", "_HUGE: Final = 2 << 20", "_HUGE: Final = 1 << 16"),
    ("fsp.py", "_LOCKED_MASK = 0xBADF4100, 0xFFFFFF00", "_LOCKED_MASK = 0xBADF4100, 0xFFFFFFFF"),
    ("fsp.py", "_COMMAND_TAIL, len(message) - _WORD)", "_COMMAND_TAIL, len(message))"),
    (
        "fsp.py",
        "registers.read(_ANSWER_TAIL) - head + _WORD",
        "registers.read(_ANSWER_TAIL) - head",
    ),
    ("fsp.py", "        registers.write(_ANSWER_TAIL, head)\n", ""),
    (
        "fsp.py",
        "            lambda: registers.read(_COMMAND_HEAD) == registers.read(_COMMAND_TAIL),\n",
        "            lambda: True,\n",
    ),
    ("fsp.py", "        if error:\n", "        if error == 1:\n"),
    ("fsp.py", " or about != kind:", ":"),
    ("fsp.py", "reserved = trust.open_heap_bytes + trust.pmu_bytes", "reserved = trust.pmu_bytes"),
    (
        "fsp.py",
        "(_COHERENT_SYSTEM, WPR_META.size, meta, 0, 0, 1)",
        "(0, WPR_META.size, meta, 0, 0, 1)",
    ),
    (
        "fsp.py",
        "program.key,\n        program.signature",
        "program.signature,\n        program.key",
    ),
    ("fsp.py", "        self._wait_until_unlocked(boot, state)\n", ""),
    ("fsp.py", "(high << 32 | low) != boot)", "low)"),
    ("fsp.py", "        if error := falcon.mailboxes[0]:", "        if error := 0:"),
    ("fsp.py", "        self.falcon.set_version(self.firmware.bootloader.version)\n", ""),
    ("fsp.py", "        if not self.falcon.is_active:", "        if False:"),
    (
        "fsp.py",
        "self.first_protected = low - trust.open_heap_bytes",
        "self.first_protected = high",
    ),
    ("layout.py", "*(0, 0, self.open_heap_bytes)", "*(0, self.open_heap_bytes, 0)"),
    ("layout.py", "(0, pmu_bytes, 0))", "(pmu_bytes, 0, 0))"),
    ("layout.py", "-(-memory_bytes >> 30) * _HEAP", "(memory_bytes >> 34) * _HEAP"),
    ("layout.py", "_WORKSPACE_BYTES: Final = 128 << 10", "_WORKSPACE_BYTES: Final = 1 << 20"),
    ("registers.py", "_GB10X: Final = Trust(2, 97, 96", "_GB10X: Final = Trust(1, 97, 96"),
    (
        "registers.py",
        "_GB20X: Final = Trust(2, 97, 96, 0x220000",
        "_GB20X: Final = Trust(2, 97, 96, 0x200000",
    ),
    ("registers.py", "return low >> 4 << 12, high", "return low << 8 << 12, high"),
    ("firmware.py", "zlib.crc32(found[name]) != row[7]", "False"),
    (
        "page_tables.py",
        "VERSION_3: Final = Format(3, (56, 47, 38, 29, 21, 12), 57)",
        "VERSION_3: Final = Format(3, (55, 47, 38, 29, 21, 12), 57)",
    ),
    ("page_tables.py", "_UNCACHED_WITHOUT_ATS: Final = 3", "_UNCACHED_WITHOUT_ATS: Final = 2"),
    ("page_tables.py", "volatile << 3 | _GENERIC << 8", "_GENERIC << 8"),
    ("page_tables.py", "_GENERIC << 8 | address", "_GENERIC << 7 | address"),
    ("messages.py", "_SIGNATURE = 3 << 24, 0x43505256", "_SIGNATURE = 3 << 24, 0x56525043"),
    ("messages.py", "_RPC.size + len(content), function", "len(content), function"),
    (
        "messages.py",
        "_ELEMENT.pack_into(data, 0, checksum(data), self._sequence, count, 0)",
        "pass",
    ),
    ("messages.py", "        self._sequence += 1\n", ""),
    ("messages.py", "1 + (written + index) % ELEMENTS)", "1 + written + index)"),
    (
        "messages.py",
        "(written + count) % ELEMENTS)\n        fence()",
        "written + count)\n        fence()",
    ),
    ("messages.py", "        self._ring()\n", ""),
    ("messages.py", "(read + count) % ELEMENTS)\n        return", "read)\n        return"),
    ("messages.py", " or checksum(data[: -(-size // 8) * 8])", ""),
    ("messages.py", "self._send(CONTINUATION, part", "self._send(function, part"),
    ("sequencer.py", "registers.read(register) & ~mask | value", "value"),
    ("sequencer.py", "POLL: 5", "POLL: 4"),
    ("manager.py", "_ALL_CHANNELS: Final = 1 << 3", "_ALL_CHANNELS: Final = 1 << 2"),
    ("manager.py", "_SYSTEM_COHERENT: Final = 1", "_SYSTEM_COHERENT: Final = 0"),
    ("manager.py", "GR_INFOS: Final = 0x3A", "GR_INFOS: Final = 0x3B"),
    (
        "manager.py",
        "self._verify(_ALLOC_HEADER.unpack_from(answer)[4]",
        "self._verify(_ALLOC_HEADER.unpack_from(answer)[6]",
    ),
    ("card.py", "_INVALIDATE: Final = 0xB830B0", "_INVALIDATE: Final = 0xB830A0"),
    ("card.py", "every | _TRIGGER", "every"),
    ("card.py", "entry, entries.shifts[0]", "entry, entries.shifts[1]"),
    ("card.py", "_USERMODE: Final = 0xBB0000", "_USERMODE: Final = 0xBC0000"),
    ("card.py", 'userd = ring.physical + params.number("userdOffset")', "userd = ring.physical"),
    ("card.py", '"size": size, "physAttr": _PHYSICAL', '"size": size, "physAttr": 0'),
    ("card.py", "(0 if each.number else _MAIN_EXTRA_BYTES)", "0"),
    ("card.py", "is_mapped=False),  # PRIV", "is_mapped=True),  # PRIV"),
    (
        "card.py",
        "        self.tables.unmap(address, size)\n        if allocation.pinned",
        "        if allocation.pinned",
    ),
    ("card.py", "            self.system.free(allocation.pinned)\n", "            pass\n"),
    ("card.py", "made.host = self.windows.at + made.window", "made.host = self.windows.at"),
    ("bring_up.py", "    access.stop()\n", ""),
    ("bring_up.py", "    undo.callback(system_memory.close)\n", ""),
    ("bring_up.py", "    undo.callback(_stop, access)\n", ""),
    ("bring_up.py", "        undo.callback(_give_back, taken)\n", ""),
    ("bus.py", "            self._verify_unused()\n", ""),
    (
        "bus.py",
        "        finally:\n            self._unlock()\n",
        "        finally:\n            pass\n",
    ),
    ("machine.py", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"),
    ("machine.py", 'line.rpartition(" ")[2] in files', "line in files"),
    ("gsp.py", '"<6I4xQI"', '"<5I8xQI"'),
    ("registers.py", "_PCFGM = 0x88000, 0x92000", "_PCFGM = 0x92000, 0x88000"),
)

SEEDED: Final = Seeded(TESTS, SOURCES, "pci", RUN, CHOSEN, 1000, FAULTS)


if __name__ == "__main__":
    sys.exit(SEEDED.main(sys.argv[1:]))
