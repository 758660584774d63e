"""`python benchmarks/run.py`, from anywhere: the same as `python -m benchmarks` in the root."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
