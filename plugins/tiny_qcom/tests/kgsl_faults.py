"""Seeded faults: the driver with one thing wrong at a time, which its tests must find.

    python plugins/tiny_qcom/tests/kgsl_faults.py          all of them, some minutes
    python plugins/tiny_qcom/tests/kgsl_faults.py 3 7      numbers 3 to 6
    python plugins/tiny_qcom/tests/kgsl_faults.py --page FILE   writes a table, too

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
SOURCES: Final = TESTS.parent / "src/tiny_qcom"
RUN: Final = (
    *("test_calls.py", "test_device.py", "test_commands.py", "test_interop.py", "test_ir3.py"),
    *("test_launches.py", "test_images.py", "test_container.py", "test_tensors_ir3.py"),
)
CHOSEN: Final = "not test_tensors_ir3 or images or channels or a_captured_step"

FAULTS: Final[tuple[Fault, ...]] = (
    ("kgsl.py", "CONTEXT_PREAMBLE: Final = 0x10", "CONTEXT_PREAMBLE: Final = 0x20"),
    ("kgsl.py", "flags=flags | priority << CONTEXT_PRIORITY_SHIFT", "flags=flags"),
    ("kgsl.py", "CONTEXT_PREEMPT_FINE: Final = 2 << 25", "CONTEXT_PREEMPT_FINE: Final = 1 << 25"),
    ("kgsl.py", "CONTEXT_TYPE_CL: Final = 2 << 20", "CONTEXT_TYPE_CL: Final = 1 << 20"),
    ("kgsl.py", "CONTEXT_POWER_CONSTRAINT: Final = 0x800", "CONTEXT_POWER_CONSTRAINT: Final = 0"),
    ("device.py", "settings.QCOM_PRIORITY if priority", "8 if priority"),
    ("program.py", "THREADS_OF_A_GROUP: Final = 32", "THREADS_OF_A_GROUP: Final = 16"),
    ("nir.py", "lambda u: (u.arg not in kernel.written, u.arg)", "lambda u: u.arg"),
    ("mesa.py", "return start * 16 if vectors else -1", "return -1"),
    ("kgsl.py", 'made["id"] * PAGE)', 'made["id"])'),
    (
        "kgsl.py",
        '            self.ask(OBJECT_FREE, id=made["id"])\n            if',
        "            if",
    ),
    (
        "kgsl.py",
        "COMMAND_OBJECT.pack(0, address, words * 4,",
        "COMMAND_OBJECT.pack(0, address, words,",
    ),
    ("kgsl.py", "FLAG_IB: Final = 1", "FLAG_IB: Final = 8"),
    ("kgsl.py", '"errno", 0) != errno.EFAULT:', '"errno", 0) != errno.EINVAL:'),
    ("kgsl.py", "MEMORY_READ_ONLY: Final = 1 << 24", "MEMORY_READ_ONLY: Final = 1 << 25"),
    ("kgsl.py", "errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN", "errno.ETIMEDOUT, errno.EAGAIN"),
    ("kgsl.py", "MEMORY_CPU_MAP: Final = 1 << 28", "MEMORY_CPU_MAP: Final = 1 << 27"),
    ("kgsl.py", "MEMORY_USER: Final = 2", "MEMORY_USER: Final = 1"),
    ("kgsl.py", 'self.last = done["timestamp"]', "self.last += 1"),
    ("kgsl.py", "POWER_MOST: Final = 1", "POWER_MOST: Final = 0"),
    (
        "kgsl.py",
        "            self.ask(CONTEXT_DESTROY, drawctxt_id=self.context)\n",
        "            pass\n",
    ),
    ("queue.py", "self.idle().flush(signal.address, value)", "self.flush(signal.address, value)"),
    (
        "queue.py",
        "        self.operation(pm4.Op.EVENT_WRITE, pm4.Event.CACHE_INVALIDATE)\n",
        "",
    ),
    ("queue.py", "reg.CP_ALWAYS_ON_COUNTER | 2 << 18", "reg.CP_ALWAYS_ON_COUNTER | 1 << 18"),
    ("queue.py", "address = signal.address + 8", "address = signal.address"),
    ("queue.py", "        if 0 in groups:\n            return self\n", ""),
    ("queue.py", "vectors >> 2 | reg.CONSTANTS_ENABLED", "vectors | reg.CONSTANTS_ENABLED"),
    ("queue.py", "min(code.groups, chip.PRELOADED_GROUPS)", "code.groups"),
    ("queue.py", "program.private_of_core >> 11", "program.private_of_core >> 12"),
    ("queue.py", "program.private_of_thread >> 9", "program.private_of_thread >> 10"),
    ("queue.py", "| (y - 1) << 12 |", "| (x - 1) << 12 |"),
    (
        "queue.py",
        "code.group_register | none << 8 | none << 16 | code.thread_register << 24",
        "code.thread_register | none << 8 | none << 16 | code.group_register << 24",
    ),
    (
        "queue.py",
        "max((code.shared_bytes - 1) // 1024, 1)",
        "max(code.shared_bytes // 1024 - 1, 1)",
    ),
    ("queue.py", "        self.write(reg.SP_UPDATE_CNTL, 0)\n", ""),
    ("queue.py", "(reg.CONSTANT_DEMOTION if from_mesa else 0)", "0"),
    ("queue.py", " | len(written) << 22", ""),
    ("queue.py", "self.write(reg.SP_CS_SAMPLER_BASE, *halves(address))", "pass"),
    (
        "queue.py",
        "self.write(reg.SP_CS_TEXMEMOBJ_BASE, *halves(address))",
        "self.write(reg.SP_CS_TEXMEMOBJ_BASE, *halves(base))",
    ),
    (
        "queue.py",
        "        return self.idle()\n\n    # --- submission",
        "        return self\n\n    # --- submission",
    ),
    ("queue.py", "merged = reg.MERGED_REGISTERS if code.merged else 0", "merged = 0"),
    (
        "queue.py",
        '        memory.view[:] = memoryview(self.words).cast("B")\n        self._memory',
        "        self._memory",
    ),
    ("pm4.py", "return 1 - value.bit_count() % 2", "return value.bit_count() % 2"),
    ("pm4.py", "WAIT_MEMORY_AT_LEAST: Final = 5 |", "WAIT_MEMORY_AT_LEAST: Final = 6 |"),
    ("pm4.py", "block << 18 | units << 22", "block << 18 | (units - 1) << 22"),
    ("memory.py", "else found + pointer - first", "else found"),
    ("memory.py", "-(-(pointer + size) // PAGE) * PAGE - first", "-(-size // PAGE) * PAGE"),
    ("memory.py", "            self.kgsl.forget_host(address)\n", "            pass\n"),
    ("memory.py", "            self.kgsl.free(made)\n", "            pass\n"),
    (
        "memory.py",
        "place, size = row * pixels.pitch, pixels.row_bytes\n                self._view(dst)",
        "place, size = row * pixels.row_bytes, pixels.row_bytes\n                self._view(dst)",
    ),
    ("memory.py", "return -(-self.width // PITCH_PIXELS) * PITCH_PIXELS *", "return self.width *"),
    ("program.py", "program.info.buffers + position", "position"),
    ("program.py", "        self.view[: program.argument_bytes] = program.template\n", ""),
    (
        "program.py",
        "            template[place : place + len(data)] = data\n",
        "            pass\n",
    ),
    ("program.py", "scratch_bytes=code.private_bytes", "scratch_bytes=0"),
    ("program.py", "threads > waves * chip.WAVE", "threads > waves * chip.WAVE * 2"),
    ("program.py", "NEAREST * code.samplers", "bytes(16) * code.samplers"),
    ("descriptors.py", "    UNNORMALIZED | 1 << 4,", "    1 << 4,"),
    ("descriptors.py", "pixels.width | pixels.height << 15", "pixels.height | pixels.width << 15"),
    ("descriptors.py", "(SWIZZLE_XYZW if is_texture else 0)", "0"),
    ("memory.py", "if found.address % IMAGE_ALIGNMENT:", "if found.address % 16:"),
    ("device.py", "[1] * self.chip.cores", "[1]"),
    ("device.py", "        self.kgsl.want_power()\n", ""),
    (
        "device.py",
        "self._page = self.own(allocator.alloc_visible(PAGE))",
        "self._page = allocator.alloc_visible(PAGE)",
    ),
    (
        "device.py",
        "        except BaseException:\n            self.kgsl.close()\n",
        "        except BaseException:\n",
    ),
    ("device.py", "        if index:\n", "        if index > 1:\n"),
    ("chip.py", "chip.id >> 16 == number >> 16", "chip.id == number"),
    ("chip.py", "max(granules - 1, 0).bit_length()", "max(granules - 2, 0).bit_length()"),
    ("mesa.py", "found[0] if found else -1", "max(place, *found) if found else -1"),
    ("mesa.py", 'at(made, 409, "uint8_t")[0] = 0', "pass"),
    ("container.py", "found[0] if found else TABLE", "TABLE"),
    ("container.py", "if place + size > MOST_CONSTANT_BYTES", "if place > MOST_CONSTANT_BYTES"),
    ("container.py", "[: 2 << is_word]", ""),
    ("container.py", "[descriptor + BRANCH_STACK] // 2", "[descriptor + BRANCH_STACK]"),
    ("code.py", '"branch_stack": 63', '"branch_stack": 64'),
)

SEEDED: Final = Seeded(TESTS, SOURCES, "", RUN, CHOSEN, 2000, FAULTS)


if __name__ == "__main__":
    sys.exit(SEEDED.main(sys.argv[1:]))
