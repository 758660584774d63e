"""A contributor's guide that runs: `nox -l` lists what one does here, `nox -s unit` does it.

Sessions install the packages from this tree, editable. tox.ini is for the other question, whether
the built wheels work: alone, together, and on every Python.
"""

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
FRONTEND = ["--device", "CPU:LLVM"]
"""Random programs of the frontend: a clang per kernel takes 3.5 times the processor time."""
DEVICES = ["PYTHON", "CPU:CLANG", "CPU:LLVM", "CL", "CUDA", "CUDA:PTX", "WEBGPU"]
"""Devices that docs/generate_conformance.py writes tables of; CUDA here means a card."""
PLAYED = ["AMD", "AMD-GFX1201", "AMD-GFX942", "AMD:HIP", "METAL", "QCOM:IR3"]
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
    """The requirement on a tool, as the `dev` extra states it."""
    stated: list[str] = project(ROOT)["optional-dependencies"]["dev"]
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
    session.run("python", "-m", "tests.fuzz.captures", *FRONTEND, *session.posargs)


@nox.session
def threads(session: nox.Session) -> None:
    """Let threads capture random functions at the same time (`-- --count 500 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.threads", *FRONTEND, *session.posargs)


@nox.session
def files(session: nox.Session) -> None:
    """Load damaged files of each format (`-- --count 70000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.files", *session.posargs)


@nox.session
def writes(session: nox.Session) -> None:
    """Run random programs of views and writes against a model (`-- --count 20000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.writes", *FRONTEND, *session.posargs)


@nox.session
def caches(session: nox.Session) -> None:
    """Run random pairs of related programs over one cache (`-- --count 5000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.caches", *FRONTEND, *session.posargs)


@nox.session
def signals(session: nox.Session) -> None:
    """Run random programs whose signal handlers read tensors (`-- --count 500 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.signals", *FRONTEND, *session.posargs)


@nox.session
def slopes(session: nox.Session) -> None:
    """Take random gradients through writes, and torch's (`-- --count 2000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.slopes", *FRONTEND, *session.posargs)


@nox.session
def extremes(session: nox.Session) -> None:
    """Take random gradients of extremes over computed values (`-- --count 2000 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.extremes", *session.posargs)


@nox.session
def symbolic(session: nox.Session) -> None:
    """Run random functions with symbolic sizes against NumPy (`-- --count 500 --seed 0`)."""
    install(session)
    session.run("python", "-m", "tests.fuzz.symbolic", *FRONTEND, *session.posargs)


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
def peak(session: nox.Session) -> None:
    """Measure the peak memory of training steps beside their plans and torch's."""
    install(session)
    session.install(*PEERS["torch"])
    session.run("python", "-m", "benchmarks.peak", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Run every example in the documents and follow every link between them."""
    install(session)
    session.run("pytest", "tests/test_docs.py", *session.posargs)


@nox.session
@nox.parametrize("package", list(PACKAGES))
def build(session: nox.Session, package: str) -> None:
    """Build a package's wheel and source archive into dist/."""
    session.install(tool("build"))
    session.run("python", "-m", "build", "--outdir", "dist", str(PACKAGES[package]))


LOAD_ENTRY_POINTS = """
import sys
from importlib.metadata import distribution

for entry in distribution(sys.argv[1]).entry_points:
    entry.load()
    print(f"{entry.group}: {entry.name} can be imported")
"""
"""A program that imports whatever a distribution declares."""


def with_own_requirements(package: str) -> list[str]:
    """The core, and all packages of this tree that a package needs, itself the last.

    What an index has of them is older: a release is checked with what it is released with.
    """
    found: list[str] = []
    for requirement in project(PACKAGES[package])["dependencies"]:
        name = Requirement(requirement).name.replace("_", "-").lower()
        if name in PACKAGES:
            found += with_own_requirements(name)
    return list(dict.fromkeys([*found, package]))


@nox.session
@nox.parametrize("package", list(PACKAGES))
def release_check(session: nox.Session, package: str) -> None:
    """Check that version, changelog and tag agree, and that the wheel installs and runs alone."""
    version = project(PACKAGES[package])["version"]
    heads = [
        line.split()[1]
        for line in (PACKAGES[package] / "CHANGELOG.md").read_text().splitlines()
        if line.startswith("## ")
    ]
    if not heads or heads[0] != version:
        session.error(f"{package} is at {version}, its changelog at {heads[0] if heads else '?'}")
    tags = str(session.run("git", "tag", "--points-at", "HEAD", external=True, silent=True)).split()
    wrong = [
        tag for tag in tags if tag.startswith(f"{package}-v") and tag != f"{package}-v{version}"
    ]
    if wrong:
        session.error(f"{package} is at {version}, but tagged {wrong[0]}")
    folder = Path(session.create_tmp()).resolve() / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    session.install(tool("build"))
    for name in with_own_requirements(package):
        session.run(
            "python", "-m", "build", "--wheel", "--outdir", str(folder), str(PACKAGES[name])
        )
    session.install("--force-reinstall", *map(str, sorted(folder.glob("*.whl"))))
    session.chdir(folder)
    session.run("python", "-c", LOAD_ENTRY_POINTS, package)
    session.run("tinycore", "devices", env={"TINYCORE_STRICT": "1"})
