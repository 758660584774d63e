"""The command: lower each problem for each card, judge it, and write a page."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.cards.compiled import compiled_registers
from benchmarks.cards.count import Counts, accesses_of, counts_of, in_waves
from benchmarks.cards.judge import Verdict, judged
from benchmarks.cards.machines import CARDS, Card
from benchmarks.cards.reasons import GOAL, reason_of
from benchmarks.cards.subjects import TYPES, Subject, subjects_of
from tinycore import Context, Device
from tinycore.dtype import dtypes
from tinycore.lower.pipeline import lower
from tinycore.lower.tile import Plan
from tinycore.render.base import Limits, LinearKernel
from tinycore.schedule.items import ScheduleItem
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

SCALES: Final = {"H200": 1, "RX 7900 XTX": 1, "M3": 4, "Adreno 640": 8}
"""By how much the problems of a card are smaller."""
HEAD: Final = f"""\
| problem | kernels | share | of what its instructions reach | limit us | slowest part | \
occupancy | shared bytes | registers | bank conflicts | below {GOAL}, because |
|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---|"""
INTRODUCTION: Final = f"""\
Written by `nox -s cards` (`python -m benchmarks.cards --output FILE`), without any of these cards:
kernels are lowered for each, what a thread executes and moves is counted, addresses of some groups
are computed, and the time of each part of the card is set beside the least that the problem allows,
its share. Rates and sizes are those of public tables (`benchmarks/cards/machines.py`). The count
knows no scheduling and no misses but those of whole waves: it tells a bad plan from a good one, and
is no measurement. Loads from shared memory and products that are added once count as the
instructions that compilers make of them. What copies to shared memory past the near cache read
again comes from the shared cache again.

- share: the limit, by matrix peak or by bandwidth, beside the sum of the times of all kernels; a
  plan should reach {GOAL}. The first operand arrives one latency of memory after a kernel begins:
  the limit has it once, the sum once for each kernel. What kernels leave for each other stays in
  the shared cache if all that one of them touches fits there.
- of what its instructions reach: the same where the instructions that the plugin writes have a
  lower peak than the card. Sums of halves are promised to be those of float32
  (`docs/numerics.md`): a card whose float16 is fast in sums of halves alone reaches the rate of
  float32.
- slowest part, occupancy, shared bytes, registers of a thread, and turns of shared memory for each
  without conflicts of banks: those of the kernel that takes longest."""


@dataclass(frozen=True)
class Launch:
    """A kernel, what it executes, and its times."""

    kernel: LinearKernel
    counts: Counts
    verdict: Verdict
    tried: int = 0
    """Plans of a space of tiles that it is the best of, beside the planner's."""
    space: int = 0
    """Plans of that space."""


def launches_of(subject: Subject, card: Card, space: int = 0) -> Iterator[Launch]:
    """Each launch of a problem; by the best of so many plans of a `space` of tiles, if any."""
    with Context(DEV=f"NULL:{card.target}"):
        renderer = Device["NULL"].toolchain.renderer
        items = [item for item in subject.build().schedule() if item.ast.op is not Op.COPY]
        kernels = [lower(item.ast, renderer, f"kernel{n}") for n, item in enumerate(items)]
        left = left_by_launches(items, kernels)
        for item, kernel in zip(items, kernels, strict=True):
            sizes = {slot: buffer.nbytes for slot, buffer in enumerate(item.bufs)}
            kept = [slot for slot, buffer in enumerate(item.bufs) if id(buffer) in left]
            launches = [launch_of(kernel, card, sizes, kept)]
            plans, every = space_of(item.ast, renderer.limits, space) if space else ([], 0)
            for plan in plans:
                other = lower(item.ast, renderer, kernel.name, plan)
                launches.append(launch_of(other, card, sizes, kept))
            best = min(launches, key=lambda launch: launch.verdict.seconds)
            yield replace(best, tried=len(plans), space=every)


def space_of(kernel: UOp, limits: Limits, count: int) -> tuple[list[Plan], int]:
    """The best plans of a space of tiles; they are those of `tiny_qcom`, needed for this alone."""
    from benchmarks.cards.space import plans_of_space  # noqa: PLC0415

    return plans_of_space(kernel, limits, count)


def launch_of(
    kernel: LinearKernel, card: Card, sizes: Mapping[int, int], kept: Collection[int]
) -> Launch:
    """A launch of a kernel, on buffers of some sizes by slot; `kept` as for `in_waves`."""
    counts = counts_of(kernel, card)
    registers = compiled_registers(kernel, card.target) or counts.registers
    probe = judged(counts, card, 0.0, registers)
    wave = probe.resident * card.units
    moved = in_waves(kernel, wave, card, sizes, counts.far_bytes, kept)
    return Launch(kernel, counts, judged(counts, card, moved, registers))


def left_by_launches(items: Sequence[ScheduleItem], kernels: Sequence[LinearKernel]) -> set[int]:
    """The identities of buffers that one launch of a problem stores and another reads."""
    used = Counter(number for item in items for number in {id(buffer) for buffer in item.bufs})
    stored = {
        id(item.bufs[access.pointer.arg])
        for item, kernel in zip(items, kernels, strict=True)
        for access in accesses_of(kernel)
        if access.is_store and access.pointer.op is Op.DEFINE_GLOBAL
    }
    return {number for number in stored if used[number] > 1}


def has_halves(launch: Launch) -> bool:
    """True if a kernel computes in float16."""
    sums = (u for u in launch.kernel.uops if u.op in (Op.ADD, Op.MUL, Op.MULACC))
    return any(u.dtype.scalar() is dtypes.float16 for u in sums)


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    text: str
    share: float
    reached: float
    """Share of what its instructions reach."""


def row_of(subject: Subject, card: Card, space: int = 0) -> Row:
    """A line of the table."""
    launches = list(launches_of(subject, card, space))
    for launch in (launch for launch in launches if launch.space):
        text = f"{launch.tried} plans counted, of a space of {launch.space}"
        print(f"{subject.name}, {launch.kernel.name}: {text}", file=sys.stderr)
    total = sum(launch.verdict.seconds for launch in launches)
    least = max(subject.operations / card.peak(subject.dtype), subject.moved / card.dram)
    limit = card.latency + least
    units = {unit for launch in launches for unit in launch.counts.matrix}
    reached = card.peak(subject.dtype) * min(map(card.reached_by, units), default=1.0)
    widened = 1.0
    if not units and not any(map(has_halves, launches)):
        reached = card.vector_rate
        widened = reached / card.peak(subject.dtype)
    reachable = card.latency + max(subject.operations / reached, subject.moved / card.dram)
    slowest = max(launches, key=lambda launch: launch.verdict.seconds)
    cells = [
        subject.name,
        len(launches),
        f"{limit / total:.2f}",
        f"{reachable / total:.2f}",
        f"{limit * 1e6:.1f}",
        slowest.verdict.slowest,
        f"{slowest.verdict.occupancy:.2f}",
        slowest.counts.shared_bytes,
        slowest.verdict.registers,
        f"{slowest.counts.conflicts:.2f}",
        reason_of(
            limit / total,
            (slowest.counts, slowest.verdict),
            len(launches),
            card,
            slowest.verdict.seconds / total,
            widened if subject.operations / card.peak(subject.dtype) == least else 1.0,
        ),
    ]
    return Row(f"| {' | '.join(map(str, cells))} |", limit / total, reachable / total)


def page_of(cards: list[Card], wanted: str, space: int = 0) -> Iterator[str]:
    """The lines of the page; with a `space`, of the best of so many plans for each kernel."""
    yield f"# Plans for cards, {time.strftime('%Y-%m-%d')}"
    yield ""
    yield INTRODUCTION
    for card in cards:
        yield ""
        yield f"## {card.name} (`NULL:{card.target}`)"
        yield ""
        yield from [*card.note.splitlines(), ""] if card.note else []
        yield HEAD
        types = TYPES if card.name != "Adreno 640" else (dtypes.float32, dtypes.float16)
        rows: list[Row] = []
        for subject in subjects_of(SCALES[card.name], types):
            if re.search(wanted, subject.name):
                rows.append(row_of(subject, card, space))
                yield rows[-1].text
        yield ""
        good = sum(row.share >= GOAL for row in rows)
        kept = sum(row.reached >= GOAL for row in rows)
        more = f", {kept} of what their instructions reach" if kept > good else ""
        yield f"{good} of {len(rows)} reach {GOAL} of their limit{more}."


def main() -> None:
    """Judge, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--card", default="", help="a part of the card's name")
    parser.add_argument("--only", default="", help="a regular expression of problems")
    parser.add_argument(
        "--space", type=int, default=0, metavar="N",
        help="the best of the planner's plan and N of the whole space of tiles (Adreno)",
    )  # fmt: skip
    given = parser.parse_args()
    cards = [card for card in CARDS if given.card.lower() in card.name.lower()]
    lines = []
    for line in page_of(cards, given.only, given.space):
        print(line, flush=True)
        lines.append(line)
    if given.output:
        given.output.write_text("\n".join(lines) + "\n", "utf-8")
    sys.exit(0 if lines else 1)


if __name__ == "__main__":
    main()
