"""`tinycore export-onnx model.py:model -o model.onnx`: a model as a file for other runtimes."""

from __future__ import annotations

import argparse

from tiny_onnx.export import export
from tinycore import Variable
from tinycore.cli.export import made
from tinycore.cli.options import Commands, subcommand
from tinycore.errors import ArgumentError

__all__ = ["add", "run"]


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "export-onnx",
        "write a model as a file of the ONNX standard",
        "Write a model of tinycore as a file of the ONNX standard.",
        """MODEL names a function without arguments that returns what to call and example
inputs by name, as for `tinycore export`:

  def model():
      net = Net()
      nn.state.load_state_dict(net, nn.state.safe_load("net.safetensors"))
      return net, {"image": Tensor.zeros(1, 1, 28, 28)}

  tinycore export-onnx net.py:model -o net.onnx --dynamic image:0=batch""",
    )
    command.add_argument("model", metavar="MODEL", help="FILE.py:NAME or PACKAGE.MODULE:NAME")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="where to write")
    command.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar="INPUT:AXIS=NAME[..MOST]",
        help="an axis whose length varies, up to MOST (65536)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Export a model, and say what it takes and gives."""
    function, inputs = made(arguments.model)
    model = export(
        function,
        tuple(inputs.values()),
        arguments.output,
        input_names=list(inputs),
        dynamic_axes=dynamic(arguments.dynamic),
    )
    names = ", ".join(output.name for output in model.graph.output)
    print(
        f"{arguments.output}: {len(model.graph.node)} nodes of operator set "
        f"{model.opset_import[0].version}, from {', '.join(inputs)} to {names}"
    )
    return 0


def dynamic(words: list[str]) -> dict[str, dict[int, str | Variable]]:
    """Axes of varying length by the name of an input. Raises ArgumentError for another form."""
    found: dict[str, dict[int, str | Variable]] = {}
    for word in words:
        place, _, name = word.partition("=")
        given, _, axis = place.rpartition(":")
        name, _, most = name.partition("..")
        if not (given and name and axis.isdigit() and (most.isdigit() or not most)):
            raise ArgumentError(
                f"--dynamic {word} is not of the form INPUT:AXIS=NAME, as in image:0=batch"
            )
        found.setdefault(given, {})[int(axis)] = Variable(name, 1, int(most)) if most else name
    return found
