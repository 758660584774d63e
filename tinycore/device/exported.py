"""Exported models: kernels and launches, for backends that write them to files.

Floor 1, of the device side. `tinycore export` makes it; `Backend.export` gets it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinycore.device.protocols import ProgramInfo
from tinycore.dtype import DType


@dataclass(frozen=True)
class ExportedSpan:
    """Bytes of a buffer, from `start` on."""

    buffer: int
    start: int
    size: int


@dataclass(frozen=True)
class ExportedTensor:
    """A tensor by name, and its place."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    span: ExportedSpan


@dataclass(frozen=True)
class ExportedKernel:
    """A compiled kernel, and its launch information."""

    binary: bytes
    info: ProgramInfo
    source: str
    """Source of the binary."""


@dataclass(frozen=True)
class ExportedLaunch:
    """A kernel by number, with the memory in its slots."""

    kernel: int
    spans: tuple[ExportedSpan, ...]


@dataclass(frozen=True)
class ExportedModel:
    """An exported model: all launches that compute the outputs from the inputs, in order."""

    kernels: tuple[ExportedKernel, ...]
    launches: tuple[ExportedLaunch, ...]
    buffers: tuple[int, ...]
    """The size of each buffer in bytes."""
    weights: tuple[ExportedTensor, ...]
    """Memory with content before the first launch: each is in the file `weights.safetensors`."""
    inputs: tuple[ExportedTensor, ...]
    outputs: tuple[ExportedTensor, ...]
    arch: str
    """Architecture of the kernels, as in DEV."""
