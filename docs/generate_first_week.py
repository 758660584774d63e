"""Write docs/first-week.md: what a newcomer does in the first week, with what was printed.

    python docs/generate_first_week.py [FOLDER]

FOLDER is kept, and its environment is used again: for whoever changes a step.
Each step of docs/first-week-steps.txt runs in a new environment, into which the packages of this
checkout are installed as users install them, with an empty home and cache. A step that fails where
it should not ends the script with an error, so the page is true on the day that it was written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = (
    ".",
    *(f"plugins/tiny_{name}" for name in ("hcq", "cpu[clang]", "onnx", "testing", "viz")),
)
LINES: Final = 14
"""Lines of a step's output that the page shows."""

PICTURES: Final = """
## What it looks like

A notebook, with `tiny-viz` installed:

![Tensors, a summary of layers and a graph in a notebook](screens/notebook.png)

A long step in a terminal:

![A line that counts the kernels of a step and the seconds left](screens/progress.png)

The page that `tinycore export webgpu` writes, given a picture:

![A web page with a picture, its values and the outputs of a model](screens/page.png)

These pages as a site, from `nox -s docs`, with its search:

![The site's search for a word](screens/site.png)
""".splitlines()
"""Screenshots, which are made by hand."""


class Step(NamedTuple):
    """One thing to do: a title, and a command of the shell or a program."""

    title: str
    code: str
    fails: bool = False

    @property
    def is_shell(self) -> bool:
        """True for a command of the shell."""
        return self.code.startswith("$ ")


def steps() -> list[Step]:
    """The steps of docs/first-week-steps.txt."""
    _, net, *rest = (ROOT / "docs/first-week-steps.txt").read_text("utf-8").split("\n== ")
    program = net.partition("\n")[2]
    found = []
    for part in rest:
        title, _, code = part.partition("\n")
        code = code.strip().replace("NET\n", program, 1)
        found.append(Step(title.removeprefix("! "), code, title.startswith("! ")))
    return found


def environment(folder: Path) -> dict[str, str]:
    """A new environment with the packages of this checkout; the variables to run in it."""
    if not (folder / "venv").exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        packages = [str(ROOT / name) for name in PACKAGES]
        pip = [
            str(folder / "venv/bin/python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--no-compile",
            *packages,
        ]
        subprocess.run(pip, check=True, cwd=folder)
    path = f"{folder / 'venv/bin'}{os.pathsep}{os.environ['PATH']}"
    plain = {"NO_COLOR": "1", "LC_ALL": "C.UTF-8", "CHECKOUT": str(ROOT)}
    plain["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return plain | {"PATH": path, "HOME": str(folder), "DEV": "CPU:LLVM"}


def printed(step: Step, variables: dict[str, str], folder: Path) -> str:
    """The output of a step. Raises ValueError where it fails and should not, or the reverse."""
    command = ["sh", "-c", step.code[2:]] if step.is_shell else ["python", "-c", step.code]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    output = (done.stdout + done.stderr).replace(str(folder.parent), "~")
    output = output.replace(str(Path(sys.base_prefix).parent), "/usr/lib")
    output = re.sub(r"on Linux-[^ ,]+", "on Linux", output)
    if bool(done.returncode) != step.fails:
        raise ValueError(f"{step.title}: exit status {done.returncode}\n{output}")
    shown = output.rstrip("\r\n").split("\r")[-1]  # what a line that is written again ends as
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def shortened(text: str) -> str:
    """The first and last lines of an output."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    if len(lines) > LINES:
        lines = [*lines[: LINES - 4], "...", *lines[-3:]]
    return "\n".join(lines)


def main() -> None:
    """Run all steps and write the page."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    variables = environment(folder)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    parts = [
        "# The first week",
        "",
        "What a newcomer does, and what was printed in a new environment with an empty home.",
        "`python docs/generate_first_week.py` writes this page, and fails where a step does.",
    ]
    wrong = []
    for number, step in enumerate(steps(), 1):
        print(number, step.title, flush=True)
        try:
            output = shortened(printed(step, variables, work))
        except (ValueError, subprocess.TimeoutExpired) as error:
            wrong.append(str(error))
            continue
        language = "console" if step.is_shell else "py"
        parts += ["", f"## {number}. {step.title}", "", f"```{language}", step.code, "```"]
        parts += ["", "```text", output, "```"] if output else []
    parts += PICTURES
    if wrong:
        raise SystemExit("\n\n".join(wrong))
    (ROOT / "docs/first-week.md").write_text("\n".join(parts) + "\n", "utf-8")
    if len(sys.argv) == 1:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
