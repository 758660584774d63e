"""Checkpoints of tensors that are spread over processes.

A checkpoint is a folder. Each process writes a file of safetensors with the parts that it has, all
at the same time; of copies one is written. `index.json` names the files and how parts fit together.
It is replaced last, in one step: until then, and where a process dies, the folder holds the
checkpoint before. It says nothing of a number of processes, so that another number may go on.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy

from tiny_mpi.runtime import reading_alone
from tinycore import Tensor, nn
from tinycore.errors import ArgumentError, DTypeError, FileFormatError, ShapeError
from tinycore.groups import Group, group
from tinycore.nn.files.atomic import replacing_file
from tinycore.uop.shape import Axes, DeviceLike

__all__ = ["load", "save"]

INDEX: Final = "index.json"
FORMAT: Final = 2
"""The format of what is written. Format 1, whose index does not say it, is read as well."""
Entry = dict[str, Any]
"""Row of a tensor in the index: its shape and dtype, the files of its parts, and their boxes."""
Box = tuple[tuple[int, int], ...]
"""Start and stop of a part along each axis."""


def save(
    folder: str | os.PathLike[str],
    state: Mapping[str, Tensor],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint, in place of the one that the folder holds. All processes call it.

    `facts` is what else `load` is to give back, such as the number of the step, as JSON.
    """
    processes, target = group(), Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    token = agreed_token(processes)
    owned = owners(state, processes.size)
    Tensor.realize(*state.values())
    parts = {
        name: part_of(tensor, processes.rank, owned[name][processes.rank])
        for name, tensor in state.items()
        if processes.rank in owned[name]
    }
    here = reading_alone.set(True)
    try:
        nn.state.safe_save(parts, target / file_name(token, processes.rank))
    finally:
        reading_alone.reset(here)
    processes.barrier()  # all files are on the disk
    if processes.rank == 0:
        entries = {
            name: {
                "shape": list(tensor.shape),
                "dtype": tensor.dtype.name,
                "files": [file_name(token, rank) for rank in owned[name]],
                "boxes": [*owned[name].values()],
            }
            for name, tensor in state.items()
        }
        index = {"format": FORMAT, "tensors": entries, "facts": dict(facts or {})}
        with replacing_file(target / INDEX) as file:
            file.write(json.dumps(index, indent=1).encode())
        remove_others(target, token)
    processes.barrier()


def load(folder: str | os.PathLike[str], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Give tensors their values of a checkpoint, spread as they are now, and return its facts.

    All processes call it, with as many of them as there are now. Raises ArgumentError where names
    differ, ShapeError and DTypeError where tensors do, FileFormatError for a damaged checkpoint and
    one of a later format, FileNotFoundError where there is none; the tensors are then as they were.
    """
    source = Path(folder)
    index = read_index(source)
    entries: dict[str, Entry] = index["tensors"]
    if entries.keys() != state.keys():
        missing = sorted(state.keys() - entries.keys())
        other = sorted(entries.keys() - state.keys())
        raise ArgumentError(
            f"the checkpoint {source} and the state have different tensors: it lacks "
            f"{', '.join(missing) or 'none'}, and has {', '.join(other) or 'none'} besides"
        )
    names = sorted({name for entry in entries.values() for name in entry["files"]})
    files = {name: nn.state.safe_load(source / name) for name in names}
    values = {}
    for name, tensor in state.items():
        entry = entries[name]
        check_alike(name, entry, tensor)
        parts = [part for file in entry["files"] if (part := files[file].get(name)) is not None]
        if len(parts) < len(entry["files"]):
            raise FileFormatError(f"{source}: {', '.join(entry['files'])} lack parts of {name}")
        whole = joined(dict(zip(map(box_from, entry["boxes"]), parts, strict=True)))
        if whole.shape != tensor.shape:
            raise FileFormatError(
                f"{source}: the parts of {name} are {whole.shape}, the index says {tensor.shape}"
            )
        spread = len(tensor.devices) > 1
        device, axis = tensor.device, tensor.sharded_axis
        values[name] = whole.shard(device, axis) if spread else whole.to(device)
    for name, tensor in state.items():
        tensor.assign(values[name])
    Tensor.realize(*state.values())
    facts: dict[str, Any] = index["facts"]
    return facts


def agreed_token(processes: Group) -> str:
    """A word for this checkpoint's files, the same in all processes."""
    drawn = numpy.frombuffer(secrets.token_bytes(6), numpy.uint8)
    return processes.broadcast(drawn).tobytes().hex()


def file_name(token: str, rank: int) -> str:
    """The file of one process."""
    return f"{token}-{rank:05}.safetensors"


def owners(state: Mapping[str, Tensor], size: int) -> dict[str, dict[int, Box]]:
    """The ranks that write parts of each tensor, and their boxes; of copies one with the least."""
    found: dict[str, dict[int, Box]] = {}
    written = dict.fromkeys(range(size), 0)
    for name, tensor in state.items():
        axis, whole = tensor.sharded_axis, tuple([(0, int(n)) for n in tensor.shape])
        copies: dict[Box, list[int]] = {}
        axes = axis if isinstance(axis, tuple) else (axis,)
        for device, box in boxes(tensor.device, axes, whole):
            copies.setdefault(box, []).append(rank_of(device))
        found[name] = {}
        for box, ranks in copies.items():
            rank = min(ranks, key=lambda rank: (written[rank], rank))
            written[rank] += int(tensor.nbytes()) // len(copies)
            found[name][rank] = box
    return found


def boxes(device: DeviceLike, axes: Axes, box: Box) -> Iterator[tuple[str, Box]]:
    """The devices that have parts of a box, or copies, and their own boxes."""
    if isinstance(device, str):
        yield device, box
        return
    for number, member in enumerate(device):
        part = box
        if (axis := axes[0]) is not None:
            start, stop = box[axis]
            size = (stop - start) // len(device)
            ends = start + number * size, start + (number + 1) * size
            part = (*box[:axis], ends, *box[axis + 1 :])
        yield from boxes(member, axes[1:], part)


def joined(parts: Mapping[Box, Tensor], axis: int = 0) -> Tensor:
    """The tensor whose parts have boxes that tile it, which are cut along an axis or later ones."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    rows: dict[tuple[int, int], dict[Box, Tensor]] = {}
    for box, part in parts.items():
        rows.setdefault(box[axis], {})[box] = part
    first, *others = [joined(rows[ends], axis + 1) for ends in sorted(rows)]
    return first.cat(*others, dim=axis)


def box_from(ends: list[list[int]]) -> Box:
    """A box as an index has it."""
    return tuple([(start, stop) for start, stop in ends])


def rank_of(device: str) -> int:
    """The rank of a device; 0 for one that each process has of its own, whose values are alike."""
    name, _, number = device.partition(":")
    return int(number or 0) if name == "RANK" else 0


def part_of(tensor: Tensor, rank: int, box: Box) -> Tensor:
    """The part of a tensor that lies in the process of a rank."""
    if len(tensor.devices) == 1:
        return tensor
    device = next(device for device in tensor.devices if rank_of(device) == rank)
    return tensor.shrink(box).to(device).contiguous().realize()


def remove_others(folder: Path, token: str) -> None:
    """Remove files of checkpoints before this one, and of such as were never finished."""
    for path in folder.glob("*-*.safetensors"):
        if not path.name.startswith(f"{token}-"):
            path.unlink(missing_ok=True)


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a checkpoint. Raises FileFormatError for a damaged or a later one."""
    text = (folder / INDEX).read_bytes()
    try:
        index = json.loads(text)
        if (stated := int(index.get("format", 1))) > FORMAT:
            raise FileFormatError(
                f"{folder / INDEX} is of format {stated}, and this tiny-mpi reads formats up to "
                f"{FORMAT}: upgrade it"
            )
        for entry in index["tensors"].values():
            names, shape = entry["files"], entry["shape"]
            if "axis" in entry:  # as written before there were meshes
                whole = tuple([(0, size) for size in shape])
                cut = boxes(tuple(names), (entry["axis"],), whole)
                entry["boxes"] = [box for _, box in cut]
            fits = tile([*map(box_from, entry["boxes"])], shape) and len(names) == len(
                entry["boxes"]
            )
            plain = all(Path(name).name == name for name in names)
            if not (names and plain and fits and isinstance(entry["dtype"], str)):
                raise ValueError(entry)
        return {"tensors": index["tensors"], "facts": dict(index["facts"])}
    except FileFormatError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise FileFormatError(f"{folder / INDEX} is no index of a checkpoint: {error!r}") from error


def tile(boxes: Sequence[Box], shape: Sequence[int]) -> bool:
    """True if boxes are the cells of a grid over a shape."""
    if any(len(box) != len(shape) for box in boxes):
        return False
    cuts = [sorted({box[axis] for box in boxes}) for axis in range(len(shape))]
    ends = [[0, *(stop for _, stop in along)] for along in cuts]
    whole = all(
        [start for start, _ in along] == each[:-1] and each[-1] == size
        for along, each, size in zip(cuts, ends, shape, strict=True)
    )
    return whole and len({*boxes}) == len(boxes) == math.prod(map(len, cuts))


def check_alike(name: str, entry: Entry, tensor: Tensor) -> None:
    """Raises ShapeError or DTypeError where a tensor is not as the checkpoint has it."""
    if tuple(entry["shape"]) != tuple(tensor.shape):
        raise ShapeError(f"{name} is {tensor.shape} here, in the checkpoint {entry['shape']}")
    if entry["dtype"] != tensor.dtype.name:
        raise DTypeError(f"{name} is {tensor.dtype.name} here, in the checkpoint {entry['dtype']}")
