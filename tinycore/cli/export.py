"""`tinycore export`: write a model to files that compute without Python.

Floor 6. What is written is the business of the backend that the kernels are for; here the model is
run through once without launching anything, and its weights are saved.
"""

from __future__ import annotations

import argparse
import inspect
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinycore import Context, Device, Tensor, nn
from tinycore._deferred import module_named
from tinycore.cli.options import Commands, subcommand
from tinycore.cli.owned_folder import replacing_folder
from tinycore.device.buffer import Buffer
from tinycore.device.exported import ExportedModel
from tinycore.device.open_device import choose_toolchain
from tinycore.engine.captured_step import VaryingMemory, capture
from tinycore.engine.export import Shaped, export_schedule, resident
from tinycore.errors import ArgumentError, UnsupportedError
from tinycore.schedule.device_memory import buffer_of
from tinycore.schedule.limits import cut_for
from tinycore.tensor import graph
from tinycore.tensor.methods.stream import stream
from tinycore.tensor.storage.storage import waiting_tensors
from tinycore.uop.movement import base_of, below_movement
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["add", "export", "run"]

Tensors = Mapping[str, Tensor]

WEIGHTS = "weights.safetensors"
EXAMPLE = "example.safetensors"

EPILOG = """\
MODEL names a function without arguments, as in digits.py:model or package.module:model. It returns
what to call and example inputs by name, whose shapes and dtypes are those of the exported model:

  def model():
      net = Net()
      nn.state.load_state_dict(net, nn.state.safe_load("net.safetensors"))
      return net, {"image": Tensor.zeros(1, 1, 8, 8)}

The folder then holds the kernels, the weights, an example with the outputs computed here, and what
runs them. An export replaces the files of an earlier one, and no others.

docs/export.md names the backends that export, what each writes, and what runs it. An unknown one
is answered with those that are installed.
"""


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "export",
        "write a model to files that compute without Python",
        "Compile a model for a backend, and write it with its weights to a folder.",
        EPILOG,
    )
    command.add_argument("backend", help="the backend to export for, as in DEV")
    command.add_argument("model", metavar="MODEL", help="FILE.py:NAME or PACKAGE.MODULE:NAME")
    command.add_argument("-o", "--output", metavar="FOLDER", required=True, help="where to write")
    command.add_argument("--arch", default="", help="what the kernels may use, as in DEV")


def run(arguments: argparse.Namespace) -> int:
    """Export a model, and list the files."""
    folder = Path(arguments.output)
    model = export(*made(arguments.model), arguments.backend, folder, arguments.arch)
    weights = sum(tensor.span.size for tensor in model.weights)
    print(
        f"{folder}: {len(model.launches)} launches of {len(model.kernels)} kernels, "
        f"{weights:,} bytes of weights"
    )
    return 0


def made(reference: str) -> tuple[Callable[..., Any], Tensors]:
    """Result of the function that `reference` names. Raises ArgumentError."""
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ArgumentError(f"{reference} names no function; give FILE.py:NAME or MODULE:NAME")
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise ArgumentError(f"there is no file {place}")
        try:
            maker: Any = runpy.run_path(place).get(name)
        except SystemExit as error:
            raise ArgumentError(f"{place} ended by exit({error.code!r}) before {name}") from error
    else:
        maker = named_in_module(place, name)
    try:
        inspect.signature(maker).bind()
    except (TypeError, ValueError) as error:
        kind = "missing" if maker is None else f"of type {type(maker).__name__}"
        raise ArgumentError(
            f"{reference} is {kind}; give FILE.py:NAME of a function without arguments that "
            "returns (model, {name: example tensor}). `tinycore export --help` shows one"
        ) from error
    match maker():
        case (function, Mapping() as inputs) if callable(function):
            return function, inputs
    raise ArgumentError(f"{reference}() must return (model, {{name: example tensor}})")


def named_in_module(module: str, name: str) -> Any:
    """The value of a name in a module, or None. Raises ArgumentError when there is no such module;
    what else importing it raises is its own.
    """
    try:
        found = module_named(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ArgumentError(
            f"there is no module {error.name}. For a file, write FILE.py:NAME"
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def exporters() -> list[str]:
    """Names of the installed backends that export models."""
    claims = Device.plugins.claims
    return [found.name for claim in claims if (found := claim.load()) and found.export]


def export(
    function: Callable[..., Any],
    inputs: Tensors,
    backend: str,
    folder: Path,
    arch: str = "",
) -> ExportedModel:
    """Write `function`, called with tensors like `inputs`, for a backend, to a folder.

    Its state (`nn.state.get_state_dict`) becomes weights by name; what else it reads, constants.
    Tensors that it reads and that are not computed yet are computed first. Files of an earlier
    export are replaced. Raises ArgumentError where others would be lost, UnsupportedError for a
    backend that exports nothing, and for a model that is not kernels alone, or that draws random
    numbers.
    """
    declared = Device.backend(backend.upper())
    if declared.export is None:
        raise UnsupportedError(
            f"{declared.name} exports no models. Installed backends that do: "
            f"{', '.join(exporters()) or 'none'}."
        )
    toolchain = choose_toolchain(declared, "", arch)
    with Context(TRAINING=0):
        examples = {name: example_copy(name, x) for name, x in inputs.items()}
        state = nn.state.get_state_dict(function)
        if found := (*state.values(), *examples.values()):
            Tensor.realize(*found)
        before = {id(x): x for x in waiting_tensors()}
        results = results_of(function, examples)
        targets = {
            name: Tensor.zeros(*x.shape, dtype=x.dtype).contiguous().realize()
            for name, x in results.items()
        }
        given, computed = shaped(examples), shaped(targets)
        written = dict.fromkeys(  # state that the model writes, be it through a view
            below_movement(x.uop)
            for x in waiting_tensors()
            if isinstance(x, Tensor) and id(x) not in before
        )
        roots = [*(x.uop for x in results.values()), *filter(graph.is_memory, written)]
        roots, state = apart(roots, state)
        for target, node in zip(targets.values(), roots, strict=False):
            target.assign(Tensor.from_uop(node))
        with cut_for(toolchain.renderer.limits):
            items = Tensor.schedule(*targets.values(), *map(Tensor.from_uop, roots[len(targets) :]))
        weights, tensors = constants(state, resident(items), [*given.values(), *computed.values()])
        model = export_schedule(items, toolchain, given, computed, weights)
        kept = {tensor.name: tensors[tensor.name] for tensor in model.weights}
        told = {f"input/{name}": x for name, x in inputs.items()}  # as they were before the call
        told |= {f"output/{name}": x for name, x in targets.items()}
    with replacing_folder(folder) as new:
        nn.state.safe_save(kept, new / WEIGHTS)
        nn.state.safe_save(told, new / EXAMPLE)
        declared.export(model, new)
    return model


def example_copy(name: str, example: Tensor) -> Tensor:
    """A computed copy of an example input. Raises ArgumentError where that is no tensor."""
    if not isinstance(example, Tensor):
        raise ArgumentError(
            f"the example input {name!r} must be a Tensor, not {type(example).__name__}; "
            f"write {{{name!r}: Tensor(...)}}"
        )
    return Tensor(example.numpy(), dtype=example.dtype)


def named(found: Any) -> dict[str, Tensor]:
    """The tensors that a model returned, by name. Raises ArgumentError if there are none."""
    if isinstance(found, Tensor):
        return {"output": found}
    if isinstance(found, list | tuple):
        found = {f"output{number}": x for number, x in enumerate(found)}
    if isinstance(found, Mapping) and found and all(isinstance(x, Tensor) for x in found.values()):
        return dict(found)
    raise ArgumentError(f"the model must return tensors, not {type(found).__name__}")


def results_of(function: Callable[..., Any], examples: Tensors) -> dict[str, Tensor]:
    """The results of a model by name, over memory of all that was there before it was called, such
    as weights of a closure that nothing has computed yet.

    Weights that a first call makes are there in a second one. Raises UnsupportedError where that
    draws random numbers, too, and for results of what was computed from the inputs in the call.
    """
    given = tuple(map(memory, examples.values()))
    for _ in range(2):
        before, drawn = waiting_tensors(), stream.counter
        with capture(False, given) as recording:
            results = named(function(*examples.values()))
        if stream.counter == drawn:
            break
    else:
        raise UnsupportedError(
            "the model draws random numbers in each call, and an exported one would use the same "
            "in each run. Draw them outside, and give them as an input."
        )
    read = {*UOp.sink(*[x.uop for x in results.values()]).toposort()}
    varying = VaryingMemory(recording, given)
    used = {buffer for item in recording.items for buffer in item.bufs}
    if any(map(varying.has, used | recording.read)):
        raise UnsupportedError(
            "the model computes something from its inputs while it is called, which an export has "
            "as a constant. Leave out realize(), and what reads values."
        )
    for tensor in before:
        if isinstance(tensor, Tensor) and tensor.uop in read:
            tensor.realize()
    return results


def apart(roots: Sequence[UOp], state: Tensors) -> tuple[list[UOp], dict[str, Tensor]]:
    """Graphs and the state of a model, where views of memory without a name are replaced by copies.

    So each is a weight of its name and shape. Views of memory that the model writes, or reads
    otherwise, too, stay: a weight that is exchanged has to count everywhere.
    """
    whole = {base_of(x.uop) for x in state.values() if is_whole(x)}
    bases = {x.uop: below_movement(x.uop) for x in state.values()}
    views = [x for x, base in bases.items() if base.op is Op.BUFFER and base not in whole]
    copies = {view: Tensor.from_uop(view).clone().realize() for view in views}

    def over_copies() -> list[UOp]:
        changed = {view: x.uop for view, x in copies.items()}
        return [graph.replace_nodes(root, changed) for root in roots]

    read = {*UOp.sink(*over_copies()).toposort()}
    copies = {view: x for view, x in copies.items() if bases[view] not in read}
    return over_copies(), {name: copies.get(x.uop, x) for name, x in state.items()}


def is_whole(tensor: Tensor) -> bool:
    """True for a tensor that shows all of a buffer in order."""
    return graph.is_buffer(tensor.uop) and memory(tensor).base is None


def shaped(tensors: Tensors) -> dict[str, Shaped]:
    """The memory and the shape of realized tensors."""
    return {name: (memory(x), x.shape) for name, x in tensors.items()}


def memory(tensor: Tensor) -> Buffer:
    """The buffer of a realized tensor. Raises UnsupportedError for one that is no plain memory."""
    if not graph.is_memory(tensor.uop):
        raise UnsupportedError(
            "an exported model takes and returns tensors whose shapes are of numbers above 0, not "
            f"{tensor.shape}"
        )
    return buffer_of(base_of(tensor.uop))


def constants(
    state: Tensors, read: list[Buffer], others: list[Shaped]
) -> tuple[dict[str, Shaped], dict[str, Tensor]]:
    """Constant memory: each constant's place by name, and tensors with its content."""
    known = {buffer for buffer, _ in others}
    places: dict[str, Shaped] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if is_whole(tensor):
            places[name], tensors[name] = (memory(tensor), tensor.shape), tensor
            known.add(memory(tensor))
    for number, buffer in enumerate(b for b in read if b not in known):
        name = f"constant{number}"
        places[name] = (buffer, (buffer.size,))
        tensors[name] = Tensor(buffer.tobytes(), dtype="uint8").bitcast(buffer.dtype)
    return places, tensors
