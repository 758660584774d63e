"""Schedules and plans of the benchmark cases, and of sizes between them.

One file per case and target: kernels in order, each with its plan as DEBUG=3 prints it, and the
bytes of new memory. Nothing is compiled or run, and the limits are stated here, so that the texts
do not depend on the machine. A change of a heuristic shows here as the plans that it changes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, get_args

import pytest

import tinycore
from tinycore import Context, Tensor
from tinycore.device.buffer import Buffer
from tinycore.engine import engine
from tinycore.lower.plan import plan_for
from tinycore.lower.plan_neighbors import default, neighbors, starts
from tinycore.lower.tile import Plan, Step
from tinycore.render import Limits
from tinycore.schedule.items import ScheduleItem
from tinycore.schedule.kernel import kernel_name
from tinycore.schedule.limits import cut_for
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

FOLDER: Final = Path(__file__).parent / "plans"
ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # last: what is installed comes first

from benchmarks.case import Case, Kind, Prepared  # noqa: E402
from benchmarks.cases import CASES, lowering  # noqa: E402

TARGETS: Final[dict[str, Limits]] = {
    "avx2": Limits(
        vector_bytes=32, vector_registers=16, pair_bytes=32, threads=2,
        cache_bytes=1 << 20, stream_bytes=32 << 20,
    ),
    "avx512": Limits(
        vector_bytes=64, vector_registers=32, pair_bytes=64, threads=8,
        cache_bytes=2 << 20, stream_bytes=64 << 20,
    ),
    "grid": Limits(
        grid=(2**31 - 1, 65_535, 65_535), block=(1024, 1024, 64), block_threads=1024,
        block_wanted=256, shared_bytes=48 << 10, threads=128,
    ),
}  # fmt: skip
"""A processor of two cores, one of eight, and a graphics card."""

Call = Callable[[], Any]


def realized(result: Any) -> None:
    """Realize a result, as a benchmark's harness does."""
    if isinstance(result, Tensor):
        result.realize()


def stepped(step: Any) -> None:
    """One step of a case that has steps, with its part that is not timed."""
    realized(step.run(step.prepare()) if isinstance(step, Prepared) else step())


def setup(case: Case) -> Call:
    """A case ready to run once."""
    program = case.program_of("tinycore")
    assert program is not None
    inputs = [Tensor.empty(*made.shape, dtype=made.dtype).realize() for made in case.inputs]
    if case.kind is Kind.CALL:
        return lambda: realized(program(tinycore, *inputs))
    step = program(tinycore, *inputs)
    return lambda: stepped(step)


COMPUTING: Final = {
    case.name: case for case in CASES if isinstance(case, Case) and case.kind is not Kind.TOOL
}
"""The benchmark cases that run kernels."""


def square_product(n: int) -> Tensor:
    """Products from those of one vector to those that are packed."""
    return Tensor.empty(n, n) @ Tensor.empty(n, n)


def ragged_product(n: int) -> Tensor:
    """Rows, columns and sums that divide by nothing."""
    return Tensor.empty(n - 1, n + 3) @ Tensor.empty(n + 3, n + 1)


def vector_product(n: int) -> Tensor:
    """A matrix that is read once."""
    return Tensor.empty(n) @ Tensor.empty(n, n)


def batched_product(n: int) -> Tensor:
    """Many small products."""
    return Tensor.empty(n, 32, 64) @ Tensor.empty(n, 64, 32)


def convolution(n: int) -> Tensor:
    """Images of 3 channels and more, 3x3."""
    return Tensor.empty(2, n, 28, 28).conv2d(Tensor.empty(32, n, 3, 3), padding=1)


def pooled(n: int) -> Tensor:
    """Windows that do not overlap."""
    return Tensor.empty(4, n, 28, 28).max_pool2d((2, 2))


def softmax(n: int) -> Tensor:
    """Rows read three times."""
    return Tensor.empty(64, n).softmax(1)


def attended(n: int) -> Tensor:
    """Scores that are held in strips, or not."""
    queries, keys, values = (Tensor.empty(4, n, 32) for _ in range(3))
    return queries.scaled_dot_product_attention(keys, values)


def row_sums(n: int) -> Tensor:
    """Sums along the last axis."""
    return Tensor.empty(64, n).sum(1)


def column_sums(n: int) -> Tensor:
    """Sums along the first axis."""
    return Tensor.empty(n, 64).sum(0)


def whole_sum(n: int) -> Tensor:
    """One number of all."""
    return Tensor.empty(n, n).sum()


def running_sums(n: int) -> Tensor:
    """Sums of all that comes before."""
    return Tensor.empty(16, n).cumsum(1)


def elementwise(n: int) -> Tensor:
    """A chain, broadcast along both axes."""
    return (Tensor.empty(n, n) * Tensor.empty(n, 1) + Tensor.empty(n)).exp()


def transposed(n: int) -> Tensor:
    """A copy in another order."""
    return Tensor.empty(n, n).T.contiguous()


SIZES: Final = (3, 8, 17, 32, 48, 64, 100, 128, 256, 512, 1000)
LADDERS: Final[Mapping[Callable[[int], Tensor], tuple[int, ...]]] = {
    square_product: (*SIZES, 1536),
    ragged_product: SIZES,
    vector_product: (*SIZES, 4096),
    batched_product: (1, 2, 3, 8, 64),
    convolution: (1, 3, 8, 16, 32, 64, 100),
    pooled: (1, 3, 16, 64),
    softmax: (*SIZES, 4096, 100_000),
    attended: (8, 32, 100, 128, 512),
    row_sums: (*SIZES, 4096, 100_000),
    column_sums: (*SIZES, 4096, 100_000),
    whole_sum: (*SIZES, 4096),
    running_sums: (*SIZES, 4096),
    elementwise: (*SIZES, 4096),
    transposed: (*SIZES, 4096),
}
"""Expressions, and sizes on both sides of where their plans change."""

SEARCHED: Final[dict[str, Callable[[Any], Any]]] = {
    "matmul": lowering.KERNELS["matmul"],
    "softmax": lowering.KERNELS["softmax"],
    "row sums": lambda tensor: tensor.empty(64, 100).sum(1),
}
NEIGHBORS: Final = 6
"""Number of neighbors of each start of a search that are written down."""


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ScheduleItem]]:
    """The launches that are asked for; none is compiled or run."""
    items: list[ScheduleItem] = []

    def note(found: Iterable[ScheduleItem], values: Mapping[str, int] | None = None) -> list[Any]:
        items.extend(found)
        return []

    monkeypatch.setattr(engine, "run_schedule", note)
    monkeypatch.setattr(engine, "announce", note)  # of runs that write to memory from before
    with Context(DEV="NULL", VERIFY=0):
        yield items


def plan_line(plan: Plan) -> str:
    """A plan as DEBUG=3 prints it."""
    return " ".join(map(str, plan)) or "as it stands"


def launch_line(item: ScheduleItem, limits: Limits) -> str:
    """The name of a launch, and the tiling of its kernel."""
    if item.ast.op is Op.COPY:
        return f"copy {item.bufs[0].nbytes:,} B"
    return f"{kernel_name(item.ast)}: {plan_line(plan_for(item.ast, limits))}"


def written(ast: UOp) -> set[int]:
    """The slots that a launch writes to."""
    if ast.op is Op.COPY:
        return {0}
    places = [n.src[0] for n in ast.toposort() if n.op is Op.STORE]
    return {place.src[0].arg for place in places}


def allocated(items: Iterable[ScheduleItem]) -> int:
    """Bytes of the memory that launches write before any of them reads it."""
    first: dict[Buffer, bool] = {}
    for item in items:
        outputs = written(item.ast)
        for slot, buffer in enumerate(item.bufs):
            first.setdefault(buffer.base or buffer, slot in outputs)
    return sum(root.nbytes for root, is_new in first.items() if is_new)


def report(title: str, items: list[ScheduleItem], limits: Limits) -> str:
    """The text of a golden file: equal launches in a row are one line."""
    lines = (launch_line(item, limits) for item in items)
    counted = ((line, len(list(group))) for line, group in groupby(lines))
    shown = (line if count == 1 else f"{count} times {line}" for line, count in counted)
    head = f"{title}: {len(items)} launches, {allocated(items):,} B of new memory"
    return "\n".join((head, *shown)) + "\n"


def file_of(name: str) -> str:
    """The name of a case as that of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("²", "")).strip("-") + ".txt"


@pytest.mark.sample(5)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", COMPUTING)
def test_benchmark_case(case: str, target: str, golden: Any, scheduled: list[ScheduleItem]) -> None:
    with cut_for(TARGETS[target]):
        run = setup(COMPUTING[case])
        scheduled.clear()
        run()
        text = report(case, scheduled, TARGETS[target])

    golden.check(f"plans/{target}", file_of(case), text)


@pytest.mark.sample(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("expression", LADDERS, ids=lambda function: function.__name__)
def test_sizes(
    expression: Callable[[int], Tensor],
    target: str,
    golden: Any,
    scheduled: list[ScheduleItem],
) -> None:
    limits, texts = TARGETS[target], []
    with cut_for(limits):
        for size in LADDERS[expression]:
            scheduled.clear()
            expression(size).realize()
            texts.append(report(str(size), scheduled, limits))

    golden.check(f"plans/{target}", f"sizes-{file_of(expression.__name__)}", "\n".join(texts))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SEARCHED)
def test_candidates_of_a_search(
    name: str, target: str, golden: Any, scheduled: list[ScheduleItem]
) -> None:
    limits = TARGETS[target]
    with cut_for(limits):
        SEARCHED[name](Tensor).realize()
    item, lines = scheduled[-1], []
    for seed, start in enumerate((default(item.ast, limits), *starts(item.ast, limits))):
        if start is None:
            lines.append("start refused")
            continue
        lines.append(f"start {plan_line(start.plan)}")
        near = islice(neighbors(item.ast, start, limits, seed), NEIGHBORS)
        lines += [f"  neighbor {plan_line(candidate.plan)}" for candidate in near]

    golden.check(f"plans/{target}", f"search-{file_of(name)}", "\n".join(lines) + "\n")


def test_description_leaves_nothing_of_a_step_out() -> None:
    """Plans that differ have other texts: each field of a step is in its pattern."""
    patterns = {kind.__name__: len(fields(kind)) for kind in get_args(Step)}

    assert patterns == {
        "Split": 3, "Bind": 2, "Reorder": 1, "Fuse": 4, "Peel": 2, "Stage": 10, "Accumulate": 2,
        "Pair": 1, "Tensorize": 4, "Unite": 1, "Chain": 5,
    }  # fmt: skip


def test_no_plan_file_is_unused() -> None:
    found = {path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*")}
    sizes = (f"sizes-{file_of(expression.__name__)}" for expression in LADDERS)
    names = [*map(file_of, COMPUTING), *sizes, *(f"search-{file_of(name)}" for name in SEARCHED)]

    assert len(set(names)) == len(names)
    assert found == {f"{target}/{name}" for target in TARGETS for name in names}
