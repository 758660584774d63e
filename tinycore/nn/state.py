"""A model's tensors by name: collect them, load them, keep them in safetensors files.

Floor 6. Imports the public API, `nn.files` and the errors.
There is no module base class. A model is any object, and the names of its tensors are the paths to
them through attributes, lists, tuples and dictionaries: `layers.0.weight`.
"""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from sys import getrefcount
from typing import Any, TypeAlias, TypeVar, overload

import numpy

from tinycore import Tensor, dtypes
from tinycore._progress import progress
from tinycore._tracebacks import hide_frames
from tinycore.dtype import DType
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    FileFormatError,
    ShapeError,
)
from tinycore.nn import files
from tinycore.nn.blocks import BLOCK_TYPES
from tinycore.nn.files import Opaque
from tinycore.nn.files.archives import tar_members, zip_members
from tinycore.nn.files.gguf import GgufFile, parts_of_model
from tinycore.nn.files.npy import NPY_MAGIC, read_npy, read_npz
from tinycore.nn.files.safetensors import (
    SafetensorsFile,
    read_index,
    read_json,
    stated_array,
    write_safetensors,
)
from tinycore.nn.files.torch_archive import SavedTensor, read_archive
from tinycore.nn.paths import tensors_by_path
from tinycore.tensor.storage.writes import atomic_writes
from tinycore.uop.shape import DeviceLike

__all__ = [
    "Opaque",
    "TensorIO",
    "folder_load",
    "get_parameters",
    "get_state_dict",
    "gguf_load",
    "load_checkpoint",
    "load_state_dict",
    "numpy_load",
    "safe_load",
    "safe_load_metadata",
    "safe_save",
    "save_checkpoint",
    "tar_extract",
    "torch_load",
    "zip_extract",
]
__dir__ = __all__.copy

T = TypeVar("T")
Source: TypeAlias = Tensor | str | os.PathLike[str]
"""A safetensors file: its path, or its bytes as a uint8 tensor."""
COUNTS = getattr(sys, "_is_gil_enabled", lambda: True)()
"""True if reference counts tell whether others hold a tensor."""
LEAST_BATCH = 1 << 24
"""Bytes that one run computes though every tensor is smaller."""
REFERENCES = 3
"""References to an object while they are counted: of a variable, of a list, and of its iterator."""
COUNTS_CALLERS = COUNTS and sys.version_info < (3, 14)
"""True if these include the variable of a caller, which 3.14 lends to an argument uncounted."""


@overload
def get_state_dict(obj: object, prefix: str = "") -> dict[str, Tensor]: ...
@overload
def get_state_dict(obj: object, prefix: str = "", *, tensor_type: type[T]) -> dict[str, T]: ...
@overload
def get_state_dict(obj: object, prefix: str, tensor_type: type[T]) -> dict[str, T]: ...
def get_state_dict(
    obj: object, prefix: str = "", tensor_type: type[Any] = Tensor
) -> dict[str, Any]:
    """Every tensor reachable from `obj`, by its path, in the order in which they are met.

    A path joins attribute names, dictionary keys and positions with dots, after `prefix`. Entered
    are lists, tuples, deques, mappings, and the attributes of objects, in slots or not; of a class
    that derives from a container, both. A tensor reachable by two paths has two names. An object
    that contains itself is entered once. `tensor_type` collects instances of another class instead.
    A class leaves out the attributes in its `__not_state__`: an optimizer's state is without the
    parameters, which are the model's.

    Raises ArgumentError for two tensors whose paths spell alike, as of the keys 1 and "1", and for
    a tensor in a set, which has no order and so no names.

    >>> model = {"layers": [nn.Linear(2, 3), Tensor.relu, nn.Linear(3, 1, bias=False)]}
    >>> list(nn.state.get_state_dict(model))
    ['layers.0.weight', 'layers.0.bias', 'layers.2.weight']
    """
    return tensors_by_path(obj, prefix, tensor_type)


def get_parameters(obj: object) -> list[Tensor]:
    """Every tensor reachable from `obj`, in the order of `get_state_dict`.

    >>> len(nn.state.get_parameters({"first": nn.Linear(2, 3), "second": nn.Linear(3, 1)}))
    4
    """
    return list(get_state_dict(obj).values())


def load_state_dict(
    model: object,
    state_dict: dict[str, Tensor],
    strict: bool = True,
    verbose: bool = True,
    consume: bool = False,
    realize: bool = True,
) -> list[Tensor]:
    """Give the model's tensors the values, and the dtypes, of those in `state_dict`.

    A value is moved to the device of the tensor it replaces. With `strict` every tensor of the
    model must be there. `verbose` shows progress in a terminal and warns of entries the model has
    no place for. `consume` takes what was loaded out of `state_dict`, so that its memory can be
    freed on the way. `realize` computes the values now. Returns the model's tensors that were set.

    Whatever ends it, all tensors are set or none: so former values keep their memory to the end.
    With `consume` that is freed on the way as well, and what was loaded before an error stays.

    The values, which may be arrays and tensors of other libraries, are copied: `state_dict` may be
    loaded again, whatever was written to the model. Not copied is what nobody holds afterwards,
    with `consume` or where `state_dict` is no variable, as in
    `load_state_dict(model, safe_load(path))`: that memory becomes the model's.

    Raises ArgumentError naming what is missing, and ShapeError naming the first shape that does not
    fit; the model is then unchanged.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> _ = nn.state.load_state_dict(layer, {"weight": Tensor([[3.0, 4.0]])})
    >>> layer.weight.tolist()
    [[3.0, 4.0]]
    """
    (holders,) = map(getrefcount, [state_dict])
    is_left = consume or (COUNTS_CALLERS and holders <= REFERENCES)
    try:  # a wrapper that hides frames would hold what is counted
        if not isinstance(state_dict, Mapping):
            raise ArgumentTypeError(
                "load_state_dict: the state is a mapping from names to tensors, as `safe_load` "
                f"gives; got {type(state_dict).__name__}"
            )
        targets = get_state_dict(model)
        missing = [name for name in targets if name not in state_dict]
        if strict and missing:
            raise ArgumentError(
                f"the state dict lacks {_enumerated(missing)} of the model's {len(targets)} "
                "tensors. Load with strict=False to keep those as they are."
            )
        values = {
            name: _fitted(name, state_dict[name], target)
            for name, target in targets.items()
            if name in state_dict
        }
        if verbose and (unused := [name for name in state_dict if name not in targets]):
            warnings.warn(f"the model has no place for {_enumerated(unused)}", stacklevel=2)
        entries = Counter(map(id, state_dict.values()))
        batch = Batch(max([LEAST_BATCH, *(targets[name].nbytes() for name in values)]))
        with nullcontext() if consume else atomic_writes(targets.values):
            names = [*values]
            for name in progress(names, "loading weights", len(names)) if verbose else names:
                target, value = targets[name], values.pop(name)
                if value is not target:
                    (count,) = map(getrefcount, [value])
                    named = entries[id(value)]
                    is_alone = COUNTS and (is_left or not named) and count <= REFERENCES + named
                    target._take_over(value.shard_like(target), is_alone)
                if consume:
                    del state_dict[name]
                if realize:
                    batch.add(target, is_bounded=consume)
            batch.compute()
        return [targets[name] for name in targets if name not in missing]
    except Exception as error:
        hide_frames(error)
        raise


class Batch:
    """Tensors that one run computes: a run looks at all that wait, so a run for each tensor of a
    model would take time quadratic in their number.

    `most_bytes` bounds what a run computes beside the values that it reads.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.tensors: list[Tensor] = []
        self.bytes = 0

    def add(self, tensor: Tensor, is_bounded: bool) -> None:
        """One more tensor; those before it are computed first where they would be too much."""
        if is_bounded and self.bytes + tensor.nbytes() > self.most_bytes:
            self.compute()
        self.tensors.append(tensor)
        self.bytes += tensor.nbytes()

    def compute(self) -> None:
        """Compute the tensors, of which there may be none."""
        tensors, self.tensors, self.bytes = self.tensors, [], 0
        if tensors:
            Tensor.realize(*tensors)


def _fitted(name: str, given: Any, target: Tensor) -> Tensor:
    shape = target.shape
    if isinstance(given, Opaque) or given is None:
        raise ArgumentTypeError(f"load_state_dict: {name!r} is no tensor in the state, but {given}")
    value = given if isinstance(given, Tensor) else Tensor(given, device=target.device)
    if value.shape == shape:
        return value
    if {value.shape, shape} == {(), (1,)}:  # a single number is stored either way
        return value.reshape(shape)
    raise ShapeError(
        f"tensor {name!r} has shape {shape} in the model, but {value.shape} in the state dict"
    )


def _enumerated(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def safe_load(fn: Source, device: DeviceLike | None = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, on `device`.

    Of a model in several files the index, `model.safetensors.index.json`, is given, and the tensors
    of all files beside it are read. A tensor of elements that have no dtype here is an `Opaque`,
    but for powers of two (F8_E8M0), which are float32. Raises
    FileFormatError when a file breaks its format in any way, and OSError when one cannot be read.
    """

    def load(path: Source, names: list[str]) -> dict[str, Any]:
        with SafetensorsFile(_source(path)) as file:
            return _safetensors(
                file, [n for n in names or file.entries if n in file.entries], device
            )

    return _of_all_files(fn, load)  # type: ignore[no-any-return]


def _of_all_files(fn: Source, load: Callable[[Source, list[str]], Any]) -> Any:
    """The content of one file; of an index, the tensors that it names, one file after another."""
    if isinstance(fn, Tensor) or not os.fspath(fn).endswith(".json"):
        return load(fn, [])
    index, places = Path(fn), read_index(fn)
    found: dict[str, Any] = {}
    for place in dict.fromkeys(places.values()):
        names = [name for name, there in places.items() if there == place]
        there = load(index.with_name(place), names)
        if missing := [name for name in names if name not in there]:
            raise FileFormatError(
                f"{index}: tensor {missing[0]!r} is not in {place!r}, where the index has it."
            )
        found |= {name: there[name] for name in names}
    return {name: found[name] for name in places}


def _safetensors(
    file: SafetensorsFile, names: list[str], device: DeviceLike | None
) -> dict[str, Any]:
    """Some tensors of a file; an Opaque for one of elements that have no dtype here."""
    found: dict[str, Any] = {}
    for name in progress(names, "reading tensors", len(names)):
        entry = file.entries[name]
        if entry.dtype is None:
            found[name] = Opaque(stated_array(entry), (entry.shape, entry.kind))
        else:
            found[name] = _tensor(file[name], entry.dtype, device)
    return found


def folder_load(
    fn: str | os.PathLike[str], device: DeviceLike | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors of a folder of Hugging Face: what `config.json` says, and
    the weights in safetensors files, else in those of `torch.save`, in one file or as an index has
    them. Raises OSError where a file is not there, FileFormatError for a damaged one.
    """
    path = Path(fn)
    config = read_json(path / "config.json")
    names = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json")
    place = next((p for n in names if (p := path / n).exists()), path / "pytorch_model.bin")
    return config, (safe_load if "safe" in place.name else torch_load)(place, device)


def torch_load(fn: Source, device: DeviceLike | None = None) -> Any:
    """The object in a file of `torch.save`, its tensors on `device`; nothing in it is run.

    Tensors, numbers, text, bytes, dates, paths, NumPy's numbers and arrays, the containers of
    Python and namespaces are read. Any other object is an `Opaque`, which has its name and the data
    it was made of: of a model that was saved whole, `found.state["_modules"]`. Equal views of one
    storage are one tensor; others that share memory there have copies of it, and attributes of
    tensors are left out. Of a model in several files the index, `pytorch_model.bin.index.json`, is
    given. Raises FileFormatError for a damaged file and for one that asks for more
    than `docs/security.md` allows, OSError when it cannot be read.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "model.pth")
    ...     _ = file.write_bytes(b"no model")
    ...     nn.state.torch_load(file)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tinycore.errors.FileFormatError: ...model.pth: no file of torch.save: ...
    """

    def make(found: SavedTensor) -> Tensor:
        tensor = _tensor(found.array, found.dtype, device)
        return tensor if tensor.shape == found.shape else tensor.expand(found.shape)

    def load(path: Source, names: list[str]) -> Any:
        with _source(path) as source:
            found = read_archive(source, make)
        if names and not isinstance(found, dict):
            raise FileFormatError(f"{path}: holds a {type(found).__name__}, no state dict")
        return found

    return _of_all_files(fn, load)


def gguf_load(
    fn: Source, device: DeviceLike | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a GGUF file, by key and by name.

    Tensors are on `device`, in shapes with the innermost axis last. Quantized ones are float32,
    computed from their blocks when they are needed: `realize` keeps numbers in place of blocks.
    Of a model in several files, `NAME-00001-of-00003.gguf` and so on, any one is named, and the
    tensors of all are read. A tensor of a type that is not read is an `Opaque`. Raises
    FileFormatError when a file breaks its format in any way, and OSError when one cannot be read.
    """
    sizes = {number: (kind.elements, kind.size) for number, kind in BLOCK_TYPES.items()}
    with ExitStack() as opened:
        if isinstance(fn, Tensor):
            parts = [opened.enter_context(GgufFile(_source(fn), sizes))]
            if parts[0].parts > 1:
                raise FileFormatError(
                    f"a tensor of bytes: one of {parts[0].parts} parts of a model. Give its path."
                )
        else:
            parts = parts_of_model(fn, sizes, opened)
        places = {name: part for part in parts for name in part.tensors}
        names = progress(places, "reading tensors", len(places))
        found = {name: _gguf_tensor(places[name], name, device) for name in names}
    return parts[0].metadata, found


def _gguf_tensor(file: GgufFile, name: str, device: DeviceLike | None) -> Any:
    """A tensor of a GGUF file; an Opaque for one of a type that is not read."""
    tensor = file.tensors[name]
    if tensor.kind not in BLOCK_TYPES:
        what = f"tensor {name!r} of type {tensor.kind} of ggml and shape {tensor.shape}"
        return Opaque(what, (tensor.shape, tensor.kind))
    kind = BLOCK_TYPES[tensor.kind]
    blocks = Tensor(file.blocks_of(name), device=device)
    return kind.decode(blocks).reshape(tensor.shape)


def numpy_load(fn: Source, device: DeviceLike | None = None) -> Any:
    """The array in a file of `numpy.save` as a tensor; of `numpy.savez`, tensors by name.

    An array in an archive that is not of numbers, or has no dtype here, is an `Opaque`. Raises
    FileFormatError for a damaged file, OSError when it cannot be read.

    >>> import pathlib, tempfile, numpy
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "x.npy")
    ...     numpy.save(file, numpy.arange(3, dtype="int32"))
    ...     nn.state.numpy_load(file).tolist()
    [0, 1, 2]
    """
    with _source(fn) as source:
        if source.bytes(0, min(len(NPY_MAGIC), source.size)) == NPY_MAGIC:
            array = read_npy(source)
            if not _has_dtype(array):
                raise FileFormatError(f"{source.place}: an array of {array.dtype}, no dtype here")
            return Tensor(array, device=device)
        found: dict[str, Any] = {}
        for name, value in read_npz(source):
            if isinstance(value, FileFormatError):
                found[name] = Opaque(str(value))
            elif _has_dtype(value):
                found[name] = Tensor(value, device=device)
            else:
                found[name] = Opaque(f"array {name!r} of {value.dtype}", (value,))
        return found


def _has_dtype(array: numpy.ndarray[Any, Any]) -> bool:
    """True if there is a dtype for the elements of an array."""
    return array.dtype.name in dtypes.by_name


def tar_extract(
    fn: Source, device: DeviceLike | None = None, *, names: Collection[str] | None = None
) -> dict[str, Tensor]:
    """The files in a tar archive by name, each a tensor of bytes; folders and links are left out.

    With `names` only those are read. Raises ArgumentError where one is not there, FileFormatError
    for what is no tar archive, OSError when it cannot be read.
    """
    with _source(fn) as source:
        return _members(source, tar_members(source, names), device, names)


def _members(
    source: files.Source,
    members: Iterator[tuple[str, bytes]],
    device: DeviceLike | None,
    names: Collection[str] | None,
) -> dict[str, Tensor]:
    """The members of an archive as tensors of bytes."""
    found = {name: Tensor(content, device=device) for name, content in members}
    if missing := [name for name in names or () if name not in found]:
        raise ArgumentError(f"{source.place}: has no file {_enumerated(missing)}")
    return found


def zip_extract(
    fn: Source, device: DeviceLike | None = None, *, names: Collection[str] | None = None
) -> dict[str, Tensor]:
    """The files in a ZIP archive by name, each a tensor of bytes; folders are left out.

    With `names` only those are unpacked. Such a tensor is loaded as a file is, and nothing comes to
    the disk: `safe_load(zip_extract(path, names=["a.safetensors"])["a.safetensors"])`. Raises
    ArgumentError where one is not there, FileFormatError for what is no ZIP archive, OSError when
    it cannot be read.
    """
    with _source(fn) as source:
        return _members(source, zip_members(source, names), device, names)


def _source(fn: Source) -> files.Source:
    """The bytes of a file, or of a tensor of bytes."""
    if isinstance(fn, Tensor):
        return files.Source(fn.contiguous().data().cast("B"), "a tensor of bytes")
    return files.Source.open(fn)


class TensorIO(io.BufferedReader):
    """A tensor of bytes as a file to read, `io.BufferedReader(TensorIO(x))` in larger steps.

    Raises DTypeError unless it is of uint8, ShapeError unless it has one axis.

    >>> nn.state.TensorIO(Tensor(b"a file")).read(3)
    b'a f'
    """

    def __init__(self, t: Tensor) -> None:
        if t.dtype is not dtypes.uint8:
            raise DTypeError(f"TensorIO: needs a tensor of uint8, got {t.dtype!r}")
        if t.ndim != 1:
            raise ShapeError(f"TensorIO: needs one axis, got shape {t.shape}")
        super().__init__(io.BytesIO(t.contiguous().data().cast("B")))


def safe_load_metadata(fn: Source) -> tuple[Tensor, int, dict[str, Any]]:
    """The bytes of a safetensors file, the position where its data start, and its header.

    The header maps each name to `dtype`, `shape` and `data_offsets`, and `__metadata__` to the
    text that the file's author added. Raises as `safe_load` does.
    """
    with SafetensorsFile(_source(fn)) as file:
        whole = file.source.array(numpy.dtype(numpy.uint8), file.source.size, 0)
        content = fn if isinstance(fn, Tensor) else Tensor(whole)
        return content, file.data_start, file.header


def safe_save(
    tensors: dict[str, Tensor],
    fn: str | os.PathLike[str],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write tensors to a safetensors file, which appears whole or not at all.

    `metadata` is kept as text: a value that is no string is written as JSON. Raises DTypeError for
    a dtype that the format lacks, ArgumentError for the reserved name `__metadata__`, and for names
    and metadata that the format cannot hold.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "model.safetensors")
    ...     nn.state.safe_save({"weight": Tensor([1.0, 2.0])}, file)
    ...     nn.state.safe_load(file)["weight"].tolist()
    [1.0, 2.0]
    """
    stored = {name: _stored(tensor) for name, tensor in tensors.items()}
    given = (metadata or {}).items()
    try:
        texts = {n: value if isinstance(value, str) else json.dumps(value) for n, value in given}
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"safe_save: metadata is text, or what JSON has: {error}") from error
    true_dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    write_safetensors(Path(fn), stored, texts, true_dtypes=true_dtypes)


def save_checkpoint(fn: str | os.PathLike[str], state: object, step: int = 0) -> None:
    """Write all that a training resumes from to a safetensors file: the tensors of `state`, such as
    `{"model": net, "optimizer": optimizer, "schedule": schedule}`, the position of the stream of
    random numbers, and the number of the step.

    A checkpoint that was there is kept as `fn` with `.previous` added. One of the two is whole at
    any moment, whatever ends the process. Raises as `safe_save` does.
    """
    path, new = Path(fn), Path(f"{fn}.new")
    tensors = {**get_state_dict(state), "random state": Tensor.get_rng_state()}
    safe_save(tensors, new, {"step": step})
    if path.exists():
        path.replace(f"{fn}.previous")
    new.replace(path)


def load_checkpoint(fn: str | os.PathLike[str], state: object) -> int:
    """Give the tensors of `state` the values of a checkpoint, and the stream of random numbers its
    position; returns the number of the step. The next steps are those that would have come.

    The previous checkpoint is read where a process ended while the file was replaced. Raises as
    `safe_load` and `load_state_dict` do, OSError where there is none.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file, x = pathlib.Path(folder, "run"), Tensor([1.0, 2.0])
    ...     nn.state.save_checkpoint(file, [x], step=7)
    ...     _ = x.assign(x * 0)
    ...     nn.state.load_checkpoint(file, [x]), x.tolist()
    (7, [1.0, 2.0])
    """
    places = [Path(f"{fn}{suffix}") for suffix in ("", ".new", ".previous")]
    with SafetensorsFile.open(next(filter(Path.exists, places), places[0])) as file:
        found = _safetensors(file, list(file), None)
        step = int(file.metadata.get("step", 0))
    place = found.pop("random state")
    load_state_dict(state, found, consume=True)
    Tensor.set_rng_state(place)
    return step


_STORED_AS = {dtypes.bfloat16: dtypes.uint16, **dict.fromkeys(dtypes.fp8s, dtypes.uint8)}
"""NumPy types in place of those that NumPy lacks."""


def _stored(tensor: Tensor) -> numpy.ndarray[Any, Any]:
    integer = _STORED_AS.get(tensor.dtype)
    return (tensor if integer is None else tensor.bitcast(integer)).numpy()


def _tensor(array: numpy.ndarray[Any, Any], dtype: DType, device: DeviceLike | None) -> Tensor:
    if dtype is dtypes.bool:  # a file may have other bytes than 0 and 1
        array = array.view(numpy.uint8) != 0
    tensor = Tensor(array, device=device)
    return tensor if dtype not in _STORED_AS else tensor.bitcast(dtype)
