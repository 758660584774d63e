"""Launches of kernels: what a descriptor, constant bank 0 and the code must agree on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cubin import Code
from emulation.faults import IllegalAddress
from executor.launch import Executor, Limits
from executor.syntax import Module, parse

from rm_standin.qmd import Qmd
from rm_standin.status import Mistake
from rm_standin.view import READ, WRITE, MmuFault, View

if TYPE_CHECKING:
    from rm_standin.machine import Machine
    from rm_standin.objects import Channel

__all__ = ["Launcher", "Settings"]

LOWEST_ADDRESS_BITS: Final = 40
CODE_ALIGNMENT: Final = 128
PREFETCHED: Final = 2048
"""Bytes that must be readable after code: the instruction cache reads ahead."""
SYSTEM_SHARED: Final = 0x400
SHARED_UNIT: Final = 128
GRID_OF_BLOCKS, GRID_OF_CLUSTERS = 2, 3
REGISTER_FILE: Final = 65536
REGISTER_UNIT: Final = 256
MOST_THREADS: Final = 1024
CONSTANT_UNIT: Final = 64
LARGEST_BANK: Final = 65536
STACK: Final = 0xFFFDC0
WINDOW: Final = 1 << 24
TWO_WORDS, FOUR_WORDS = 2, 0
DEEPEST: Final = 10_000
SCHEDULES: Final = (1, 3)
MODULES: Final[dict[bytes, Module]] = {}


@dataclass
class Settings:
    """State that methods have set before a launch."""

    numbers: dict[str, dict[int, int]] = field(default_factory=dict)

    def set(self, name: str, part: int, value: int) -> None:
        """A word of a number."""
        self.numbers.setdefault(name, {})[part] = value

    def get(self, name: str, *, needed: bool = True) -> int:
        """A number. Raises Mistake where nothing has set it."""
        parts = self.numbers.get(name, {})
        wanted = {0} if name == "local_units" else {0, 1}
        if set(parts) != wanted:
            if not needed:
                return 0
            raise Mistake(f"a launch without {name.replace('_', ' ')}")
        return parts[0] | parts.get(1, 0) << 32


@dataclass
class Begun:
    """A launch that has not run."""

    qmd: Qmd
    is_fresh: bool
    forgets_code: bool


class Launcher:
    """Reads descriptors, and runs what they describe."""

    def __init__(self, machine: Machine, channel: Channel, view: View, settings: Settings) -> None:
        self.machine, self.channel, self.view = machine, channel, view
        self.settings = settings
        self.facts = channel.gpu.facts
        limits = Limits(shared_bytes=self.facts.block_shared_kib << 10)
        self.executor = Executor(channel.space.memory, limits)
        self.begun: list[Begun] = []
        self.code: dict[int, bytes] = {}

    def read(self, address: int) -> Qmd:
        """The descriptor at an address."""
        if address >> LOWEST_ADDRESS_BITS:
            raise Mistake(f"a descriptor at {address:#x}: an address below 1 << 40 is needed")
        version, size = self.facts.qmd
        return Qmd(version, self.view.span(address, size).tobytes(), address)

    def begin(self, qmd: Qmd, *, is_fresh: bool, forgets_code: bool) -> None:
        """Check a launch, and have it run when something waits for it."""
        self.check(qmd)
        self.begun.append(Begun(qmd, is_fresh, forgets_code))

    def flush(self) -> bool:
        """Run what has begun: in reverse, as nothing says that one comes after the other."""
        found = bool(self.begun)
        while self.begun:
            begun = self.begun.pop()
            self.run(begun.qmd, begun.is_fresh, begun.forgets_code)
        return found

    # --- checks

    def check(self, qmd: Qmd) -> None:
        """Raise Mistake for what a card would do something else about."""

        def must(holds: bool, text: str) -> None:
            if not holds:
                raise Mistake(f"the descriptor at {qmd.address:#x} has {text}")

        version = (qmd.get("major"), qmd.get("minor"))
        must(version == (self.facts.qmd[0], 0), f"version {version}")
        kind = qmd.get("type", default=GRID_OF_BLOCKS)
        cluster = [max(qmd.get(f"cluster_{axis}"), 1) for axis in "xyz"]
        must(kind in (GRID_OF_BLOCKS, GRID_OF_CLUSTERS), f"type {kind}")
        must(kind == GRID_OF_CLUSTERS or cluster == [1, 1, 1], f"clusters of {cluster}")
        x, y, z = qmd.block
        must(min(*qmd.grid, *qmd.block) > 0, f"a grid of {qmd.grid} blocks of {qmd.block}")
        must(x * y * z <= MOST_THREADS, f"blocks of {qmd.block}")
        must(all(g % c == 0 for g, c in zip(qmd.grid, cluster, strict=True)), "parts of clusters")
        must(qmd.get("call_limit") == 1, "a limit of calls")
        sass = (self.facts.sm_version >> 4 & 0xF0) + (self.facts.sm_version & 0xF)
        must(qmd.get("sass_version") in (0, sass), f"SASS version {qmd.get('sass_version'):#x}")
        self.check_shared(qmd)
        registers = -(-qmd.get("registers") * 32 // REGISTER_UNIT) * REGISTER_UNIT
        warps = -(-x * y * z // 32)
        must(registers > 0 and warps * registers <= REGISTER_FILE, f"{registers} registers a warp")
        for release in qmd.releases():
            unit = {FOUR_WORDS: 16, TWO_WORDS: 8}.get(release.structure, 4)
            must(release.address % unit == 0, f"a semaphore at {release.address:#x}")
            must(release.has_membar or qmd.get("membar") == 1, "a semaphore without a barrier")
            must(not release.is_long or release.structure != 1, "64 bits in a word")
        for _, action in qmd.dependents:
            must(action in SCHEDULES, f"action {action} on a dependent")
            must(qmd.get("membar") in (1, 3), "a dependent that may not see its writes")

    def check_shared(self, qmd: Qmd) -> None:
        """Shared memory, and how much of it a multiprocessor is to have."""
        sizes = [qmd.get(f"shared_{name}") for name in ("min", "target", "max")]
        choices = [kib // 4 + 1 for kib in self.facts.shared_choices]
        least, target, most = sizes
        if least not in choices or target not in choices or most not in choices:
            raise Mistake(f"shared memory is set to {sizes}, of {choices}")
        if not least <= target <= most:
            raise Mistake(f"shared memory is at least {least}, {target}, and at most {most}")
        if qmd.shared % SHARED_UNIT or qmd.shared > (least - 1) * 4096:
            raise Mistake(f"{qmd.shared} bytes of shared memory, of {(least - 1) * 4096}")

    # --- the code, and its constants

    def code_of(self, qmd: Qmd, *, forgets: bool) -> Code:
        """The code at the program's address."""
        address = qmd.pair("program")
        if address % CODE_ALIGNMENT:
            raise Mistake(f"a program at {address:#x}, which is no multiple of {CODE_ALIGNMENT}")
        header = self.view.span(address, Code.HEADER_BYTES).tobytes()
        size = Code.size_of(header)
        if size is None:
            raise Mistake(f"there is no code at {address:#x}, but {header[:16].hex()}")
        found = self.view.span(address, size).tobytes()
        self.view.span(address, size + PREFETCHED)
        before = self.code.get(address)
        if before not in (None, found) and not (forgets or qmd.get("invalidate_code")):
            raise Mistake(f"code at {address:#x} has changed, and instruction caches are not told")
        self.code[address] = found
        code = Code.read(found)
        if code.address != address + code.ADDEND:
            raise Mistake(f"code at {address:#x} is relocated to {code.address - code.ADDEND:#x}")
        if code.arch != self.facts.arch:
            raise Mistake(f"code of sm_{code.arch} on a card of sm_{self.facts.arch}")
        return code

    def bank_of(self, qmd: Qmd, code: Code) -> bytes:
        """Constant bank 0, whose words for the driver are as the code expects them."""
        bank = self.facts.bank
        if not qmd.get("constants_valid"):
            raise Mistake("a launch without constant bank 0")
        address, size = qmd.pair("constants"), qmd.get("constants_size") << 4
        if address % CONSTANT_UNIT or size > LARGEST_BANK:
            raise Mistake(f"constant bank 0 of {size} bytes at {address:#x}")
        needed = bank.parameters + code.parameter_bytes
        if size < needed:
            raise Mistake(f"constant bank 0 has {size} bytes, and the kernel reads {needed}")
        found = self.view.span(address, needed).tobytes()

        def word(offset: int, width: int = 4) -> int:
            return int.from_bytes(found[offset : offset + width], "little")

        expected = {
            "blockDim": (tuple(word(bank.block + 4 * n) for n in range(3)), qmd.block),
            "gridDim": (tuple(word(bank.grid + 4 * n) for n in range(3)), qmd.grid),
            "shared window": (word(bank.shared_window, 8), self.settings.get("shared_window")),
            "local window": (word(bank.local_window, 8), self.settings.get("local_window")),
            "stack": (word(bank.stack), STACK),
            "memory descriptor": (word(bank.descriptor, 8), 0),
        }
        if bank.own_address is not None:
            expected["own address"] = (word(bank.own_address, 8), address)
        for name, (value, wanted) in expected.items():
            if value != wanted:
                raise Mistake(f"constant bank 0 has {value} as its {name}, which is {wanted}")
        return found

    def check_code(self, qmd: Qmd, code: Code) -> None:
        """Check that the descriptor grants what the code needs."""
        for name in ("registers", "barriers"):
            granted, needed = qmd.get(name), getattr(code, name)
            if granted < needed:
                raise Mistake(f"{code.name} needs {needed} {name}, and gets {granted}")
        if qmd.shared < SYSTEM_SHARED + code.shared:
            needed = SYSTEM_SHARED + code.shared
            raise Mistake(f"{code.name} needs {needed} bytes of shared memory: {qmd.shared}")
        if qmd.local < code.local:
            raise Mistake(f"{code.name} needs {code.local} bytes of a stack, and gets {qmd.local}")
        if qmd.local:
            self.check_local(qmd)
        windows = [self.settings.get(f"{name}_window") for name in ("shared", "local")]
        for window in windows:
            if self.view.space.overlaps(window, WINDOW):
                raise Mistake(f"the window at {window:#x} lies over memory")
        if abs(windows[0] - windows[1]) < WINDOW:
            raise Mistake("the windows of shared and local memory overlap")

    def check_local(self, qmd: Qmd) -> None:
        """The memory of all threads' stacks."""
        facts, per_tpc = self.facts, self.settings.get("local_tpc_bytes")
        base = self.settings.get("local_base")
        if not self.settings.get("local_units"):
            raise Mistake("local memory for no multiprocessors")
        needed = qmd.local * 32 * facts.warps * facts.sms
        if per_tpc < needed or per_tpc % 0x8000:
            raise Mistake(f"{per_tpc} bytes of local memory per TPC, where {needed} are needed")
        self.view.span(base, per_tpc * facts.tpcs * facts.gpcs, WRITE)

    # --- running

    def run(self, qmd: Qmd, is_fresh: bool, forgets_code: bool) -> None:
        """Run a launch, and those that its end launches."""
        for _ in range(DEEPEST):
            self.run_one(qmd, is_fresh, forgets_code)
            following = qmd.dependents
            if not following:
                return
            if len(following) > 1:
                raise Mistake(f"the descriptor at {qmd.address:#x} launches two others")
            qmd = self.read(following[0][0])
            self.check(qmd)
            is_fresh = False
        raise Mistake("descriptors launch each other without an end")

    def run_one(self, qmd: Qmd, is_fresh: bool, forgets_code: bool) -> None:
        """Run a kernel, and write the semaphores of its end."""
        if not (is_fresh or qmd.get("invalidate_data")):
            raise Mistake("a kernel is launched before caches forget what others have overwritten")
        if not (is_fresh or qmd.get("constants_invalidate") or qmd.get("invalidate_constants")):
            raise Mistake("a kernel is launched with constants of before")
        code = self.code_of(qmd, forgets=forgets_code)
        self.check_code(qmd, code)
        bank = self.bank_of(qmd, code)
        module = MODULES.get(code.text)
        if module is None:
            module = MODULES[code.text] = parse(code.text.decode())
        parameters = bank[self.facts.bank.parameters :]
        dynamic = qmd.shared - SYSTEM_SHARED - code.shared
        self.channel.gpu.launched += 1
        self.machine.launched.append(code.name)
        cluster = tuple(max(qmd.get(f"cluster_{axis}"), 1) for axis in "xyz")
        x, y, z = cluster
        self.channel.fault["counter"] = code.address  # of a kernel that a fault stops
        try:
            self.executor.launch(
                module, code.name, qmd.grid, qmd.block, parameters, dynamic, (x, y, z)
            )
        except IllegalAddress as fault:
            at = re.search(r"(read|write) of \d+ bytes at (0x[0-9a-f]+); nearest", str(fault))
            if at is None:  # of shared or local memory, which no page table knows
                raise
            action = WRITE if at[1] == "write" else READ
            self.machine.last_fault = str(fault)
            raise MmuFault(int(at[2], 16), action) from fault
        del self.channel.fault["counter"]
        for release in qmd.releases():
            clock = self.channel.gpu.clock() if release.structure == FOUR_WORDS else None
            self.view.release(release.address, release.payload, release.is_long, clock)
