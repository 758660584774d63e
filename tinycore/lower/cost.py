"""Cost model: estimated cycles of proposals, and the choice of the cheapest.

Floor 3'. Estimates depend only on the machine (`Limits`) and on the facts of the kernel. The cost
of a proposal is the cycles of each access by its lanes, and the time that it waits for memory; the
cheapest proposal is applied. docs/decisions/0051-proposals.md says how the constants were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Final, NamedTuple

from tinycore.lower.draft import PROPOSAL, Draft
from tinycore.lower.expand import LONGEST_STRIDE
from tinycore.lower.kernel_facts import LEAST_REUSE, KernelFacts
from tinycore.render.base import Limits
from tinycore.trace import Trace
from tinycore.uop.affine import iterations_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind

trace = Trace("plan")

LEAST_LANES: Final = 4
"""Fewest lanes of a vector: those of float32 in 16 bytes, the narrowest registers."""
SCATTER_CYCLES: Final = 3
"""Extra cost of an access of scattered lanes over one of contiguous lanes. Like all estimates for
processors here, found by cases of `benchmarks` on Zen 3 and Zen 5 unless it says otherwise: they
rank plans and predict no time."""
SHUFFLE_CYCLES: Final = 0.25
"""Extra cost of an access whose lanes are shuffled out of two vectors."""
PACK_CYCLES: Final = 24
"""Extra cost of packing a vector across the rows of an operand, in accesses, where other lanes need
no packing: the weights of a convolution over 49 places are packed for more than half of the time of
its products."""
AMORTIZED_STEPS: Final = 16
"""Steps of a reduction among which the cost of work done once after it is divided, at most."""
HORIZONTAL_STEPS: Final = 6
"""Cost of adding up the lanes of a sum, in steps of the sum: from rows of 7 to 56 elements."""
MOST_ROWS: Final = 8
"""Rows of the tallest register tile: taller ones LLVM and clang spill."""
NEAR_CACHE_BYTES: Final = 32 << 10
"""The first cache of a processor: of Zen; Intel's have 48 KB."""
WAKE_OPERATIONS: Final = 200_000
"""Operations in the time of waking other threads: a smaller kernel stays on one thread. One that
sleeps takes 10 to 70 us to wake (Zen 4, Linux)."""
LEAST_CHUNKS: Final = 4
"""Pieces of work per thread below which some threads would wait for others: with 4, the last piece
is at most a quarter of a thread's work."""
SECOND_CACHE_RATE: Final = 48
"""Sustained bytes per cycle from the second cache to the first: what Intel's manual says of
servers; in tiles of 2 rows by 8 vectors a Sapphire Rapids got 39."""
FAR_SHOWS: Final = 1 / 24
"""Fraction of the time of loads from the second cache that multiply-adds do not hide. It makes a
taller tile win a tie: 64 rows times (768, 3072).T take .75 of the time with 8 x 3 vectors that they
take with 4 x 6."""


FILL_CYCLES: Final = 0.5
"""Cost of filling shared memory, barriers included, in multiply-adds: its order beside
`BUFFER_CYCLES` was found by PoCL and lavapipe, on processors."""
BUFFER_CYCLES: Final = 4.0
"""Cost of loading both operands of a multiply-add from buffers instead of shared memory."""

NEAR_RATE: Final = 128
"""Bytes per clock that a unit reads from its shared memory: 32 banks of a word."""
FAR_CYCLES: Final = 4.0
"""Cost of a word from L2 in words from shared memory, where `Limits` does not state the rate."""


class Cost(NamedTuple):
    """The cost of a proposal. Costs are compared field by field."""

    cycles: float
    """Cycles per vector access of the kernel's widest type, relative to a scalar access."""
    waits: float = 0.0
    """Cycles per access of waiting for memory. Decides between proposals for the same lanes."""


class Proposal(NamedTuple):
    """A strategy's plan for a kernel, and its cost."""

    strategy: str
    axis: UOp | None
    """The loop that is vectorized, if any."""
    cost: Cost
    apply: Callable[[Draft], bool | None]
    """Apply the plan; returns False if it turns out to be impossible."""

    def __str__(self) -> str:
        axis = "" if self.axis is None else f" along {'.'.join(map(str, self.axis.number))}"
        waits = f" + {self.cost.waits:.2f} of waiting for memory" if self.cost.waits else ""
        return f"{self.strategy}{axis}: {self.cost.cycles:.2f} cycles{waits}"


Lanes = Mapping[UOp, float]
"""Loops that may be vectorized, with the cycles per access. Ties are in order of preference."""


def ranked(proposals: Iterable[Proposal]) -> list[Proposal]:
    """Proposals by cost, the cheapest first. DEBUG=3 prints them."""
    found = sorted(proposals, key=lambda proposal: proposal.cost)
    if trace.on:
        for proposal in found:
            trace(f"proposed {proposal}")
    return found


def apply_cheapest(draft: Draft, *choices: Iterable[Proposal]) -> None:
    """Apply the cheapest possible proposal to a draft, or one of another rank for a search.

    Those of an earlier choice go before those of a later one, whatever they cost.
    """
    found = [proposal for proposals in choices for proposal in ranked(proposals)]
    rank = draft.size(PROPOSAL, 0, len(found) - 1, least=-1)
    for proposal in found[rank:]:
        before = draft.copy()
        if proposal.apply(draft) is not False:
            return
        draft.become(before)


def own_proposals(facts: KernelFacts, limits: Limits) -> list[Proposal]:
    """The proposals of the strategies that a plugin brings for its hardware."""
    return [found for propose in limits.strategies for found in propose(facts, limits)]


# --- lanes


def ceil_power_of_two(least: int) -> int:
    """The smallest power of two that is at least `least`."""
    return 1 << max(least - 1, 0).bit_length()


def floor_power_of_two(most: int) -> int:
    """The greatest power of two that is at most `most`, and at least 1."""
    return 1 << max(most, 1).bit_length() - 1


def suits_lanes(facts: KernelFacts, loop: UOp) -> bool:
    """True if along a loop every access is contiguous, or to a single element."""
    moves = {facts.stride(n, loop) for n in facts.accesses}
    gated = any(loop in gate.ranges for n in facts.accesses for gate in n.src[2:])
    return not gated and 1 in moves and moves <= {0, 1}


def costs_of_lanes(facts: KernelFacts, limits: Limits) -> dict[UOp, float]:
    """The loops along which vectors are cheaper than scalars, each with its cost.

    Ties go to output loops, which need no sum over lanes, and then to the innermost loop.
    """
    if facts.has_recurrence:
        return {}
    loops = [r for r in (*facts.reduced, *facts.outputs) if r.extent >= LEAST_LANES]
    costs = {r: cost_of_lanes(facts, limits, r) for r in reversed(loops)}
    return {r: cost for r, cost in costs.items() if cost < 1}


def cost_of_lanes(facts: KernelFacts, limits: Limits, axis: UOp) -> float:
    """The cycles per access with lanes along a loop, relative to scalar accesses."""
    lanes = limits.vector_bytes // facts.itemsize
    gain = accesses_served(facts, limits, axis) * part_filled(facts, lanes, axis)
    return 1 - gain / max(len(facts.accesses), 1)


def part_filled(facts: KernelFacts, lanes: int, axis: UOp) -> float:
    """The fraction of the work of lanes along a loop that is useful."""
    width, size = floor_power_of_two(min(lanes, axis.extent)), axis.extent
    steps = -(-size // width)
    if axis.kind is not AxisKind.REDUCE:
        return size / (steps * lanes)
    again = iterations_of(facts.reduced) // size
    return size * again / ((steps * again + HORIZONTAL_STEPS) * lanes)


def accesses_served(facts: KernelFacts, limits: Limits, axis: UOp) -> float:
    """Number of accesses that suit lanes along a loop, minus the cost of the others.

    Accesses in every step of a sum count in full, those after it by its length: if lanes share an
    operand of a long sum, scattering the results once costs little, and shuffling lanes out of
    longer vectors in every step costs more. An operand that is broadcast to all lanes is as good as
    a contiguous one.
    """
    total, read, lanes = 0.0, facts.loads, limits.vector_bytes // facts.itemsize
    shares = any(axis not in n.src[1].ranges for n in read)
    gathers = any((facts.stride(n, axis) or 0) > LONGEST_STRIDE for n in read)
    once = 1 / min(facts.longest_reduction, AMORTIZED_STEPS) if shares or gathers else 1.0
    stored = set(facts.stored)
    suited = ((n, r) for n in read for r in facts.outputs if facts.stride(n, r) == 1)
    others = not all(facts.is_window(n, r) for n, r in suited)
    for access in facts.accesses:
        stride, is_loaded = facts.stride(access, axis), access not in stored
        weight = 1 if access in read else once
        if stride == 1:
            total += weight
            if facts.is_window(access, axis):
                total -= SHUFFLE_CYCLES  # vectors of a window start anywhere in a cache line
        elif again := reads_if_packed(facts, limits, access, axis):
            total += weight - others * PACK_CYCLES / again
        elif stride is not None and 1 < stride <= LONGEST_STRIDE:
            total -= SHUFFLE_CYCLES * (1 - once)
        elif is_loaded and facts.repeats(access, axis, lanes):
            total += 1 - SHUFFLE_CYCLES
        elif stride != 0:
            # A scattered store takes as long as two vectors' worth of steps of the reduction.
            often = weight if is_loaded else min(1.0, 2 * lanes / facts.longest_reduction)
            total -= SCATTER_CYCLES * often
        elif access in read:
            total += 1
        if len(access.src) > 2 and axis in access.src[2].ranges:
            total -= SCATTER_CYCLES
    return total


def reads_if_packed(facts: KernelFacts, limits: Limits, access: UOp, axis: UOp) -> int:
    """Number of reads of each element of an operand that is packed along an output loop, whatever
    its stride; 0 if it is not packed."""
    ranges, others = access.src[1].ranges, [r for r in facts.outputs if r is not axis]
    if not facts.is_cuttable or axis not in facts.outputs or ranges.isdisjoint(facts.reduced):
        return 0
    # It is packed right outside the loops over rows, inside of all loops of its address.
    again = iterations_of(takewhile(lambda r: r not in ranges, reversed(others)))
    depth = iterations_of(facts.reduced) * limits.vector_bytes
    return again * (
        facts.stride(access, axis) not in (0, None)
        and len(access.src) == 2
        and not facts.is_window(access, axis)
        and again >= MOST_ROWS * LEAST_REUSE
        and depth <= limits.cache_bytes // 2
    )


# --- threads


def pieces_wanted(draft: Draft) -> int:
    """Fewest equal pieces of a kernel's work that keep all threads busy; 1 for little work."""
    limits = draft.limits
    is_alone = limits.threads < 2 or draft.work < WAKE_OPERATIONS
    return 1 if is_alone else limits.threads * LEAST_CHUNKS


# --- register tiles


def cycles_of_step(multiply_adds: int, loads: int, far_bytes: int = 0) -> float:
    """Half cycles of a step of a tile: two multiply-adds and two loads begin in each cycle.

    `far_bytes` of the loads come from the second cache, mostly hidden behind multiply-adds.
    """
    far = 2 * far_bytes / SECOND_CACHE_RATE
    return max(multiply_adds, loads, far) + loads / 8 + far * FAR_SHOWS


def cycles_of_shared_tile(wide: int, tall: int, depth: int) -> float:
    """Cycles per multiply-add of a thread's tile with operands in shared memory.

    Shared memory is filled every `depth` steps.
    """
    return 1 + 1 / wide + 1 / tall + FILL_CYCLES / depth


def cycles_of_thread(sharers: int = 1) -> float:
    """Cycles per multiply-add whose operands a thread loads from a buffer itself."""
    return 1 + BUFFER_CYCLES * (1 + 1 / sharers)


# --- units of a card


def resident_groups(limits: Limits, threads: int, registers: int) -> int:
    """Occupancy: groups resident on a unit, by its threads and registers; 0 if none fits.

    Resources that `limits` does not state count as sufficient.
    """
    if registers > (limits.thread_registers or registers):
        return 0
    room = [
        stated // each
        for stated, each in (
            (limits.unit_threads, threads),
            (limits.unit_registers, threads * registers),
        )
        if stated
    ]
    return min(room, default=1)


def cycles_of_loads(limits: Limits, near: float, far: float) -> float:
    """The cost of `near` words from shared memory and `far` ones from L2, in the former."""
    rate = NEAR_RATE / limits.l2_rate if limits.l2_rate else FAR_CYCLES
    return near + rate * far
