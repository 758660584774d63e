"""Seeded faults: the executor of PTX and the stand-in of libcuda without one of their checks.

    python plugins/tiny_nv/tests/executor_faults.py              all of them, some minutes
    python plugins/tiny_nv/tests/executor_faults.py 3 7          numbers 3 to 6
    python plugins/tiny_nv/tests/executor_faults.py --page FILE  writes a table

Each fault is a change of one text of the tests' own machinery, in a copy of it: a check that is
gone, or looks at something else. The tests of the executor, of its memory and of the stand-in run
on the copy; a fault that passes them all is printed, and the status is 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[3] / "tests/support"))  # where this is run as a program

from seeded_faults import Fault, Seeded

ROOT: Final = Path(__file__).parents[3]
TESTS: Final = Path(__file__).parent
RUN: Final = ("test_executor_faults.py", "test_standin.py", "test_executor.py")

LAUNCH: Final[tuple[Fault, ...]] = tuple(
    ("executor/launch.py", old, new)
    for old, new in (
        ("if counts[block] < self.block_threads or numbers.size > 1:", "if numbers.size > 1:"),
        ("wrong = (here > 0) & (here != there)", "wrong = (here > 0) & (here > there)"),
        ("                self.check_warps(taken, instruction)\n", "                pass\n"),
        ("if over or threads > limits.block_threads:", "if over:"),
        ("over = [a for a, b in zip(sizes, most, strict=True) if a > b]", "over: list[int] = []"),
        ("if min(*grid, *block) < 1:", "if min(*grid, *block) < 0:"),
        (
            'if threads > bound or (directive == "reqntid" and threads != bound):',
            'if directive == "reqntid" and threads != bound:',
        ),
        (
            'if threads > bound or (directive == "reqntid" and threads != bound):',
            "if threads > bound:",
        ),
        ("if kernel.shared_static + dynamic_shared > limits.shared_bytes:", "if False:"),
        ("if len(parameters) < kernel.function.parameter_bytes:", "if False:"),
        (
            "self.state.shared.warp_epoch[numpy.unique(self.state.shared.warps_of(taken))] += 1",
            "self.state.shared.barrier(numpy.arange(self.blocks))",
        ),
        ("        self.state.barrier(numpy.unique(blocks))\n", ""),
    )
)
MOVEMENT: Final[tuple[Fault, ...]] = tuple(
    ("executor/movement.py", old, new)
    for old, new in (
        ("missing = named & ~present[warps]", "missing = named & numpy.uint64(0)"),
        ("        check_alignment(where, size)\n", ""),
        ("        check_alignment(addresses, size)\n", ""),
        (
            "places = state.shared.copy_begins(threads, where, size)",
            'places = state.shared.places(threads, where, size, "copy")',
        ),
        ("copy.groups < state.groups[copy.threads] - left", "copy.groups >= 0"),
        (
            "copy.groups < state.groups[copy.threads] - left",
            "copy.groups <= state.groups[copy.threads] - left",
        ),
        ("            done = takes_part[copy.threads]\n", "            done = copy.groups >= 0\n"),
        ("        state.groups[state.who(who)] += 1\n", "        state.groups[:] += 1\n"),
    )
)
MATRICES: Final[tuple[Fault, ...]] = (
    ("executor/matrix.py", "if state.block_threads % 32 or threads.size % 32:", "if False:"),
    (
        "executor/warpgroup.py",
        "if threads.size % 128 or (threads.reshape(-1, 128)[:, 0] % 128).any():",
        "if threads.size % 32:",
    ),
    ("executor/warpgroup.py", "        state.shared.bulk_reads(thread, places.ravel())\n", ""),
    (
        "executor/registers.py",
        "        if read and numpy.isin(written, numpy.concatenate(read)).any():\n",
        "        if False:\n",
    ),
    (
        "executor/warpgroup.py",
        "            write(state, members, numpy.full(128, UNFINISHED, numpy.uint32))\n",
        "            pass\n",
    ),
    ("executor/bulk.py", "    if mask >> state.cluster:\n", "    if False:\n"),
    ("executor/bulk.py", "        if barrier.pending < arrivals:\n", "        if False:\n"),
    ("executor/bulk.py", "    if key not in state.barriers:\n", "    if False:\n"),
    ("executor/bulk.py", "        check_alignment(where, 8)\n", ""),
    ("executor/bulk.py", "                check_alignment(numpy.array([address]), 16)\n", ""),
    ("executor/bulk.py", "            check_alignment(numpy.array([place]), 128)\n", ""),
    ("executor/bulk.py", "    check_alignment(numpy.array([address]), 64)\n", ""),
    ("executor/bulk.py", "self.pending == 0 and self.bytes_left == 0", "self.pending == 0"),
)
STANDIN: Final[tuple[Fault, ...]] = tuple(
    ("standin.py", old, new)
    for old, new in (
        (
            "        return 0 if found is not None else INVALID_HANDLE\n\n    def _card",
            "        return 0\n\n    def _card",
        ),
        ('if not self._started and name not in ("cuInit",', 'if False and name not in ("cuInit",'),
        ("            if self.sticky and name", "            if False and name"),
        ("return self.failures[name].pop(0)", "return self.failures[name][0]"),
        (
            "                if address + size > start + len(content):\n",
            "                if False:\n",
        ),
        ("return 0 if index < len(self.cards) else INVALID_DEVICE", "return 0"),
        (
            "        if attribute not in known:\n            return INVALID_VALUE\n",
            "        known.setdefault(attribute, 0)\n",
        ),
        ("        if not self._retained[device]:\n            return INVALID_CONTEXT\n", ""),
        ("        if not self._retained.get(device):\n            return INVALID_CONTEXT\n", ""),
        ("if device == peer or max(device, peer)", "if max(device, peer)"),
        ("if card is None or flags or not", "if card is None or not"),
        ("if not self.has_peers or card == peer:", "if not self.has_peers:"),
        ("        if (card, peer) in self.peers:\n", "        if False:\n"),
        (
            (
                "        if self._card() is None:\n            return"
                " INVALID_CONTEXT\n        place[0]"
            ),
            "        place[0]",
        ),
        (
            "        if found is None or flags:\n",
            "        if found is None:\n            return 0\n        if flags:\n",
        ),
        (
            (
                "        if status := self._stream(stream):\n           "
                " return status\n        earlier"
            ),
            "        earlier",
        ),
        (
            (
                '        return 0 if self._thing("CUstream", stream) =='
                " self._card() else INVALID_CONTEXT"
            ),
            "        return 0",
        ),
        (
            (
                '        if self._thing("CUstream", stream) is None:\n      '
                "      return INVALID_HANDLE\n"
            ),
            '        if self._thing("CUstream", stream) is None:\n            return 0\n',
        ),
        (
            (
                "        if found is None:\n            return"
                ' INVALID_HANDLE\n        found["recorded"]'
            ),
            '        if found is None:\n            return 0\n        found["recorded"]',
        ),
        ('return 0 if self._thing("CUevent", event) is not None else INVALID_HANDLE', "return 0"),
        ('e is not None and e["recorded"] and not', "e is not None and not"),
        (' and not e["flags"] & 2 for e', " for e"),
        ("        if not size:\n            return INVALID_VALUE\n", ""),
        (
            "        if used + size > self._capacity[card]:\n",
            "        if size > self._capacity[card]:\n",
        ),
        (
            "return 0 if self.memory.pop(int(address), None) is not None else INVALID_VALUE",
            "self.memory.pop(int(address), None)\n        return 0",
        ),
        ("        return 0 if found is not None else INVALID_VALUE\n", "        return 0\n"),
        (
            (
                "        if [options[i] for i in range(count)] != [5, 6]:\n "
                "           return INVALID_VALUE\n"
            ),
            "",
        ),
        (
            (
                '        if not content.startswith((b"\\x7fELF", b"//",'
                ' b".version")):\n            return INVALID_IMAGE\n'
            ),
            "",
        ),
        ('if not content.startswith(b"\\x7fELF") and not content.endswith(b"\\0"):', "if False:"),
        ("            return INVALID_PTX\n", ""),
        ("        if name not in image:\n            return NOT_FOUND\n", ""),
        ("if attribute != 8 or value >", "if value >"),
        (
            "if attribute != 8 or value > self.cards[self._card() or 0].shared_bytes:",
            "if attribute != 8:",
        ),
        ("if (parameters == ffi.NULL) == (extra == ffi.NULL):", "if extra == ffi.NULL:"),
        ('if found is None or found.module not in self._alive["CUmodule"]:', "if found is None:"),
        ("if not 0 < threads <= most or", "if not 0 <= threads <= most or"),
        ("if not 0 < threads <= most or", "if not 0 < threads or"),
        (" or min(grid) < 1 or", " or"),
        (" or max(grid[1:]) > 65_535:", ":"),
        ("        if shared > found.shared_bytes:\n            return INVALID_VALUE\n", ""),
        ("for i in (0, 2, 4)] != [1, 2, 0]:", "for i in (2, 4)] != [2, 0]:"),
        (
            (
                "        if any(wait not in nodes for wait in waits):\n     "
                "       return INVALID_VALUE\n"
            ),
            "",
        ),
        ("if nodes is None or number not in nodes:", "if nodes is None:"),
    )
)
MEMORY: Final[tuple[Fault, ...]] = tuple(
    ("emulation/memory.py", old, new)
    for old, new in (
        (
            (
                "        if region is None:\n            raise"
                " IllegalAddress(self.describe(low, width, action))\n"
            ),
            "        if region is None:\n            region = self.regions[0]\n",
        ),
        (
            (
                "            if high < region.address + region.data.nbytes"
                " or self.region_at(high) is None:\n"
            ),
            "            if False:\n",
        ),
        (
            "wrong = addresses % addresses.dtype.type(bytes_at_once) != 0",
            "wrong = addresses % addresses.dtype.type(4) != 0",
        ),
        (
            (
                "            raise RaceFault(self.describe(granules,"
                ' readers, which, "reads", other))\n'
            ),
            "",
        ),
        (
            (
                "            raise RaceFault(self.describe(granules,"
                ' readers, which, "reads", "an unfinished copy"))\n'
            ),
            "",
        ),
        (
            (
                "                raise RaceFault(self.describe(granules,"
                ' writers, which, "writes", f"{one} {what}"))\n'
            ),
            "",
        ),
        (
            (
                "            raise RaceFault(self.describe(granules,"
                ' writers, which, "writes", "another\'s write"))\n'
            ),
            "",
        ),
        ("        self.block_epoch[blocks] += 1\n", ""),
        ("same_warp = (group >= 0) & (group == self.warps_of(threads))", "same_warp = group >= 0"),
        (
            (
                '                raise RaceFault("a matrix unit reads shared'
                ' memory whose copy is unfinished")\n'
            ),
            "                pass\n",
        ),
        ("            self.in_flight[places // self.granule] = True\n", ""),
        ("        self.in_flight[granules] = True\n", ""),
    )
)

MACHINERY: Final = Seeded(
    *(TESTS, TESTS, "", RUN, "", 1000, (*LAUNCH, *MOVEMENT, *MATRICES, *STANDIN)),
    modules=(ROOT / "tests/support",),
)
SHARED: Final = Seeded(
    *(TESTS, ROOT / "tests/support", "", RUN, "", 1000, MEMORY),
    modules=(TESTS,),
)


if __name__ == "__main__":
    sys.exit(MACHINERY.main(sys.argv[1:], SHARED))
