"""Fills of shared memory that are a box of a buffer: one thread has the device copy all of it.

Floor 3'. A fill with several copies (`Stage.copies`) is done so where `Limits.tensor_copies` says
that the device can, every element comes from where a TensorMap says, and its place in the array is
that of the map's swizzle. Gates that hold inside of a tensor are its sizes: what is beyond is 0.

Each copy of a stage has a barrier of phases. The fill of a step begins one phase of the barrier of
its turn, and the step waits for that phase; the barrier of the group, behind it, says that all have
read what the step before read, which is filled next. The pipelines of CUTLASS with TMA are alike,
but for the second barrier, whose place there is taken by one of phases.

Where a matrix unit reads the arrays by itself, products of the step before may still be under way
behind that barrier, which says so (`arg`): the array of the step before that one is filled next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tinycore.dtype import PointerDType, dtypes
from tinycore.lower.async_copies import copied_from
from tinycore.lower.loops import stores_of
from tinycore.lower.predicate import with_gate
from tinycore.lower.steps.split import MASKED
from tinycore.lower.steps.tensorize import rounded_operand
from tinycore.render.base import pointer_of
from tinycore.tensor_map import SWIZZLES, TensorMap
from tinycore.uop.affine import coefficient
from tinycore.uop.compare import conjuncts_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, Part
from tinycore.uop.rewrite import rewrite
from tinycore.uop.sums import sum_of, terms_of
from tinycore.uop.symbolic import simplify

ROWS_OF_SWIZZLE: Final = 8
"""Rows after which the exchange of pieces in a box repeats."""


class Box(NamedTuple):
    """A fill as the copy of a box."""

    map: TensorMap
    pointer: UOp
    coordinates: tuple[UOp, ...]
    """Coordinates of the first element."""
    start: UOp
    """Element of the array where the box begins, a function of the loop that has turns."""
    panels: int = 1
    """Number of such copies, one behind the other in memory and in the array."""

    parts: int = 1
    """Number of copies into which the rows of the box are cut."""

    def is_common(self, loop: UOp) -> bool:
        """True if it is the same in all steps of a loop."""
        return not any(loop in c.ranges for c in self.coordinates)

    def cut(self, parts: int) -> Box:
        """The same as copies whose number is a multiple of some parts, where it can be cut so."""
        *inner, rows = self.map.box
        if self.panels > 1 or len(inner) != 1 or rows % (parts * ROWS_OF_SWIZZLE):
            return self
        return self._replace(map=replace(self.map, box=(*inner, rows // parts)), parts=parts)

    def copies(self) -> list[tuple[int, tuple[int, ...]]]:
        """Distances of each copy from the first one, in the array and along the coordinates."""
        size, zeros = math.prod(self.map.box), (0,) * (len(self.coordinates) - 1)
        if self.panels > 1:
            return [(n * size, (n * self.map.box[0], *zeros)) for n in range(self.panels)]
        return [(n * size, (*zeros, n * self.map.box[-1])) for n in range(self.parts)]


class Signals(NamedTuple):
    """The barriers of some boxes, and the groups that copy for each other."""

    number: int
    """Number of the array that holds them."""
    behind: int = 0
    """Steps whose products may be under way: copies are begun as many steps later."""
    sharers: UOp | None = None
    """The loop over groups whose neighbors copy for each other."""
    cluster: int = 1
    """The number of these."""


class Side(NamedTuple):
    """One dimension of a box: stride in elements, extent, and its loops with their steps."""

    stride: int
    extent: int
    steps: dict[UOp, int]


def box_of(fill: UOp, loop: UOp, copies: int) -> Box | None:
    """The box that a fill with so many copies moves in each step of a loop; None if it is none."""
    end = fill.src[1]
    (store,) = stores_of(end)
    own = [r for r in end.src[1:] if r.op is Op.RANGE]
    value = store.src[1]
    exact = before_rounding(value)
    source = copied_from(value if exact is None else exact)
    array = pointer_of(store.src[0])
    if source is None or not all(r.is_fixed for r in own):
        return None
    gates = conjuncts_of(source.src[2]) if len(source.src) == 3 else []
    address, gates = uncut(source.src[1], gates)
    pointer = pointer_of(source)
    if pointer.dtype.base is not array.dtype.base:  # type: ignore[attr-defined]
        return None
    assert isinstance(array.dtype, PointerDType)
    size = array.dtype.size // copies * array.dtype.base.itemsize
    for are_apart in (False, True):
        sides = sides_of(address, own, are_apart)
        found = sides and box_along(sides, address, gates, store.src[0].src[1], pointer, loop)
        if found and size % found.map.alignment == 0:
            return found._replace(map=replace(found.map, rounds=exact is not None))
    return None


def before_rounding(value: UOp) -> UOp | None:
    """The value that was rounded for a matrix unit to another one; None if none was."""
    bits = (n for n in value.toposort() if n.op is Op.BITCAST and n.dtype is dtypes.uint32)
    return next((n.src[0] for n in bits if simplified(rounded_operand(n.src[0])) is value), None)


def box_along(
    sides: list[Side], address: UOp, gates: Sequence[UOp], place: UOp, pointer: UOp, loop: UOp
) -> Box | None:
    """The box of a fill with these dimensions; None if it is none."""
    own = [counter for side in sides for counter in side.steps]
    base = simplified(address.substitute({r: UOp.index(0) for r in own}))
    coordinates = coordinates_of(base, sides)
    if coordinates is None:
        return None
    for gate in gates:
        set_apart(gate, coordinates, sides)
    sizes = sizes_of(coordinates, sides, gates)
    if sizes is None:
        return None
    start = simplified(place.substitute({r: UOp.index(0) for r in own}))
    found = map_of(pointer, sides, sizes, place, loop)
    if found is None or start.ranges - loop.ranges:
        return None
    panels = sides[0].extent // found.box[0]
    if panels > 1 and found.box_bytes % found.alignment:
        return None
    return Box(found, pointer, tuple(coordinates), start, panels)


def simplified(node: UOp) -> UOp:
    """An index expression in normal form."""
    return rewrite(node, simplify, name="simplify a box")


def uncut(address: UOp, gates: Sequence[UOp]) -> tuple[UOp, list[UOp]]:
    """An address without places that are cut to the last one of a loop, and all gates then.

    What is read beyond the last is in no result: sums leave it out, and stores are masked.
    """
    found, places = list(map(undivided, gates)), {}
    for cut in (n for n in address.toposort() if n.op is Op.MIN and n.arg == MASKED):
        place, last = cut.src
        if last.op is not Op.CONST:
            continue
        gate = place < int(last.arg) + 1
        places[cut] = place
        if gate not in found:
            found.append(gate)
    return (simplified(address.substitute(places)) if places else address), found


def undivided(gate: UOp) -> UOp:
    """A gate without its quotient: x // c + y < n where x + c * y < c * n, for whole numbers."""
    if gate.op is not Op.CMPLT or gate.src[1].op is not Op.CONST:
        return gate
    terms, constant = terms_of(gate.src[0])
    quotients = [
        node
        for node, factor in terms.items()
        if node.op is Op.FLOORDIV and factor == 1 and node.src[1].op is Op.CONST
    ]
    if len(quotients) != 1 or (by := int(quotients[0].src[1].arg)) < 1:
        return gate
    others = {node: by * factor for node, factor in terms.items() if node is not quotients[0]}
    return simplified(quotients[0].src[0] + sum_of(others, by * constant)) < by * int(
        gate.src[1].arg
    )


def sides_of(address: UOp, own: Iterable[UOp], are_apart: bool) -> list[Side] | None:
    """The dimensions of what the loops of a fill read, the densest first; None if they are none.

    Loops whose steps are those of another with all of its steps count along one dimension, unless
    they are of two of the array and these are to stay apart.
    """
    strides = {r: coefficient(address, r) for r in own}
    sides: list[Side] = []
    for loop, stride in sorted(strides.items(), key=lambda item: item[1] or 0):
        if not stride or stride < 1:
            return None
        last = sides[-1] if sides else Side(0, 1, {})
        is_apart = are_apart and dimension_of(loop) not in map(dimension_of, last.steps)
        if sides and stride == last.stride * last.extent and not is_apart:
            steps = {**last.steps, loop: last.extent}
            sides[-1] = Side(last.stride, last.extent * loop.extent, steps)
        else:
            sides.append(Side(stride, loop.extent, {loop: 1}))
    return sides if sides and sides[0].stride == 1 else None


def dimension_of(loop: UOp) -> tuple[int, ...]:
    """Number that loops which fill one dimension of an array have in common."""
    number: tuple[int, ...] = loop.arg.number
    return number[: number.index(Part.FILL)] if Part.FILL in number else number


def coordinates_of(base: UOp, sides: Sequence[Side]) -> list[UOp] | None:
    """Coordinates of the first element: a term counts along the longest stride that it is of."""
    terms, constant = terms_of(base)
    parts: list[dict[UOp, int]] = [{} for _ in sides]
    for node, factor in terms.items():
        axis = max(i for i, side in enumerate(sides) if factor % side.stride == 0)
        parts[axis][node] = factor // sides[axis].stride
    constants = [0] * len(sides)
    for axis in reversed(range(len(sides))):
        constants[axis], constant = divmod(constant, sides[axis].stride)
    found = [sum_of(part, number) for part, number in zip(parts, constants, strict=True)]
    return None if any(c.bounds[0] < 0 for c in found) else found


def set_apart(gate: UOp, coordinates: list[UOp], sides: list[Side]) -> None:
    """Add a dimension for what a gate leaves out of the place it bounds, such as a batch of rows.

    Places along it are whole numbers of the step that all of this has in common.
    """
    wanted, _ = terms_of(gate.src[0])
    for axis, (start, side) in enumerate(zip(coordinates, sides, strict=True)):
        terms, constant = terms_of(start)
        others = {node: factor for node, factor in terms.items() if node not in wanted}
        if wanted.keys() <= terms.keys() | side.steps.keys() and others:
            step = math.gcd(*others.values())
            rest = {node: factor for node, factor in terms.items() if node in wanted}
            coordinates[axis] = sum_of(rest, constant)
            coordinates.append(sum_of({n: f // step for n, f in others.items()}, 0))
            sides.append(Side(side.stride * step, 1, {}))
            return


def sizes_of(
    coordinates: Sequence[UOp], sides: Sequence[Side], gates: Iterable[UOp]
) -> list[int] | None:
    """Sizes of a tensor in which just those elements are for which the gates hold."""
    places = [
        simplified(sum((loop * step for loop, step in side.steps.items()), start))
        for start, side in zip(coordinates, sides, strict=True)
    ]
    sizes = [int(place.vmax) + 1 for place in places]
    for gate in gates:
        bounds = [bound_of(gate, place) for place in places]
        axis = next((i for i, bound in enumerate(bounds) if bound is not None), None)
        if axis is None:
            return None
        sizes[axis] = min(sizes[axis], bounds[axis] or 0)
    return sizes


def bound_of(gate: UOp, place: UOp) -> int | None:
    """The size that a place is below just where a gate holds; None if it says something else.

    `e < c` says it of f * e + r, where r is below f, with the size f * c.
    """
    if gate.op is not Op.CMPLT or gate.src[1].op is not Op.CONST:
        return None
    terms, _ = terms_of(gate.src[0])
    known, _ = terms_of(place)
    node = next(iter(terms), None)
    if node is None or node not in known or known[node] % terms[node]:
        return None
    factor = known[node] // terms[node]
    rest = simplified(place - gate.src[0] * factor)
    inside = factor > 0 and rest.bounds[0] >= 0 and rest.bounds[1] < factor
    return factor * int(gate.src[1].arg) if inside else None


def map_of(
    pointer: UOp, sides: Sequence[Side], sizes: Sequence[int], place: UOp, loop: UOp
) -> TensorMap | None:
    """The map of a tensor whose boxes lie in shared memory as the places of a fill say.

    Rows longer than what a swizzle exchanges may lie in panels of that length, a box each.
    """
    assert isinstance(pointer.dtype, PointerDType)
    dtype = pointer.dtype.base
    strides = tuple([side.stride * dtype.itemsize for side in sides[1:]])
    row, *others = (side.extent for side in sides)
    panels = [(swizzle, swizzle // dtype.itemsize) for swizzle in SWIZZLES[1:]]
    panels = [(swizzle, panel) for swizzle, panel in panels if panel < row and row % panel == 0]
    for swizzle, across in (*((swizzle, row) for swizzle in SWIZZLES), *panels):
        box = (across, *others)
        found = TensorMap(pointer.arg, dtype, tuple(sizes), strides, box, swizzle)
        if found.problem() is None and lies_so(place, loop, sides, found):
            return found
    return None


def lies_so(place: UOp, loop: UOp, sides: Sequence[Side], found: TensorMap) -> bool:
    """True if the elements of a fill have the places in which a copy puts them.

    Places are sums and XORs of bits of the counters, so each bit alone, and all at once, show it.
    """
    steps = {
        counter: (axis, step)
        for axis, side in enumerate(sides)
        for counter, step in side.steps.items()
    }
    still = dict.fromkeys((loop, *place.ranges, *steps), UOp.index(0))
    first = simplified(place.substitute(still))
    if first.op is not Op.CONST:
        return False
    single = [
        {counter: 1 << bit} for counter in steps for bit in range((counter.extent - 1).bit_length())
    ]
    for at in (*single, {counter: counter.extent - 1 for counter in steps}):
        position = [0] * len(sides)
        for counter, number in at.items():
            axis, step = steps[counter]
            position[axis] += number * step
        there = {**still, **{counter: UOp.index(number) for counter, number in at.items()}}
        panel, position[0] = divmod(position[0], found.box[0])
        byte = panel * found.box_bytes + found.place(position)
        wanted, rest = divmod(byte, found.dtype.itemsize)
        if rest or simplified(place.substitute(there)) is not UOp.index(first.arg + wanted):
            return False
    return True


def copied_ahead(
    boxes: dict[UOp, Box], loop: UOp, copies: int, threads: Sequence[UOp], signals: Signals
) -> dict[UOp, UOp]:
    """Replacements of fills that are boxes: each step begins those of `copies` - 1 steps on."""
    number, behind, sharers, cluster = signals
    ahead = copies - 1 - behind
    array = UOp(Op.DEFINE_LOCAL, dtypes.uint64.ptr(copies, "local"), (), number)
    alone = one_of(threads)
    if sharers is not None:
        boxes = {
            fill: box.cut(cluster) if box.is_common(sharers) else box for fill, box in boxes.items()
        }

    def at(turn: UOp, *after: UOp) -> UOp:
        memory = UOp(Op.AFTER, array.dtype, (array, *after)) if after else array
        return UOp(Op.INDEX, array.dtype, (memory, turn))

    def begun(step: UOp, after: UOp) -> tuple[UOp, ...]:
        """The copies of a step, where there is one."""
        exists = alone & (step < loop.src[0])
        found = []
        for fill, box in boxes.items():
            memory = UOp(Op.AFTER, fill.dtype, (fill.src[0], after))
            places = (box.start, *box.coordinates)
            start, *corner = (place.substitute({loop: step}) for place in places)
            signal, parts = at(step % copies, after), box.copies()
            for part, (first, steps) in enumerate(parts):
                coordinates = (c + by for c, by in zip(corner, steps, strict=True))
                gate, told = exists, signal
                if sharers is not None and box.is_common(sharers) and len(parts) % cluster == 0:
                    gate = exists & (sharers % cluster).eq(part * cluster // len(parts))
                    told = with_gate(signal, exists)
                to = with_gate(UOp(Op.INDEX, fill.dtype, (memory, start + first)), gate)
                src = (to, told, box.pointer, *coordinates)
                found.append(UOp(Op.TENSOR_COPY, dtypes.void, src, box.map))
        return tuple(found)

    count = sum(len(box.copies()) for box in boxes.values())
    barriers = tuple(
        UOp(Op.PHASES, dtypes.void, (with_gate(at(UOp.index(turn)), alone),), count)
        for turn in range(copies)
    )
    ready = UOp(Op.BARRIER, dtypes.void, barriers)
    first = [copy for step in range(ahead) for copy in begun(UOp.index(step), ready)]
    parity = loop // copies % 2
    wait = UOp(Op.WAIT_PHASE, dtypes.void, (at(loop % copies, *first), parity))
    barrier = UOp(Op.BARRIER, dtypes.void, (wait,), behind or None)
    following = begun(loop + ahead, barrier)
    return {fill: fill.with_src((fill.src[0], barrier, *following)) for fill in boxes}


def one_of(threads: Sequence[UOp]) -> UOp:
    """True in the first thread of a group."""
    alone = UOp.const(dtypes.bool, True)
    for counter in threads:
        alone = alone & counter.eq(0)
    return alone
