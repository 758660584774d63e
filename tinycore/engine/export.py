"""Export: the kernels and launches of a model, to be written to files.

Floor 4. The kernels are compiled for a toolchain, whose device need not be present; each buffer is
an input, an intermediate result or output, or a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap

from tinycore._progress import progress
from tinycore.device.buffer import Buffer
from tinycore.device.exported import (
    ExportedKernel,
    ExportedLaunch,
    ExportedModel,
    ExportedSpan,
    ExportedTensor,
)
from tinycore.device.protocols import Toolchain
from tinycore.engine.compile import compile_kernel
from tinycore.errors import UnsupportedError
from tinycore.render.base import Renderer
from tinycore.schedule.items import ScheduleItem
from tinycore.uop.op import Op

Shaped = tuple[Buffer, tuple[int, ...]]
"""The memory of a tensor, and its shape."""


@dataclass
class Exporter:
    """A model in the making."""

    toolchain: Toolchain[Renderer]
    numbers: dict[Buffer, int] = field(default_factory=dict)
    """Numbers of the buffers that are no views."""
    kernels: dict[ExportedKernel, int] = field(default_factory=dict)
    """Numbers of the kernels. Equal code in other groups is another kernel: its launch sizes belong
    to it."""
    launches: list[ExportedLaunch] = field(default_factory=list)

    def span(self, buffer: Buffer) -> ExportedSpan:
        """The memory range of a buffer or of a view."""
        whole = buffer.base or buffer
        number = self.numbers.setdefault(whole, len(self.numbers))
        return ExportedSpan(number, buffer.offset, buffer.nbytes)

    def tensor(self, name: str, shaped: Shaped) -> ExportedTensor:
        """A tensor by name."""
        buffer, shape = shaped
        return ExportedTensor(name, buffer.dtype, shape, self.span(buffer))

    def launch(self, item: ScheduleItem) -> None:
        """Add a launch, and its kernel if it is a new one. Raises UnsupportedError."""
        compiled = compile_kernel(item.ast, self.toolchain)
        if compiled.info.values:
            raise UnsupportedError(
                f"kernel {compiled.info.name} takes the variables {compiled.info.values}, which an "
                "exported model has not. Give the inputs shapes of numbers."
            )
        kernel = ExportedKernel(compiled.binary, compiled.info, compiled.source)
        number = self.kernels.setdefault(kernel, len(self.kernels))
        self.launches.append(ExportedLaunch(number, tuple(map(self.span, item.bufs))))


def export_schedule(
    items: Sequence[ScheduleItem],
    toolchain: Toolchain[Renderer],
    inputs: Mapping[str, Shaped],
    outputs: Mapping[str, Shaped],
    weights: Mapping[str, Shaped],
) -> ExportedModel:
    """The model that computes `outputs`; those of `weights` that are read are included.

    Raises UnsupportedError for a schedule that copies between devices or takes variables.
    """
    exporter = Exporter(toolchain)
    given = {name: exporter.tensor(name, shaped) for name, shaped in inputs.items()}
    for item in progress(items, "exporting kernels", len(items)):
        if item.ast.op is Op.COPY:
            raise UnsupportedError(
                "the model copies between devices, which an exported model cannot. Put its "
                "weights and inputs on one device, with `Tensor.to`."
            )
        exporter.launch(item)
    results = tuple(starmap(exporter.tensor, outputs.items()))
    read = (found for found in weights.items() if found[1][0] in exporter.numbers)
    return ExportedModel(
        kernels=tuple(exporter.kernels),
        launches=tuple(exporter.launches),
        weights=tuple(starmap(exporter.tensor, read)),
        inputs=tuple(given.values()),
        outputs=results,
        buffers=tuple(buffer.nbytes for buffer in exporter.numbers),
        arch=toolchain.arch,
    )


def resident(items: Sequence[ScheduleItem]) -> list[Buffer]:
    """The memory that a schedule reads and that exists before it runs."""
    whole = dict.fromkeys(buffer.base or buffer for item in items for buffer in item.bufs)
    return [buffer for buffer in whole if buffer.is_allocated]
