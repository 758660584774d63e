"""Write docs/conformance/: a page for each kind of device, and the grades of the suite.

    python docs/generate_conformance.py            all that needs no card, some at a time
    python docs/generate_conformance.py CL suite   one page, and the grades
    python docs/generate_conformance.py H200       on a machine with that card

A page is made of what `tinycore conformance DEVICE --markdown FILE` says of each device on it, and
only where all of them conform. Drivers that compile slowly take long: CL and WEBGPU on a processor
some ten minutes each. `test_tables.py` of tiny_testing holds the pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.standins import NVS, STANDINS, device_of  # noqa: E402  the path is set above

FOLDER: Final = Path(__file__).with_name("conformance")
AT_A_TIME: Final = 2
GRADES: Final = "suite"
LEVELS: Final = {"AMD-PCI": 1, "AMD-USB": 1}
"""Devices whose trials end at a level: the others are those of the same driver over KFD."""


class Page(NamedTuple):
    """Devices on one page, each with what plays it, and the file that gives reasons for skips."""

    suite: str
    devices: dict[str, str]
    card: bool = False


def _nvidia(name: str) -> str:
    """Card and branch of the driver that a stand-in plays: Ada, branch 590."""
    card, branch, *options = name.partition("-")[2].split("-")
    return f"{card.capitalize()}, branch {branch}" + ", all options of NV on" * len(options)


PAGES: Final = {
    "PYTHON": Page("tests/unit/builtin/conformance.py", {"PYTHON": "the interpreter"}),
    "CPU": Page(
        "plugins/tiny_cpu/tests/conformance.py",
        {"CPU:CLANG": "this machine, by clang", "CPU:LLVM": "this machine, by llvmlite"},
    ),
    "CL": Page("plugins/tiny_cl/tests/conformance.py", {"CL": "PoCL, on a processor"}),
    "WEBGPU": Page("plugins/tiny_webgpu/tests/conformance.py", {"WEBGPU": "Dawn over lavapipe"}),
    "CUDA": Page(
        "plugins/tiny_nv/tests/conformance.py",
        {
            "CUDA": "an executor of PTX, compiled by nvrtc",
            "CUDA:PTX": "an executor of PTX, written by tiny-nv",
        },
    ),
    "NV": Page(
        "plugins/tiny_nv/tests/nvk_conformance.py", {name: _nvidia(name) for name in sorted(NVS)}
    ),
    "H200": Page(
        "plugins/tiny_nv/tests/conformance.py",
        {
            "CUDA": "an H200, driver 580, compiled by nvrtc",
            "CUDA:PTX": "an H200, driver 580, PTX written by tiny-nv",
            "NV": "an H200, kernel driver 580",
        },
        card=True,
    ),
    "AMD": Page(
        "plugins/tiny_amd/tests/conformance.py",
        {
            "AMD": "RX 7900 XTX (gfx1100), by LLVM",
            "AMD-AQL": "RX 7900 XTX, queues of AQL",
            "AMD-GFX1030": "RX 6900 (RDNA 2)",
            "AMD-GFX1201": "RX 9070 (RDNA 4)",
            "AMD-GFX942": "MI300 (CDNA 3)",
            "AMD-PCI": "Navi 31, by its registers",
            "AMD-USB": "Navi 31, behind a USB bridge",
            "AMD:HIP": "RX 7900 XTX, by COMGR",
            "AMD:HIP-AQL": "RX 7900 XTX, by COMGR, queues of AQL",
            "AMD:HIP-GFX1201": "RX 9070, by clang",
            "AMD:HIP-GFX942": "MI300, by clang",
        },
    ),
    "METAL": Page(
        "plugins/tiny_metal/tests/conformance.py",
        {"METAL": "an M1", "METAL-M3": "an M3", "METAL-OLD": "a discrete GPU without bfloat"},
    ),
    "QCOM": Page(
        "plugins/tiny_qcom/tests/conformance.py",
        {
            "QCOM:IR3": "Adreno 640, machine code of Mesa's compiler, interpreted",
            "QCOM:QCOMCL": "Adreno 640, OpenCL C, run by PoCL",
        },
    ),
}


class Report(NamedTuple):
    """Findings of `tinycore conformance` on one device."""

    api: str
    levels: list[tuple[str, str]]  # "L1", "41/45"
    words: list[tuple[str, str, str]]  # word, standing, meaning
    trials: list[tuple[str, str, str]]  # trial, verdict, reason


def rows_of(text: str, head: str) -> list[list[str]]:
    """Cells of the table whose first column has a heading."""
    lines = text.partition(f"| {head} |")[2].splitlines()[2:]
    ends = next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[:ends]]


def report_of(text: str) -> Report:
    """The findings in a page written by `tinycore conformance`."""
    api = re.search(r"plugin API (\d+\.\d+)", text)
    levels = []
    for level, _, *counts in rows_of(text, "level"):
        passed, failed, unclaimed, beyond, _ = map(int, counts)
        levels.append((level, f"{passed}/{passed + failed + unclaimed + beyond}"))
    words = [(row[0], row[1], row[-1]) for row in rows_of(text, "word")]
    trials = [(row[0], row[1], row[2]) for row in rows_of(text, "trial")]
    return Report(api[1] if api else "?", levels, words, trials)


def named(devices: Iterable[str], everyone: Sequence[str]) -> str:
    """Devices in words: their names, or the shorter of "all" and "all but" others."""
    some = list(devices)
    others = [name for name in everyone if name not in some]
    if not others:
        return "all"
    if not some:
        return "none"
    return f"all but {', '.join(others)}" if len(others) < len(some) else ", ".join(some)


def grouped(reports: dict[str, Report], field: str) -> dict[str, dict[tuple[str, str], list[str]]]:
    """Rows of all devices by their first cell, and devices by what the others say."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name, report in reports.items():
        for head, *rest in getattr(report, field):
            found.setdefault(head, {}).setdefault((rest[0], rest[1]), []).append(name)
    return found


def composed(title: str, page: Page, reports: dict[str, Report]) -> str:
    """The page of several devices."""
    whole = {name: report for name, report in reports.items() if name not in LEVELS}
    everyone = list(whole)
    levels = dict.fromkeys(level for report in reports.values() for level, _ in report.levels)
    lines = [
        *(f"# Conformance of {title}", ""),
        f"Written by `python docs/generate_conformance.py {title}`: each of these conforms.",
        "L0 to L5 count the trials that passed, among those that apply; the rest try what a",
        "device does not claim.",
        *("", f"| device | what runs it | plugin API | {' | '.join(levels)} |"),
        "|" + "---|" * (3 + len(levels)),
    ]
    for name, report in reports.items():
        counts = dict(report.levels)
        cells = " | ".join(counts.get(level, "") for level in levels)
        lines.append(f"| {name} | {page.devices[name]} | {report.api} | {cells} |")
    if len(whole) < len(reports):
        some = " and ".join(name for name in reports if name in LEVELS)
        lines += ["", f"{some} run the first levels alone; what follows is about the others."]
    lines += ["", "## Claims", "", "| word | proven | not claimed | what it means |"]
    lines.append("|---|---|---|---|")
    for word, standings in grouped(whole, "words").items():
        proven = [n for (said, _), names in standings.items() if said == "proven" for n in names]
        without = [
            f"{named(names, everyone)}: {said.partition(': ')[2]}" if ": " in said else ""
            for (said, _), names in standings.items()
            if said != "proven"
        ]
        meaning = next(iter(standings))[1]
        said = "; ".join(filter(None, without)) or named(set(everyone) - set(proven), everyone)
        lines.append(f"| {word} | {named(proven, everyone)} | {said} | {meaning} |")
    lines += ["", "## Trials that did not simply pass", ""]
    lines += ["| trial | verdict | on | reason |", "|---|---|---|---|"]
    for trial, verdicts in grouped(whole, "trials").items():
        for (verdict, reason), names in verdicts.items():
            lines.append(f"| {trial} | {verdict} | {named(names, everyone)} | {reason} |")
    return "\n".join(lines) + "\n"


def command(page: Page, name: str, output: Path) -> list[str]:
    """Command that tries one device."""
    suite = str(ROOT / page.suite)
    device = name if page.card else device_of(name)
    arguments = ["conformance", device, "--suite", suite, "--markdown", str(output)]
    if name in LEVELS:
        arguments += ["--level", str(LEVELS[name])]
    if name in STANDINS and not page.card:
        arguments += ["--register", STANDINS[name].backend]
    return [sys.executable, "-m", "tinycore", *arguments]


def surroundings(page: Page, name: str) -> dict[str, str]:
    """The environment of a device's trials."""
    if name not in STANDINS or page.card:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(STANDINS[name].folders)}


def write(title: str) -> str:
    """Write a page; "" or what was said where a device does not conform."""
    if title == GRADES:
        words = [sys.executable, "-m", "tiny_testing.grading", "--markdown"]
        done = subprocess.run(
            [*words, str(FOLDER / "suite.md")], capture_output=True, text=True, check=False
        )
        return f"{title}: {done.stdout}{done.stderr}" if done.returncode else ""
    page, reports = PAGES[title], {}
    with TemporaryDirectory() as folder:
        for name in page.devices:
            output = Path(folder) / "page.md"
            env = surroundings(page, name)
            words = command(page, name, output)
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
            if done.returncode:
                return f"{name}: {done.stdout}{done.stderr}"
            reports[name] = report_of(output.read_text("utf-8"))
    (FOLDER / f"{title.lower()}.md").write_text(composed(title, page, reports), "utf-8")
    return ""


def main(titles: list[str]) -> int:
    """Write the pages; status 1 when a device does not conform, or a fault is not found."""
    if unknown := sorted(set(titles) - {*PAGES, GRADES}):
        print(f"no page of {', '.join(unknown)}; there are {', '.join(PAGES)}, {GRADES}")
        return 2
    wanted = titles or [*(title for title, page in PAGES.items() if not page.card), GRADES]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        complaints = [said for said in pool.map(write, wanted) if said]
    print("\n".join(complaints) or "all pages are written")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
