"""Seeded faults: the driver with one thing wrong at a time, which its tests must find.

    python plugins/tiny_amd/tests/driver_faults.py               some minutes
    python plugins/tiny_amd/tests/driver_faults.py 3 7           numbers 3 to 6
    python plugins/tiny_amd/tests/driver_faults.py --page FILE   a table

Without numbers those of `am_faults.py`, `usb_faults.py` and `renderer_faults.py` follow.
Each fault is a change of one text of the plugin, in a copy of it. The tests of the driver run on
the copy; a fault that passes them all is printed, and the status is 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[3] / "tests/support"))  # where this is run as a program

import am_faults
import renderer_faults
import usb_faults
from seeded_faults import Fault, Seeded

TESTS: Final = Path(__file__).parent
SOURCES: Final = TESTS.parent / "src/tiny_amd"
RUN: Final = ("test_driver.py", "test_tensors.py")
CHOSEN: Final = "test_driver or softmax or products_of_matrices or may_overlap"

FAULTS: Final[tuple[Fault, ...]] = (
    ("pm4.py", " | 1 << 20 | 1 << 21", " | 1 << 20"),
    ("pm4.py", "    | CacheControl.GLV_INV\n", ""),
    ("pm4.py", "_MEMORY_AT_LEAST: Final = 5", "_MEMORY_AT_LEAST: Final = 3"),
    ("pm4.py", "        *packet(Opcode.EVENT_WRITE, _PARTIAL_FLUSH),\n", ""),
    ("pm4.py", "*halves(mailbox), event, 0, context", "*halves(mailbox), event, 0, 0"),
    ("pm4.py", "(_WAVES_OF_32 if wave == 32 else 0)", "0"),
    ("pm4.py", "(_WAVES_OF_32 if wave == 32 else 0)", "_WAVES_OF_32"),
    (
        "pm4.py",
        "_DATA_CLOCK = 1 << 29, 2 << 29, 3 << 29",
        "_DATA_CLOCK = 1 << 29, 2 << 29, 2 << 29",
    ),
    ("pm4.py", "words | _BUFFER_VALID", "words"),
    ("program.py", " | -(-found.shared_bytes // _SHARED_UNIT) << _SHARED_SHIFT", ""),
    ("program.py", "number & 0xFFFFFFFF, number >> 32", "number >> 32, number & 0xFFFFFFFF"),
    ("program.py", "self.descriptor_address + found.entry", "self.memory.address + found.entry"),
    ("program.py", "            scratch_bytes=found.private_bytes,\n", ""),
    ("program.py", "        self.verify(info.name, found.properties, found.private_bytes)\n", ""),
    ("scratch.py", "return waves | units << _WAVE_SIZE_SHIFT", "return units << _WAVE_SIZE_SHIFT"),
    ("scratch.py", "alignment) * alignment", "alignment)"),
    ("scratch.py", "card.engines if generation.scratch_by_engine else 1", "1"),
    ("queues.py", "(Register.START_X, (0, 0, 0, *block, 0, 0))", "(Register.START_X, (0, 0, 0))"),
    ("queues.py", "            (Register.RESTART_X, (0, 0, 0)),\n", ""),
    ("program.py", "Word(address, shift=8, bits=32)", "Word(address, bits=32)"),
    ("queues.py", "    ring[: len(words) - first] = words[first:]\n", ""),
    ("queues.py", "skipped = left if left < len(words) else 0", "skipped = 0"),
    ("queues.py", "% len(ring) + len(words) < len(ring)", "% len(ring) < len(ring)"),
    ("queues.py", "return used + skipped + len(words) < size", "return used < size"),
    ("queues.py", "return written - hardware.consumed < slots", "return True"),
    ("queues.py", "ring_doorbell(written + 1, written)", "ring_doorbell(written + 1, written + 1)"),
    ("queues.py", "self.launches.append(len(self.words))", "pass"),
    ("sdma.py", "count - 1, 0, *halves(src", "count, 0, *halves(src"),
    ("sdma.py", "*halves(src + start), *halves(dst + start)", "*halves(dst), *halves(src)"),
    ("generation.py", "fence=3 << 16", "fence=0 << 16"),
    ("generation.py", "fence=0,", "fence=3 << 16,"),
    ("generation.py", "largest_copy=1 << 22", "largest_copy=1 << 30"),
    ("generation.py", "_TC: Final = 1 << 23", "_TC: Final = 1 << 24"),
    (
        "generation.py",
        "_CDNA_RELEASED: Final = 1 << 15 | 1 << 16",
        "_CDNA_RELEASED: Final = 1 << 16",
    ),
    ("generation.py", "rsrc3=Register.PGM_RSRC3_CDNA", "rsrc3=Register.PGM_RSRC3"),
    ("generation.py", "interrupt_names_event=False", "interrupt_names_event=True"),
    (
        "generation.py",
        "scratch_unit=1024,\n    scratch_alignment",
        "scratch_unit=256,\n    scratch_alignment",
    ),
    ("generation.py", "scratch_unit=1024,\n    scratch_by", "scratch_unit=256,\n    scratch_by"),
    ("generation.py", "    most_control_bytes=0x7000,\n", ""),
    ("program.py", "Word(address, shift=32, bits=32)", "Word(address, bits=32)"),
    ("generation.py", "waves_per_unit=40", "waves_per_unit=32"),
    ("generation.py", "control_bytes=8", "control_bytes=12"),
    ("sdma.py", "_POLL_AT_LEAST: Final = 5 << 28", "_POLL_AT_LEAST: Final = 3 << 28"),
    ("sdma.py", "_GLOBAL_CLOCK: Final = 2 << 8", "_GLOBAL_CLOCK: Final = 1 << 8"),
    ("sdma.py", "Operation.TRAP, event)", "Operation.TRAP, 0)"),
    ("aql.py", "_SYSTEM << 9 | _SYSTEM << 11", "_SYSTEM << 9"),
    ("aql.py", "_HEADER: Final = _BARRIER | ", "_HEADER: Final = "),
    ("aql.py", "(count * size for", "(count for"),
    ("hardware_queue.py", "EOP_BYTES: Final = 4096", "EOP_BYTES: Final = 8192"),
    ("generation.py", "control_bytes=12", "control_bytes=8"),
    ("hardware_queue.py", "PAGE), waves * 32)", "PAGE), waves * 16)"),
    ("hardware_queue.py", "self._allocate(PAGE)", "self._allocate(2 * PAGE)"),
    ("hardware_queue.py", "        self._write[0] = written\n", ""),
    ("hardware_queue.py", "& ~(DOORBELL_BYTES - 1)", "& ~0"),
    ("kfd.py", "handle = self.event_page.handle\n", "pass\n"),
    ("kfd.py", "list(self.cards) if is_shared else", "[card.gpu_id] if is_shared else"),
    ("kfd.py", "                self.map(allocation, card.gpu_id)\n", "                pass\n"),
    ("kfd.py", "            self.shared.pop(allocation.address, None)\n", "            pass\n"),
    ("kfd.py", 'self.change("UNMAP_MEMORY_FROM_GPU", allocation, allocation.mapped)', "pass"),
    ("kfd.py", "Kind.COHERENT | Kind.UNCACHED | Kind.PUBLIC", "Kind.COHERENT | Kind.UNCACHED"),
    ("faults.py", "memory.memory.gpu_id == self", "memory.memory.gpu_id != self"),
    ("faults.py", "hardware.hardware.gpu_id == self", "hardware.hardware.gpu_id != self"),
    (
        "device.py",
        "    faults = Faults(kfd, found[index])\n    undo.callback(faults.close)\n",
        "    faults = Faults(kfd, found[index])\n",
    ),
    ("device.py", "CLOCK_HZ: Final = 100e6", "CLOCK_HZ: Final = 1.0"),
    ("memory.py", "is_shared=visible", "is_shared=False"),
    ("memory.py", "            self.driver.free(buffer.meta)\n", "            pass\n"),
    ("memory.py", "            self.driver.map(made, self.card.gpu_id)\n", "            pass\n"),
    ("topology.py", "{version % 100:x}", "{version % 100}"),
    ("topology.py", "return 0 if obstacle(found) else len(found)", "return len(found)"),
)

SEEDED: Final = Seeded(TESTS, SOURCES, "", RUN, CHOSEN, 2000, FAULTS)


if __name__ == "__main__":
    others = (am_faults.SEEDED, usb_faults.SEEDED, renderer_faults.SEEDED)
    sys.exit(SEEDED.main(sys.argv[1:], *others))
