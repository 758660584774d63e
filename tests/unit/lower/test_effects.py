"""An effect of which the core has not heard: an engine that fills shared memory for a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy
import pytest
from interpreted import computed

from tests.unit.lower.legal import applied
from tinycore import Tensor
from tinycore.dtype import dtypes
from tinycore.engine.compile import info_of
from tinycore.engine.program_cache import program_key
from tinycore.errors import DeviceError, UnsupportedError, VerifyError
from tinycore.lower.linearize import linearize
from tinycore.lower.pipeline import lower
from tinycore.lower.steps.stage import nest_of
from tinycore.lower.tile import Bind, Plan, Split, Stage
from tinycore.plugin import Toolchain, deferred
from tinycore.render.base import Limits, LinearKernel, pointer_of
from tinycore.render.cstyle import CStyle
from tinycore.render.inline import inlinable
from tinycore.tiling import Filling, copied_from, stores_of, with_gate
from tinycore.uop.affine import coefficient
from tinycore.uop.instruction import Effect
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.parse import program_from_text
from tinycore.uop.text import register_argument, to_text
from tinycore.uop.verify import verify

Program = tuple[UOp, ...]


@dataclass(frozen=True)
class Fetch(Effect):
    """Rows of a buffer, `pitch` elements apart, are in shared memory, one behind the other."""

    rows: int
    columns: int
    pitch: int

    @property
    def alignment(self) -> int:
        """As the engine wants it."""
        return 256

    @property
    def extra(self) -> str:
        """The pitch, which the engine is told at each launch."""
        return f"pitch {self.pitch}"

    def problem(self, node: UOp) -> str | None:
        """It has an INDEX, a buffer and a place."""
        return None if len(node.src) == 3 else f"Fetch has 3 sources, not {len(node.src)}"

    def step(
        self, node: UOp, access: Callable[..., Any], program: Sequence[UOp]
    ) -> Callable[[Any], None]:
        """Copy at once."""
        to, buffer, place = node.src
        target = access(to, self.rows * self.columns, "writes")

        def fetch(frame: Any) -> None:
            memory, source = frame.values[pointer_of(to)], frame.values[buffer]
            gate = target.wanted(frame)
            where = target.places(frame, memory, gate)
            memory.accesses.write(frame, where, gate)
            row, column = numpy.divmod(numpy.arange(self.rows * self.columns), self.columns)
            data = source.array.take(frame.values[place] + row * self.pitch + column)
            active = frame.active(gate)
            where, data, active = numpy.broadcast_arrays(where, data, active)
            memory.array[where[active]] = data[active]

        return fetch


@dataclass(frozen=True)
class Begun(Effect):
    """A copy that goes on."""

    is_background: ClassVar[bool] = True

    def problem(self, node: UOp) -> str | None:
        """Anything is right."""
        return None


register_argument(Fetch)


def fetch_fills(filling: Filling) -> dict[UOp, UOp]:
    """Fills by the engine, each in the step that reads it."""
    done = {}
    for fill in filling.fills:
        memory, end = fill.src
        row, column = end.src[1:]
        (store,) = stores_of(end)
        source = copied_from(store.src[1])
        if source is None or len(source.src) == 3 or coefficient(source.src[1], column) != 1:
            return {}
        pitch = coefficient(source.src[1], row)
        still = {row: UOp.index(0), column: UOp.index(0)}
        place, start = (index.src[1].substitute(still) for index in (source, store.src[0]))
        before = UOp(Op.BARRIER, dtypes.void, (filling.loop,))
        shared = UOp(Op.AFTER, memory.dtype, (memory, before))
        to = UOp(Op.INDEX, memory.dtype, (shared, start))
        for counter in filling.threads:
            to = with_gate(to, counter.eq(0))
        what = Fetch(row.extent, column.extent, int(pitch or 0))
        fetch = UOp(Op.INSTRUCTION, dtypes.void, (to, source.src[0], place), what)
        done[fill] = fill.with_src((memory, UOp(Op.BARRIER, dtypes.void, (fetch,))))
    return done


def no_fills(filling: Filling) -> dict[UOp, UOp]:
    """Nothing in their place."""
    return {}


CARD = Limits(
    vector_bytes=16,
    access_alignment=16,
    grid=(1 << 20, 1 << 16, 1 << 16),
    block=(256, 256, 64),
    block_threads=256,
    shared_bytes=64 << 10,
    fills=deferred(f"{__name__}:fetch_fills"),
)
ROWS, INNER, COLUMNS = 32, 128, 48


def product(rows: int = ROWS) -> UOp:
    """The kernel of a product whose both operands lie along the sum."""
    left = Tensor.empty(rows, INNER, dtype="float16", device="PYTHON")
    right = Tensor.empty(COLUMNS, INNER, dtype="float16", device="PYTHON")
    return left.matmul(right.T, dtype="float32").schedule()[-1].ast


def plan(ast: UOp) -> Plan:
    """Both operands of a tile in shared memory, a part of the sum at a time, in two arrays."""
    row, column, inner = (r.arg.number for r in nest_of(ast))
    sides = tuple((((((*side, 1), 1),), (((*inner, 1), 1),))) for side in (row, column))
    fills = (
        (*axis, 1, Part.FILL, array)
        for array, side in enumerate((row, column))
        for axis in (side, inner)
    )
    return (
        *(Split(row, 16), Split(column, 8), Split(inner, 32)),
        *(Bind((*axis, 0), AxisKind.GRID) for axis in (row, column)),
        *(Bind((*row, 1), AxisKind.BLOCK), Bind((*column, 1), AxisKind.UNROLL)),
        *(Stage((*inner, 0), side, copies=2, narrow=(dtypes.float16,)) for side in sides),
        *(Bind(axis, AxisKind.FILL) for axis in fills),
    )


class Language(CStyle):
    """A language that writes no text."""

    builtins = {"grid": "g{0}", "block": "b{0}"}  # noqa: RUF012


def lowered(limits: Limits = CARD) -> LinearKernel:
    """The product with its fills done by the engine."""
    ast = product()
    applied(ast, plan(ast), limits)
    return lower(ast, Language(limits), "product", plan(ast))


def fetches(uops: Program) -> list[UOp]:
    """The nodes of the engine."""
    return [u for u in uops if u.op is Op.INSTRUCTION]


def test_a_device_fills_and_the_interpreter_knows_how() -> None:
    ast = product()
    linear, (found, left, right) = computed(ast, plan(ast), CARD)

    assert [u.arg for u in fetches(linear.uops)] == [Fetch(16, 32, INNER), Fetch(8, 32, INNER)]
    expected = left.reshape(ROWS, INNER) @ right.reshape(COLUMNS, INNER).T
    assert (found.reshape(ROWS, COLUMNS) == expected).all()


def test_a_barrier_that_is_left_out_is_found() -> None:
    def without_last(uops: Program) -> Program:
        last = max(place for place, u in enumerate(uops) if u.op is Op.BARRIER)
        return (*uops[:last], *uops[last + 1 :])

    ast = product()
    with pytest.raises(DeviceError, match="no barrier"):
        computed(ast, plan(ast), CARD, without_last)


def test_threads_fill_where_the_device_says_that_it_cannot() -> None:
    assert fetches(lowered().uops)
    assert not fetches(lowered(replace(CARD, fills=deferred(f"{__name__}:no_fills"))).uops)
    assert not fetches(lowered(replace(CARD, fills=None)).uops)


def test_what_an_effect_says_is_asked() -> None:
    linear = lowered()
    arrays = [pointer_of(u.src[0]) for u in fetches(linear.uops)]

    assert info_of(linear, 3).extras == (f"pitch {INNER}", f"pitch {INNER}")
    assert [linear.alignments[array] for array in arrays] == [256, 256]
    assert all(linear.shared_layout[array] % 256 == 0 for array in arrays)
    node = fetches(linear.uops)[0]
    verify(node, "lowered")
    with pytest.raises(VerifyError, match="Fetch has 3 sources, not 2"):
        verify(node.with_src(node.src[:2]), "lowered")
    with pytest.raises(VerifyError, match="takes an Instruction or an Effect, not None"):
        verify(node.replace(arg=None), "lowered")


def test_its_text_is_read_back_and_other_languages_have_no_words() -> None:
    linear = lowered()

    assert program_from_text(to_text(linear.uops)) == linear.uops
    with pytest.raises(UnsupportedError, match="no instruction Fetch"):
        Language(CARD).render(linear)


def element(index: int | UOp = 0) -> UOp:
    """An element of a buffer."""
    buffer = UOp(Op.DEFINE_GLOBAL, dtypes.float32.ptr(8), (), 0)
    place = UOp.index(index) if isinstance(index, int) else index
    return UOp(Op.INDEX, buffer.dtype, (buffer, place))


def test_a_load_does_not_move_past_it() -> None:
    load = UOp(Op.LOAD, dtypes.float32, (element(),))
    change = UOp(Op.INSTRUCTION, dtypes.void, (element(1),), Begun())
    store = UOp(Op.STORE, dtypes.void, (element(2), load))
    nodes = [*load.toposort(), *(n for n in store.toposort() if n not in load.toposort())]

    places = inlinable(nodes)
    assert nodes.index(load) in places
    nodes.insert(nodes.index(load) + 1, change)
    assert nodes.index(load) not in inlinable(nodes)


def test_what_goes_on_in_the_background_is_begun_last() -> None:
    """As copies are that threads begin, where products of a step before are under way."""
    loop = UOp.range(4, 0)
    barrier = UOp(Op.BARRIER, dtypes.void, (loop,), 1)
    begun = UOp(Op.INSTRUCTION, dtypes.void, (element(loop),), Begun())
    memory = UOp(Op.AFTER, element().src[0].dtype, (element().src[0], barrier, begun))
    local = UOp(Op.DEFINE_LOCAL, dtypes.float32.ptr(8, "local"), (), 0)
    load = UOp(Op.LOAD, dtypes.float32, (UOp(Op.INDEX, memory.dtype, (memory, loop)),))
    store = UOp(Op.STORE, dtypes.void, (UOp(Op.INDEX, local.dtype, (local, loop)), load))
    ops = [u.op for u in linearize(UOp.sink(UOp(Op.END, dtypes.void, (store, loop))))]

    assert ops.index(Op.BARRIER) < ops.index(Op.STORE) < ops.index(Op.INSTRUCTION)


def test_programs_on_disk_are_those_of_its_code() -> None:
    """A function whose code has no file is no part of a key, so nothing is kept."""

    def key(limits: Limits) -> str | None:
        language = Language(limits)
        compiler = type("Compiler", (), {"name": "C", "key": "C 1", "__module__": __name__})()
        return program_key(product(), Toolchain("C", "", language, compiler))

    assert key(CARD) not in (None, key(replace(CARD, fills=None)))
    assert key(replace(CARD, fills=deferred("builtins:dict"))) is None
