"""Seeded faults: the driver NV with one thing wrong at a time, which its tests must find.

    python plugins/tiny_nv/tests/nvk_faults.py          all of them, some minutes
    python plugins/tiny_nv/tests/nvk_faults.py 3 7      numbers 3 to 6

Each fault is a change of one text of the plugin, in a copy of it. The tests of the driver run on
the copy; a fault that passes them all is printed, and the status is 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[3] / "tests/support"))  # where this is run as a program

from seeded_faults import Fault, Seeded

TESTS: Final = Path(__file__).parent
SOURCES: Final = TESTS.parent / "src/tiny_nv"
RUN: Final = (
    "test_nvk_driver.py",
    "test_nvk_options.py",
    "test_nvk_pages.py",
    "test_nvk_reports.py",
)
CHOSEN: Final = "not changes_one_text"

FAULTS: Final[tuple[Fault, ...]] = (
    (
        "methods.py",
        "    return method(0, _SEMAPHORE, *halves(address), *halves(value), operation | _LONG)",
        "    return method(0, _SEMAPHORE, *halves(address), *halves(value), operation)",
    ),
    ("methods.py", "_ACQUIRE_AT_LEAST: Final = 3", "_ACQUIRE_AT_LEAST: Final = 0"),
    ("methods.py", "_RELEASE | _WHEN_IDLE)", "_RELEASE)"),
    ("methods.py", "_RELEASE | _WHEN_IDLE | _WITH_TIME)", "_RELEASE | _WHEN_IDLE)"),
    ("methods.py", "_SHARED_WINDOW: Final = 0x2A0", "_SHARED_WINDOW: Final = 0x2A4"),
    ("methods.py", "_LOCAL_WINDOW, *upper_first(local)", "_LOCAL_WINDOW, *halves(local)"),
    ("methods.py", "_SEND_PCAS, descriptor >> 8", "_SEND_PCAS, descriptor >> 4"),
    ("methods.py", "_PREFETCH_SCHEDULE: Final = 9", "_PREFETCH_SCHEDULE: Final = 8"),
    (
        "methods.py",
        "*upper_first(bytes_per_tpc), _MOST_UNITS",
        "*halves(bytes_per_tpc), _MOST_UNITS",
    ),
    ("methods.py", "_LOCAL_ADDRESS, *upper_first(address)", "_LOCAL_ADDRESS, *halves(address)"),
    ("methods.py", "_COPY_LINE: Final = 0x182", "_COPY_LINE: Final = 0x181"),
    (
        "methods.py",
        "(*upper_first(src + start), *upper_first(dst + start))",
        "(*upper_first(dst + start), *upper_first(src + start))",
    ),
    ("methods.py", "*upper_first(address), low, high)", "*upper_first(address), high, low)"),
    ("methods.py", "_FOUR_WORDS if timed else _ONE_WORD", "_ONE_WORD"),
    ("methods.py", "COMPUTE, COPY = 1, 4", "COMPUTE, COPY = 4, 1"),
    (
        "channel.py",
        "address | _SUBROUTINE | words << _LENGTH_SHIFT",
        "address | _SUBROUTINE | words << 41",
    ),
    ("channel.py", "self._put[0] = self.written % ENTRIES", "self._put[0] = self.written"),
    (
        "channel.py",
        "self.ring[self.written % ENTRIES] = entry",
        "self.ring[(self.written + 1) % ENTRIES] = entry",
    ),
    ("channel.py", "self.card.doorbell[0] = self.token", "self.card.doorbell[0] = self.token + 1"),
    ("channel.py", "userdOffset=RING_BYTES", "userdOffset=0"),
    ("channel.py", "PUT: Final = 0x8C", "PUT: Final = 0x88"),
    (
        "channel.py",
        "self.written + entries - self.taken >= ENTRIES:",
        "self.written + entries - self.taken >= 2 * ENTRIES:",
    ),
    (
        "channel.py",
        "before, self.taken = self.taken, self.written - self.pending",
        "before, self.taken = self.taken, self.written",
    ),
    ("channel.py", "_GRAPHICS: Final = 1", "_GRAPHICS: Final = 2"),
    ("channel.py", "_STATUS, _CODE = 14, 8", "_STATUS, _CODE = 12, 8"),
    ("card.py", 'params.put("hObjectError", notifier.handle)', "pass"),
    ("channel.py", "gpFifoOffset=memory.address", "gpFifoOffset=memory.address + 8"),
    (
        "channel.py",
        "            card.register_channel(channel.handle, undo)\n",
        "            pass\n",
    ),
    (
        "queues.py",
        "    self.append(*methods.wait_for_idle())\n        size",
        "    size",
    ),
    ("queues.py", "channel.wait_for_room(len(entries), self.device.rest)", "pass"),
    ("queues.py", "            channel.ring_doorbell()\n", "            pass\n"),
    (
        "queues.py",
        "(base + start * _WORD_BYTES, count)",
        "(base + start * _WORD_BYTES, count - 1)",
    ),
    ("qmd.py", '"CWD_MEMBAR_TYPE": _SYSTEM_BARRIER', '"CWD_MEMBAR_TYPE": 0'),
    ("qmd.py", '        "INVALIDATE_SHADER_DATA_CACHE": 1,\n', ""),
    ("qmd.py", '"REGISTER_COUNT": launch.registers', '"REGISTER_COUNT": launch.registers >> 1'),
    ("qmd.py", '"BARRIER_COUNT": launch.barriers', '"BARRIER_COUNT": 0'),
    (
        "qmd.py",
        "_SHARED_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 0, 5: 7}",
        "_SHARED_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 0, 5: 8}",
    ),
    (
        "qmd.py",
        "_PROGRAM_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 0, 5: 4}",
        "_PROGRAM_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 4, 5: 4}",
    ),
    (
        "qmd.py",
        "_LOCAL_SHIFTS: Final[Mapping[Version, int]] = {3: 0, 4: 0, 5: 4}",
        "_LOCAL_SHIFTS: Final[Mapping[Version, int]] = {3: 4, 4: 0, 5: 4}",
    ),
    ("qmd.py", '"DEPENDENT_QMD_POINTER", address >> 8', '"DEPENDENT_QMD_POINTER", address >> 4'),
    ("qmd.py", "_SCHEDULE: Final = 1", "_SCHEDULE: Final = 0"),
    ("qmd.py", "0 if timed else _WITHOUT_TIME", "_WITHOUT_TIME"),
    ("qmd.py", "if each * 1024 >= shared)", "if each * 1024 >= shared // 2)"),
    ("program.py", 'pack_into("<Q", bank, facts.own_address, self.bank_address)', "pass"),
    ("program.py", ", scratch_bytes=kernel.stack_bytes", ""),
    ("program.py", "\nALIGNMENT: Final = 256", "\nALIGNMENT: Final = 64"),
    ("program.py", "return total + SYSTEM_SHARED_BYTES", "return total"),
    (
        "program.py",
        "self.program.bank.parameters + 8 * slot",
        "self.program.bank.parameters + 4 * slot",
    ),
    ("program.py", "8 * (self.program.info.buffers + position)", "8 * position"),
    ("program.py", "address=base + kernel.entry", "address=base + kernel.entry + 128"),
    ("cubin.py", "end + PREFETCHED_BYTES", "end"),
    ("cubin.py", "total >> 32 if kind == _HIGH_32 else total", "total"),
    ("cubin.py", "_IMMEDIATE: Final = 4", "_IMMEDIATE: Final = 0"),
    ("constants.py", 'struct.pack_into("<III", memory, self.grid, *grid)', "pass"),
    ("constants.py", "STACK: Final = 0xFFFDC0", "STACK: Final = 0xFFFFC0"),
    (
        "local_memory.py",
        "tpc_bytes * units.tpcs_per_gpc * units.gpcs",
        "tpc_bytes * units.tpcs_per_gpc",
    ),
    (
        "local_memory.py",
        "warp * units.warps_per_sm * units.sms_per_tpc",
        "warp * units.warps_per_sm",
    ),
    (
        "card.py",
        "((True, False) if number >= FIRST_OF_BAR1 else (False,))",
        "((False, True) if number >= FIRST_OF_BAR1 else (False,))",
    ),
    ("card.py", "for number in USERMODES\n", "for number in reversed(USERMODES)\n"),
    ("card.py", "            self._free(page)\n            raise\n", "            raise\n"),
    ("memory.py", "pages.offset(start - begin, memory.nbytes)", "pages.offset(0, memory.nbytes)"),
    (
        "memory.py",
        "-(-(start + memory.nbytes) // PAGE) * PAGE",
        "(start + memory.nbytes) // PAGE * PAGE",
    ),
    ("memory.py", "self.release(buffer.root)", "pass"),
    ("faults.py", "most = count // 2", "return"),
    ("card.py", "        self.mapping = DmaMapping(self.rm)\n", ""),
    ("faults.py", '"<4xI16xQQ"', '"<I20xQQ"'),
    ("faults.py", 'told.number("addrHi") << 32', 'told.number("addrHi") << 31'),
    (
        "qmd.py",
        "release_form(version, index, timed=False)",
        "release_form(version, 0, timed=False)",
    ),
    ("card.py", "DOORBELL: Final = 0x90", "DOORBELL: Final = 0x80"),
    ("card.py", "        self._destroy(allocation)\n", ""),
    ("card.py", "        self._free(allocation.handle)\n", ""),
    ("device.py", "            undo.callback(group.close)\n", ""),
    ("methods.py", "_LONG_DESCRIPTOR if size_bytes > SHORT_DESCRIPTOR else 0", "0"),
    ("methods.py", "_INLINE_DESCRIPTOR, unit >> 32 | form", "_INLINE_DESCRIPTOR, form >> 1"),
    ("queues.py", "len(self.words) - size // _WORD_BYTES", "len(self.words) - size // 8"),
    ("channel.py", "_FIRST_COPY_ENGINE: Final = 9", "_FIRST_COPY_ENGINE: Final = 8"),
    ("events.py", "_REPEAT: Final = 2", "_REPEAT: Final = 0"),
    ("events.py", "_FIFO_EVENT: Final = 35", "_FIFO_EVENT: Final = 37"),
    ("device.py", "queue.append(*methods.local_memory(self.scratch.address, per_tpc))", "pass"),
    ("layouts.py", "hUserdMemory@32 userdOffset@64:8", "hUserdMemory@32 userdOffset@72:8"),
    ("layouts.py", '"userdOffset@72:8 engineType', '"userdOffset@64:8 engineType'),
    ("layouts.py", "kindOverride@40 dmaOffset@48:8", "kindOverride@48 dmaOffset@40:8"),
    ("layouts.py", 'layout("schedule", 2,', 'layout("schedule", 3,'),
    ("mapping.py", "1 << 8 | 1 << 4 | 1 << 15", "1 << 8 | 1 << 4"),
    ("mapping.py", "_OWNED_BY_UVM: Final = 0x48", "_OWNED_BY_UVM: Final = 0x40"),
    (
        "mapping.py",
        "            self.uvm.register_va_space(card.uuid, card.va_space)\n",
        "            pass\n",
    ),
    ("uvm.py", "READ_WRITE_ATOMIC: Final = 1", "READ_WRITE_ATOMIC: Final = 3"),
    ("rm.py", "1 << 4 | 1 << 12 | 1 << 30", "1 << 4 | 1 << 30"),
    (
        "rm.py",
        "            limit=size - 1,\n            fd=-1",
        "            limit=size,\n            fd=-1",
    ),
)

SEEDED: Final = Seeded(TESTS, SOURCES, "nvk", RUN, CHOSEN, 1000, FAULTS)


if __name__ == "__main__":
    sys.exit(SEEDED.main(sys.argv[1:]))
