"""`function`: a part of a program as a function of its arguments, checked to have no other inputs.

Floor 6. The body is traced at each call; equal bodies become equal kernels, which are compiled
once. `TinyJit` is what leaves Python out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

from tinycore._tracebacks import shown_at_caller
from tinycore.errors import ArgumentError, ArgumentTypeError
from tinycore.nn.state import get_state_dict
from tinycore.tensor import Tensor
from tinycore.tensor.graph import called, full_like
from tinycore.tensor.methods.custom import GradientFunction
from tinycore.uop.node import UOp, unique
from tinycore.uop.op import Op

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Function = Callable[Parameters, Result]


@dataclass(frozen=True, slots=True)
class Options:
    """The keyword arguments of `function`."""

    precompile: bool
    precompile_backward: bool
    allow_implicit: bool
    grad_fxn: GradientFunction | None


@overload
def function(
    fxn: Function[Parameters, Result],
    *,
    precompile: bool = ...,
    precompile_backward: bool = ...,
    allow_implicit: bool = ...,
    grad_fxn: GradientFunction | None = ...,
) -> Function[Parameters, Result]: ...
@overload
def function(
    fxn: None = None,
    *,
    precompile: bool = ...,
    precompile_backward: bool = ...,
    allow_implicit: bool = ...,
    grad_fxn: GradientFunction | None = ...,
) -> Callable[[Function[Parameters, Result]], Function[Parameters, Result]]: ...
def function(
    fxn: Callable[..., Any] | None = None,
    *,
    precompile: bool = False,
    precompile_backward: bool = False,
    allow_implicit: bool = False,
    grad_fxn: GradientFunction | None = None,
) -> Any:
    """Decorate a function of tensors, or a method: its result depends on its arguments alone.

    The tensors of an argument are those that `nn.state.get_state_dict` finds in it, so a method may
    use the parameters of its object. Returns a Tensor or a tuple of them, as the function must.

    - `allow_implicit`: memory that existed before the call and is no argument may be read, too.
    - `precompile`: results are stored, as by `contiguous`, before they are used.
    - `precompile_backward`: so are the gradients of results (`contiguous_backward`).
    - `grad_fxn(gradient, call)` gives the gradient of each distinct tensor of the arguments, in the
      order of `get_state_dict((args, kwargs))`, or None: tensors or nodes; `call.src[1:]` are the
      nodes of the tensors. For a tuple it gets a gradient for each result, and `call=call`; it is
      called for each result through which a gradient flows, with zeros for the others, and what it
      gives is added up, as is right for whatever is linear in the gradients.

    Raises ArgumentTypeError for another result, ArgumentError for memory that is no argument.

    >>> from tinycore import function
    >>> @function
    ... def scaled(x, factor):
    ...     return x * factor
    >>> scaled(Tensor([1.0, 2.0]), Tensor([10.0, 100.0])).tolist()
    [10.0, 200.0]
    >>> twice = function(lambda x: x * 2, grad_fxn=lambda gradient, call: [gradient * 5])
    >>> x = Tensor([1.0, 2.0])
    >>> twice(x).tolist(), twice(x).sum().gradient(x)[0].tolist()
    ([2.0, 4.0], [5.0, 5.0])
    """
    options = Options(precompile, precompile_backward, allow_implicit, grad_fxn)
    if fxn is None:
        return lambda decorated: wrapped(decorated, options)
    return wrapped(fxn, options)


def wrapped(fxn: Function[Parameters, Result], options: Options) -> Function[Parameters, Result]:
    """The function that a caller gets: a method if `fxn` is one."""

    @functools.wraps(fxn, updated=())
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return applied(fxn, options, args, kwargs)  # type: ignore[no-any-return]

    return shown_at_caller(call)


def applied(fxn: Callable[..., Any], options: Options, args: Any, kwargs: Any) -> Any:
    """The result of a call, checked, and with the gradient that the options ask for."""
    tensors = get_state_dict((args, kwargs)).values()
    arguments = list(dict.fromkeys([tensor.uop for tensor in tensors]))
    first_new = unique().arg
    result = fxn(*args, **kwargs)
    results = results_of(fxn, result)
    if not options.allow_implicit:
        refuse_implicit(fxn, results, arguments, first_new)
    if options.grad_fxn is not None:
        results = with_gradient(results, arguments, options.grad_fxn)
    if options.precompile:
        results = [tensor.contiguous() for tensor in results]
    if options.precompile_backward:
        results = [tensor.contiguous_backward() for tensor in results]
    return tuple(results) if isinstance(result, tuple) else results[0]


def called_name(fxn: Callable[..., Any]) -> str:
    """The name of a function, or that of the class of a callable object."""
    return str(getattr(fxn, "__qualname__", type(fxn).__qualname__))


def results_of(fxn: Callable[..., Any], result: Any) -> list[Tensor]:
    """The tensors that a function returned. Raises ArgumentTypeError for anything else."""
    results = list(result) if isinstance(result, tuple) else [result]
    for item in results:
        if not isinstance(item, Tensor):
            raise ArgumentTypeError(
                f"function: {called_name(fxn)} returned {item!r} of type {type(item).__name__}; it "
                "must return a Tensor or a tuple of them"
            )
    return results


def refuse_implicit(
    fxn: Callable[..., Any], results: Sequence[Tensor], arguments: Sequence[UOp], first_new: int
) -> None:
    """Raise ArgumentError if results read memory that is older than the call and no argument's."""
    known = set(arguments)
    below = UOp.sink(*[t.uop for t in results]).toposort(lambda node: node not in known)
    older = [node for node in below if node not in known and is_older(node, first_new)]
    if older:  # memory of a lazy argument that a realization left, or a view of its memory
        reached = set(UOp.sink(*arguments).toposort())
        older = [node for node in older if node not in reached]
    if older:
        shown = ", ".join(f"{node.arg} x {node.dtype} on {node.device}" for node in older)
        raise ArgumentError(
            f"function: {called_name(fxn)} reads {len(older)} implicit buffer(s) ({shown}), memory "
            "that is not reached from its arguments. Pass those tensors, or allow_implicit=True"
        )


def is_older(node: UOp, first_new: int) -> bool:
    """True if a node is memory that existed before a number was given out (`unique`)."""
    if node.op is not Op.BUFFER:
        return False
    number = node.src[1].arg
    return isinstance(number, int) and number < first_new


def with_gradient(
    results: Sequence[Tensor], arguments: Sequence[UOp], gradient: GradientFunction
) -> list[Tensor]:
    """Results whose gradients go to the arguments by a function of the user's."""

    def of_result(place: int) -> GradientFunction:
        def parts(g: UOp, call: UOp) -> Sequence[Any]:
            if len(results) == 1:
                return gradient(g, call)
            zeros = [full_like(value, 0) if at != place else g for at, value in enumerate(values)]
            return gradient(*zeros, call=call)

        return parts

    values = [tensor.uop.alu(Op.VALUE) for tensor in results]
    return [
        Tensor(called(value, arguments, of_result(place))) for place, value in enumerate(values)
    ]
