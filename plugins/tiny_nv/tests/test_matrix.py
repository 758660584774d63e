"""Matrix instructions: each unit against NumPy on cards that the executor plays, by both renderers.

The executor has where lanes hold elements from the manual, as functions of the lane's number; the
units have it as maps. That both are the same is tested here, and that every product of matrices is
given to a unit: in CUDA C through nvrtc's PTX, and in our own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from executor.matrix import a_fragment, b_fragment, c_fragment
from matrix_programs import (
    SIZES,
    TOLERANCES,
    MatrixPrograms,
    Sources,
    for_few_threads,
    noted,
    small_integers,
)
from sampling import on_one_of
from simulated import Simulated, backend_of
from standin import Card
from tensor_programs import TensorPrograms, numbers

from tiny_nv.arch import arch_of, limits_of
from tiny_nv.matrix import INSTRUCTIONS
from tinycore import Context, Tensor, Variable, dtypes
from tinycore.dtype import DType
from tinycore.plugin import register, unregister

LANES = numpy.arange(32)[:, None]
OPERANDS = tuple(INSTRUCTIONS.values())
NAMES = {found.unit.a: found for found in OPERANDS}
PROGRAMS = TensorPrograms("CUDA")
MATRICES = MatrixPrograms(
    PROGRAMS,
    {dtype: found.name for dtype, found in NAMES.items()},
    {dtype: found.unit.out for dtype, found in NAMES.items()},
)


@pytest.fixture
def sources() -> Iterator[Sources]:
    with noted() as found, Context(ALLOW_TF32=1):
        yield found


@pytest.fixture(scope="module", params=on_one_of("NVRTC", "PTX"))
def card(request: pytest.FixtureRequest) -> Iterator[None]:
    """A card with one multiprocessor that the executor plays, asked for what sm_90 has."""
    if request.param == "NVRTC":
        request.getfixturevalue("nvrtc")
    register(for_few_threads(backend_of(Simulated((Card(),)))))
    with Context(DEV=f"CUDA:{request.param}:sm_90"):
        yield
    unregister("CUDA")


# --- where elements are


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_lanes_hold_what_the_manual_says(name: str) -> None:
    unit = INSTRUCTIONS[name].unit
    bits = 8 * unit.a.itemsize
    manual = {
        "a": a_fragment(unit.k, bits),
        "b": b_fragment(unit.k, bits),
        "out": c_fragment(unit.m),
    }

    for operand, places in manual.items():
        held = unit.fragment(operand)
        elements = numpy.arange(held.count)[None]
        for axis, expected in zip(held.axes, places, strict=True):
            found = numpy.broadcast_to(held.map.place(axis, LANES, elements), (32, held.count))
            assert numpy.array_equal(found, numpy.broadcast_to(expected, found.shape))


def test_each_architecture_has_the_units_that_it_executes() -> None:
    older, newer = (limits_of(arch_of(name)) for name in ("sm_80", "sm_89"))

    assert {unit.a.name for unit in older.matrix} == {"float16", "bfloat16", "int8", "float32"}
    assert {unit.a for unit in newer.matrix} - {unit.a for unit in older.matrix} == {
        *(dtypes.fp8e4m3, dtypes.fp8e5m2)
    }
    assert older.subgroup == 32


# --- products


@pytest.mark.sample(8)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", NAMES, ids=lambda dtype: dtype.name)
def test_a_product_is_numpys(dtype: DType, size: tuple[int, int, int], sources: Sources) -> None:
    MATRICES.is_numpys(dtype, size, sources)


@pytest.mark.sample(4)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: dtype.name)
def test_sums_of_narrow_products_are_single(dtype: DType, sources: Sources) -> None:
    MATRICES.is_summed_in_single(dtype, sources)


@pytest.mark.usefixtures("card")
def test_single_operands_are_rounded_where_that_is_allowed(sources: Sources) -> None:
    a, b = numbers(32, 64), numbers(64, 40, seed=1)
    name = NAMES[dtypes.float32].name
    left, right = (Tensor(x).realize() for x in (a, b))
    sources.texts.clear()

    with Context(ALLOW_TF32=0):
        PROGRAMS.close(left @ right, a.astype("d") @ b, 1e-6)
    assert sources.count(name) == 0
    rounded = (left @ right).numpy()
    assert sources.count(name) == 1
    nearest = [(x.view("u4") + 0x1000 & 0xFFFFE000).view("f").astype("d") for x in (a, b)]
    numpy.testing.assert_allclose(rounded, nearest[0] @ nearest[1], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("card")
def test_what_is_around_a_product_is_in_its_kernel(sources: Sources) -> None:
    a, b, bias = small_integers(40, 64), small_integers(64, 24, seed=1), small_integers(24, seed=2)
    left, right, added = (Tensor(x.astype("f")).half().realize() for x in (a, b, bias))
    sources.texts.clear()
    found = ((left @ right) + added).relu().realize()

    assert numpy.array_equal(found.numpy(), numpy.maximum(a @ b + bias, 0))
    assert [NAMES[dtypes.half].name in text for text in sources.texts] == [True]


@pytest.mark.sample(4)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("transposed", ["", "left", "right", "both"])
def test_operands_that_lie_the_other_way(transposed: str, sources: Sources) -> None:
    a, b = small_integers(32, 64), small_integers(64, 48, seed=1)
    x, y = (Tensor(v.astype("f")).half() for v in (a, b))
    if transposed in ("left", "both"):
        x = x.T.contiguous().realize().T
    if transposed in ("right", "both"):
        y = y.T.contiguous().realize().T

    assert numpy.array_equal(x.matmul(y, dtype=dtypes.float32).numpy(), a @ b)
    assert sources.count(NAMES[dtypes.half].name) == 1


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("dtype", [dtypes.half, dtypes.int8], ids=str)
def test_operands_are_copied_while_others_are_multiplied(dtype: DType, sources: Sources) -> None:
    """The executor refuses what is read before its copy was waited for, and races of a block."""
    a, b = small_integers(64, 384), small_integers(384, 64, seed=1)
    left, right = (Tensor(v.astype("f")).cast(dtype).realize() for v in (a, b.T.copy()))
    sources.texts.clear()
    found = left.matmul(right.T, dtype=NAMES[dtype].unit.out).numpy()
    (text,) = sources.texts

    assert numpy.array_equal(found, a @ b)
    assert text.count("cp.async.commit_group") == 4
    assert text.count("cp.async.wait_group 2") == 1


@pytest.mark.sample(3)
@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("turned", [(False, False), (True, True), (True, False)], ids=str)
@pytest.mark.parametrize("size", [(128, 64, 128), (70, 40, 130)], ids=str)
def test_threads_multiply_while_single_operands_are_copied(
    size: tuple[int, int, int], turned: tuple[bool, bool], sources: Sources
) -> None:
    m, k, n = size
    a, b = small_integers(m, k).astype("f"), small_integers(k, n, seed=1).astype("f")
    left, right = (
        Tensor(v.T.copy()).realize().T if is_turned else Tensor(v).realize()
        for v, is_turned in zip((a, b), turned, strict=True)
    )
    sources.texts.clear()

    with Context(ALLOW_TF32=0):
        found = (left @ right).numpy()

    assert numpy.array_equal(found, a @ b)
    (text,) = sources.texts
    is_aligned = not any(n % 4 for n in size)
    assert "cp.async.wait_group" in text or not is_aligned


@pytest.mark.usefixtures("card")
def test_many_products_at_once(sources: Sources) -> None:
    MATRICES.is_batched(dtypes.half, sources)


@pytest.mark.usefixtures("card")
def test_a_convolution_is_a_product(sources: Sources) -> None:
    torch = pytest.importorskip("torch")
    x, w = (
        small_integers(2, 16, 10, 9).astype("f"),
        small_integers(24, 16, 3, 3, seed=1).astype("f"),
    )
    images, weights = (Tensor(v.astype("f")).half().realize() for v in (x, w))
    found = images.conv2d(weights, padding=1)
    exact = (torch.from_numpy(v.astype("f")) for v in (x, w))
    expected = torch.nn.functional.conv2d(*exact, None, 1, 1)

    PROGRAMS.close(found.float(), expected.numpy(), 1e-3)
    assert sources.count(NAMES[dtypes.half].name) == 1


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("width", [32, 40, 256])
def test_attention_over_any_number_of_keys_is_one_kernel(width: int, sources: Sources) -> None:
    torch = pytest.importorskip("torch")
    given = [numbers(2, 40, width, seed=seed) for seed in range(3)]
    q, k, v = (Tensor(x).half().realize() for x in given)
    found = q.scaled_dot_product_attention(k, v)
    wide = (torch.from_numpy(x).half().float() for x in given)
    expected = torch.nn.functional.scaled_dot_product_attention(*wide)

    PROGRAMS.close(found.float(), expected.numpy(), 3e-3)
    assert sources.count(NAMES[dtypes.half].name) == 1


@pytest.mark.usefixtures("card")
def test_attention_over_a_number_of_keys_known_at_launch_is_one_program(sources: Sources) -> None:
    torch = pytest.importorskip("torch")
    given = [numbers(2, 72, 32, seed=seed) for seed in range(3)]
    q, k, v = (Tensor(x).half().realize() for x in given)
    wide = [torch.from_numpy(x).half().float() for x in given]
    for length in (40, 72, 9):
        n = Variable("length", 1, 72).bind(length)
        found = q[:, :n].scaled_dot_product_attention(k[:, :n], v[:, :n], is_causal=True)
        cut = [x[:, :length] for x in wide]
        expected = torch.nn.functional.scaled_dot_product_attention(*cut, is_causal=True)

        PROGRAMS.close(found.float(), expected.numpy(), 3e-3)
    assert sources.count(NAMES[dtypes.half].name) == 1


@pytest.mark.usefixtures("card")
def test_gradients_of_attention_by_hand_store_no_scores(sources: Sources) -> None:
    torch = pytest.importorskip("torch")
    given = [numbers(2, 48, 16, seed=seed) for seed in range(4)]
    leaves = [Tensor(x).half().realize().requires_grad_() for x in given[:3]]
    q, k, v = leaves
    visible = Tensor.ones(48, 48).tril()
    scores = (q @ k.transpose(-2, -1) / 4).masked_fill(visible == 0, float("-inf"))
    result = scores.softmax(-1) @ v
    (result * Tensor(given[3]).half().realize()).sum().backward()
    found = [x.grad for x in leaves if x.grad is not None]
    Tensor.realize(result, *found)
    ours = [torch.from_numpy(x).half().double().requires_grad_() for x in given]
    expected = torch.nn.functional.scaled_dot_product_attention(*ours[:3], is_causal=True)
    (expected * ours[3]).sum().backward()

    PROGRAMS.close(result.float(), expected.detach().numpy(), 3e-3)
    for mine, theirs in zip(found, ours, strict=False):
        PROGRAMS.close(mine.float(), theirs.grad.numpy(), 2e-2)
    assert sources.count(NAMES[dtypes.half].name) == 3
