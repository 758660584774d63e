"""Steps that are no functions of values: realizing, reading, writing to memory, gradients, calls.

What a run takes from the graph is followed here, so that a gradient is asked only where
both sides mean the same: after `realize` of what is no view, gradients end there; after a write,
nothing is derived through readers of the old content. Reading takes nothing from the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from tests.fuzz.programs import (
    elementwise,
    folding,
    integers,
    moving,
    picking,
    products,
    unary,
)
from tests.fuzz.programs.builder import Builder
from tests.fuzz.programs.draw import Content
from tests.fuzz.programs.form import Function, Kind, Rounding, Value
from tests.fuzz.programs.moving import box, same
from tinycore.dtype import dtypes

COMPUTING: Final = (
    (unary.FAMILY, 4), (elementwise.FAMILY, 6), (integers.FAMILY, 2), (folding.FAMILY, 6),
    (moving.FAMILY, 8), (picking.FAMILY, 3), (products.FAMILY, 3),
)  # fmt: skip
"""Families of ops, and how often."""


def compute(b: Builder) -> None:
    """Any op of any family."""
    b.draw.weighted(b.draw.weighted(COMPUTING))(b)


def realize(b: Builder) -> None:
    """Compute one or two values now."""
    chosen = b.draw.sample(list(b.live.values()), min(len(b.live), b.draw.between(1, 2)))
    realized(b, chosen)


def realized(b: Builder, values: list[Value]) -> None:
    """The step, and the facts after it."""
    if not values:
        return
    names = ", ".join(v.name for v in values)
    ours = f"Tensor.realize({names})"
    ends = tuple(v.name for v in values if not b.views[v.name])
    theirs = "\n".join(f"{name} = leaf({name})" for name in ends)
    step = b.add(Kind.REALIZE, [], values, ours, theirs)
    b.steps[-1] = replace(step, ends=ends)
    starts = {i.name for i in b.inputs}
    for value in values:
        roots = b.views[value.name] - starts
        if not b.views[value.name]:
            b.parents[value.name] = ()
            b.frozen.discard(value.name)
            if value.size:
                b.memory.add(value.name)
        else:  # perhaps a view, perhaps not
            b.frozen |= {value.name, *roots}
            b.perhaps_memory |= roots


def read(b: Builder) -> None:
    """Take one or two values to the host, and continue with these, too."""
    full = [v for v in b.live.values() if v.size]
    for value in b.draw.sample(full, min(len(full), b.draw.between(1, 2))):
        new = replace(value, name=b.name("v"))
        ours = f"{new.name} = Tensor({value.name}.numpy(), dtype=dtypes.{value.dtype.name})"
        theirs = f"{new.name} = {value.name}.detach().clone()"
        b.add(Kind.READ, [new], [value], ours, theirs)
        b.parents[new.name] = ()
        b.memory.add(new.name)


# --- writing


def write(b: Builder) -> None:
    """assign to memory or to a part of it, or t[...] = value."""
    if b.draw.chance(0.55):
        assign(b)
    else:
        set_item(b)


def assign(b: Builder) -> None:
    """x.assign(value), x[box].assign(value)."""
    targets = [v for n in sorted(b.memory) if (v := b.live.get(n)) and v.size and not b.views[n]]
    if not targets:
        return
    x = b.draw.pick(targets)
    if b.draw.chance(0.35) and x.shape:
        entries = [e for e in box(b, x.shape)[0] if e != "None"]
        place, shape = ", ".join(entries) or "...", taken(x, entries)
        if 0 in shape:
            return
        value = same(b, x, lambda s: s == shape, shape)
        ours = f"{x.name}[{place}].assign({value.name})"
        theirs = f"placed({x.name}, place[{place}], {value.name})"
    else:
        shape = b.narrowed(x.shape)
        value = same(b, x, lambda s: s == shape, shape)
        ours = f"{x.name}.assign({value.name})"
        theirs = f"{value.name}.expand({x.shape}).clone()"
    new = written(b, x, value, ours, theirs)
    if b.draw.chance(0.5):
        realized(b, [new])


def taken(x: Value, entries: list[str]) -> tuple[int, ...]:
    """The shape of a basic index without new axes."""
    shape: list[int] = []
    rest = list(x.shape)
    for entry in entries:
        if entry == "...":
            return (*shape, *rest)
        size = rest.pop(0)
        if ":" in entry:
            ends = [int(n) if n else None for n in entry.split(":")]
            shape.append(len(range(*slice(*ends).indices(size))))
    return (*shape, *rest)


def set_item(b: Builder) -> None:
    """t[box] = value, t[index tensor] = value, t[mask] = number."""
    targets = [
        v
        for v in b.live.values()
        if v.size and v.shape and not b.views[v.name] and v.dtype is not dtypes.bool
    ]
    if not targets:
        return
    x = b.draw.pick(targets)
    kind = b.draw.pick(["box", "box", "box", "rows", "mask"])
    if kind == "mask":
        mask = b.boolean(x.shape)
        number = b.draw.between(0, 3)
        if mask.shape == x.shape:
            theirs = f"{x.name}.masked_fill({mask.name}, {number})"
            value = replace(mask, low=0, high=3)
            written(b, x, value, f"{x.name}[{mask.name}] = {number}", theirs)
        return
    if kind == "rows":
        count = b.draw.between(1, x.shape[0])
        index = b.input((count,), dtypes.int32, 0, x.shape[0] - 1, Content.DISTINCT)
        shape = (count, *x.shape[1:])
        value = same(b, x, lambda s: s == shape, shape)
        theirs = f"{x.name}.index_put(({index.name}.long(),), {value.name})"
        ours = f"{x.name}[{index.name}] = {value.name}"
        written(b, x, value, ours, theirs, (index,))
        return
    entries, shape = box(b, x.shape)
    if 0 in shape:
        return
    narrow = b.narrowed(shape)
    value = same(b, x, lambda s: s == narrow, narrow)
    place = ", ".join(entries)
    theirs = f"placed({x.name}, place[{place}], {value.name})"
    written(b, x, value, f"{x.name}[{place}] = {value.name}", theirs)


def written(
    b: Builder, x: Value, value: Value, ours: str, theirs: str, more: tuple[Value, ...] = ()
) -> Value:
    """The step, the new value, and the facts after it."""
    new = Value(b.name("v"), x.shape, x.dtype, min(x.low, value.low), max(x.high, value.high))
    b.add(
        Kind.WRITE,
        [new],
        [x, value, *more],
        f"{ours}\n{new.name} = {x.name}",
        f"{new.name} = {theirs}",
    )
    b.forget([x.name, *(n for n in b.live if x.name in b.views[n])])
    if x.name in b.memory | b.perhaps_memory:
        b.frozen |= {n for n in b.live if x.name in b.above([n])}
    if x.name in b.memory:
        b.memory.add(new.name)
    if x.name in b.perhaps_memory:
        b.perhaps_memory.add(new.name)
    return new


# --- gradients


def gradient(b: Builder) -> None:
    """Derivatives of a number made of live values, with respect to inputs."""
    sources = [
        v
        for v in b.live.values()
        if dtypes.is_float(v.dtype) and not b.above([v.name]) & b.frozen and b.parents[v.name]
    ]
    starts = {i.name for i in b.inputs if dtypes.is_float(i.dtype) and i.name in b.live}
    reached = [n for n in starts if any(n in b.above([v.name]) for v in sources)]
    if not reached or b.gradients > 1:
        return
    b.gradients += 1
    chosen = b.draw.sample(sources, b.draw.between(1, min(3, len(sources))))
    terms, inputs = [], list(chosen)
    for value in chosen:
        if b.draw.chance(0.4):
            terms.append(f"{value.name}.sum() * {b.number() or 1.0}")
        else:
            weight = b.input(value.shape, value.dtype, -2, 2)
            inputs.append(weight)
            terms.append(f"({value.name} * {weight.name}).sum()")
    below = sorted(n for n in reached if any(n in b.above([v.name]) for v in chosen))
    names = b.draw.sample(below, min(len(below), b.draw.between(1, 3)))
    if b.draw.chance(0.1) or not names:
        names.append(b.draw.pick(sorted(starts - set(names)) or sorted(starts)))
    targets = [b.live[n] for n in dict.fromkeys(names)]
    made = [Value(b.name("g"), t.shape, t.dtype, -float("inf"), float("inf")) for t in targets]
    left, number = ", ".join(v.name for v in made), " + ".join(terms)
    listed = ", ".join(t.name for t in targets)
    b.add(
        Kind.GRADIENT,
        made,
        [*inputs, *targets],
        f"{left}, = ({number}).gradient({listed})",
        f"{left}, = gradients({number}, [{listed}])",
    )


# --- captured calls


def captured(b: Builder) -> None:
    """A function under TinyJit, called three or four times with other arguments."""
    inner = Builder(b.draw, b)
    for _ in range(b.draw.between(2, 4)):
        compute(inner)
    if b.draw.chance(0.3):
        gradient(inner)
    made = [v for step in inner.steps for v in step.outputs if v.name in inner.live]
    # A derivative may be a constant; a function that launches nothing is refused.
    derived = {v.name for step in inner.steps if step.kind is Kind.GRADIENT for v in step.outputs}
    computed = [v for v in made if v.size and not inner.views[v.name] and v.name not in derived]
    if not computed or any(0 in i.shape for i in inner.inputs):
        return
    returned = {v.name: v for v in (computed[-1], *b.draw.sample(made, min(len(made), 2)))}
    calls = tuple(arguments(b, inner) for _ in range(b.draw.between(3, 4)))
    name = b.name("f")
    function = Function(
        name,
        tuple(inner.live_input(i.name) for i in inner.inputs),
        tuple(inner.steps),
        tuple(returned),
        calls,
    )
    outputs, lines = [], []
    for call in calls:
        results = [replace(v, name=b.name("v")) for v in returned.values()]
        outputs += results
        lines.append(f"{', '.join(r.name for r in results)}, = {name}({', '.join(call)})")
    text = "\n".join(lines)
    given = [b.live[n] for n in dict.fromkeys(n for call in calls for n in call)]
    step = b.add(Kind.JIT, outputs, given, text, text)
    b.steps[-1] = replace(step, function=function)
    for place, value in enumerate(outputs):
        call = calls[place // len(returned)]
        b.parents[value.name] = ()
        b.views[value.name] = frozenset({name, *call})  # it may return what it was given
        if inner.views[list(returned)[place % len(returned)]]:
            b.frozen.add(value.name)  # a view passes gradients on, which others end


def arguments(b: Builder, inner: Builder) -> tuple[str, ...]:
    """Names of values for one call: copies of live ones that fit, or fresh inputs."""
    names: list[str] = []
    used: set[str] = set()
    for start in inner.inputs:
        fitting = [
            v
            for v in b.live.values()
            if v.shape == start.shape
            and v.dtype is start.dtype
            and start.low <= v.low
            and v.high <= start.high
            and start.content is Content.NUMBERS
        ]
        fitting = [v for v in fitting if v.name not in used]
        if fitting and b.draw.chance(0.3):
            x = b.draw.pick(fitting)
            used.add(x.name)
            copy = b.compute(
                f"{x.name}.clone()",
                f"{x.name}.clone()",
                [x],
                x.shape,
                x.dtype,
                x.low,
                x.high,
                Rounding.EXACT,
            )
            realized(b, [copy])
        else:
            copy = b.input(start.shape, start.dtype, start.low, start.high, start.content)
        names.append(copy.name)
    return tuple(names)


Family: TypeAlias = tuple[Callable[[Builder], None], float]
"""A kind of step, and how often."""

FAMILY: Final[tuple[Family, ...]] = (
    (compute, 40),
    (realize, 3),
    (read, 3),
    (write, 3.5),
    (gradient, 2.5),
    (captured, 1),
)
"""Everything a step may be, and how often."""
