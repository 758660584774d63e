"""Reverse-mode differentiation of the tensor graph.

Floor 5. A rule gets a node and the gradient of its value, and gives that of each source: nodes
again, so derivatives can be differentiated. None stands for no gradient, as of integers and bools.
What a gradient goes to in the end are BUFFERs of floats, and tensors; memory may know the node that
it was computed by (`versions.Made`), through which gradients flow on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from tinycore.dtype import Scalar, dtypes
from tinycore.errors import GradientError
from tinycore.tensor import graph
from tinycore.tensor.aliases import buffers_below
from tinycore.tensor.autograd import versions
from tinycore.tensor.autograd.softmax_products import RESULTS, weighed_at
from tinycore.tensor.autograd.versions import (
    BY_CALL,
    NOBODY,
    NOTHING_KNOWN,
    Homes,
    Known,
    known_of,
    living,
    made_of,
    ordered_through,
    sources_of,
)
from tinycore.tensor.methods.prefix_scan import running_fold, shifted
from tinycore.uop.movement import base_of
from tinycore.uop.node import Skew, UOp, device_node, is_gradient_leaf
from tinycore.uop.op import Op, Write, registers

Gradients = tuple[UOp | None, ...]
Rule = Callable[[UOp, UOp], Gradients]


def scale(x: UOp, number: Scalar) -> UOp:
    """x * number."""
    return x.alu(Op.MUL, graph.full_like(x, number))


def zero(x: UOp) -> UOp:
    """0 in the shape of `x`."""
    return graph.full_like(x, 0)


GRADIENT_RULES: Final[dict[Op, Rule]] = {
    Op.ADD: lambda node, g: (g, g),
    Op.SUB: lambda node, g: (g, -g),
    Op.MUL: lambda node, g: (g * node.src[1], g * node.src[0]),
    Op.MULACC: lambda node, g: (g * node.src[1], g * node.src[0], g),
    Op.NEG: lambda node, g: (-g,),
    Op.RECIPROCAL: lambda node, g: (-(g * node * node),),
    Op.SQRT: lambda node, g: (g / scale(node, 2),),
    Op.EXP: lambda node, g: (g * node,),
    Op.EXP2: lambda node, g: (scale(g * node, math.log(2)),),
    Op.LOG: lambda node, g: (g / node.src[0],),
    Op.LOG2: lambda node, g: (g / scale(node.src[0], math.log(2)),),
    # the same value; between floats it is converted back
    **dict.fromkeys((Op.CONTIGUOUS, Op.VALUE, Op.OWN), lambda node, g: (g,)),
    Op.CAST: lambda node, g: (
        g.cast(kind) if dtypes.is_float(kind := node.src[0].dtype) else None,
    ),
    Op.CONTIGUOUS_BACKWARD: lambda node, g: (g.alu(Op.CONTIGUOUS),),
    Op.COPY: lambda node, g: (g.alu(Op.COPY, device_node(node.src[0].device)), None),
    # former content has none; a CUSTOM has several results, and is told which one it is of
    Op.ASSIGN: lambda node, g: (None, UOp.sink(node, g) if node.src[1].op is Op.CUSTOM else g),
    # the adjoint of movement is movement, or a sum
    Op.RESHAPE: lambda node, g: (graph.reshape(g, node.src[0].shape),),
    Op.EXPAND: lambda node, g: (graph.sum_to(g, node.src[0].shape),),
    Op.PERMUTE: lambda node, g: (graph.permute(g, [*map(node.arg.index, range(len(node.arg)))]),),
    Op.PAD: lambda node, g: (
        graph.shrink(
            g, [(a, a + n) for (a, _), n in zip(node.arg, node.src[0].shape, strict=True)]
        ),
    ),
    Op.SHRINK: lambda node, g: (
        graph.pad(g, [(a, n - b) for (a, b), n in zip(node.arg, node.src[0].shape, strict=True)]),
    ),
    Op.SKEW: lambda node, g: (
        graph.unskew(g, node.arg._replace(size=node.src[0].shape[node.arg.axis])),
    ),
    Op.FLIP: lambda node, g: (graph.flip(g, [a for a, turned in enumerate(node.arg) if turned]),),
}
"""The derivative of every op that has one."""
rule: Final = registers(GRADIENT_RULES)
"""Register a function as the derivative of some ops."""


# --- arithmetic


@rule(Op.FDIV)
def of_fdiv(node: UOp, g: UOp) -> Gradients:
    """d(a / b) = da / b - (a / b) db / b."""
    share = g / node.src[1]
    return share, -(share * node)


@rule(Op.SIN)
def of_sin(node: UOp, g: UOp) -> Gradients:
    """d sin(a) = cos(a) da, with cos(a) = 1 - 2 sin(a/2)**2."""
    half = scale(node.src[0], 0.5).alu(Op.SIN)
    return (g * (graph.full_like(g, 1) - scale(half * half, 2)),)


@rule(Op.MAX, Op.MIN)
def of_extreme(node: UOp, g: UOp) -> Gradients:
    """The gradient goes to the selected operand, half to each of equals, to both beside NaN."""
    a, b = node.src
    first_loses = (a < b) if node.op is Op.MAX else (b < a)
    second_loses = (b < a) if node.op is Op.MAX else (a < b)
    shared = a.eq(b).where(scale(g, 0.5), g)
    return first_loses.where(zero(g), shared), second_loses.where(zero(g), shared)


@rule(Op.WHERE)
def of_where(node: UOp, g: UOp) -> Gradients:
    """The gradient goes to the selected side."""
    condition = condition_by_result(node)
    return None, condition.where(g, zero(g)), condition.where(zero(g), g)


def condition_by_result(node: UOp) -> UOp:
    """The condition of a WHERE; of a relu the same condition on its result.

    With b = where(a <= c, c, a), b <= c is a <= c, for NaN as well. Then `a` need not be stored
    beside `b`, which is stored in any case for what reads it.
    """
    condition, bound, value = node.src
    if condition.op is not Op.OR or [s.op for s in condition.src] != [Op.CMPLT, Op.CMPEQ]:
        return condition
    if any(compared.src != (value, bound) for compared in condition.src):
        return condition
    below, equal = [compared.replace(src=(node, bound)) for compared in condition.src]
    return condition.replace(src=(below, equal))


# --- writes


# --- movement


@rule(Op.UNSKEW)
def of_unskew(node: UOp, g: UOp) -> Gradients:
    """SKEW is the adjoint of UNSKEW; what it would read beyond the end is zero."""
    how: Skew = node.arg
    count = node.src[0].shape[how.axis]
    reach = (count - 1) * how.stride + (g.shape[how.window_axis] - 1) * how.dilation + 1
    pairs = [(0, 0)] * len(g.shape)
    pairs[how.axis] = (0, max(0, reach - g.shape[how.axis]))
    return (graph.skew(graph.pad(g, pairs), how._replace(size=count)),)


# --- reductions and rows


@rule(Op.REDUCE_AXIS)
def of_reduce(node: UOp, g: UOp) -> Gradients:
    """The gradient: repeated for a sum, shared by equals for an extreme, times other factors for a
    product.

    No element equals an extreme that is NaN: NaN is then the gradient of all.
    """
    x = node.src[0]
    op, axes = node.arg
    if op is Op.ADD:
        return (graph.expand(g, x.shape),)
    if op is Op.MUL:
        return (graph.expand(g, x.shape) * other_factors(x, axes),)
    best = graph.expand(node, x.shape)
    count = graph.wide_sum(x.eq(best).cast(dtypes.float32).cast(g.dtype), axes)
    share = count.eq(zero(count)).where(graph.full_like(g, math.nan), g / count)
    loses = (x < best) if op is Op.MAX else (best < x)
    return (loses.where(zero(x), graph.expand(share, x.shape)),)


@rule(Op.SCAN_AXIS)
def of_scan(node: UOp, g: UOp) -> Gradients:
    """An element is in its own sum and in all after it. Raises GradientError for other folds."""
    op, axis = node.arg
    if op is not Op.ADD:
        raise GradientError(f"a scan by {op.name} has no derivative; take the elements it chose")
    return (graph.flip(graph.scan(graph.flip(g, [axis]), op, axis), [axis]),)


def other_factors(x: UOp, axes: Iterable[int]) -> UOp:
    """For each element the product of all others along `axes`: those before times those after."""
    folded = list(axes)
    order = [a for a in range(len(x.shape)) if a not in folded] + folded
    moved = graph.permute(x, order)
    outer = moved.shape[: len(order) - len(folded)]
    flat = graph.reshape(moved, (*outer, math.prod(x.shape[a] for a in folded)))
    last = len(outer)
    after = graph.flip(product_before(graph.flip(flat, [last])), [last])
    others = graph.reshape(product_before(flat) * after, moved.shape)
    return graph.permute(others, [order.index(a) for a in range(len(order))])


def product_before(x: UOp) -> UOp:
    """Along the last axis, the product of all elements before each."""
    return running_fold(shifted(x, 1, 1), Op.MUL)


@rule(Op.GATHER)
def of_gather(node: UOp, g: UOp) -> Gradients:
    """Each row of the table gets the sum of the gradients of its copies."""
    table, index = node.src
    count, rest = math.prod(index.shape), math.prod(table.shape[1:])
    places = graph.expand(graph.reshape(index, (count, 1)), (count, rest))
    start = graph.reshape(zero(table), (table.shape[0], rest))
    total = graph.scatter(start, places, graph.reshape(g, (count, rest)), Op.ADD, 0)
    return graph.reshape(total, table.shape), None


@rule(Op.SCATTER)
def of_scatter(node: UOp, g: UOp) -> Gradients:
    """Each row gets the gradient of its place, as far as the place depends on the row.

    Of several elements written to one place, each gets that gradient.
    """
    x, index, rows = node.src
    op, axis = node.arg
    there = graph.take(g, index, axis)
    if op is None:
        return graph.scatter(g, index, zero(rows), None, axis), None, there
    if op is Op.ADD:
        return g, None, there
    if op is Op.MUL:
        return of_product(node, g)
    chosen = x.eq(node)
    hits = rows.eq(graph.take(node, index, axis))
    count = graph.scatter(chosen.cast(x.dtype), index, hits.cast(rows.dtype), Op.ADD, axis)
    share = g / count
    part = graph.take(share, index, axis)
    return chosen.where(share, zero(x)), None, hits.where(part, zero(rows))


def of_product(node: UOp, g: UOp) -> Gradients:
    """Each factor gets the product of the others at its place; a zero is left out, not divided."""
    (x, index, rows), (op, axis) = node.src, node.arg
    empty, vacant = x.eq(zero(x)), rows.eq(zero(rows))
    one, ones = graph.full_like(x, 1), graph.full_like(rows, 1)
    others = graph.scatter(empty.where(one, x), index, vacant.where(ones, rows), op, axis)
    zeros = graph.scatter(empty.cast(x.dtype), index, vacant.cast(rows.dtype), Op.ADD, axis)

    def share(factor: UOp, is_zero: UOp, others: UOp, zeros: UOp, g: UOp) -> UOp:
        alone = zeros.eq(is_zero.cast(zeros.dtype))
        without = others / is_zero.where(graph.full_like(factor, 1), factor)
        return alone.where(g * without, zero(g))

    beside = [graph.take(n, index, axis) for n in (others, zeros, g)]
    return share(x, empty, others, zeros, g), None, share(rows, vacant, *beside)


@rule(Op.INSERT)
def of_insert(node: UOp, g: UOp) -> Gradients:
    """The value written gets the gradient of its place; the content that it replaced gets none."""
    x, view, value = node.src
    shown = view.substitute({x: g})
    return graph.insert(g, shown, zero(value)), None, shown


STOPS: Final = frozenset(
    {Op.BUFFER, Op.BUFFER_VIEW, Op.BIND, Op.CONST, Op.ARANGE, Op.DETACH, Op.BITCAST, Op.TRUNC}
)
"""Ops of floats whose sources get no gradient: leaves, and functions constant almost everywhere."""

LEAF: Final = "leaf"
"""The argument of an ASSIGN to a leaf that requires a gradient: the content written is data."""


def is_data_written(node: UOp) -> bool:
    """True for an ASSIGN, in a canonical graph or not, of data to a leaf."""
    mark = node.arg
    return (mark.mark if type(mark) is Write else mark) == LEAF


def gradients(
    root: UOp, seed: UOp, targets: Iterable[UOp], ends: Collection[UOp] = ()
) -> dict[UOp, UOp]:
    """The gradient of every target that `root` depends on, given that of `root`.

    None flows on from `ends`.
    """
    wanted = set(targets)
    passing: set[UOp] = set()

    def enter(node: UOp) -> bool:
        if passes := node not in ends and passes_gradient(node):
            passing.add(node)
        return passes

    below = ordered_through(root, enter)
    order = [n for n in below if n.shape_or_none is not None or n.op is CUSTOM]
    useful: set[UOp] = set()
    for node in order:
        is_passed = node in passing or (node not in ends and bool(made_of(node)))
        if node in wanted or (is_passed and not useful.isdisjoint(sources_of(node))):
            useful.add(node)
    found, shown = {root: seed}, {seed}
    for node in reversed(order):
        if node not in useful or node not in found:
            continue
        if node in wanted:
            shown.add(found[node])
        if node not in ends and (made := made_of(node)):
            parts: Iterable[tuple[UOp, UOp | None]] = [
                (made.node, graph.reshape(found[node], made.node.shape))
            ]
        elif node in passing:
            parts = parts_of(node, found[node], useful, wanted, shown)
        else:
            continue
        for source, part in parts:
            if part is not None and source in useful:
                found[source] = add_gradients(found[source], part) if source in found else part
    return {target: found[target] for target in wanted if target in found}


def parts_of(
    node: UOp, g: UOp, useful: Collection[UOp], targets: Collection[UOp], shown: Collection[UOp]
) -> Iterable[tuple[UOp, UOp | None]]:
    """Nodes that a node was computed from, and their gradients as far as they come from it.

    The gradient of a copy stays where it came from, unless it is one of those that are `shown`.
    """
    if node.op is g.op is Op.COPY and g.src[0].device == node.src[0].device and g not in shown:
        return [(node.src[0], g.src[0])]
    if node.op in RESULTS:
        found = weighed_at(node, g, useful, targets, gradients)
        if found is not None:
            return found
    return zip(node.src, GRADIENT_RULES[node.op](node, g), strict=True)


def add_gradients(a: UOp, b: UOp) -> UOp:
    """The sum of two gradients; a CUSTOM keeps those of its results separate."""
    return UOp.sink(*a.src, *b.src) if a.op is Op.SINK else a + b


def passes_gradient(node: UOp) -> bool:
    """True if a gradient of this node reaches its sources."""
    op = node.op
    if op is CUSTOM:
        return True
    if node.dtype.kind != "float" or op in STOPS:
        return False
    if op is ASSIGN and is_data_written(node):
        return False
    if op not in GRADIENT_RULES:
        raise GradientError(f"{op.name} of floats has no derivative here; detach() its result")
    for source in node.src:  # noqa: SIM110  a generator costs twice as much
        if source.op is KERNEL:
            return False
    return True


# --- what a gradient goes to


NO_SOURCES: Final[frozenset[UOp]] = frozenset()
FEWEST_DROPPED: Final = 64
"""Sources of realized memory between two looks at which of them are still there."""


def reached(root: UOp) -> list[UOp]:
    """The nodes that a gradient of a node reaches, among which is no memory that is only written:
    what it held before has no part in the value.
    """
    found = {root: None}
    stack = [root]
    while stack:
        made = made_of(node := stack.pop())
        if made:
            below: Sequence[UOp] = [made.node]
        elif passes_gradient(node):
            below = node.src[node.op is ASSIGN :]
        else:
            continue
        new = [n for n in below if n not in found]
        found |= dict.fromkeys(new)
        stack += new
    return list(found)


MARKED: Final = frozenset({Op.ASSIGN, Op.DETACH, Op.MULTI})
"""Ops of nodes at which gradients may end, or go on below memory."""
ENDS: Final = versions.HOMED
"""Ops of memory, and of identities of tensors with nodes of their own."""


def reached_from(nodes: Collection[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For some nodes, and each below them, the BUFFERs of floats that a gradient goes to, the
    identities of tensors with nodes of their own, and on the way those of the nodes and what is
    MARKED. One walk for all, as the values of a run share their graphs.
    """
    asked = frozenset(nodes)
    found: dict[UOp, frozenset[UOp]] = {}
    passing: set[UOp] = set()

    def enter(node: UOp) -> bool:
        if node.op is SINK or passes_gradient(node):
            passing.add(node)
        return node in passing

    for node in UOp.sink(*nodes).toposort(enter):
        if memory := sources_at(node):
            reached = frozenset(memory)
        elif node not in passing:
            reached = NO_SOURCES
        elif node.op is ASSIGN:
            reached = found[node.src[1]]
            if not any(n.op in ENDS for n in reached):  # numbers alone, into memory that may ask
                reached |= {*buffers_below(node)}
        else:
            reached = union([found[s] for s in node.src])
        if node.op is OWN:  # whose tensor may get other memory than what is below
            reached |= {graph.identity(node.arg)}
        found[node] = reached | {node} if node in asked or node.op in MARKED else reached
    return found


def union(sets: Iterable[frozenset[UOp]]) -> frozenset[UOp]:
    """The union of some sets: one of them, if that has all."""
    whole = NO_SOURCES
    for each in sets:
        if each is not whole and not each <= whole:
            whole = each if whole <= each else whole | each
    return whole


def homes_at(nodes: Iterable[UOp]) -> Homes:
    """The homes of some memory and identities themselves, whatever values they have."""
    return NOBODY.union(*[known_of(node).home.alone for node in nodes])


def still_there(memory: UOp) -> list[UOp]:
    """The memory, in its present versions, and identities where gradients of memory ended."""
    return present(ended_at(memory))


class Pasts:
    """Count of the changes that replays have made to what memory was computed from."""

    count = 0


def present(homes: Homes) -> list[UOp]:
    """The memory with some homes, in its present versions, and the nodes of values and tensors."""
    return [node for home in living(homes) for node in home.present()]


def ended_at(memory: UOp) -> Homes:
    """The memory that a realized one was computed from, where gradients end."""
    known: Known = getattr(memory, "_past", NOTHING_KNOWN)
    if (made := known.made) is None or made_of(memory):
        return known.ended
    return ended_below(made.sources) - known.home.alone  # but not its former content


def ended_below(memory: Iterable[UOp]) -> Homes:
    """The same for a node whose gradient goes to some BUFFERs first, also through kept graphs.

    Nobody can want a gradient of memory that is gone. So now and then that is left out, or
    each step of `x = f(x).realize()` would take longer than the one before.
    """
    seen = dict.fromkeys(memory)
    nodes = [*seen]
    parts = []
    for node in nodes:
        known: Known = getattr(node, "_past", NOTHING_KNOWN)
        if made := known.made:
            new = [n for n in made.sources if n not in seen]
            seen |= dict.fromkeys(new)
            nodes += new
        elif ended := known.ended:
            parts.append(ended)
    found = versions.references(nodes).union(*parts)
    if parts and len(found) // FEWEST_DROPPED > max(map(len, parts)) // FEWEST_DROPPED:
        return frozenset([reference for reference in found if reference() is not None])
    return found


def ended_below_buffer(memory: UOp) -> Homes:
    """The same for one BUFFER, which mostly has no past."""
    known = known_of(memory)
    return ended_below([memory]) if known.made or known.ended else known.home.alone


def end_at(memory: UOp, origins: Homes, shown: Iterable[UOp] = ()) -> None:
    """Record what memory was computed from, at which gradients end: that is neither its former
    content, nor the tensor itself, by the identities `shown`.
    """
    buffers = buffers_below(memory)
    ended = origins - homes_at([*buffers, *shown])
    if ended == BY_CALL:  # which tells of other homes
        ended = NOBODY
    for known in map(known_of, buffers):
        known.made, known.ended = None, ended


def origin(node: UOp) -> UOp:
    """The memory that a node is, or has written to in place."""
    while node.op is Op.ASSIGN:
        node = base_of(node.src[0])
    return node


def is_filled(node: UOp) -> bool:
    """True if a node is memory that a kernel is to write, through which no gradient flows."""
    return node.op is Op.ASSIGN and node.src[1].op is Op.KERNEL


def sources_at(node: UOp) -> list[UOp]:
    """The BUFFERs that a gradient goes to at a node: it is one, or a leaf that is written to, or is
    filled by a kernel, or is the first one below a detached leaf.
    """
    op, found = node.op, [node]
    if op is ASSIGN and (is_data_written(node) or is_filled(node)):
        found = buffers_below(node)
    elif op is OWN and is_gradient_leaf(node):
        found = buffers_below(node)[:1]
    return [n for n in found if n.op is BUFFER and n.dtype.kind == "float"]


ASSIGN, BUFFER, CUSTOM, KERNEL = Op.ASSIGN, Op.BUFFER, Op.CUSTOM, Op.KERNEL
OWN, SINK = Op.OWN, Op.SINK
