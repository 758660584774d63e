"""A contributor's guide that runs: `nox -l` lists what one does here, `nox -s unit` does it.

Sessions install the packages from this tree, editable. tox.ini is for the other question, whether
the built wheels work: alone, together, and on every Python.
"""

import argparse
import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "unit"]

ROOT = Path(__file__).parent
PACKAGES = {
    "tinycore": ROOT,
    "tiny-amd": ROOT / "plugins/tiny_amd",
    "tiny-cl": ROOT / "plugins/tiny_cl",
    "tiny-cpu": ROOT / "plugins/tiny_cpu",
    "tiny-hcq": ROOT / "plugins/tiny_hcq",
    "tiny-llm": ROOT / "plugins/tiny_llm",
    "tiny-metal": ROOT / "plugins/tiny_metal",
    "tiny-mpi": ROOT / "plugins/tiny_mpi",
    "tiny-nv": ROOT / "plugins/tiny_nv",
    "tiny-onnx": ROOT / "plugins/tiny_onnx",
    "tiny-qcom": ROOT / "plugins/tiny_qcom",
    "tiny-ray": ROOT / "plugins/tiny_ray",
    "tiny-testing": ROOT / "plugins/tiny_testing",
    "tiny-viz": ROOT / "plugins/tiny_viz",
    "tiny-webgpu": ROOT / "plugins/tiny_webgpu",
}
TYPED_TESTS = [
    "tiny_amd",
    "tiny_cl",
    "tiny_cpu",
    "tiny_hcq",
    "tiny_llm",
    "tiny_metal",
    "tiny_mpi",
    "tiny_nv",
    "tiny_onnx",
    "tiny_qcom",
    "tiny_testing",
    "tiny_viz",
]
"""Plugins whose tests are checked with their folder as the path of modules."""
DEVICES = ["PYTHON", "CPU:CLANG", "CPU:LLVM", "CL", "CUDA", "CUDA:PTX", "WEBGPU"]
"""Devices that docs/generate_conformance.py writes tables of; CUDA here means a card."""
PLAYED = ["AMD", "AMD-GFX1030", "AMD-GFX1201", "AMD-GFX942", "AMD:HIP", "METAL", "QCOM:IR3"]
"""Devices whose hardware stand-ins play (`tests/standins.py`)."""
PEERS = {
    "tinygrad": ["tinygrad>=0.14"],
    "torch": ["torch==2.13.*", "--extra-index-url", "https://download.pytorch.org/whl/cpu"],
    "jax": ["jax>=0.7"],
}


def project(folder: Path) -> Any:
    """The [project] table of a package."""
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def tool(name: str) -> str:
    """The requirement on a tool, as the extras for contributors state it."""
    extras = project(ROOT)["optional-dependencies"]
    stated: list[str] = extras["dev"] + extras["test"]
    return next(requirement for requirement in stated if requirement.startswith(name))


def install(session: nox.Session, *more: str) -> None:
    """Install every package from this tree, what tests need, and more."""
    folders = ["tiny_amd[usb]", "tiny_cpu", "tiny_cl", "tiny_hcq", "tiny_llm", "tiny_metal"]
    folders += ["tiny_mpi"]
    folders += ["tiny_nv[nvrtc]", "tiny_onnx", "tiny_qcom[ir3]"]
    folders += ["tiny_testing", "tiny_viz[test]", "tiny_webgpu"]
    plugins = [word for folder in folders for word in ("-e", f"plugins/{folder}")]
    session.install("-e", ".[test]", *plugins, *more)


@nox.session
def lint(session: nox.Session) -> None:
    """Look for mistakes and untidy code (`-- --fix` repairs what it can)."""
    session.install(tool("ruff"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]))


@nox.session
def types(session: nox.Session) -> None:
    """Check every type, strictly."""
    install(session, tool("mypy"))
    sources = [str(folder / "src") for name, folder in PACKAGES.items() if name != "tinycore"]
    pages = map(str, Path("docs").glob("*.py"))
    session.run("mypy", "tinycore", *sources, "tests", "plugins/tiny_webgpu/tests", *pages)
    for plugin in TYPED_TESTS:  # one after the other: their tests have files of the same names
        folder = f"plugins/{plugin}/tests"
        session.run("mypy", folder, env={"MYPYPATH": folder})


@nox.session
def unit(session: nox.Session) -> None:
    """Test one fact at a time; needs no device, and takes some minutes."""
    install(session)
    session.run("pytest", "tests/unit", "tests/test_floors.py", *session.posargs)


@nox.session
def golden(session: nox.Session) -> None:
    """Compare generated kernels with the reviewed ones (`-- --update-golden` rewrites them)."""
    install(session)
    session.run("pytest", "tests/golden", *session.posargs)


@nox.session
def property(session: nox.Session) -> None:  # noqa: A001  the session's name is the command
    """Test every rewrite rule, and random programs, against plain arithmetic."""
    install(session)
    session.run("pytest", "tests/property", *session.posargs)


@nox.session
def captures(session: nox.Session) -> None:
    """Run random functions with and without TinyJit (`-- --count 5000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.captures", *session.posargs)


@nox.session
def threads(session: nox.Session) -> None:
    """Let threads capture random functions at the same time (`-- --count 500 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.threads", *session.posargs)


@nox.session
def files(session: nox.Session) -> None:
    """Load damaged files of each format (`-- --count 70000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.files", *session.posargs)


@nox.session
def writes(session: nox.Session) -> None:
    """Run random programs of views and writes against a model (`-- --count 20000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.writes", *session.posargs)


@nox.session
def caches(session: nox.Session) -> None:
    """Run random pairs of related programs over one cache (`-- --count 5000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.caches", *session.posargs)


@nox.session
def signals(session: nox.Session) -> None:
    """Run random programs whose signal handlers read tensors (`-- --count 500 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.signals", *session.posargs)


@nox.session
def slopes(session: nox.Session) -> None:
    """Take random gradients through writes, and torch's (`-- --count 2000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.slopes", *session.posargs)


@nox.session
def extremes(session: nox.Session) -> None:
    """Take random gradients of extremes over computed values (`-- --count 2000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.extremes", *session.posargs)


@nox.session
def symbolic(session: nox.Session) -> None:
    """Run random functions with symbolic sizes against NumPy (`-- --count 500 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.symbolic", *session.posargs)


@nox.session
def ragged(session: nox.Session) -> None:
    """Run random programs over ragged sizes on processors (`-- --count 500 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.ragged", *session.posargs)


@nox.session
@nox.parametrize("device", DEVICES)
def conformance(session: nox.Session, device: str) -> None:
    """Prove what a device claims; `python docs/generate_conformance.py` writes the tables."""
    install(session)
    session.run("tinycore", "conformance", device, *session.posargs)


@nox.session
@nox.parametrize("device", [*DEVICES, *PLAYED])
def tensors(session: nox.Session, device: str) -> None:
    """Test tensors and layers on one device, all of it: an hour on CL, half of one on WEBGPU."""
    install(session)
    session.env["STANDIN" if device in PLAYED else "TENSOR_TESTS"] = device
    session.run("pytest", "tests/unit/tensor", "tests/unit/nn", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Put random faults into the core; tests should notice 97 % (`-- --seed 1 --count 200`)."""
    install(session)
    session.run("python", "-m", "tests.faults", *session.posargs)


@nox.session
def cards(session: nox.Session) -> None:
    """Judge plans for graphics cards by their loops (`-- --card H200 --output page.md`)."""
    install(session)
    session.run("python", "-m", "benchmarks.cards", *session.posargs)


@nox.session
def grade(session: nox.Session) -> None:
    """Grade the conformance suite by the faults of the reference accelerator."""
    install(session)
    session.run("python", "-m", "tiny_testing.grading", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, beside the hardware's limits and the peers (`-- --peers tinycore,numpy`: fewer)."""
    install(session)
    wanted = " ".join(session.posargs)
    for name, requirement in PEERS.items():
        if "--peers" not in wanted or name in wanted:
            session.install(*requirement)
    session.run("python", "benchmarks/run.py", *session.posargs)


@nox.session
def models(session: nox.Session) -> None:
    """Measure real models beside onnxruntime, torch and llama.cpp on one thread."""
    install(session)
    session.install("xllamacpp>=2026.10", *PEERS["torch"])
    session.run("python", "-m", "benchmarks.models", *session.posargs)


@nox.session
def peak(session: nox.Session) -> None:
    """Measure the peak memory of training steps beside their plans and torch's."""
    install(session)
    session.install(*PEERS["torch"])
    session.run("python", "-m", "benchmarks.peak", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site in build/site, run every example and follow every link."""
    install(session)
    session.install(tool("mkdocs-material"), tool("mkdocstrings-python"))
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
    session.run("pytest", "tests/test_docs.py", "tests/test_reference.py", *session.posargs)


LOAD_ENTRY_POINTS = """
import sys
from importlib.metadata import distribution

for entry in distribution(sys.argv[1]).entry_points:
    entry.load()
    print(f"{entry.group}: {entry.name} can be imported")
"""
"""A program that imports whatever a distribution declares."""
CONFORMANCE = """
import json, subprocess, sys
from importlib.metadata import distribution

listed = json.loads(subprocess.check_output(["tinycore", "devices", "--json"]))
found = {device["name"]: device for device in listed["devices"]}
for entry in distribution(sys.argv[1]).entry_points:
    if entry.group != "tinycore.backends":
        continue
    state, reason = found[entry.name]["state"], found[entry.name]["reason"]
    if entry.load().priority < 0:
        print(f"{entry.name} is used where it is named: its package's tests prove it", flush=True)
    elif state == "no-hardware":
        print(f"{entry.name} is not here: its conformance is not run", flush=True)
    elif state not in ("open", "ready"):
        sys.exit(f"{entry.name} is {state}: {reason}")
    elif subprocess.run(["tinycore", "doctor", entry.name]).returncode:
        sys.exit(f"{entry.name} does not compute")
    elif subprocess.run(["tinycore", "conformance", entry.name, "--level", sys.argv[2]]).returncode:
        sys.exit(f"{entry.name} does not conform up to level {sys.argv[2]}")
"""
"""A program that proves each device of a distribution which this machine has.

A negative priority is that of NULL, which computes nothing, and of RANK, which needs processes. Any
state but "there is no hardware" is a fault of the package, such as an API that this core lacks.
`doctor` compiles and runs a kernel, which the lower levels of conformance do not.
"""


def objections(package: str, tags: list[str]) -> list[str]:
    """Disagreements of version, changelog and tags of a package."""
    version = project(PACKAGES[package])["version"]
    changelog = (PACKAGES[package] / "CHANGELOG.md").read_text()
    heads = [line.split()[1] for line in changelog.splitlines() if line.startswith("## ")]
    found = [
        f"{package} is at {version}, but tagged {tag}"
        for tag in tags
        if tag.startswith(f"{package}-v") and tag != f"{package}-v{version}"
    ]
    if heads[:1] != [version]:
        found.append(f"{package} is at {version}, its changelog at {(heads or ['?'])[0]}")
    return found


def extras_of(package: str) -> list[str]:
    """The extras of the core that bring a package, as its users write them."""
    return [
        extra
        for extra, requirements in project(ROOT)["optional-dependencies"].items()
        if any(Requirement(one).name == package for one in requirements)
    ]


def compilers() -> list[str]:
    """Requirements of the build of a release: the clang that generates the CPU's thread pool."""
    stated = tomllib.loads((PACKAGES["tiny-cpu"] / "pyproject.toml").read_text())
    found: list[str] = stated["dependency-groups"]["release"]
    return found


def built(session: nox.Session) -> Path:
    """The folder dist/ with wheel and source archive of each package.

    Its constraints.txt names their versions: what an index has of these packages is older.
    """
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    session.install(tool("build"), tool("hatchling"), *compilers())
    build = ("python", "-m", "build", "--no-isolation", "--outdir", str(folder))
    for package in PACKAGES.values():
        session.run(*build, str(package), silent=True, env={"GENERATE_POOL": "1"})
    lines = [f"{name}=={project(place)['version']}\n" for name, place in PACKAGES.items()]
    (folder / "constraints.txt").write_text("".join(lines))
    return folder


def proven(session: nox.Session, package: str, extra: str, dist: Path, level: str) -> None:
    """Install one extra into an empty environment, import what it declares, and prove it."""
    place = Path(session.create_tmp()).resolve() / extra
    session.run("python", "-m", "venv", "--clear", str(place), silent=True)
    python = str(place / "bin" / "python")
    extras = ",".join(dict.fromkeys((extra, "testing")))
    session.run(
        *(python, "-m", "pip", "install", "-q", "--no-compile", f"tinycore[{extras}]"),
        *("--find-links", str(dist), "--constraint", str(dist / "constraints.txt")),
        external=True,
    )
    environment = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "TINYCORE_STRICT": "1"}
    with session.chdir(place):
        for name, program, words in (
            ("imports.py", LOAD_ENTRY_POINTS, [package]),
            ("conformance.py", CONFORMANCE, [package, level]),
        ):
            Path(name).write_text(program)
            session.run(python, name, *words, env=environment, external=True)


@nox.session
def release(session: nox.Session) -> None:
    """Build all packages into dist/ and prove each as users install it (`-- --level 2 tiny-cpu`).

    Of each package version, changelog and tag agree; `pip install "tinycore[EXTRA]"` into an empty
    environment brings it, all that it declares can be imported by this core (a backend that asks
    for a newer API cannot), and its devices conform where this machine has them.
    """
    words = argparse.ArgumentParser(prog="nox -s release --")
    words.add_argument("--level", default="1", help="of conformance (1)")
    words.add_argument("packages", nargs="*", help="all unless named")
    wanted = words.parse_args(session.posargs)
    packages = wanted.packages or list(PACKAGES)
    if unknown := set(packages) - set(PACKAGES):
        session.error(f"no package {', '.join(sorted(unknown))}; there are {', '.join(PACKAGES)}")
    tags = str(session.run("git", "tag", "--points-at", "HEAD", external=True, silent=True)).split()
    if wrong := [line for package in packages for line in objections(package, tags)]:
        session.error("; ".join(wrong))
    dist = built(session)
    extras = {package: extras_of(package) for package in packages} | {"tinycore": ["testing"]}
    pairs = [(package, extra) for package in packages for extra in extras[package]]
    for number, (package, extra) in enumerate(pairs, 1):
        session.log(f"{number} of {len(pairs)}: {package}, by tinycore[{extra}]")
        proven(session, package, extra, dist, wanted.level)
