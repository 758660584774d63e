"""Costs of a kernel before it runs: our passes with the renderer, and with the compiler too.

The kernels are typical ones; sizes do not matter to this cost. No cache helps: each step lowers the
same graph anew.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any, Final

from benchmarks.case import Case, Kind

__all__ = ["CASES"]


def _product(tensor: Any) -> Any:
    return tensor.empty(512, 512) @ tensor.empty(512, 512)


def _convolution(tensor: Any) -> Any:
    return tensor.empty(8, 64, 28, 28).conv2d(tensor.empty(64, 64, 3, 3), padding=1)


def _softmax(tensor: Any) -> Any:
    return tensor.empty(1024, 1024).softmax(1)


def _chain(tensor: Any) -> Any:
    x = (tensor.empty(1000, 1000) * 2 + tensor.empty(1000, 1)).exp().sin().tanh()
    return x * tensor.empty(1000)


KERNELS: Final = {
    "matmul": _product,
    "conv 3x3": _convolution,
    "softmax": _softmax,
    "fused elementwise": _chain,
}


def _kernels(expression: Callable[[Any], Any]) -> tuple[list[Any], Any]:
    """The kernels of an expression, and the toolchain of the device they are for."""
    tensor, device = map(pkgutil.resolve_name, ("tinycore:Tensor", "tinycore:Device"))
    items = [item for item in expression(tensor).schedule() if item.ast.op.name != "COPY"]
    return [item.ast for item in items], device[device.DEFAULT].toolchain


def _lowering(expression: Callable[[Any], Any]) -> Callable[[Any], Callable[[], int]]:
    def build(_: Any) -> Callable[[], int]:
        kernels, toolchain = _kernels(expression)
        lower = pkgutil.resolve_name("tinycore.lower.pipeline:lower")

        def step() -> int:
            linear = [lower(ast, toolchain.renderer, "kernel") for ast in kernels]
            return sum(len(toolchain.renderer.render(kernel)) for kernel in linear)

        return step

    return build


def _compiling(expression: Callable[[Any], Any]) -> Callable[[Any], Callable[[], int]]:
    def build(_: Any) -> Callable[[], int]:
        kernels, toolchain = _kernels(expression)
        make = pkgutil.resolve_name("tinycore.engine.compile:build")

        def step() -> int:
            return sum(len(make(ast, toolchain, None).content) for ast in kernels)

        return step

    return build


CASES: Final = tuple(
    Case(f"{what} {name}", {"tinycore": program(expression)}, kind=Kind.TOOL)
    for what, program in (("lower", _lowering), ("lower and compile", _compiling))
    for name, expression in KERNELS.items()
)
