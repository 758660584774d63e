"""Graph templates: the nodes that a method makes, by the shapes and dtypes of its operands.

Floor 5. A method whose graph depends on nothing else is called with operands alike again and again:
once for each layer, position and step. Its second such call is traced on placeholders. From then on
its nodes are made in one loop over a list, with their shapes, without the checks and the tensors in
between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from operator import itemgetter
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from tinycore._lru import Lru
from tinycore._tracebacks import with_name_of
from tinycore.config import settings
from tinycore.dtype import DType, dtypes
from tinycore.tensor import graph
from tinycore.tensor.aliases import base_of_view
from tinycore.tensor.core import Core
from tinycore.uop.node import UOp, argument_in_key, new, nodes, ordered
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike, Shape
from tinycore.uop.size import are_ints

P = ParamSpec("P")
T = TypeVar("T", bound=Core)
Result = TypeVar("Result", bound=Core | tuple[Core, ...])

MOST_TEMPLATES: Final = 1024
PLAIN: Final = frozenset({int, bool, str, type(None), DType})
"""Types of arguments that are keys as they are."""
REFUSED: Final = frozenset({Op.BUFFER, Op.COPY, Op.MULTI, Op.OWN, Op.UNIQUE})
"""Ops that depend on more than shapes: fresh memory, other devices, nodes of one tensor alone."""
VALUE_OP: Final = Op.VALUE


class Step(NamedTuple):
    """A node of a template, made of operands, constants and steps before by their numbers."""

    op: Op
    dtype: DType
    place: int
    """The number of its first source."""
    pick: Callable[[list[UOp]], tuple[UOp, ...]] | None
    """A function that gives its sources, of all nodes so far, where there are several."""
    argument: Any
    key: Any
    """The argument in the key of a node."""
    shape: Shape | None


class Template(NamedTuple):
    """The nodes that a method makes of its operands, after these and the constants among them."""

    constants: tuple[UOp, ...]
    steps: tuple[Step, ...]
    device: DeviceLike
    result: int | tuple[int, ...]
    """The number of the result, or of each of several."""

    def over(self, operands: Sequence[UOp], tensor: Callable[[UOp], Any]) -> Any:
        """The results for some operands, as tensors."""
        made = [*operands, *self.constants]
        device, living = self.device, nodes.get
        for op, dtype, place, pick, argument, in_key, shape in self.steps:
            if op is VALUE_OP:  # which is there above memory only, as placeholders are
                made.append(graph.value(made[place]))
                continue
            key = op, dtype, (made[place],) if pick is None else pick(made), in_key
            reference = living(key)
            if reference is None or (node := reference()) is None:
                node = new(key, argument)
                node._shape, node._device = shape, device
            made.append(node)
        result = self.result
        if isinstance(result, int):
            return tensor(made[result])
        return tuple([tensor(made[number]) for number in result])


class Untraced:
    """State of a call without a template."""


SEEN, REJECTED = Untraced(), Untraced()
"""A call that was made once, and one that is no matter of shapes."""
templates: Final[Lru[Any, Template | Untraced]] = Lru(MOST_TEMPLATES)
"""By method, operands and other arguments."""


def templated(
    method: Callable[Concatenate[T, P], Result],
) -> Callable[Concatenate[T, P], Result]:
    """A method of tensors whose nodes depend on shapes, dtypes and other arguments alone.

    Its results are a tensor or a tuple of them. Templates are of operands on one device, in shapes
    that no Variable changes.
    """

    @wraps(method)
    def call(self: T, /, *given: P.args, **named: P.kwargs) -> Result:
        operands = [self.uop]
        what = (method, *named) if named else method  # "axis", 0 is not axis=0
        words = call_key(what, type(self), operands, (*given, *named.values()) if named else given)
        if words is None:
            return method(self, *given, **named)
        found = templates.find(words)
        if type(found) is Template:
            return found.over(operands, self._from_node)  # type: ignore[no-any-return]
        if found is None:
            templates.keep(words, SEEN)
        elif found is SEEN:
            traced = trace(method, operands, (self, *given), named)
            templates.keep(words, traced or REJECTED)
        return method(self, *given, **named)

    return with_name_of(method, call)


def call_key(
    method: object, own: type[Core], operands: list[UOp], given: Iterable[object]
) -> tuple[object, ...] | None:
    """The key of a call, whose operands are completed by that. None for one without templates."""
    first = operands[0]
    device, shape = first.device, first.shape
    if type(device) is not str or not are_ints(shape) or settings.IMAGE or own.__dictoffset__:
        # which operands of products are images depends on how they were made, and a tensor with
        # attributes may have methods of its own
        return None
    words = [method, own, device, first.dtype, shape, *defaults_beside(first.dtype)]
    for value in given:
        kind = type(value)
        if kind in PLAIN:
            words += kind, value
        elif isinstance(value, Core):
            node = value.uop
            shape = node.shape
            if node.device != device or not are_ints(shape) or kind is not own:
                return None
            operands.append(node)
            words += operands.index(node), node.dtype, shape, *defaults_beside(node.dtype)
        elif isinstance(value, float):
            words += kind, value.hex()  # 0.0 and -0.0 are equal keys
        elif isinstance(value, (tuple, list)) and are_ints(value):
            words += kind, tuple(value)
        else:
            return None
    return tuple(words)


def defaults_beside(dtype: DType) -> tuple[DType, ...]:
    """The default dtypes, which decide what integers and bools are promoted to."""
    return () if dtype.kind == "float" else (dtypes.default_int, dtypes.default_float)


def trace(
    method: Callable[..., Any],
    operands: Sequence[UOp],
    given: Sequence[Any],
    named: Mapping[str, Any],
) -> Template | None:
    """The template of a call, traced on placeholders. None where it is no matter of shapes."""
    if any(0 in node.shape for node in operands):
        return None
    stand_ins = {n: graph.new_buffer(n.shape, n.dtype, n.device) for n in operands}
    tensors = {node: given[0]._from_node(leaf) for node, leaf in stand_ins.items()}

    def placed(value: Any) -> Any:
        return tensors[value.uop] if isinstance(value, Core) else value

    found = method(*map(placed, given), **{k: placed(value) for k, value in named.items()})
    results = found if isinstance(found, tuple) else (found,)
    if {*map(type, results)} != {type(given[0])}:
        return None
    roots = [tensor.uop for tensor in results]
    shown = [base_of_view(node) for node in (*roots, *stand_ins.values())]
    if len({*shown}) < len(shown):
        return None  # a view, which would show writes
    numbers = {stand_ins[node]: place for place, node in enumerate(operands)}
    leaves = {*numbers}
    inner = [n for n in ordered(UOp.sink(*roots), None, leaves) if n not in leaves][:-1]
    if any(is_refused(node) for node in inner):
        return None
    varying = set(leaves)
    for node in inner:
        if not varying.isdisjoint(node.src):
            varying.add(node)
    if not varying.issuperset(roots):
        return None
    made = [node for node in inner if node in varying]
    used = {source: None for node in made for source in node.src}
    constants = [source for source in used if source not in varying]
    numbers |= {node: place for place, node in enumerate((*constants, *made), len(operands))}
    steps = [node_step(node, numbers) for node in made]
    places = tuple([numbers[root] for root in roots])
    result = places if isinstance(found, tuple) else places[0]
    return Template(tuple(constants), tuple(steps), operands[0].device, result)


def is_refused(node: UOp) -> bool:
    """True for a node of more than shapes: a CALL whose gradient knows of one call, a copy, an
    equal value.
    """
    if node.op is Op.CALL:
        return getattr(node.arg, "__closure__", node.arg) is not None
    if node.op is VALUE_OP:
        return node.arg is not None
    return node.op in REFUSED or graph.is_alone(node)


def node_step(node: UOp, numbers: Mapping[UOp, int]) -> Step:
    """The step that makes a node."""
    places = [numbers[source] for source in node.src]
    pick = None if len(places) == 1 else itemgetter(*places)
    in_key = argument_in_key(node.arg)
    return Step(node.op, node.dtype, places[0], pick, node.arg, in_key, node.shape_or_none)
