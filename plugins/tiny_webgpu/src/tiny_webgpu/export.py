"""A model as a web page: WGSL, a list of launches, and the script that runs them.

`model.json` says what `web/runner.js` must know: buffers, kernels with their bindings, launches,
tensors by name. Weights are where `tinycore export` put them, in `weights.safetensors`.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any, Final

from tiny_webgpu._lib import BindingType
from tiny_webgpu.program import ARGUMENTS, ENTRY, bindings_of
from tinycore.errors import UnsupportedError
from tinycore.plugin import ExportedKernel, ExportedLaunch, ExportedModel, ExportedTensor

__all__ = ["write"]

FORMAT: Final = 1
"""The version of `model.json`."""
_PAGE: Final = ("runner.js", "index.html")
_NAMES: Final = {BindingType.STORAGE: "storage", BindingType.READ_ONLY_STORAGE: "read-only-storage"}
_BLOCK_BYTES: Final = 16


def write(model: ExportedModel, folder: Path) -> None:
    """Write the kernels, `model.json`, the script and the page. Raises UnsupportedError."""
    for launch in model.launches:
        verify(launch, model.kernels[launch.kernel])
    (folder / "kernels").mkdir(exist_ok=True)
    for number, kernel in enumerate(model.kernels):
        (folder / path_of(number, kernel)).write_bytes(kernel.binary)
    text = json.dumps(manifest(model), indent=1)
    (folder / "model.json").write_text(text + "\n", encoding="utf-8")
    web = resources.files("tiny_webgpu") / "web"
    for name in _PAGE:
        (folder / name).write_bytes((web / name).read_bytes())


def path_of(number: int, kernel: ExportedKernel) -> str:
    """Path of the WGSL of a kernel."""
    return f"kernels/{number:03d}_{kernel.info.name}.wgsl"


def verify(launch: ExportedLaunch, kernel: ExportedKernel) -> None:
    """Raise UnsupportedError for a launch that writes a buffer which it has in another slot too."""
    bindings = bindings_of(kernel.binary.decode("utf-8"))
    used = [launch.spans[slot].buffer for slot in bindings]
    written = {launch.spans[s].buffer for s, b in bindings.items() if b is BindingType.STORAGE}
    if any(used.count(buffer) > 1 for buffer in written):
        raise UnsupportedError(
            f"kernel {kernel.info.name} reads and writes two parts of one buffer, which WebGPU "
            "forbids. Let the model compute new tensors in place of assigning to slices."
        )


def manifest(model: ExportedModel) -> dict[str, Any]:
    """The content of `model.json`."""
    return {
        "format": FORMAT,
        "entry": ENTRY,
        "arguments": ARGUMENTS,
        "buffers": [size + -size % _BLOCK_BYTES for size in model.buffers],
        "kernels": [described(number, kernel) for number, kernel in enumerate(model.kernels)],
        "launches": [
            {"kernel": launch.kernel, "spans": [[s.buffer, s.start, s.size] for s in launch.spans]}
            for launch in model.launches
        ],
        "weights": [tensor(x) for x in model.weights],
        "inputs": [tensor(x) for x in model.inputs],
        "outputs": [tensor(x) for x in model.outputs],
    }


def described(number: int, kernel: ExportedKernel) -> dict[str, Any]:
    """A kernel: its file, what it binds in which slot, and its launch."""
    text = kernel.binary.decode("utf-8")
    return {
        "name": kernel.info.name,
        "file": path_of(number, kernel),
        "bindings": [[slot, _NAMES[kind]] for slot, kind in bindings_of(text).items()],
        "features": ["shader-f16"] if "enable f16;" in text else [],
        "threads": list(kernel.info.block),
        "shared": kernel.info.shared_bytes,
        "grid": list(kernel.info.grid),
    }


def tensor(x: ExportedTensor) -> dict[str, Any]:
    """A tensor: its name, dtype, shape and place."""
    place = [x.span.buffer, x.span.start, x.span.size]
    return {"name": x.name, "dtype": x.dtype.name, "shape": list(x.shape), "span": place}
