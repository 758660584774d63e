"""Bulk tensor copies (TMA): fills of shared memory that one thread starts, a box of a buffer each.

A multi-buffered fill (`Stage.copies`) is done so if a TensorMap gives the source of every element,
and if the array has the layout of the map's swizzle (`Limits.fills` of an architecture that has
it). Bounds checks become the sizes of the tensor: elements beyond are 0.

Each copy of a stage has a phase barrier (mbarrier). The fill of a step begins a phase of the
barrier of its copy, and the step waits for that phase. The group barrier behind it ensures that all
threads have read the copy of the previous step, which is filled next. The TMA pipelines of CUTLASS
have a second phase barrier in place of the group barrier.

If a matrix unit reads the arrays asynchronously, products of the previous step may be unfinished
behind the group barrier, as its `arg` says: then the copy of the step before that is filled next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tiny_nv.phases import Phases, TensorCopy, WaitPhase
from tiny_nv.tensor_map import BOX_SWIZZLES, TensorMap
from tinycore.dtype import PointerDType, dtypes
from tinycore.render.base import pointer_of
from tinycore.tiling import (
    MASKED,
    Filling,
    copied_from,
    first_of_grid,
    rounded_operand,
    stores_of,
    with_gate,
)
from tinycore.uop.affine import coefficient
from tinycore.uop.compare import conjuncts_of
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part
from tinycore.uop.rewrite import rewrite
from tinycore.uop.sums import sum_of, terms_of
from tinycore.uop.symbolic import simplify

__all__ = ["CLUSTER", "fill_by_boxes", "fill_in_clusters"]

ROWS_OF_SWIZZLE: Final = 8
"""Period of the swizzle in a box, in rows."""
CLUSTER: Final = 4
"""Blocks that copy boxes for each other: each reads a part of what all multiply by from L2."""
CLUSTERED: Final = 2
"""Multiprocessors for each block, from which on whole clusters of them find room."""


class Box(NamedTuple):
    """A fill as a bulk copy of a box."""

    map: TensorMap
    pointer: UOp
    coordinates: tuple[UOp, ...]
    """Coordinates of the first element."""
    start: UOp
    """First element of the box in the array, a function of the loop that rotates the copies."""
    panels: int = 1
    """Number of such boxes, one behind the other in memory and in the array."""

    parts: int = 1
    """Number of copies into which the rows of the box are cut."""

    def is_common(self, loop: UOp) -> bool:
        """True if the box is the same in all steps of a loop."""
        return not any(loop in c.ranges for c in self.coordinates)

    def cut(self, parts: int) -> Box:
        """The box cut into `parts` copies along its rows; the box itself if it cannot be cut so."""
        *inner, rows = self.map.box
        if self.panels > 1 or len(inner) != 1 or rows % (parts * ROWS_OF_SWIZZLE):
            return self
        return self._replace(map=replace(self.map, box=(*inner, rows // parts)), parts=parts)

    def copies(self) -> list[tuple[int, tuple[int, ...]]]:
        """Offset of each copy from the first one, in the array and in each coordinate."""
        size, zeros = math.prod(self.map.box), (0,) * (len(self.coordinates) - 1)
        if self.panels > 1:
            return [(n * size, (n * self.map.box[0], *zeros)) for n in range(self.panels)]
        return [(n * size, (*zeros, n * self.map.box[-1])) for n in range(self.parts)]


def fill_by_boxes(filling: Filling, cluster: int = 1) -> dict[UOp, UOp]:
    """Copies of boxes in the place of fills (`Limits.fills`); {} unless each of them is a box.

    Inside of an outer loop the barriers would begin in the phase in which its last step left them.
    """
    if not filling.limits.buffers_aligned or filling.outside:
        return {}
    boxes = {fill: box_of(fill, filling.loop, filling.copies) for fill in filling.fills}
    found = {fill: box for fill, box in boxes.items() if box is not None}
    if len(found) != len(boxes):
        return {}
    sharers = sharers_of(filling, found, cluster) if filling.behind else None
    return copied_ahead(found, filling, sharers, cluster)


def fill_in_clusters(filling: Filling) -> dict[UOp, UOp]:
    """The same, where blocks of a cluster copy for each other what they have in common."""
    return fill_by_boxes(filling, CLUSTER)


def sharers_of(filling: Filling, boxes: dict[UOp, Box], cluster: int) -> UOp | None:
    """The loop over the groups of a cluster, if a box is common to them (multicast); else None.

    Only of kernels whose groups are all resident at once, in clusters wherever these find room.
    Larger products of an H100 are as fast without.
    """
    kernel, limits = filling.kernel, filling.limits
    loops = (n for n in kernel.toposort() if n.op is Op.RANGE and n.arg.kind is AxisKind.GRID)
    groups = math.prod(int(loop.vmax) + 1 for loop in loops)
    if cluster == 1 or (limits.units and CLUSTERED * groups > limits.units):
        return None
    loop = first_of_grid(kernel, limits)
    if loop is None or not loop.is_fixed or loop.extent % cluster:
        return None
    return loop if any(box.is_common(loop) for box in boxes.values()) else None


class Side(NamedTuple):
    """One dimension of a box: stride in elements, extent, and its loops with their steps."""

    stride: int
    extent: int
    steps: dict[UOp, int]


def box_of(fill: UOp, loop: UOp, copies: int) -> Box | None:
    """The box that a multi-buffered fill copies in each step of a loop; None if it copies none."""
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
    """The box of a fill with some dimensions; None if they describe none."""
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
    """An address without clamps of indices to the last step of a loop, and the resulting gates.

    Elements beyond the last step reach no result: sums leave them out, and stores are masked.
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
    """A gate without its division: x // c + y < n is x + c * y < c * n for integers."""
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
    """The dimensions of the source of a fill by stride, the densest first; None if there are none.

    A loop whose stride is the size of the dimension so far extends that dimension, unless
    `are_apart` keeps dimensions of the array apart.
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
    """The common prefix of the numbers of the loops that fill one dimension of an array."""
    number: tuple[int, ...] = loop.arg.number
    return number[: number.index(Part.FILL)] if Part.FILL in number else number


def coordinates_of(base: UOp, sides: Sequence[Side]) -> list[UOp] | None:
    """Coordinates of the first element: each term belongs to the longest stride that divides it."""
    terms, constant = terms_of(base)
    parts: list[dict[UOp, int]] = [{} for _ in sides]
    for node, factor in terms.items():
        axis = max(i for i, side in enumerate(sides) if factor % side.stride == 0)
        parts[axis][node] = factor // sides[axis].stride
    # Strides ascend: what the longer ones leave of the constant belongs to shorter ones.
    constants = [0] * len(sides)
    for axis in reversed(range(len(sides))):
        constants[axis], constant = divmod(constant, sides[axis].stride)
    found = [sum_of(part, number) for part, number in zip(parts, constants, strict=True)]
    return None if any(c.bounds[0] < 0 for c in found) else found


def set_apart(gate: UOp, coordinates: list[UOp], sides: list[Side]) -> None:
    """Split the terms of a coordinate that its gate does not bound into a dimension, as of a batch.

    The stride of that dimension is the greatest common divisor of the terms.
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
    """The sizes of the tensor that contains exactly the elements for which the gates hold."""
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
    """The bound that a gate puts on a coordinate; None if the gate is no such bound.

    `e < c` bounds f * e + r by f * c, if 0 <= r < f.
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
    """The tensor map whose boxes have the layout of a fill in shared memory; None if there is none.

    Rows longer than a swizzle may be divided into panels of its length, a box each.
    """
    assert isinstance(pointer.dtype, PointerDType)
    dtype = pointer.dtype.base
    strides = tuple([side.stride * dtype.itemsize for side in sides[1:]])
    row, *others = (side.extent for side in sides)
    panels = [(swizzle, swizzle // dtype.itemsize) for swizzle in BOX_SWIZZLES[1:]]
    panels = [(swizzle, panel) for swizzle, panel in panels if panel < row and row % panel == 0]
    for swizzle, across in (*((swizzle, row) for swizzle in BOX_SWIZZLES), *panels):
        box = (across, *others)
        found = TensorMap(pointer.arg, dtype, tuple(sizes), strides, box, swizzle)
        if found.problem() is None and lies_so(place, loop, sides, found):
            return found
    return None


def lies_so(place: UOp, loop: UOp, sides: Sequence[Side], found: TensorMap) -> bool:
    """True if a fill stores elements where a bulk copy would.

    Addresses are sums and XORs of bits of the counters, so it is enough to compare each bit alone,
    and all bits together.
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
    boxes: dict[UOp, Box], filling: Filling, sharers: UOp | None, cluster: int
) -> dict[UOp, UOp]:
    """Replacements of fills by bulk copies: each step begins those for `copies` - 1 steps ahead.

    `sharers` is the loop over groups of which `cluster` neighbors copy for each other.
    """
    loop, copies = filling.loop, filling.copies
    # One array is being read; asynchronous products may still read `behind` more.
    ahead = copies - 1 - filling.behind
    array = UOp(Op.DEFINE_LOCAL, dtypes.uint64.ptr(copies, "local"), (), next(filling.numbers))
    alone = one_of(filling.threads)
    if sharers is not None:
        boxes = {
            fill: box.cut(cluster) if box.is_common(sharers) else box for fill, box in boxes.items()
        }

    def at(turn: UOp, *after: UOp) -> UOp:
        memory = array.after(*after)
        return UOp(Op.INDEX, array.dtype, (memory, turn))

    def begun(step: UOp, after: UOp) -> tuple[UOp, ...]:
        """The copies of a step, if that step exists."""
        # The last steps have none ahead of them to copy for.
        exists = alone & (step < loop.src[0])
        found = []
        for fill, box in boxes.items():
            memory = fill.src[0].after(after)
            places = (box.start, *box.coordinates)
            start, *corner = (place.substitute({loop: step}) for place in places)
            signal, parts = at(step % copies, after), box.copies()
            for part, (first, steps) in enumerate(parts):
                coordinates = (c + by for c, by in zip(corner, steps, strict=True))
                gate, told, copy = exists, signal, TensorCopy(box.map)
                # Each group of a cluster copies its share; the hardware writes it to the memory of
                # all.
                if sharers is not None and box.is_common(sharers) and len(parts) % cluster == 0:
                    gate = exists & (sharers % cluster).eq(part * cluster // len(parts))
                    told, copy = with_gate(signal, exists), TensorCopy(box.map, cluster)
                to = with_gate(UOp(Op.INDEX, fill.dtype, (memory, start + first)), gate)
                src = (to, told, box.pointer, *coordinates)
                found.append(UOp(Op.INSTRUCTION, dtypes.void, src, copy))
        return tuple(found)

    phases = Phases(sum(len(box.copies()) for box in boxes.values()))
    barriers = tuple(
        UOp(Op.INSTRUCTION, dtypes.void, (with_gate(at(UOp.index(turn)), alone),), phases)
        for turn in range(copies)
    )
    ready = UOp(Op.BARRIER, dtypes.void, barriers)
    first = [copy for step in range(ahead) for copy in begun(UOp.index(step), ready)]
    # The phase of a barrier alternates, and each serves once in `copies` steps.
    parity = loop // copies % 2
    wait = UOp(Op.INSTRUCTION, dtypes.void, (at(loop % copies, *first), parity), WaitPhase())
    barrier = UOp(Op.BARRIER, dtypes.void, (wait,), filling.behind or None)
    following = begun(loop + ahead, barrier)
    return {fill: fill.with_src((fill.src[0], barrier, *following)) for fill in boxes}


def one_of(threads: Sequence[UOp]) -> UOp:
    """True in the first thread of a group."""
    alone = UOp.const(dtypes.bool, True)
    for counter in threads:
        alone = alone & counter.eq(0)
    return alone
