"""The builder of programs: live values, fresh inputs, fitting ranges.

A builder knows shape, dtype and range of every value without computing any, so each op can
be given operands for which it is well defined and cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tests.fuzz.programs.draw import Content, Draw, Input
from tests.fuzz.programs.facts import broadcast, broadcasts, underflow_of, unit_of, wrapped
from tests.fuzz.programs.form import Kind, Rounding, Step, Value
from tinycore.dtype import DType, dtypes
from tinycore.uop.shape import Shape

FLOATS: Final = (
    (dtypes.float32, 0.66),
    (dtypes.float64, 0.14),
    (dtypes.float16, 0.1),
    (dtypes.bfloat16, 0.1),
)
INTEGERS: Final = (
    (dtypes.int32, 0.5),
    (dtypes.int64, 0.2),
    (dtypes.int8, 0.1),
    (dtypes.int16, 0.05),
    (dtypes.uint8, 0.1),
    (dtypes.uint32, 0.05),
)
SIZE_WEIGHTS: Final = ((1, 3), (2, 4), (3, 5), (4, 4), (5, 3), (7, 2), (8, 2), (0, 0.3), (17, 0.4))
LONG_SIZES: Final = (33, 64, 65, 100, 130, 257)
MOST_ELEMENTS: Final = 640
LIMIT: Final = 16.0
"""Floats are kept within this before they are multiplied or added up."""


class Builder:
    """A program under construction."""

    def __init__(self, draw: Draw, outer: Builder | None = None) -> None:
        self.draw = draw
        self.outer = outer
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.live: dict[str, Value] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        self.views: dict[str, frozenset[str]] = {}
        """Values that each name may be a view of."""
        self.memory: set[str] = set()
        """Values that certainly have separate memory."""
        self.perhaps_memory: set[str] = set()
        """Values of which a view was computed, so that they may have memory."""
        self.frozen: set[str] = set()
        """Values whose graph a run may have taken: no gradient is requested through them."""
        self.spoken: set[str] = set()
        """Right-hand sides used: equal ones would be one node here, but two values in torch."""
        self.gradients = 0
        self.counter = 0

    # --- names and values

    def name(self, letter: str) -> str:
        """A name not used yet."""
        top = self
        while top.outer is not None:
            top = top.outer
        top.counter += 1
        return f"{letter}{top.counter}"

    def input(
        self,
        shape: Shape,
        dtype: DType,
        low: float,
        high: float,
        content: Content = Content.NUMBERS,
    ) -> Value:
        """A fresh input; inside a function, a parameter more."""
        if not dtypes.is_float(dtype) and content is Content.NUMBERS:
            content = Content.WHOLE
        value = Value(self.name("x"), shape, dtype, low, high)
        self.inputs.append(
            Input(value.name, shape, dtype, content, low, high, self.draw.below(1 << 30))
        )
        self.live[value.name] = value
        self.views[value.name] = frozenset()
        self.parents[value.name] = ()
        self.memory.add(value.name)
        return value

    def size(self) -> int:
        """A size of one axis."""
        return self.draw.weighted(SIZE_WEIGHTS)

    def shape(self, least_rank: int = 0, most_rank: int = 4, zero: bool = True) -> Shape:
        """A random shape of few elements."""
        rank = self.draw.weighted(
            [
                (n, w)
                for n, w in ((0, 1), (1, 3), (2, 6), (3, 4), (4, 1.5))
                if least_rank <= n <= most_rank
            ]
        )
        sizes = [self.size() for _ in range(rank)]
        if rank and self.draw.chance(0.04):
            sizes = [1] * rank
            sizes[self.draw.below(rank)] = self.draw.pick(LONG_SIZES)
        if not zero:
            sizes = [n or 1 for n in sizes]
        while math.prod(sizes) > MOST_ELEMENTS:
            sizes[sizes.index(max(sizes))] = 2
        return tuple(sizes)

    def chosen(
        self, suits: Callable[[Value], bool], fresh: Callable[[], Value], again: float = 0.95
    ) -> Value:
        """A live value that suits, later ones rather than earlier, or a fresh one."""
        found = [v for v in self.live.values() if suits(v)]
        if not found or not self.draw.chance(again):
            return fresh()
        return self.draw.weighted(
            [(v, (1 + i) * (4 if self.parents[v.name] else 1)) for i, v in enumerate(found)]
        )

    def fresh_float(self, shape: Shape, dtype: DType | None = None) -> Value:
        """A float input; sometimes of whole numbers, so that some are equal."""
        chosen = dtype or self.draw.weighted(FLOATS)
        if self.draw.chance(0.15):
            return self.input(shape, chosen, -3, 3, Content.WHOLE)
        return self.input(shape, chosen, -2, 2)

    def fresh_integer(self, shape: Shape, dtype: DType | None = None) -> Value:
        """An integer input, of small numbers or (rarely) of the whole range."""
        chosen = dtype or self.draw.weighted(INTEGERS)
        if self.draw.chance(0.1) and chosen.itemsize < 8:
            return self.input(shape, chosen, int(dtypes.min(chosen)), int(dtypes.max(chosen)))
        return self.input(shape, chosen, 0 if dtypes.is_unsigned(chosen) else -9, 9)

    def floating(
        self,
        low: float = -LIMIT,
        high: float = LIMIT,
        suits: Callable[[Shape], bool] = lambda shape: True,
        shape: Callable[[], Shape] | None = None,
        convert: bool = True,
    ) -> Value:
        """A float value (or, if `convert`, sometimes another) fitted into a range."""
        mixed = convert and self.draw.chance(0.1)
        value = self.chosen(
            lambda v: suits(v.shape) and (mixed or dtypes.is_float(v.dtype)),
            lambda: self.fresh_float((shape or self.shape)()),
        )
        return self.fitted(value, low, high)

    def integer(
        self,
        suits: Callable[[Shape], bool] = lambda shape: True,
        shape: Callable[[], Shape] | None = None,
    ) -> Value:
        """An integer value."""
        return self.chosen(
            lambda v: dtypes.is_int(v.dtype) and suits(v.shape),
            lambda: self.fresh_integer((shape or self.shape)()),
            again=0.85,
        )

    def boolean(self, shape: Shape) -> Value:
        """A bool value that broadcasts to a shape: a live one, an input, or a comparison."""
        return self.chosen(
            lambda v: v.dtype is dtypes.bool and broadcasts(v.shape, shape),
            lambda: self.input(self.narrowed(shape), dtypes.bool, 0, 1),
            again=0.8,
        )

    def anything(
        self,
        suits: Callable[[Shape], bool] = lambda shape: True,
        shape: Callable[[], Shape] | None = None,
    ) -> Value:
        """A value of any dtype."""

        def fresh() -> Value:
            make = self.fresh_float if self.draw.chance(0.7) else self.fresh_integer
            return make((shape or self.shape)())

        return self.chosen(lambda v: suits(v.shape), fresh)

    def like(self, shape: Shape, dtype: DType | None, low: float, high: float) -> Value:
        """A float value of exactly this shape (and dtype, if given), fitted into a range."""
        value = self.chosen(
            lambda v: v.shape == shape and dtypes.is_float(v.dtype) and dtype in (None, v.dtype),
            lambda: self.fresh_float(shape, dtype),
            again=0.8,
        )
        return self.fitted(value, low, high)

    def partner(self, shape: Shape, low: float, high: float) -> Value:
        """A float value that broadcasts with a shape, fitted into a range."""

        def suits(v: Value) -> bool:
            found = broadcast(v.shape, shape)
            fits = found is not None and math.prod(found) <= MOST_ELEMENTS
            return fits and dtypes.is_float(v.dtype)

        value = self.chosen(suits, lambda: self.fresh_float(self.narrowed(shape)), again=0.85)
        return self.fitted(value, low, high)

    def narrowed(self, shape: Shape) -> Shape:
        """A shape that broadcasts to another: axes left out in front, others of size 1."""
        start = self.draw.below(len(shape) + 1) if self.draw.chance(0.4) else 0
        return tuple(1 if self.draw.chance(0.25) else n for n in shape[start:])

    def number(self) -> float:
        """A constant that every float dtype represents."""
        return self.draw.between(-24, 24) / 8

    # --- steps

    def fitted(self, value: Value, low: float, high: float) -> Value:
        """The value mapped into a range: divided by a power of two, and shifted."""
        if not math.isfinite(value.low + value.high):
            value = self.compute(
                f"{value.name}.softsign()",
                f"softsign({value.name})",
                [value],
                value.shape,
                value.dtype,
                -1,
                1,
                slope=1,
            )
        if low <= value.low and value.high <= high:
            return value
        target = value.dtype if dtypes.is_float(value.dtype) else dtypes.float32
        middle, half = (low + high) / 2, (high - low) / 2
        middle = round(middle * 8) / 8
        half = min(high - middle, middle - low)
        scale = 1.0
        while max(abs(value.low), abs(value.high)) * scale > half:
            scale /= 2
        ours, theirs = f"{value.name} * {scale}", f"real({value.name}) * {scale}"
        if middle:
            ours, theirs = f"{ours} + {middle}", f"{theirs} + {middle}"
        return self.compute(
            ours,
            theirs,
            [value],
            value.shape,
            target,
            middle + value.low * scale,
            middle + value.high * scale,
        )

    def compute(
        self,
        ours: str,
        theirs: str,
        inputs: Sequence[Value],
        shape: Shape,
        dtype: DType,
        low: float,
        high: float,
        rounding: Rounding = Rounding.ROUNDED,
        views: bool = False,
        absolute: float = 0.0,
        slope: float = 0.0,
    ) -> Value:
        """A step of one expression with one result; `views` when that may be its operands."""
        outputs = [(shape, dtype, low, high)]
        (value,) = self.several(ours, theirs, inputs, outputs, rounding, views, absolute, slope)
        return value

    def several(
        self,
        ours: str,
        theirs: str,
        inputs: Sequence[Value],
        outputs: Sequence[tuple[Shape, DType, float, float]],
        rounding: Rounding = Rounding.ROUNDED,
        views: bool = False,
        absolute: float = 0.0,
        slope: float = 0.0,
    ) -> list[Value]:
        """A step of one expression with any number of results."""
        if ours in self.spoken and (known := self.known(ours)):
            return known
        made = []
        for shape, dtype, low, high in outputs:
            bounds = wrapped(dtype, low, high) if dtypes.is_int(dtype) else (low, high)
            made.append(Value(self.name("v"), shape, dtype, *bounds))
        names = ", ".join(v.name for v in made) + ("," if len(made) > 1 else "")
        self.spoken.add(ours)
        self.add(
            Kind.COMPUTE,
            made,
            inputs,
            f"{names} = {ours}",
            f"{names} = {theirs}",
            rounding,
            absolute,
            slope,
        )
        for value in made:
            self.views[value.name] = frozenset(
                n for v in inputs for n in (v.name, *self.views[v.name]) if views
            )
        return made

    def known(self, ours: str) -> list[Value]:
        """The outputs of an earlier step with this right-hand side, if they live."""
        for step in self.steps:
            alive = all(v.name in self.live for v in step.outputs)
            if alive and step.ours.partition(" = ")[2] == ours:
                return list(step.outputs)
        return []

    def add(
        self,
        kind: Kind,
        outputs: Sequence[Value],
        inputs: Sequence[Value],
        ours: str,
        theirs: str,
        rounding: Rounding = Rounding.EXACT,
        absolute: float = 0.0,
        slope: float = 0.0,
    ) -> Step:
        """Append a step; its outputs live from here on."""
        floats = [v.dtype for v in (*inputs, *outputs) if dtypes.is_float(v.dtype)]
        step = Step(
            kind,
            tuple(outputs),
            tuple(dict.fromkeys(v.name for v in inputs)),
            ours,
            theirs,
            rounding,
            max(map(unit_of, floats), default=0.0),
            max(map(underflow_of, floats), default=0.0),
            absolute,
            slope,
        )
        self.steps.append(step)
        for value in outputs:
            self.live[value.name] = value
            self.parents[value.name] = step.inputs
            self.views[value.name] = frozenset()
        return step

    # --- what depends on what

    def above(self, names: Iterable[str]) -> set[str]:
        """The names and everything they were computed from."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += self.parents[name]
        return found

    def live_input(self, name: str) -> Value:
        """An input as a value, also after it was written to."""
        found = next(i for i in self.inputs if i.name == name)
        return Value(name, found.shape, found.dtype, found.low, found.high)

    def forget(self, names: Iterable[str]) -> None:
        """Values that are not used or compared any more."""
        for name in names:
            self.live.pop(name, None)
