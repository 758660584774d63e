"""The fence: a budget of tokens for each folder of the core and each package.

Tokens are those of `tokenize` without comments, docstrings and layout: prose is free. A change
lowers budgets, or moves them from one folder to another; SUM and FLOORS only fall. Whoever has to
raise one writes a page in docs/decisions/ that says what it buys. `python -m benchmarks.size`
prints what the folders have, beside tinygrad's parts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # last: what is installed comes first

from benchmarks.size import folder_sizes, sums  # noqa: E402

BUDGETS: Final = {
    "tinycore": 19_740,
    "tinycore/array_api": 10_902,
    "tinycore/builtin": 12_173,
    "tinycore/cli": 9_767,
    "tinycore/device": 20_176,
    "tinycore/engine": 20_594,
    "tinycore/lower": 43_920,
    "tinycore/lower/steps": 9_400,
    "tinycore/lower/strategies": 24_740,
    "tinycore/linalg": 7_438,
    "tinycore/nn": 16_747,
    "tinycore/nn/files": 14_619,
    "tinycore/nn/optim": 8_352,
    "tinycore/render": 16_599,
    "tinycore/schedule": 55_108,
    "tinycore/tensor": 13_688,
    "tinycore/tensor/autograd": 9_482,
    "tinycore/tensor/capture": 16_357,
    "tinycore/tensor/guards": 7_560,
    "tinycore/tensor/interop": 6_689,
    "tinycore/tensor/methods": 56_382,
    "tinycore/tensor/storage": 12_206,
    "tinycore/uop": 45_061,
    "plugins/tiny_amd": 42_099,
    "plugins/tiny_cl": 9_508,
    "plugins/tiny_cpu": 21_450,
    "plugins/tiny_hcq": 21_188,
    "plugins/tiny_llm": 30_864,
    "plugins/tiny_metal": 11_294,
    "plugins/tiny_mpi": 18_895,
    "plugins/tiny_nv": 84_655,
    "plugins/tiny_onnx": 67_410,
    "plugins/tiny_qcom": 27_236,
    "plugins/tiny_ray": 656,
    "plugins/tiny_testing": 60_192,
    "plugins/tiny_viz": 22_916,
    "plugins/tiny_webgpu": 14_138,
}
"""Tokens that a folder may have, its subfolders apart; of a package, those of its `src`."""

SUM: Final = 457_700
"""The budgets of the core together."""
FLOORS: Final = 420_447
"""Floors 0 to 5, with what moved out of them: what moves is counted where it lies."""

SLACK: Final = 0.01
"""Share by which a folder may exceed its budget: a fault is mended without counting tokens."""
LEAST_SLACK: Final = 100
"""Tokens by which any folder may."""


def slack(folder: str) -> int:
    """Tokens by which a folder may differ from its budget."""
    return max(int(BUDGETS[folder] * SLACK), LEAST_SLACK)


@pytest.mark.slow
def test_folders_keep_their_budgets() -> None:
    sizes = folder_sizes(ROOT)
    assert sizes.keys() == BUDGETS.keys(), "each folder and package has a budget"

    over = [
        f"{folder} has {size:,} tokens, its budget is {BUDGETS[folder]:,}. Delete as much as you "
        "add, or lower the budget of another folder by what this one gets."
        for folder, size in sizes.items()
        if size > BUDGETS[folder] + slack(folder)
    ]
    assert not over, "\n".join(over)

    # else what one change saved would be there for another to spend
    loose = {f: f"{n:_}" for f, n in sizes.items() if n < BUDGETS[f] - 2 * slack(f)}
    assert not loose, f"lower these budgets to {loose}, and SUM and FLOORS by as much"
    assert sums(ROOT)["with what moved out"] <= FLOORS * (1 + SLACK)


def test_the_sum_of_budgets_only_falls() -> None:
    core = sum(budget for name, budget in BUDGETS.items() if name.startswith("tinycore"))

    assert core <= SUM


def test_a_docstring_and_a_comment_cost_nothing(tmp_path: Path) -> None:
    code = 'X = f"{1}"\n'
    for name, text in (("a", code), ("b", f'"""Prose."""\n\n# why\n{code}')):
        (tmp_path / "tinycore" / name).mkdir(parents=True)
        (tmp_path / "tinycore" / name / "x.py").write_text(text)

    assert folder_sizes(tmp_path) == {"tinycore/a": 3, "tinycore/b": 3}
