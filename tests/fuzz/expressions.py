"""Random scalar expressions, random instances of rewrite patterns, and values for their leaves.

For tests that compare two ways of computing the same thing: a rule's two sides, an interpreter and
a compiler. Everything is drawn from a `random.Random`, so a seed repeats a case exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from tinycore.dtype import DType, Scalar, dtypes
from tinycore.uop.compare import bound_of
from tinycore.uop.evaluate import round_to
from tinycore.uop.matcher import ANY_ARGUMENT
from tinycore.uop.node import UOp, as_scalar
from tinycore.uop.op import ALU, COMPARISON, DIVISIONS, SHIFTS, UNARY, Op
from tinycore.uop.pattern import Pattern
from tinycore.uop.sums import term_of
from tinycore.uop.symbolic import simplified

__all__ = ["NoInstance", "instance_of", "random_expression", "random_values"]

FACTORS = (1, 2, 3, 4, 6, 7, 8, 12, 24, 56)
SMALL = (0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, -1, -2, -3, -5, 23, 55, 56, 57)
EDGE_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    3.0,
    0.1,
    -7.25,
    1e30,
    -1e-30,
    math.inf,
    -math.inf,
    math.nan,
)
INDEX_OPS = (
    Op.ADD,
    Op.ADD,
    Op.ADD,
    Op.MUL,
    Op.MUL,
    Op.FLOORDIV,
    Op.FLOORMOD,
    Op.SUB,
    Op.MAX,
    Op.MIN,
)
INTEGER_ALU = (
    *(Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.FLOORMOD, Op.IDIV, Op.MOD, Op.MAX, Op.MIN),
    *(Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR),
)
FLOAT_OPS = (Op.ADD, Op.SUB, Op.MUL, Op.FDIV, Op.MAX, Op.MIN)
BOOL_OPS = (Op.AND, Op.OR, Op.XOR, Op.CMPNE, Op.CMPEQ)
ALL_SCALARS = (dtypes.index, *dtypes.all)


class NoInstance(Exception):
    """The pattern has no instance of the requested dtype."""


# --- leaves and constants


def leaves_of(dtype: DType) -> tuple[UOp, ...]:
    """The free variables of a dtype that expressions are made of."""
    if dtype is dtypes.index:
        ranges = [UOp.range(end, number) for number, end in enumerate((3, 4, 7, 12, 56))]
        return (*ranges, UOp.variable("n", 1, 9), UOp.variable("m", -9, 40))
    if dtype.kind == "bool":
        return tuple([variable(name, dtype, False, True) for name in "pqr"])
    if dtype.kind == "float":
        return tuple([variable(name, dtype, -math.inf, math.inf) for name in "xyz"])
    low, high = dtypes.min(dtype), dtypes.max(dtype)
    return (
        *(variable(name, dtype, low, high) for name in "ab"),
        variable("c", dtype, 0, 7),
        variable("d", dtype, 8, 100),
    )


def variable(name: str, dtype: DType, low: Scalar, high: Scalar) -> UOp:
    """A free variable with bounds."""
    return UOp(Op.DEFINE_VAR, dtype, (), (f"{name}_{dtype.name}", low, high))


def random_constant(random: Random, dtype: DType) -> UOp:
    """A constant, mostly a small one."""
    return UOp.const(dtype, random_value(random, dtype))


def random_value(random: Random, dtype: DType) -> Scalar:
    """A value of a dtype, with a taste for its edges."""
    if dtype.kind == "bool":
        return random.random() < 0.5
    if dtype.kind == "float":
        ends = (
            *EDGE_FLOATS,
            random.uniform(-4, 4),
            random.uniform(-1e4, 1e4),
            random.randint(-8, 8),
        )
        return round_to(dtype, float(random.choice(ends)))
    if dtype.kind == "index" or random.random() < 0.7:
        return as_scalar(random.choice(SMALL), dtype)
    low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
    return random.choice((low, low + 1, high, high - 1, random.randint(low, high)))


def random_values(random: Random, root: UOp) -> dict[UOp, Scalar]:
    """A value for every leaf of an expression, within its bounds."""
    leaves = [u for u in root.toposort() if u.op in (Op.DEFINE_VAR, Op.RANGE, Op.SPECIAL)]
    return {leaf: random_leaf_value(random, leaf) for leaf in leaves}


def random_leaf_value(random: Random, leaf: UOp) -> Scalar:
    """A value within the bounds of a leaf, often at one end."""
    if leaf.dtype.kind in ("bool", "float"):
        return random_value(random, leaf.dtype)
    low, high = int(leaf.vmin), int(leaf.vmax)
    small = min(max(random.choice(SMALL), low), high)
    return random.choice((low, high, small, random.randint(low, high), random.randint(low, high)))


# --- expressions


def random_expression(
    random: Random, dtype: DType, depth: int = 4, others: Sequence[DType] = ()
) -> UOp:
    """An expression of `dtype`, at most `depth` ops deep; its parts may be of the `others`."""
    if depth <= 0 or random.random() < 0.12:
        if random.random() < 0.25:
            return random_constant(random, dtype)
        return random.choice(leaves_of(dtype))
    form = random.random()
    if form < 0.08:
        condition = random_expression(random, dtypes.bool, depth - 1, others)
        return condition.where(*(random_expression(random, dtype, depth - 1, others) for _ in "ab"))
    if form < 0.14 and others:
        source = random_expression(random, random.choice(others), depth - 1, others)
        return converted(source, dtype)
    if dtype.kind == "bool":
        return random_condition(random, depth, others)
    if form < 0.2:
        return -random_expression(random, dtype, depth - 1, others)
    return random_binary(random, dtype, depth, others)


def converted(source: UOp, dtype: DType) -> UOp:
    """A CAST that is defined: from a float, only to a float or bool."""
    if source.dtype.kind == "float" and dtype.kind not in ("float", "bool"):
        return source.ne(0.0).cast(dtype)
    return source.cast(dtype)


def random_condition(random: Random, depth: int, others: Sequence[DType]) -> UOp:
    """A bool: a comparison, or bools combined."""
    if random.random() < 0.4 and depth > 1:
        left, right = (random_expression(random, dtypes.bool, depth - 1, others) for _ in "ab")
        return left.alu(random.choice(BOOL_OPS), right)
    if random.random() < 0.15:
        return random_expression(random, dtypes.bool, depth - 1, others).logical_not()
    dtype = random.choice([d for d in others if d.kind != "bool"] or [dtypes.index])
    left = random_expression(random, dtype, depth - 1, others)
    if random.random() < 0.6:
        right = random_constant(random, dtype)
    else:
        right = random_expression(random, dtype, depth - 1, others)
    return left.alu(random.choice((Op.CMPLT, Op.CMPLT, Op.CMPLT, Op.CMPNE, Op.CMPEQ)), right)


def random_binary(random: Random, dtype: DType, depth: int, others: Sequence[DType]) -> UOp:
    """An arithmetic op over two expressions, mostly with a constant where that is usual."""
    kinds = {"index": INDEX_OPS, "float": FLOAT_OPS}
    op = random.choice(kinds.get(dtype.kind, INTEGER_ALU))
    left = random_expression(random, dtype, depth - 1, others)
    if op in SHIFTS:
        return left.alu(op, UOp.const(dtype, random.randrange(dtype.bits)))
    usual = op in DIVISIONS or op is Op.MUL
    if usual and dtype.kind != "float" and random.random() < 0.85:
        return left.alu(op, UOp.const(dtype, random.choice(FACTORS)))
    return left.alu(op, random_expression(random, dtype, depth - 1, others))


# --- instances of patterns


def instance_of(random: Random, pattern: Pattern, dtype: DType | None = None) -> UOp:
    """A node that the pattern matches. Raises NoInstance when this draw found none."""
    return Instance(random).build(pattern, dtype)


class Instance:
    """One draw: captures of the same name are the same node, and parts are used again."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.captured: dict[str, UOp] = {}
        self.parts: list[UOp] = []

    def build(self, pattern: Pattern, dtype: DType | None) -> UOp:
        """A node for a pattern, of `dtype` where the surroundings need one."""
        if pattern.name in self.captured:
            found = self.captured[pattern.name]
            if dtype not in (None, found.dtype):
                raise NoInstance
            return found
        for _ in range(20):
            node = self.draw(pattern, dtype)
            if pattern.when is None or pattern.when(node):
                break
        else:
            raise NoInstance
        if pattern.name is not None:
            self.captured[pattern.name] = node
        self.parts.append(node)
        return node

    def draw(self, pattern: Pattern, dtype: DType | None) -> UOp:
        """A node for a pattern, its `when` aside."""
        if pattern.ops is None:
            return self.anything(self.allowed(pattern, dtype))
        op = self.random.choice(sorted(pattern.ops, key=lambda op: op.name))
        if op is Op.CONST:
            return self.constant(pattern, self.allowed(pattern, dtype))
        if op is Op.RANGE:
            return UOp.range(self.build((pattern.src or (Pattern(),))[0], dtypes.index), 9)
        if op not in ALU:
            raise NoInstance
        result = dtypes.bool if op in COMPARISON else self.allowed_for(op, pattern, dtype)
        if dtype not in (None, result):
            raise NoInstance
        patterns = pattern.src or (Pattern(),) * op.arity
        operands = self.operands(op, patterns, result)
        return UOp(op, result, tuple(operands))

    def operands(self, op: Op, patterns: Sequence[Pattern], result: DType) -> list[UOp]:
        """Sources for an op, of dtypes that it takes."""
        if op is Op.WHERE:
            wanted: list[DType | None] = [dtypes.bool, result, result]
        elif op is Op.BITCAST:
            wanted = [self.same_width(result)]
        elif op is Op.CAST:
            wanted = [None]
        elif op in COMPARISON:
            wanted = [None, None]
        else:
            wanted = [result] * len(patterns)
        found: list[UOp] = []
        for pattern, dtype in zip(patterns, wanted, strict=True):
            known = found[0].dtype if op in COMPARISON and found else dtype
            found.append(self.build(pattern, known))
        if (
            op is Op.CAST
            and found[0].dtype.kind == "float"
            and result.kind not in ("float", "bool")
        ):
            raise NoInstance  # undefined for most values
        return found

    def same_width(self, dtype: DType) -> DType:
        """A dtype whose bits can be read as `dtype`: to a float only from a float, as Python has
        one NaN only, and never bool."""
        alike = [d for d in ALL_SCALARS if d.itemsize == dtype.itemsize and d.kind != "bool"]
        if dtype.kind == "float":
            alike = [dtype]
        if dtype.kind == "bool" or not alike:
            raise NoInstance
        return self.random.choice(alike)

    def allowed(self, pattern: Pattern, dtype: DType | None) -> DType:
        """A dtype that a pattern allows, the given one if possible."""
        if dtype is None:
            near = pattern.dtypes or self.known(pattern) or self.random_dtypes()
            dtype = self.random.choice(list(near))
        if pattern.dtypes and dtype not in pattern.dtypes:
            raise NoInstance
        if pattern.kinds and dtype.kind not in pattern.kinds:
            raise NoInstance
        return dtype

    def known(self, pattern: Pattern) -> list[DType]:
        """The dtypes of the kinds that a pattern names."""
        return [d for d in ALL_SCALARS if d.kind in pattern.kinds]

    def random_dtypes(self) -> Sequence[DType]:
        """Dtypes to choose from where nothing is said: those of index arithmetic more often."""
        return (*ALL_SCALARS, *(dtypes.index,) * 6, *(dtypes.int32,) * 3, *(dtypes.bool,) * 3)

    def allowed_for(self, op: Op, pattern: Pattern, dtype: DType | None) -> DType:
        """A dtype that both an op and a pattern allow."""
        if dtype is None and op not in (Op.CAST, Op.BITCAST):
            dtype = self.implied(pattern)
        result = self.allowed(pattern, dtype)
        kind = result.kind
        unfit = {
            "bool": DIVISIONS | SHIFTS | {Op.NEG, Op.FDIV, Op.ADD, Op.SUB, Op.MUL, Op.MULACC},
            "float": DIVISIONS | SHIFTS | {Op.AND, Op.OR, Op.XOR},
        }.get(kind, frozenset({Op.FDIV}))
        floats_only = (UNARY - {Op.NEG, Op.CAST, Op.BITCAST}) | {Op.FDIV}
        if op in unfit or (op in floats_only and kind != "float"):
            raise NoInstance
        if op is Op.THREEFRY and result is not dtypes.uint64:
            raise NoInstance
        return result

    def implied(self, pattern: Pattern) -> DType | None:
        """A dtype that a source of the pattern requires."""
        sources = pattern.src or ()
        chooses = pattern.ops == frozenset({Op.WHERE})
        for source in sources[chooses:]:  # the condition of a WHERE says nothing
            if source.name in self.captured:
                return self.captured[source.name].dtype
            if options := [*source.dtypes, *self.known(source)]:
                return self.random.choice(options)
            if (found := self.implied(source)) is not None:
                return found
        return None

    def constant(self, pattern: Pattern, dtype: DType) -> UOp:
        """A constant for a pattern; factors that divide one another are likely."""
        if pattern.arg is not ANY_ARGUMENT:
            return UOp.const(dtype, pattern.arg)
        if dtype.kind not in ("bool", "float") and self.random.random() < 0.6:
            return UOp.const(dtype, self.random.choice(FACTORS))
        return random_constant(self.random, dtype)

    def anything(self, dtype: DType) -> UOp:
        """Some expression, or one that is there already, or a bound on one."""
        alike = [part for part in self.parts if part.dtype is dtype]
        if alike and self.random.random() < 0.2:
            return self.random.choice(alike)
        if dtype.kind == "bool" and self.random.random() < 0.5:
            ranges = [part for part in self.parts if part.dtype is dtypes.index]
            counter = self.random.choice(ranges or leaves_of(dtypes.index)[3:5])
            bound = counter < self.random.choice(SMALL)
            return bound if self.random.random() < 0.5 else bound.logical_not()
        if dtype is dtypes.index and self.random.random() < 0.3:
            return self.split_index()
        others = (dtypes.index,) if dtype.kind in ("index", "bool") else (dtype, dtypes.index)
        drawn = random_expression(self.random, dtype, self.random.randrange(4), others)
        return simplified(drawn) if self.random.random() < 0.5 else drawn

    def split_index(self) -> UOp:
        """A quotient scaled up again, or what goes with something drawn before: the remainder that
        completes a quotient, or a division that a bound may make trivial."""
        for part in self.parts:
            if (bound := bound_of(part)) is not None:
                moved = bound[0] + self.random.choice(SMALL)
                op = self.random.choice((Op.FLOORDIV, Op.FLOORMOD, Op.MAX, Op.MIN))
                return moved.alu(op, UOp.index(self.random.choice(FACTORS)))
            quotient, factor = term_of(part)
            if quotient.op is Op.FLOORMOD:
                quotient = quotient.src[0]
            if quotient.op is Op.FLOORDIV and quotient.src[1].op is Op.CONST:
                divisor = int(quotient.src[1].arg)
                return quotient.src[0] % divisor * (factor // max(1, divisor))
        whole = self.random.choice(leaves_of(dtypes.index))
        if self.random.random() < 0.3:
            whole = whole * self.random.choice(SMALL) + self.random.choice(leaves_of(dtypes.index))
        period, scale = self.random.choice(FACTORS[1:]), self.random.choice((1, 1, 2, 3, -1))
        quotient = whole // period
        if self.random.random() < 0.5:
            quotient = quotient % self.random.choice(FACTORS[1:])
        return quotient * (period * scale)
