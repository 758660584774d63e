"""Programs that are recorded for the tests of the page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

LLM_TESTS: Final = Path(__file__).parents[2] / "tiny_llm" / "tests"
TRAINING: Final = """
from tinycore import Context, Tensor, TinyJit, nn

images, labels = Tensor.rand(32, 1, 8, 8).realize(), Tensor.randint(32, high=10).realize()
first, last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 10)
optimizer = nn.optim.SGD(nn.state.get_parameters([first, last]), lr=0.1)


@TinyJit
def step():
    hidden = first(images).relu().max_pool2d()
    scores = last(hidden.flatten(1))
    optimizer.zero_grad()
    loss = scores.sparse_categorical_crossentropy(labels).backward()
    return loss.realize(*optimizer.schedule_step())


with Context(TRAINING=1):
    for _ in range(6):
        step().item()
"""
GENERATION: Final = f"""
import sys
from pathlib import Path

sys.path.append({str(LLM_TESTS)!r})
import tiny_models

from tiny_llm import LanguageModel, Sampling

config = tiny_models.config_of("qwen3")
folder = tiny_models.write_folder(Path("model"), config, tiny_models.weights_of(config))
model = LanguageModel.load(folder, context=64)
model.tokenizer.ends = frozenset()
said = [*model.generate("hello", Sampling(temperature=0.0), limit=20)]
assert len([piece for piece in said if piece.token is not None]) == 20
"""
FAILING: Final = """
from tinycore import Tensor
from tinycore.engine import compile as compiling
from tinycore.errors import CompileError

a = Tensor.rand(4, 4).realize()
(a + 1).realize()


def refuse(*_):
    raise CompileError("<script>document.title = 'taken'</script>")


compiling.load_runner = refuse
(a @ a).softmax().realize()
"""
HOSTILE_NAME: Final = "<img src=x onerror=document.title='taken'>.py"


def recorded(text: str, folder: Path, name: str = "program.py", device: str = "PYTHON") -> Path:
    """The profile of a program, run in a folder on a device."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    subprocess.run(
        [sys.executable, name],
        cwd=folder,
        capture_output=True,
        timeout=300,
        check=False,
        env=os.environ | {"DEV": device, "VIZ": "1"},
    )
    (found,) = folder.glob("*.tinyviz")
    return found
