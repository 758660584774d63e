"""Seeded faults of the driver without a kernel driver, one at a time, which its tests must find.

python plugins/tiny_amd/tests/am_faults.py          all of them, some minutes
python plugins/tiny_amd/tests/am_faults.py 3 7      numbers 3 to 6
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[3] / "tests/support"))  # where this is run as a program

from seeded_faults import Fault, Seeded

TESTS: Final = Path(__file__).parent
PACKAGE: Final = TESTS.parent / "src/tiny_amd"
SOURCES: Final = PACKAGE / "am"

FAULTS: Final[tuple[Fault, ...]] = (
    ("pages.py", "_IS_PAGE | _HUGE_FRAGMENT", "_HUGE_FRAGMENT"),
    ("pages.py", "_ALLOWED | _OF_SYSTEM | _SNOOPED", "_ALLOWED | _OF_SYSTEM"),
    ("pages.py", " | _UNCACHED\n", "\n"),
    ("pages.py", "[found.address | _VALID]", "[found.address]"),
    ("pages.py", "_BITS: Final = 9", "_BITS: Final = 8"),
    ("pages.py", "                self._set(1, address, [0])\n", "                pass\n"),
    ("vram.py", "size - RESERVED_BYTES)", "size)"),
    (
        "vram.py",
        "            self._rest.give_back(address, address + size)\n",
        "            pass\n",
    ),
    ("vram.py", "at = -(-begin // alignment) * alignment", "at = begin"),
    ("hubs.py", "contexts + _BASE, root | 1", "contexts + _BASE, root"),
    ("hubs.py", "_DEPTH: Final = 3 << 1", "_DEPTH: Final = 2 << 1"),
    ("hubs.py", "_SEMAPHORE: Final = 17 + _ENGINE", "_SEMAPHORE: Final = 18 + _ENGINE"),
    ("hubs.py", "1 << 22 | 1 << 23\n", "1 << 22\n"),
    ("hubs.py", "(end - 1) >> _APERTURE_SHIFT", "end >> _APERTURE_SHIFT"),
    ("hubs.py", "_START, 0)", "_START, 1 << 36)"),
    ("hubs.py", "_AGP_TOP + 1, 0xFFFFFF)", "_AGP_TOP + 1, 0)"),
    (
        "psp.py",
        "    (KEYS, 0x80000),\n    (SPL, 0x10000000),",
        "    (SPL, 0x10000000),\n    (KEYS, 0x80000),",
    ),
    ("psp.py", "_ADDRESS_UNIT: Final = 20", "_ADDRESS_UNIT: Final = 12"),
    ("psp.py", "_KERNEL_RING: Final = 2 << 16", "_KERNEL_RING: Final = 1 << 16"),
    ("psp.py", "% (_RING_BYTES // 4)", "% _RING_BYTES"),
    ("psp.py", "% _RING_BYTES, frame)\n        self.vram.flush()\n", "% _RING_BYTES, frame)\n"),
    ("psp.py", "size = -(-size // _MEBIBYTE) * _MEBIBYTE", "pass"),
    ("psp.py", "        if status:\n", "        if False:\n"),
    ("psp.py", "            self._wait_for_loader()\n", "            pass\n"),
    ("smu.py", "        registers.write(answered, 0)\n", ""),
    ("smu.py", "clock << 16 | (levels - 1)", "clock << 16 | levels"),
    ("engines.py", "_MEC_DOORBELL << 2 | 1 << 30", "_MEC_DOORBELL << 2"),
    ("engines.py", "bit_length() - 2 | 5 << 8", "bit_length() - 1 | 5 << 8"),
    ("engines.py", "start >> 2 & 0xFFFFFFFF", "start & 0xFFFFFFFF"),
    ("engines.py", "places.ring >> 40,\n            11", "0,\n            11"),
    ("engines.py", "_SDMA_DOORBELL << 2)", "_SDMA_DOORBELL)"),
    ("engines.py", "_SHADER_MEMORY: Final = 0 | 3 << 2", "_SHADER_MEMORY: Final = 0 | 0 << 2"),
    ("engines.py", "            self.engines.has_failed = True\n", "            pass\n"),
    ("bring_up.py", "        self.set_bus_master(False)\n        self.smu", "        self.smu"),
    ("bring_up.py", "== _WARM and left & _CLEAN", "== _WARM"),
    ("bring_up.py", "self.vram.take(trusted, _MEBIBYTE)", "pass"),
    ("bring_up.py", "        self.graphics_hub.flush()\n", ""),
    (
        "interface.py",
        "self.running.pages.unmap(allocation.address, allocation.size)\n            self._f",
        "self._f",
    ),
    ("interface.py", "    verify_consent(card)\n", ""),
    ("interface.py", "        if running.registers.is_gone:\n", "        if False:\n"),
    ("registers.py", "0x60 + number - 32", "0x40 + number - 32"),
    (
        "cards.py",
        "        return card.give_back(self.machine, card.driver, enabled=self.was_enabled)\n",
        '        return ""\n',
    ),
)

SEEDED: Final = Seeded(TESTS, PACKAGE, "am", ("test_am.py",), "test_", 2000, FAULTS)


if __name__ == "__main__":
    sys.exit(SEEDED.main(sys.argv[1:]))
