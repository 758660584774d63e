"""The rewriter measured: matcher forms, op identity, the memory of normal forms.

    python benchmarks/rewriter.py

Each figure is the best of several runs in this process, in microseconds per node of the input
graph. What was taken from it: docs/decisions/0011 and docs/floors/uop.md.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tinycore.cli.tables import Table
from tinycore.dtype import dtypes
from tinycore.uop.matcher import ANY_ARGUMENT, Matcher, compile_matcher, orders
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import Matchers, Pattern, Rule, RuleSet, compiled
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

# --- inputs


def flattened_and_split(count: int) -> UOp:
    """Index arithmetic as reshapes make it: flatten, split again, compare."""
    parts = []
    for number in range(count):
        i, j, k = (UOp.range(end, (number, axis)) for axis, end in enumerate((8, 56, 3)))
        flat = (i * 56 + j) * 3 + k
        split = flat // 3 % 56 * 100 + flat // 168 * 7 + flat % 3
        parts.append(split + (flat + number) // 12 % 14)
    return UOp.sink(*parts)


def padded_windows(count: int) -> UOp:
    """Gates and indices of a padded convolution's input."""
    parts = []
    for number in range(count):
        c, y, x, dy, dx = (
            UOp.range(end, (number, axis)) for axis, end in enumerate((64, 56, 56, 3, 3))
        )
        row, column = y + dy - 1, x + dx - 1
        gate = (row >= 0) & (row < 56) & (column >= 0) & (column < 56)
        place = (c * 56 + row) * 56 + column
        parts += [gate, gate.where(place // 1 % (64 * 56 * 56), place.const_like(0))]
    return UOp.sink(*parts)


def unchanging_values(count: int) -> UOp:
    """Float arithmetic in which hardly a rule applies."""
    value = UOp(Op.DEFINE_VAR, dtypes.float32, (), ("x", 0, 1))
    for number in range(count):
        value = (value * 1.5 + float(number)).maximum(0.25) - value.alu(Op.EXP2)
    return UOp.sink(value)


INPUTS = {
    "flatten and split": flattened_and_split(200),
    "padded windows": padded_windows(100),
    "float values": unchanging_values(500),
}


# --- matcher forms


def per_rule(rules: RuleSet, op: Op) -> Matcher | None:
    """One compiled function per rule, tried one after the other."""
    found = [r for r in rules.rules if r.pattern.ops is None or op in r.pattern.ops]
    matchers = [compile_matcher(rule.name, op, [rule]) for rule in found]

    def match(node: UOp, context: object) -> UOp | None:
        for matcher in matchers:
            if (new := matcher(node, context)) is not None:
                return new
        return None

    return match if matchers else None


def interpreted(rules: RuleSet, op: Op) -> Matcher | None:
    """Walks the pattern objects. Like the other forms, tries only rules that name the op."""
    found: list[tuple[Rule, list[Pattern]]] = [
        (rule, list(orders(rule.pattern)))
        for rule in rules.rules
        if rule.pattern.ops is None or op in rule.pattern.ops
    ]

    def match(node: UOp, context: object) -> UOp | None:
        for rule, patterns in found:
            for pattern in patterns:
                captures: dict[str, UOp] = {}
                if not agrees(pattern, node, captures):
                    continue
                known = {**captures, "root": node, "context": context}
                new = rule.function(*[known[name] for name in rule.parameters])
                if new is not None and new is not node:
                    return new
        return None

    return match if found else None


def agrees(pattern: Pattern, node: UOp, captures: dict[str, UOp]) -> bool:
    """True if a node matches; fills `captures`."""
    if pattern.ops is not None and node.op not in pattern.ops:
        return False
    if pattern.arg is not ANY_ARGUMENT and node.arg != pattern.arg:
        return False
    if pattern.dtypes and node.dtype not in pattern.dtypes:
        return False
    if pattern.kinds and node.dtype.kind not in pattern.kinds:
        return False
    if pattern.name is not None and captures.setdefault(pattern.name, node) is not node:
        return False
    if pattern.src is not None:
        if len(node.src) < len(pattern.src) or (
            pattern.rest is None and len(node.src) != len(pattern.src)
        ):
            return False
        pairs = zip(pattern.src, node.src, strict=False)
        if not all(agrees(p, s, captures) for p, s in pairs):
            return False
        if pattern.rest is not None and not all(
            agrees(pattern.rest, s, captures) for s in node.src[len(pattern.src) :]
        ):
            return False
    return pattern.when is None or pattern.when(node)


class OtherMatchers(Matchers):
    """Matchers of another form."""

    def __init__(self, rules: RuleSet, form: Callable[[RuleSet, Op], Matcher | None]) -> None:
        super().__init__(rules, None)
        self.form = form

    def __missing__(self, op: Op) -> Matcher | None:
        self[op] = matcher = self.form(self.rules, op)
        return matcher


def with_form(form: Callable[[RuleSet, Op], Matcher | None]) -> RuleSet:
    """`simplify` with matchers of a form."""
    rules = RuleSet("simplify", simplify.rules)
    rules.matchers = OtherMatchers(rules, form)
    return rules


# --- measuring


def best(function: Callable[[], object], runs: int = 5) -> float:
    """The shortest of several runs, in seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def forget(rules: RuleSet) -> None:
    """Let the next rewrite find nothing known."""
    rules.bit = RuleSet("").bit


FORMS: dict[str, Callable[[RuleSet, Op], Matcher | None] | None] = {
    "compiled, all rules of an op": None,
    "compiled, one rule each": per_rule,
    "interpreted": interpreted,
}


def head(what: str, columns: Iterable[str]) -> str:
    """The head of a table of numbers."""
    return "  ".join([f"<{what}", *(f">{column}" for column in columns)])


def matcher_forms(rounds: int = 12) -> Iterator[str]:
    """Lines that compare the forms; their runs alternate, so that noise hits all alike."""
    sets = {
        name: RuleSet("simplify", simplify.rules) if form is None else with_form(form)
        for name, form in FORMS.items()
    }
    best_of: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for name, rules in sets.items():
            for title, graph in INPUTS.items():
                forget(rules)
                took = best(partial(rewrite, graph, rules), 1) / len(graph.toposort())
                best_of[name, title] = min(took, best_of.get((name, title), took))
    rows = [(name, *(f"{best_of[name, t] * 1e6:.2f}" for t in INPUTS)) for name in sets]
    yield str(Table(head("microseconds per node, from nothing", INPUTS), rows))


def remembering() -> Iterator[str]:
    """Lines on what the memory of normal forms saves."""
    rows: dict[str, list[float]] = {"first time": [], "input again": [], "result again": []}
    rows["result again, nothing remembered"] = []
    for graph in INPUTS.values():
        rules = RuleSet("simplify", simplify.rules)
        result = rewrite(graph, rules)
        forget(rules)
        again = partial(rewrite, graph, rules)
        rows["first time"].append(best(again, 1))
        rows["input again"].append(best(again))
        rows["result again"].append(best(partial(rewrite, result, rules)))

        def cold(rules: RuleSet = rules, result: UOp = result) -> UOp:
            forget(rules)
            return rewrite(result, rules)

        rows["result again, nothing remembered"].append(best(cold))
    shown = [(name, *(f"{cell * 1e3:.3f}" for cell in cells)) for name, cells in rows.items()]
    yield str(Table(head("milliseconds per graph", INPUTS), shown))


def compilation() -> Iterator[str]:
    """The cost of compiling the matchers, once per process."""

    def compile_all() -> None:
        compiled.clear()
        matchers = RuleSet("simplify", simplify.rules).matchers
        for op in Op:
            matchers[op]

    yield f"compiling `simplify` for every op: {best(compile_all) * 1e3:.1f} ms"


# --- op identity


class PlainEnum(enum.Enum):
    """Members hash their names, in Python."""

    ADD, MUL, CONST, LOAD = range(4)


class ObjectHashEnum(enum.Enum):
    """Identity hash of members, as `Op` has it."""

    ADD, MUL, CONST, LOAD = range(4)
    __hash__ = object.__hash__


class NumberEnum(enum.IntEnum):
    """Members are numbers."""

    ADD, MUL, CONST, LOAD = range(4)


class Row:
    """A plain object per op, without the enum."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Rows:
    """Plain objects in a namespace."""

    ADD, MUL, CONST, LOAD = (Row(name) for name in ("ADD", "MUL", "CONST", "LOAD"))


class Holder:
    """A node with nothing but an op."""

    __slots__ = ("op",)


def op_identity() -> Iterator[str]:
    """Nanoseconds for what matchers do with ops."""
    tests = {
        "node.op is CONST": "node.op is CONST",
        "node.op in OPS": "node.op in OPS",
        "table[node.op]": "table[node.op]",
        "hash((op, 1))": "hash((node.op, 1))",
        "Op.CONST": "namespace.CONST",
    }
    kinds = {
        "Enum": PlainEnum,
        "Enum, object hash": ObjectHashEnum,
        "IntEnum": NumberEnum,
        "plain objects": Rows,
    }
    rows = []
    for title, text in tests.items():
        cells = []
        for namespace in kinds.values():
            node = Holder()
            node.op = namespace.LOAD  # type: ignore[attr-defined]
            members = [namespace.ADD, namespace.MUL, namespace.CONST, namespace.LOAD]  # type: ignore[attr-defined]
            values = {
                "node": node,
                "CONST": namespace.CONST,  # type: ignore[attr-defined]
                "OPS": frozenset(members[:3]),
                "table": dict.fromkeys(members, 1),
                "namespace": namespace,
            }
            cells.append(nanoseconds(text, values))
        rows.append((title, *(f"{cell:.1f}" for cell in cells)))
    yield str(Table(head("nanoseconds", kinds), rows))


def nanoseconds(expression: str, values: dict[str, object], count: int = 200_000) -> float:
    """Time of one evaluation, the loop's own time subtracted."""
    source = "def run(count):\n    for _ in range(count):\n        {}\n"
    times = []
    for text in (expression, "pass"):
        names = dict(values)
        exec(source.format(text), names)
        run: Callable[[int], None] = names["run"]  # type: ignore[assignment]
        times.append(best(partial(run, count)))
    return (times[0] - times[1]) / count * 1e9


def main() -> None:
    """Print all tables."""
    for lines in (matcher_forms(), remembering(), compilation(), op_identity()):
        for line in lines:
            print(line)
        print()


if __name__ == "__main__":
    main()
