"""Tensors kept in images, on the interpreter, whose rows have room for more than they hold."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy
import pytest

from tinycore import Context, Device, Tensor, TinyJit, Variable, dtypes
from tinycore.device.buffer import Buffer
from tinycore.dtype import ImageDType
from tinycore.errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from tinycore.schedule.device_memory import buffer_of

KIND = dtypes.imagef((3, 4))


@pytest.fixture(autouse=True)
def on_the_interpreter() -> Iterator[None]:
    with Context(DEV="PYTHON"):
        yield


def numbers(
    *shape: int, seed: int = 0
) -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]:
    return numpy.random.default_rng(seed).integers(-9, 9, shape).astype(numpy.float32)


def memory(x: Tensor) -> Buffer:
    return buffer_of(x.uop)


# --- asked for, and read back


def test_a_cast_to_an_image_keeps_the_value_and_the_dtype() -> None:
    a = numbers(6, 8)

    x = Tensor(a).cast(KIND).realize()

    assert (x.dtype, x.shape, x.image) == (dtypes.float32, (6, 8), KIND)
    assert memory(x).image is KIND
    assert x.tolist() == a.tolist()


def test_a_cast_to_halves_rounds() -> None:
    x = Tensor([1.0, 1 / 3, 70000.0, -2.0]).cast(dtypes.imageh((1, 1)))

    assert x.dtype is dtypes.float16
    assert x.tolist() == [1.0, numpy.float16(1 / 3), numpy.inf, -2.0]


def test_integers_become_the_floats_of_the_image() -> None:
    assert Tensor([1, 2, 3, 4]).cast(dtypes.imagef((1, 1))).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_what_is_computed_of_an_image_is_in_plain_memory() -> None:
    x = Tensor(numbers(6, 8)).cast(KIND).realize()
    y = (x * 2).realize()

    assert (y.image, memory(y).image) == (None, None)
    assert memory(x.clone().realize()).image is None


def test_a_cast_back_changes_nothing_and_copies_nothing() -> None:
    x = Tensor(numbers(6, 8)).cast(KIND).realize()

    assert x.cast(dtypes.float32) is x
    assert x.cast(KIND) is x


def test_an_empty_image_is_assigned_to() -> None:
    a = numbers(6, 8)
    x = Tensor.empty(6, 8, dtype=KIND)

    x.assign(Tensor(a) + 1).realize()

    assert memory(x).image is KIND
    assert x.tolist() == (a + 1).tolist()
    x.assign(x.flip(0) * 2).realize()
    assert x.tolist() == ((a + 1)[::-1] * 2).tolist()


def test_an_image_goes_to_another_device_and_back() -> None:
    a = numbers(6, 8)
    x = Tensor(a).cast(KIND).realize()

    assert x.to("PYTHON:1").tolist() == a.tolist()
    assert x.to("PYTHON:1").cast(KIND).to("PYTHON").tolist() == a.tolist()


def test_a_device_without_images_keeps_plain_memory() -> None:
    """Though the kernels it compiles are those of a device that has them."""
    with Context(DEV="NULL:PYTHON"):
        x = Tensor.ones(6, 8).cast(KIND).realize()

    assert not Device["NULL"].has("image")
    assert memory(x).image is None
    assert x.image is KIND


# --- computed with


def test_gradients_pass_through_an_image() -> None:
    a, w = numbers(6, 8), numbers(8, 4, seed=1)
    x = Tensor(a, requires_grad=True)

    x.cast(KIND).dot(Tensor(w)).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == numpy.broadcast_to(w.sum(1), (6, 8)).tolist()


def test_a_reduced_value_is_stored_by_pixels() -> None:
    a = numbers(5, 48)

    assert Tensor(a).sum(0).cast(KIND).tolist() == a.sum(0).tolist()


def test_a_captured_step_works_on_images() -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x + 1).cast(KIND) * 2).realize()

    for seed in range(5):
        a = numbers(6, 8, seed=seed)
        assert step(Tensor(a).cast(KIND).realize()).tolist() == ((a + 1) * 2).tolist()
    again = pickle.loads(pickle.dumps(step))
    assert (
        again(Tensor(numbers(6, 8)).cast(KIND).realize()).tolist()
        == ((numbers(6, 8) + 1) * 2).tolist()
    )


@pytest.mark.parametrize("last", [8, 6])
def test_the_setting_keeps_operands_of_products_in_images(last: int) -> None:
    a, b = numbers(7, last), numbers(last, 5, seed=1)
    with Context(IMAGE=1):
        product = Tensor(a) @ Tensor(b)
    images = [b.image for item in product.schedule() for b in item.bufs if b.image]

    assert dtypes.imagef((7, 2)) in images
    assert len(set(images)) == 2
    assert product.tolist() == (a @ b).tolist()


def images_of(x: Tensor) -> set[ImageDType]:
    """Images that the kernels of a tensor read or write."""
    return {b.image for item in x.schedule() for b in item.bufs if b.image}


@pytest.mark.parametrize(("rows", "kept"), [(1, False), (2, False), (3, True)])
def test_the_setting_copies_no_weight_whose_copy_cannot_pay(rows: int, kept: bool) -> None:
    """An element is used once for each row; its copy costs a read and a write."""
    a, b = numbers(rows, 8), numbers(8, 12, seed=1)
    with Context(IMAGE=1):
        product = Tensor(a) @ Tensor(b)
    images = images_of(product)

    assert dtypes.imagef((rows, 2)) in images
    assert (dtypes.imagef((8, 3)) in images) is kept
    assert product.tolist() == (a @ b).tolist()


def test_the_setting_copies_no_input_that_a_convolution_reads_once() -> None:
    x, weight = Tensor(numbers(1, 3, 4, 8)), Tensor(numbers(3, 1, 1, 4, seed=1))
    with Context(IMAGE=1):
        each_once = x.conv2d(weight, groups=3, stride=(1, 4))
        each_by_three = x.conv2d(Tensor(numbers(3, 3, 1, 1, seed=2)))

    assert dtypes.imagef((12, 2)) not in images_of(each_once)
    assert dtypes.imagef((12, 2)) in images_of(each_by_three)


def test_a_product_in_images_is_one_however_small() -> None:
    a, b = numbers(1, 6), numbers(6, 4, seed=1)
    product = Tensor(a).image_dot(Tensor(b))
    found = Tensor(numbers(1, 1, 2, 4)).image_conv2d(Tensor(numbers(1, 1, 2, 4, seed=1)))

    assert images_of(product) == {dtypes.imagef((1, 2)), dtypes.imagef((6, 1))}
    assert images_of(found) == {dtypes.imagef((2, 1))}
    assert product.tolist() == (a @ b).tolist()


def test_the_least_of_a_size_that_varies_says_if_an_image_pays() -> None:
    weight = Tensor(numbers(8, 12))
    with Context(IMAGE=1):
        for least, kept in ((1, False), (3, True)):
            rows = Variable("rows", least, 9).bind(4)
            product = Tensor(numbers(9, 8))[:rows] @ weight
            assert (dtypes.imagef((8, 3)) in images_of(product)) is kept


def test_the_setting_keeps_convolutions_in_halves() -> None:
    a, w = numbers(1, 2, 5, 8), numbers(3, 2, 3, 3, seed=1)
    plain = Tensor(a).conv2d(Tensor(w), padding=1)
    with Context(IMAGE=2):
        halves = Tensor(a).conv2d(Tensor(w), padding=1)

    images = [b.image for item in halves.schedule() for b in item.bufs if b.image]
    assert {i.base for i in images} == {dtypes.float16}
    assert halves.dtype is dtypes.float32
    assert halves.tolist() == plain.tolist()


def test_the_setting_leaves_devices_without_images_alone() -> None:
    x = Tensor.empty(4, 4, device="NULL")
    with Context(IMAGE=2):
        product = x @ x

    assert len(product.schedule()) == 1


def test_integers_are_multiplied_as_ever() -> None:
    assert Tensor([[1, 2]]).image_dot(Tensor([[3], [4]])).tolist() == [[11]]


# --- refused


def test_an_image_that_does_not_fit_is_told() -> None:
    with pytest.raises(ShapeError, match=r"\(6, 7\) does not fill .* 3 x 4 x 4 = 48"):
        Tensor.ones(6, 7).cast(KIND)
    with pytest.raises(ShapeError, match=r"\(6, 7\) does not fill"):
        Tensor.empty(6, 7, dtype=KIND)


def test_an_image_is_the_dtype_of_no_other_constructor() -> None:
    with pytest.raises(DTypeError, match=r"Keep a tensor of dtypes\.float32 in it by x\.cast"):
        Tensor.zeros(6, 8, dtype=KIND)


def test_a_part_of_an_image_is_not_written() -> None:
    x = Tensor(numbers(6, 8)).cast(KIND).realize()

    x[2:4] = 1
    with pytest.raises(UnsupportedError, match=r"written as a whole: .* x\.clone\(\)"):
        x.realize()


def test_an_image_has_no_address() -> None:
    buffer = memory(Tensor(numbers(6, 8)).cast(KIND).realize())

    with pytest.raises(UnsupportedError, match="has no address"):
        buffer.as_memoryview()
    with pytest.raises(UnsupportedError, match=r"no part of .* is a buffer"):
        buffer.view(4)
    with pytest.raises(ArgumentError, match="are not those of"):
        Buffer("PYTHON", 47, dtypes.float32, image=KIND)


def test_several_devices_share_no_image() -> None:
    x = Tensor.ones(6, 8).shard(("PYTHON", "PYTHON:1"), 0)

    with pytest.raises(UnsupportedError, match="memory of one device"):
        x.cast(KIND)


# --- memory


def test_images_are_used_again() -> None:
    pool = Device["PYTHON"].allocator
    pool.free_cache()
    x = Tensor(numbers(6, 8)).cast(KIND).realize()
    handle = memory(x).handle
    del x

    assert pool.cached >= KIND.size * 4
    assert memory(Tensor(numbers(6, 8)).cast(KIND).realize()).handle is handle
