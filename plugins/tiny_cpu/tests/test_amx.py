"""Products by tile registers: the code that is written, and what it computes where there is AMX."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy
import pytest

from tiny_cpu import amx
from tiny_cpu.arch import Arch
from tiny_cpu.clang import is_clang_installed
from tiny_cpu.device import clang_toolchain, llvm_toolchain
from tinycore import Context, Tensor, TinyJit
from tinycore.errors import UnsupportedError
from tinycore.lower.pipeline import lower
from tinycore.lower.steps.tensorize import Tensorize
from tinycore.lower.tile import Bind, Split
from tinycore.plugin import SupportsAssembly
from tinycore.schedule.limits import cut_for
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

NAMED: Final = "x86_64,sapphirerapids,amx-tile,amx-bf16,amx-int8"
HAS_AMX: Final = bool(amx.units_of(Arch.parse("native")))
needs_amx = pytest.mark.skipif(not HAS_AMX, reason="this processor has no AMX")
needs_clang = pytest.mark.skipif(not is_clang_installed(), reason="there is no clang")
BOTH: Final = ("LLVM", pytest.param("CLANG", marks=needs_clang))


@pytest.fixture(params=BOTH)
def compiler(request: pytest.FixtureRequest) -> Iterator[str]:
    """The compiler of kernels, which are compiled anew and verified."""
    with Context(DEV=f"CPU:{request.param}", CCACHE=0, VERIFY=1):
        yield request.param


def kernel_of(result: Tensor) -> UOp:
    """The last kernel of a result."""
    ast: UOp = result.schedule()[-1].ast
    return ast


def product(dtype: str, *shape: int) -> UOp:
    """The kernel of a product of matrices."""
    rows, columns, steps = shape
    a = Tensor.empty(rows, steps, dtype=dtype, device="PYTHON")
    b = Tensor.empty(steps, columns, dtype=dtype, device="PYTHON")
    return kernel_of(a.matmul(b, dtype=amx_sum(dtype)))


def amx_sum(dtype: str) -> str:
    """The type of sums."""
    return "float32" if dtype == "bfloat16" else "int32"


def source_of(ast: UOp, plan: Any = None) -> str:
    """The text of a kernel for a processor with AMX, which need not be ours."""
    toolchain = llvm_toolchain(NAMED)
    text = toolchain.renderer.render(lower(ast, toolchain.renderer, "product", plan))
    assert toolchain.compiler.compile(text)[:4] == b"\x7fELF"
    return text


def instructions(text: str, name: str) -> list[list[int]]:
    """The numbers of registers in each call of an intrinsic."""
    calls = re.findall(rf"call void @llvm\.x86\.{name}\((.*)\)", text)
    return [[int(n) for n in re.findall(r"i8 (\d+)", call)] for call in calls]


@pytest.mark.parametrize(
    ("dtype", "name"), [("bfloat16", "tdpbf16ps"), ("int8", "tdpbssd"), ("uint8", "tdpbuud")]
)
def test_a_block_of_four_tiles_takes_eight_registers(dtype: str, name: str) -> None:
    text = source_of(product(dtype, 128, 128, 256))

    assert instructions(text, name) == [[0, 4, 5], [1, 4, 6], [2, 7, 5], [3, 7, 6]]
    assert len(instructions(text, "tileloadd64")) == 4
    assert instructions(text, "tilezero") == [[0], [1], [2], [3]]
    assert instructions(text, "tilestored64") == [[0], [1], [2], [3]]
    assert text.count("@llvm.x86.ldtilecfg(ptr @tiles)") == 1
    assert text.count("call void @llvm.x86.tilerelease()") == 1


def convolution(shape: tuple[int, ...], weight: tuple[int, ...], **how: Any) -> UOp:
    """The kernel of a convolution of bfloat16."""
    x, w = (Tensor.empty(*s, dtype="bfloat16", device="PYTHON") for s in (shape, weight))
    return kernel_of(x.conv2d(w, **how))


def test_convolutions_take_tiles_along_channels_at_each_place_of_a_window() -> None:
    text = source_of(convolution((2, 64, 32, 32), (64, 64, 3, 3), padding=1))

    assert instructions(text, "tdpbf16ps") == [[0, 4, 5], [1, 4, 6], [2, 7, 5], [3, 7, 6]]
    assert instructions(text, "tilezero") == [[0], [1], [2], [3]]


@pytest.mark.parametrize("weight", [(64, 24, 3, 3), (64, 64, 3, 3)])
def test_convolutions_of_few_channels_or_small_images_take_vectors(weight: tuple[int, ...]) -> None:
    text = source_of(convolution((2, weight[1], 9, 9), weight))

    assert "tdpbf16ps" not in text


def test_products_one_after_the_other_take_the_same_registers() -> None:
    q, k, v = (Tensor.empty(8, 128, 64, dtype="bfloat16", device="PYTHON") for _ in range(3))
    toolchain = llvm_toolchain(NAMED)
    with cut_for(toolchain.renderer.limits):
        (item,) = q.scaled_dot_product_attention(k, v).schedule()
    text = source_of(item.ast)

    assert len(instructions(text, "tilezero")) == 8
    assert {n for numbers in instructions(text, "tdpbf16ps") for n in numbers} == {*range(8)}
    assert text.count("@llvm.x86.ldtilecfg(ptr @tiles)") == 1


def test_sums_of_one_step_give_their_registers_back() -> None:
    toolchain = llvm_toolchain(NAMED)
    q, k, v = (Tensor.empty(1, 64, 32, dtype="bfloat16", device="PYTHON") for _ in range(3))
    with cut_for(toolchain.renderer.limits):
        (item,) = q.scaled_dot_product_attention(k, v.repeat(1, 1, 2)).schedule()
    text = source_of(item.ast)

    assert len(instructions(text, "tdpbf16ps")) == 8


@needs_clang
def test_clang_is_given_the_same_instructions() -> None:
    toolchain = clang_toolchain(NAMED)
    linear = lower(product("bfloat16", 128, 128, 256), toolchain.renderer, "product")
    text = toolchain.renderer.render(linear)
    calls = re.findall(r"__builtin_ia32_(tile\w+)\(", text)

    assert re.findall(r"tdpbf16ps\((.*)\)", text) == ["0, 4, 5", "1, 4, 6", "2, 7, 5", "3, 7, 6"]
    assert [calls.count(name) for name in ("tileloadd64", "tilezero", "tilestored64")] == [4] * 3
    assert (calls[0], calls[-1]) == ("tile_loadconfig", "tilerelease")
    assert isinstance(toolchain.compiler, SupportsAssembly)
    assert "tdpbf16ps" in toolchain.compiler.assembly(text)


def test_registers_are_configured_as_16_rows_of_64_bytes() -> None:
    palette, rest = amx.CONFIGURATION[0], amx.CONFIGURATION[1:16]
    widths = numpy.frombuffer(amx.CONFIGURATION[16:48], "<u2")

    assert (palette, rest, len(amx.CONFIGURATION)) == (1, bytes(15), 64)
    assert [*widths] == [64] * 8 + [0] * 8
    assert amx.CONFIGURATION[48:] == bytes([16] * 8 + [0] * 8)


def test_kernels_without_products_are_as_they_were() -> None:
    text = source_of(kernel_of(Tensor.empty(64, 64, device="PYTHON") + 1))

    assert "tile" not in text


def test_plans_with_too_many_tiles_are_refused() -> None:
    ast = product("int8", 64, 64, 128)
    row, column, step = (r.arg.number for r in ast.toposort() if r.op is Op.RANGE)
    unit = amx.UNITS["amx-int8"][0]
    plan = (
        Tensorize(row, column, step, unit),
        Bind((*row, 0), AxisKind.UNROLL),
        Split((*column, 0), 2),
        Bind((*column, 0, 1), AxisKind.UNROLL),
    )

    with pytest.raises(UnsupportedError, match="more than the 8 tile registers"):
        source_of(ast, plan)


@pytest.mark.parametrize("text", ["x86_64,sapphirerapids", "x86_64,znver4", "aarch64"])
def test_processors_that_are_named_without_amx_have_none(text: str) -> None:
    assert llvm_toolchain(text).renderer.limits.matrix == ()


def test_processors_that_are_named_with_a_part_of_amx_have_that_part() -> None:
    units = llvm_toolchain("x86_64,sapphirerapids,amx-tile,amx-bf16").renderer.limits.matrix

    assert [unit.name for unit in units] == ["tdpbf16ps"]


# --- what it computes


def random(generator: numpy.random.Generator, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor of random elements, realized."""
    if dtype == "bfloat16":
        return Tensor(generator.standard_normal(shape, "f")).cast(dtype).realize()
    least, most = (0, 256) if dtype == "uint8" else (-128, 128)
    return Tensor(generator.integers(least, most, shape).astype(dtype)).realize()


@needs_amx
@pytest.mark.usefixtures("compiler")
@pytest.mark.sample(12)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize(
    "kinds",
    [("bfloat16",) * 2, ("int8",) * 2, ("uint8", "int8"), ("int8", "uint8"), ("uint8",) * 2],
)
def test_products_of_each_type(kinds: tuple[str, str], turned: str) -> None:
    generator = numpy.random.default_rng(0)
    left, right = (
        random(generator, shape[::-1] if name in turned else shape, kind)
        for name, shape, kind in zip("ab", ((96, 128), (128, 83)), kinds, strict=True)
    )
    a = left.T if "a" in turned else left
    b = right.T if "b" in turned else right
    got = a.matmul(b, dtype=amx_sum(kinds[0])).numpy()
    wanted = a.cast("float64").numpy() @ b.cast("float64").numpy()

    if kinds[0] == "bfloat16":
        numpy.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)
    else:
        assert numpy.array_equal(got, wanted)


@needs_amx
@pytest.mark.usefixtures("compiler")
@pytest.mark.sample(18)
@pytest.mark.parametrize(
    ("shape", "weight", "how"),
    [
        ((2, 64, 20, 20), (64, 64, 3, 3), {"padding": 1}),
        ((3, 32, 9, 33), (80, 32, 3, 3), {"padding": 1}),
        ((2, 64, 14, 14), (128, 64, 3, 3), {"padding": 1}),
        ((3, 40, 7, 7), (160, 40, 3, 3), {"padding": 1}),
        ((2, 64, 31, 34), (64, 64, 3, 3), {"padding": 1, "stride": 2}),
        ((2, 64, 28, 28), (128, 64, 1, 1), {"stride": 2}),
        ((2, 128, 18, 18), (128, 64, 3, 3), {"groups": 2}),
        ((2, 64, 1, 150), (64, 64, 1, 5), {"dilation": 2}),
        ((1, 100, 19, 19), (130, 100, 2, 2), {}),
    ],
)
def test_convolutions(shape: tuple[int, ...], weight: tuple[int, ...], how: dict[str, int]) -> None:
    generator = numpy.random.default_rng(3)
    x, w = (
        Tensor(generator.integers(-3, 4, s).astype("f")).cast("bfloat16").realize()
        for s in (shape, weight)
    )
    wanted = x.float().realize().conv2d(w.float().realize(), **how)  # type: ignore[arg-type]

    got = x.conv2d(w, **how)  # type: ignore[arg-type]

    assert numpy.array_equal(got.float().numpy(), wanted.cast("bfloat16").float().numpy())


@needs_amx
@pytest.mark.usefixtures("compiler")
@pytest.mark.sample(18)
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("inputs", [16, 20, 48, 70])
def test_layers_of_few_inputs_and_of_quantized_weights(inputs: int, kind: str) -> None:
    generator = numpy.random.default_rng(6)
    x = random(generator, (inputs, 300), "bfloat16")
    weight, factor = random(generator, (100, 300), kind), random(generator, (100,), "bfloat16")
    wanted = x.cast("float64").numpy() @ weight.cast("float64").numpy().T
    wanted *= factor.cast("float64").numpy()

    got = x.matmul(weight.cast("bfloat16").T, dtype="float32") * factor
    (item,) = (x.matmul(weight.cast("bfloat16").T, dtype="float32") * factor).schedule()

    assert "tdpbf16ps" in source_of(item.ast)
    numpy.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-5 * abs(wanted).max())


@needs_amx
@pytest.mark.usefixtures("compiler")
@pytest.mark.sample(27)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize(
    ("heads", "length", "seen", "width"),
    [(8, 128, 128, 64), (1, 100, 300, 72), (9, 77, 64, 96), (3, 600, 600, 64)],
)
def test_attention(heads: int, length: int, seen: int, width: int, mask: str) -> None:
    generator = numpy.random.default_rng(5)
    q = random(generator, (heads, length, width), "bfloat16")
    k, v = (random(generator, (heads, seen, width), "bfloat16") for _ in range(2))
    shown = generator.random((length, seen)) < 0.7
    slopes = generator.standard_normal((length, seen)).astype("f")
    query, key, value = (x.cast("float64").numpy() for x in (q, k, v))
    scores = query @ key.swapaxes(1, 2) / numpy.sqrt(width)
    given: dict[str, Any] = {"is_causal": mask == "causal"}
    if mask == "causal":
        scores = numpy.where(numpy.tril(numpy.ones((length, seen), bool)), scores, -numpy.inf)
    elif mask == "bool":
        given["attn_mask"] = Tensor(shown)
        scores = numpy.where(shown, scores, -numpy.inf)
    elif mask == "added":
        given["attn_mask"] = Tensor(slopes)
        scores += slopes
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ value

    got = q.scaled_dot_product_attention(k, v, **given).cast("float64").numpy()

    numpy.testing.assert_allclose(got, wanted, rtol=2**-7, atol=2**-7)


@needs_amx
@pytest.mark.usefixtures("compiler")
def test_values_that_are_no_numbers_stay_so() -> None:
    left = numpy.ones((64, 64), "f")
    left[3, 5], left[7, 9], left[7, 10], left[9, 1] = numpy.nan, numpy.inf, -numpy.inf, numpy.inf
    a = Tensor(left).cast("bfloat16").realize()
    b = Tensor(numpy.ones((64, 64), "f")).cast("bfloat16").realize()
    got = (a @ b).float().numpy()

    assert numpy.isnan(got[3]).all()
    assert numpy.isnan(got[7]).all()
    assert (got[9] == numpy.inf).all()
    assert (got[0] == 64).all()


@pytest.mark.slow
@needs_amx
@pytest.mark.usefixtures("compiler")
def test_products_among_other_work_and_their_gradients() -> None:
    generator = numpy.random.default_rng(1)
    x, w = (random(generator, (128, 128), "bfloat16") for _ in range(2))
    bias = random(generator, (128,), "bfloat16")
    x.requires_grad = w.requires_grad = True
    (((x.relu() @ w + bias).gelu()).float() ** 2).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    got = [x.grad.float().numpy(), w.grad.float().numpy()]

    plain, weight = (t.detach().float().requires_grad_(True) for t in (x, w))
    (((plain.relu() @ weight + bias.float()).gelu()) ** 2).sum().backward()
    assert plain.grad is not None
    assert weight.grad is not None
    for a, b in zip(got, (plain.grad.numpy(), weight.grad.numpy()), strict=True):
        assert numpy.abs(a - b).max() < 0.03 * numpy.abs(b).max()


@needs_amx
def test_replays_and_threads_have_registers_of_their_own(compiler: str) -> None:
    generator = numpy.random.default_rng(2)
    b = random(generator, (128, 256), "int8")
    step = TinyJit(lambda a: a.matmul(b, dtype="int32").realize())
    inputs = [random(generator, (192, 128), "int8") for _ in range(6)]
    wanted = [a.cast("int32").numpy() @ b.cast("int32").numpy() for a in inputs]
    results: dict[int, Any] = {}

    def work(first: int) -> None:
        with Context(DEV=f"CPU:{compiler}", CCACHE=0):
            for number in range(first, 6, 2):
                results[number] = inputs[number].matmul(b, dtype="int32").numpy()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(numpy.array_equal(results[n], wanted[n]) for n in range(6))
    assert all(numpy.array_equal(step(a).numpy(), w) for a, w in zip(inputs, wanted, strict=True))
