"""Write docs/conformance/: the tables of devices, and the grades of the suite.

    python docs/generate_conformance.py            all of them, some at a time
    python docs/generate_conformance.py CL suite   one table, and the grades

A table is written only where its device conforms. Drivers that compile slowly take long: CL and
WEBGPU on a processor some ten minutes each. `test_tables.py` of tiny_testing holds
the tables.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.standins import NVS, STANDINS, device_of  # noqa: E402  the path is set above

FOLDER: Final = Path(__file__).with_name("conformance")
AT_A_TIME: Final = 2

SUITES: Final = {
    "AMD": "plugins/tiny_amd/tests/conformance.py",
    "AMD-AQL": "plugins/tiny_amd/tests/conformance.py",
    "AMD-GFX1030": "plugins/tiny_amd/tests/conformance.py",
    "AMD-GFX1201": "plugins/tiny_amd/tests/conformance.py",
    "AMD-GFX942": "plugins/tiny_amd/tests/conformance.py",
    "AMD-PCI": "plugins/tiny_amd/tests/conformance.py",
    "AMD-USB": "plugins/tiny_amd/tests/conformance.py",
    "AMD:HIP": "plugins/tiny_amd/tests/conformance.py",
    "AMD:HIP-AQL": "plugins/tiny_amd/tests/conformance.py",
    "AMD:HIP-GFX1201": "plugins/tiny_amd/tests/conformance.py",
    "AMD:HIP-GFX942": "plugins/tiny_amd/tests/conformance.py",
    "PYTHON": "tests/unit/builtin/conformance.py",
    "CPU:CLANG": "plugins/tiny_cpu/tests/conformance.py",
    "CPU:LLVM": "plugins/tiny_cpu/tests/conformance.py",
    "CL": "plugins/tiny_cl/tests/conformance.py",
    "METAL": "plugins/tiny_metal/tests/conformance.py",
    "METAL-M3": "plugins/tiny_metal/tests/conformance.py",
    "METAL-OLD": "plugins/tiny_metal/tests/conformance.py",
    "CUDA": "plugins/tiny_nv/tests/conformance.py",
    "CUDA:PTX": "plugins/tiny_nv/tests/conformance.py",
    **dict.fromkeys(NVS, "plugins/tiny_nv/tests/nvk_conformance.py"),
    "QCOM:IR3": "plugins/tiny_qcom/tests/conformance.py",
    "QCOM:QCOMCL": "plugins/tiny_qcom/tests/conformance.py",
    "WEBGPU": "plugins/tiny_webgpu/tests/conformance.py",
}
"""Every device with a table, and the file that says why it does without some capabilities. What
follows a "-" says which hardware is played."""
LEVELS: Final = {"AMD-PCI": 1, "AMD-USB": 1}
"""Devices whose table ends at a level, the others being those of the same driver over KFD."""
GRADES: Final = "suite"


def page_of(name: str) -> Path:
    """Path of a table's page: cpu-clang.md for CPU:CLANG."""
    return FOLDER / f"{name.lower().replace(':', '-')}.md"


def command(name: str) -> list[str]:
    """Command that writes a page."""
    page = str(page_of(name))
    if name == GRADES:
        return [sys.executable, "-m", "tiny_testing.grading", "--markdown", page]
    suite = str(ROOT / SUITES[name])
    arguments = ["conformance", device_of(name), "--suite", suite, "--markdown", page]
    if name in LEVELS:
        arguments += ["--level", str(LEVELS[name])]
    if name in STANDINS:
        arguments += ["--register", STANDINS[name].backend]
    return [sys.executable, "-m", "tinycore", *arguments]


def surroundings(name: str) -> dict[str, str]:
    """The environment of what writes a page."""
    path = os.pathsep.join(STANDINS[name].folders) if name in STANDINS else ""
    return {**os.environ, "PYTHONPATH": path} if path else dict(os.environ)


def write(name: str) -> str:
    """Write a page; "" or what was said where the device does not conform."""
    page = page_of(name)
    before = page.read_text("utf-8") if page.exists() else None
    done = subprocess.run(
        command(name), capture_output=True, text=True, check=False, env=surroundings(name)
    )
    if done.returncode == 0:
        return ""
    if before is not None:
        page.write_text(before, "utf-8")
    else:
        page.unlink(missing_ok=True)
    return f"{name}: {done.stdout}{done.stderr}"


def main(names: list[str]) -> int:
    """Write the pages; status 1 when a device does not conform, or a fault is not found."""
    if unknown := sorted(set(names) - {*SUITES, GRADES}):
        print(f"no table of {', '.join(unknown)}; there are {', '.join(SUITES)}, {GRADES}")
        return 2
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        complaints = [said for said in pool.map(write, names or [*SUITES, GRADES]) if said]
    print("\n".join(complaints) or "all pages are written")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
