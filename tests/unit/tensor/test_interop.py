"""NumPy's protocols, Python's buffers, pickle and copy, plain addresses, URLs, image types."""

from __future__ import annotations

import copy
import functools
import gzip
import http.server
import io
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from lending import HOST, need, need_host_lender

from tiny_testing.accelerator import BACKEND
from tinycore import Context, Device, TinyJit
from tinycore.dtype import DType, ImageDType, dtypes
from tinycore.errors import (
    ArgumentError,
    DTypeError,
    FileFormatError,
    JitError,
    OutOfMemory,
    ShapeError,
    SharingError,
    UnsupportedError,
)
from tinycore.tensor import Tensor
from tinycore.uop.op import Op

NATIVE = [d for d in dtypes.all if d not in (dtypes.bfloat16, *dtypes.fp8s)]


@pytest.fixture
def engine(target: str) -> None:
    """For tests of what only the engine knows."""
    if target == "reference":
        pytest.skip("the evaluator has one device and captures nothing")


@pytest.fixture
def sharing(target: str) -> None:
    """For tests of memory that the host and the device share."""
    need(target, "host_memory")


@pytest.fixture
def exchange(target: str) -> None:
    """For tests of the host's memory that the device knows by plain addresses, as DLPack does."""
    need_host_lender(target)


def realized(values: Any, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor(values, dtype=dtype).realize()


# --- NumPy


def test_asarray_shares_memory_and_array_does_not(sharing: None) -> None:
    x = realized([[1.0, 2.0], [3.0, 4.0]])
    shared, own = numpy.asarray(x), numpy.array(x)
    shared[0, 1] = 9

    assert x.tolist() == [[1.0, 9.0], [3.0, 4.0]]
    assert own.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("dtype", NATIVE, ids=lambda dtype: dtype.name)
def test_the_array_interface_of_every_dtype(dtype: DType) -> None:
    x = realized([[1, 0, 1], [0, 1, 1]], dtype)
    array = numpy.asarray(x)

    assert (array.dtype.name, array.tolist()) == (dtype.name, x.tolist())
    assert numpy.asarray(x.permute(1, 0)[1:]).tolist() == x.permute(1, 0)[1:].tolist()


@pytest.mark.parametrize("dtype", NATIVE, ids=lambda dtype: dtype.name)
def test_arrays_of_views_share_memory(sharing: None, dtype: DType) -> None:
    x = realized([[1, 0, 1], [0, 1, 1]], dtype)

    assert numpy.shares_memory(numpy.asarray(x), numpy.asarray(x[1:, ::2]))


def test_a_shared_array_outlives_the_tensor_and_its_memory() -> None:
    x = realized([1.0, 2.0])
    array = numpy.asarray(x[1:])
    x.replace(realized([5.0, 6.0]))
    del x

    assert array.tolist() == [2.0]


def test_a_tensor_not_computed_keeps_its_graph() -> None:
    x = realized([1.0, 2.0])
    y = x * 3

    assert not hasattr(y, "__array_interface__")
    assert numpy.asarray(y).tolist() == [3.0, 6.0]
    assert y.uop.op is Op.MUL


def test_array_without_a_copy_is_the_memory(sharing: None) -> None:
    x = realized([1.0, 2.0])

    assert numpy.shares_memory(x.__array__(), x.__array__(copy=False))
    with pytest.raises(SharingError, match="a copy is needed, of another dtype"):
        x.__array__(numpy.float64, copy=False)


def test_array_follows_numpy_2() -> None:
    x, lazy = realized([1.0, 2.0]), realized([1.0]) + 1

    assert x.__array__(numpy.int8).dtype == numpy.int8
    assert not numpy.shares_memory(x.__array__(copy=True), x.__array__())
    with pytest.raises(ValueError, match="it shares no memory with the host"):
        lazy.__array__(copy=False)


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, *dtypes.fp8s], ids=lambda dtype: dtype.name)
def test_floats_that_numpy_lacks_become_float32(dtype: DType) -> None:
    x = realized([1.0, 0.5], dtype)

    assert not hasattr(x, "__array_interface__")
    assert numpy.asarray(x).dtype == numpy.float32
    assert numpy.asarray(x).tolist() == [1.0, 0.5]
    with pytest.raises(DTypeError, match=f"data: Python's buffers have no dtypes.{dtype.name}"):
        x.data()


def test_torch_takes_the_memory_by_the_array_interface(exchange: None) -> None:
    x = realized([1.0, 2.0])

    assert torch.as_tensor(x).data_ptr() == numpy.asarray(x).ctypes.data


@pytest.mark.parametrize(
    "take",
    [
        torch.as_tensor,
        torch.asarray,
        torch.tensor,
        torch.utils.dlpack.from_dlpack,
        numpy.from_dlpack,
    ],
)
def test_others_take_a_tensor_of_any_device(take: Callable[[Tensor], Any], target: str) -> None:
    """Memory that they cannot use is copied, unless that is forbidden."""
    kinds = () if target == "reference" else Device.backend(target.partition(":")[0]).dlpack_kinds
    if kinds and HOST not in kinds:
        pytest.skip("it lends memory of its own kind, which wants a library built for the card")
    x = (Tensor([[1.0, 2.0], [3.0, 4.0]]) * 2).T.contiguous().realize()

    assert take(x).tolist() == [[2.0, 6.0], [4.0, 8.0]]
    if target == "WEBGPU":
        with pytest.raises(BufferError, match=r"no memory to share"):
            x.__dlpack__(copy=False)


def test_sharing_is_refused_where_a_replay_would_not_repeat_it(engine: None) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return Tensor(numpy.asarray(x) + 1)

    step(realized([1.0]))
    with pytest.raises(JitError, match="a value was read back"):
        step(realized([1.0]))


# --- buffers


def test_data_is_the_memory(sharing: None) -> None:
    x = realized([[1, 2], [3, 4]], dtypes.int16)
    x.data()[0, 1] = 7

    assert x.tolist() == [[1, 7], [3, 4]]


def test_data_describes_what_it_holds_row_by_row() -> None:
    x = realized([[1, 2], [3, 4]], dtypes.int16)
    view = x.data()

    assert (view.format, view.shape, view.c_contiguous) == ("h", (2, 2), True)
    turned: Any = x.permute(1, 0).data().tolist()
    assert turned == [[1, 3], [2, 4]]
    assert bytes(Tensor([True, False]).data()) == b"\x01\x00"
    assert Tensor.zeros(0, 2).data().shape == (0, 2)
    number: Any = Tensor(2.5).data().tolist()
    assert number == 2.5


def test_the_buffer_protocol() -> None:
    x = realized([1.0, 2.0])

    assert x.__buffer__(0).tolist() == [1.0, 2.0]
    if sys.version_info >= (3, 12):
        assert memoryview(x).tolist() == [1.0, 2.0]
        assert io.BytesIO(x).getvalue() == numpy.array([1, 2], numpy.float32).tobytes()


# --- pickle and copy


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
def test_pickle_keeps_values_and_facts(dtype: DType) -> None:
    x = realized([[1, 0], [1, 1]], dtype)
    found = pickle.loads(pickle.dumps(x))

    assert type(found) is Tensor
    assert (found.dtype, found.device, found.requires_grad) == (dtype, x.device, None)
    assert found.tolist() == x.tolist()


def test_pickle_computes_views_and_empties() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    lazy, empty, flag, held = pickle.loads(
        pickle.dumps((x.T + 1, x[:0], x.requires_grad_(False), Tensor([1.0], requires_grad=True)))
    )

    assert lazy.tolist() == [[2.0, 4.0], [3.0, 5.0]]
    assert (empty.shape, empty.dtype) == ((0, 2), dtypes.float32)
    assert (flag.requires_grad, held.requires_grad) == (False, True)


def test_a_device_that_is_not_here_gives_way_to_the_default(engine: None) -> None:
    rebuild, facts = realized([1.0]).__reduce__()
    kind, array, dtype, _, requires_grad = facts

    with pytest.warns(UserWarning, match="a tensor saved on ABSENT is on .* now, as ABSENT is not"):
        found = rebuild(kind, array, dtype, "ABSENT", requires_grad)  # type: ignore[operator]
    assert (found.device, found.tolist()) == (Tensor.empty(1).device, [1.0])


def test_copy_shares_memory_and_deepcopy_does_not() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    x.grad = Tensor([3.0, 4.0])
    same, deep = copy.copy(x), copy.deepcopy(x)
    x.assign(Tensor([5.0, 6.0])).realize()

    assert (same.uop is not deep.uop, same.requires_grad, deep.requires_grad) == (True, True, True)
    assert (same.tolist(), deep.tolist()) == ([5.0, 6.0], [1.0, 2.0])
    assert deep.grad is not x.grad
    assert deep.grad is not None
    assert deep.grad.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_view_is_no_view(copied: Callable[[Any], Any]) -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()

    whole, tail = copied([x, x[1:]])
    whole += 1

    assert (whole.tolist(), tail.tolist(), x.tolist()) == ([2, 3, 4], [2, 3], [1, 2, 3])


def test_deepcopy_keeps_what_is_one_tensor_one_and_cuts_the_graph() -> None:
    x = Tensor([1.0, 2.0])
    found = copy.deepcopy({"a": x, "b": x, "c": x * 2})
    found["c"].sum().backward()

    assert found["a"] is found["b"]
    assert found["c"].tolist() == [2.0, 4.0]
    assert x.grad is None


# --- addresses


def test_from_blob_is_the_memory_at_an_address(exchange: None) -> None:
    array = numpy.arange(6, dtype=numpy.int32)
    x = Tensor.from_blob(array.ctypes.data, (2, 3), dtype=dtypes.int32)
    array[4] = 40

    assert x.tolist() == [[0, 1, 2], [3, 40, 5]]
    x.assign(x * 2).realize()
    assert array.tolist() == [0, 2, 4, 6, 80, 10]


def test_from_blob_is_an_image_at_an_address() -> None:
    """Rows of the interpreter begin at multiples of 64 pixels."""
    array = numpy.zeros((3, 64, 4), numpy.float32)
    array[:, :2] = numpy.arange(24).reshape(3, 2, 4)
    kind = dtypes.imagef((3, 2))
    x = Tensor.from_blob(array.ctypes.data, (24,), dtype=kind, device="PYTHON", owner=array)

    assert x.image is kind
    assert (x + 1).tolist() == list(range(1, 25))
    x.assign(x * 2).realize()
    assert array[2, 1].tolist() == [40.0, 42.0, 44.0, 46.0]


@pytest.mark.device("CPU")
def test_from_blob_is_plain_memory_where_there_are_no_images(engine: None) -> None:
    array = numpy.arange(24, dtype=numpy.float32)
    x = Tensor.from_blob(array.ctypes.data, (3, 8), dtype=dtypes.imagef((3, 2)), device="CPU")

    assert (x.sum(1) + 1).tolist() == [29.0, 93.0, 157.0]


def test_from_blob_of_an_image_that_a_device_does_not_take(engine: None) -> None:
    array, kind = numpy.zeros(1024, numpy.float32), dtypes.imagef((3, 2))
    pointer = array.ctypes.data
    with pytest.raises(ShapeError, match=r"shape \(23,\) does not fill dtypes.imagef\(\(3, 2\)\)"):
        Tensor.from_blob(pointer, 23, dtype=kind, device="PYTHON")
    Device.register(BACKEND)
    with pytest.raises(UnsupportedError, match="ACCELERATOR uses no image that it did not alloc"):
        Tensor.from_blob(pointer, 24, dtype=kind, device="ACCELERATOR")
    Device.unregister("ACCELERATOR")


def test_from_blob_keeps_its_owner(exchange: None) -> None:
    array = numpy.arange(3, dtype=numpy.float32)
    watch = weakref.ref(array)
    x = Tensor.from_blob(array.ctypes.data, 3, owner=array)
    view = x[1:]
    del array, x

    assert watch() is not None
    assert view.tolist() == [1.0, 2.0]
    del view
    assert watch() is None


def test_from_blob_checks_its_arguments(engine: None) -> None:
    assert Tensor.from_blob(0, (0, 3)).shape == (0, 3)
    with pytest.raises(ArgumentError, match=r"from_blob: 0x0 is no address of dtypes\.float32"):
        Tensor.from_blob(0, (3,))
    with pytest.raises(ArgumentError, match=r"0x1002 is no address of dtypes\.float32, which lie"):
        Tensor.from_blob(0x1002, (3,), dtype="float32")
    with pytest.raises(ShapeError, match="from_blob: sizes cannot be negative"):
        Tensor.from_blob(0x1000, (-3,))
    with pytest.raises(UnsupportedError, match="NULL has no capability 'external_pointer'"):
        Tensor.from_blob(0x1000, (3,), device="NULL")


# --- URLs


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine, over a folder; with the paths that were asked of it."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            asked.append(self.path)

    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "data").write_bytes(b"\x01\x02\x03")
    (folder / "data.gz").write_bytes(gzip.compress(b"\x07\x08"))
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}", asked
        web.shutdown()


def test_from_url_reads_files_where_they_lie(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a file", tmp_path / "packed.gz"
    plain.write_bytes(bytes([1, 2, 250]))
    packed.write_bytes(gzip.compress(bytes([5, 6])))

    found = Tensor.from_url(plain.as_uri())
    assert (found.dtype, found.tolist()) == (dtypes.uint8, [1, 2, 250])
    assert Tensor.from_url(packed.as_uri(), gunzip=True).tolist() == [5, 6]
    assert Tensor.from_url(str(plain), device="PYTHON").device == "PYTHON"
    with pytest.raises(FileFormatError, match="is no whole gzip file"):
        Tensor.from_url(plain.as_uri(), gunzip=True)
    with pytest.raises(FileNotFoundError):
        Tensor.from_url((tmp_path / "absent").as_uri())


@pytest.mark.parametrize("damage", range(4))
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, damage: int) -> None:
    content = bytearray(gzip.compress(bytes(range(256)) * 4))
    content[(2, 11, 40, len(content) - 6)[damage]] ^= 0x5A
    (tmp_path / "x").write_bytes(content)

    with pytest.raises(FileFormatError, match="is no whole gzip file"):
        Tensor.from_url(str(tmp_path / "x"), gunzip=True)


@pytest.mark.slow
def test_a_gzip_file_unpacks_to_its_due(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(bytes(80 << 20)))

    with pytest.raises(FileFormatError, match="unpacks to more than"):
        Tensor.from_url(str(tmp_path / "x"), gunzip=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
@pytest.mark.parametrize("read", [Tensor, lambda path: Tensor.from_url(str(path))])
def test_what_is_no_file_of_some_length_is_refused(
    read: Callable[[Path], Tensor], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "vast", "wb") as file:
        file.truncate(1 << 42)

    with pytest.raises(FileFormatError, match="no regular file"):
        read(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="no regular file"):
        read(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    with pytest.raises(OutOfMemory, match="4398046511104 bytes"):
        read(tmp_path / "vast")


def test_from_url_downloads_once(server: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = server
    with Context(CACHE_DIR=tmp_path / "cache"):
        for _ in range(2):
            assert Tensor.from_url(f"{address}/data").tolist() == [1, 2, 3]
            assert Tensor.from_url(f"{address}/data.gz", gunzip=True).tolist() == [7, 8]
        with pytest.raises(OSError, match="404"):
            Tensor.from_url(f"{address}/absent")

    assert asked == ["/data", "/data.gz", "/absent", "/absent"]


# --- images, and names with one meaning


def test_an_image_type_says_how_its_pixels_lie() -> None:
    image, half = dtypes.imagef((3, 65)), dtypes.imageh((3, 65, 4))

    assert isinstance(image, ImageDType)
    assert image is dtypes.imagef((3, 65, 4))
    assert pickle.loads(pickle.dumps(half)) is half
    assert (repr(image), repr(half)) == ("dtypes.imagef((3, 65))", "dtypes.imageh((3, 65))")
    assert (image.shape, image.size, image.base) == ((3, 65, 4), 780, dtypes.float32)
    assert (image.pixel_bytes, half.pixel_bytes) == (16, 8)
    assert (image.pitch_bytes(), half.pitch_bytes(), half.pitch_bytes(1)) == (2048, 1024, 520)
    assert (half.memory_bytes(), half.memory_bytes(1)) == (3072, 1560)


def test_an_image_is_no_dtype_of_elements() -> None:
    with pytest.raises(DTypeError, match=r"imagef\(\(2, 3\)\) is a layout of memory, not a"):
        Tensor.ones(2, 3, 4, dtype=dtypes.imagef((2, 3)))
    with pytest.raises(DTypeError, match=r"an image is \(height, width\) of pixels with 4"):
        dtypes.imageh((2, 3, 5))


def test_operations_named_for_images_compute_what_their_relatives_do() -> None:
    x, weight = Tensor.arange(32).reshape(1, 2, 4, 4).float(), Tensor.arange(36).float()
    weight = weight.reshape(2, 2, 3, 3)

    ours = x.image_conv2d(weight, Tensor([1.0, 2.0]), padding=1, stride=2)
    theirs = torch.nn.functional.conv2d(
        torch.tensor(x.numpy()), torch.tensor(weight.numpy()), torch.tensor([1.0, 2.0]), 2, 1
    )
    assert ours.tolist() == theirs.tolist()
    a, b = numpy.arange(6.0).reshape(2, 3), numpy.arange(12.0).reshape(3, 4)
    assert Tensor(a).image_dot(Tensor(b)).tolist() == (a @ b).tolist()


def test_video_is_not_decoded_here() -> None:
    with pytest.raises(UnsupportedError, match=r"decode_hevc_frame: .* has no video decoder"):
        Tensor([1]).decode_hevc_frame(0, (2, 2), Tensor([1]))


def test_constants_and_memory_without_content() -> None:
    assert (Tensor.const(3).item(), Tensor.const(3).dtype) == (3, dtypes.default_int)
    assert Tensor.const(True).dtype is dtypes.bool
    assert Tensor.const(1.5, dtypes.float16).dtype is dtypes.float16
    assert Tensor.const((1, 2)).tolist() == [1, 2]
    invalid = Tensor.invalids(2, 3, dtype=dtypes.int8)
    assert (invalid.shape, invalid.dtype) == ((2, 3), dtypes.int8)
    assert invalid.assign(Tensor.ones(2, 3, dtype=dtypes.int8)).sum().item() == 6
    assert (invalid.max_shape, invalid.max_numel()) == ((2, 3), 6)
