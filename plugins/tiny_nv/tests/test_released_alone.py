"""A release of tiny_nv that brings an instruction, beside the wheel of a core without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from built_wheels import empty_environment, wheel_of

ROOT: Final = Path(__file__).resolve().parents[3]
MODULE: Final = '''
"""The reciprocal of a square root, in one instruction of the special function unit."""

import numpy

from tinycore.dtype import dtypes
from tinycore.uop.instruction import Instruction
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import RuleSet, node, var


def reciprocal_root(x):
    """The meaning of it."""
    return 1 / numpy.sqrt(x)


RSQRT = Instruction("rsqrt", (dtypes.float32,), dtypes.float32, f"{__name__}:reciprocal_root")
roots = RuleSet("roots")


@roots.rule(node(Op.RECIPROCAL, node(Op.SQRT, var("x"), name="root")))
def by_rsqrt(root, x):
    """1 / sqrt(x) == rsqrt(x). Needs: float32."""
    if root.dtype.scalar() is not dtypes.float32:
        return None
    return UOp(Op.INSTRUCTION, root.dtype, (x,), RSQRT)
'''
USED: Final = """\
    rules = {"tidy": roots}
    instructions = {RSQRT: "rsqrtf({0})"}
"""
SCRIPT: Final = """
import json, numpy, tinycore, tiny_nv
from tinycore import Context, Device, Tensor
from tinycore.device import Buffer
from tinycore.engine.compile import info_of
from tinycore.lower.pipeline import lower
from tinycore.uop.text import to_text

with Context(DEV="NULL:NVRTC:sm_90", VERIFY=1):
    renderer = Device["NULL"].toolchain.renderer
    ast = (Tensor.empty(256) + 1).rsqrt().schedule()[-1].ast
    linear = lower(ast, renderer, "roots")
toolchain = Device["PYTHON"].toolchain
binary = toolchain.compiler.compile(toolchain.renderer.render(linear))
program = Device["PYTHON"].runtime.load(binary, info_of(linear, 2))
given = numpy.arange(256, dtype="float32")
result, operand = (Buffer.from_cpu("PYTHON", x) for x in (numpy.zeros_like(given), given))
program([result.handle, operand.handle], [], wait=True)
error = float(abs(result.numpy().view("float32") * numpy.sqrt(given + 1) - 1).max())
print(json.dumps([renderer.render(linear), to_text(linear.uops), error,
                  [tinycore.__file__, tiny_nv.__file__]]))
"""


def with_instruction(folder: Path) -> Path:
    """A copy of tiny_nv with a file more, and two lines in its dialect of CUDA C."""
    source = ROOT / "plugins/tiny_nv"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    package = folder / "src/tiny_nv"
    (package / "roots.py").write_text(MODULE, "utf-8")
    text = (package / "render.py").read_text("utf-8")
    name = '    name: ClassVar[str] = "NVRTC"\n'
    assert text.count(name) == 1
    text = text.replace(name, name + USED)
    text = text.replace(
        "\nfrom tiny_nv.", "\nfrom tiny_nv.roots import RSQRT, roots\nfrom tiny_nv.", 1
    )
    (package / "render.py").write_text(text, "utf-8")
    return folder


@pytest.mark.slow
def test_an_instruction_comes_by_a_release_of_the_plugin_alone(tmp_path: Path) -> None:
    folders = (ROOT, ROOT / "plugins/tiny_hcq", with_instruction(tmp_path / "tiny_nv"))
    wheels = [wheel_of(folder, tmp_path) for folder in folders]
    python = empty_environment(tmp_path / "environment", *wheels)
    environment = os.environ | {"TINYCORE_PLUGINS": "NV,CUDA", "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, "-c", SCRIPT],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    source, text, error, places = json.loads(done.stdout.splitlines()[-1])

    assert all(str(tmp_path) in place for place in places)  # the wheels, and not this tree
    core = Path(places[0]).parent
    assert not any("rsqrt(" in path.read_text("utf-8") for path in (core / "uop").rglob("*.py"))
    assert "rsqrtf(" in source
    assert 'Instruction("rsqrt"' in text
    assert error < 1e-6
