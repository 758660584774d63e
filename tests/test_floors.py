"""The architecture, held by reading every import in the tree: floors, plugins, no backend's name.

The folders of `tinycore/` are floors; see docs/index.md. A file imports from lower floors and from
its own, never from a neighbor of the same height, and never inside a function, where no one looks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tinycore.config import CHANNELS, settings
from tinycore.uop.node import UOp

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "tinycore"

FLOORS: dict[str, tuple[float, str]] = {
    "_collector": (0, "foundation"),
    "_background": (0, "foundation"),
    "_deferred": (0, "foundation"),
    "_dtype": (0, "foundation"),
    "_folders": (0, "foundation"),
    "_locks": (0, "foundation"),
    "_lru": (0, "foundation"),
    "_processors": (0, "foundation"),
    "_progress": (0, "foundation"),
    "_signals": (0, "foundation"),
    "_stamp": (0, "foundation"),
    "_tracebacks": (0, "foundation"),
    "_setting": (0, "foundation"),
    "cache": (0, "foundation"),
    "config": (0, "foundation"),
    "dtype": (0, "foundation"),
    "errors": (0, "foundation"),
    "trace": (0, "foundation"),
    "uop": (1, "uop"),
    "device": (1, "device"),
    "plugin": (1, "device"),
    "render": (2, "render"),
    "schedule": (3, "schedule"),
    "lower": (3, "lower"),
    "tiling": (3.5, "tiling"),
    "engine": (4, "engine"),
    "tensor": (5, "tensor"),
    "array_api": (6, "public"),
    "linalg": (6, "public"),
    "nn": (6, "public"),
    "cli": (6, "public"),
    "helpers": (6, "public"),
    "groups": (6, "public"),
    "__init__": (6, "public"),
    "__main__": (6, "public"),
}
"""Each part of the core: how high it lies, and who its neighbors are not."""

FACE = {
    *("plugin", "render", "tiling", "uop", "dtype", "errors", "config", "trace", "cache"),
    "groups",
}
"""Modules of the core that a backend may import, and the core's own two backends as well."""

KIT = "tiny_testing"
"""The package that proves what the core promises, and so may import any of it."""

MODEL_PACKAGES = frozenset({"tiny_llm", "tiny_mpi", "tiny_onnx", "tiny_ray"})
"""Packages of models and of clusters: they are users of tensors and layers."""

USER_FACE = {"__init__", "nn", "dtype", "errors", "config", "plugin", "groups", "uop", "cli"}
"""Modules of the core that users, and so packages of models, import; `plugin` for its locks, `uop`
for the graph of a tensor, `cli` for the arguments and tables that commands share."""

OBSERVERS = {
    "tiny_viz": FACE | {"__init__", "_stamp", "cli", "device", "engine", "lower", "nn", "schedule"},
    "tiny_mpi": USER_FACE | {"engine"},
}
"""Packages that look at programs: they may import what they show, what they tell profilers, which
settings decide it, and `nn` to write files whole."""

DOOR = "tinycore.tensor"
"""The package whose own file lies above all floors: programs come in by it, no floor does."""

IMPORTS_BY_NAME = {"tinycore/_deferred.py"}
"""The one place that imports a module at run time: `deferred`."""

BACKENDS = frozenset(
    {"adreno", "amd", "amdgpu", "apple", "cl", "clang", "cuda", "dawn", "dsp", "gcc", "gpu", "gpus"}
    | {"hexagon", "hip", "hsa", "intel", "kfd", "llvmlite", "metal", "mps", "msl", "nv", "nvidia"}
    | {"nvk", "nvptx", "nvrtc", "opencl", "ptx", "qcom", "radeon", "rocm", "spirv", "sycl", "tpu"}
    | {"vulkan", "webgpu", "wgsl", "zig", "ziglang"}
)
"""Words that no code of the core may say. Text for people may: docstrings and comments are free."""

SHARED = frozenset({"cpu", "llvm"})
"""Words for a backend and for something else: the host's processor, a language the core writes.
No name or single word may contain them but those below; a message of several words may."""

HOST_NAMES = frozenset(
    {"CPU_COUNT", "cpu_count", "from_cpu", "fromCPU", "to_cpu", "toCPU"}
    | {"cpu.max", "cpu/cpu.cfs_period_us", "cpu/cpu.cfs_quota_us"}
)
"""Texts that are about the processor this program runs on."""

LANGUAGES = {"tinycore.render.llvm", "tinycore.render.llvm_types", "tinycore.render.llvm_writer"}
"""The modules that write LLVM IR, whose names may be said."""

NAMES_OF_TORCH = "tinycore.tensor.interop.foreign_names"
"""The module that lists names of other libraries, such as torch's `is_cpu`."""

DEVICES = frozenset({"AMD", "CL", "CPU", "CUDA", "METAL", "NV", "QCOM", "WEBGPU"})
"""Names that a string may not consist of, so that nothing can be compared with them."""


class Import(NamedTuple):
    """One module that a file imports, and where."""

    module: str
    line: int
    inside_function: bool


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path, top: Path) -> str:
    """The dotted name of a file below the folder that holds its package."""
    parts = path.relative_to(top).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


BY_NAME = frozenset({"deferred", "Deferred", "module_named"})
"""Functions that import the module which their argument names, at first use."""

UPWARD = frozenset(
    {
        ("tinycore.tensor.interop.interop", "tinycore.helpers"),  # downloads for `Tensor.from_url`
        ("tinycore.tensor.tensor", "tinycore.array_api"),  # `Tensor.__array_namespace__`
    }
)
"""Modules that the floor of tensors asks for by name, though they lie above it."""


def named_module(node: ast.AST) -> str:
    """The module that a call names for a later import; "" for anything else."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.func, ast.Name):
        return ""
    reference = node.args[0]
    if node.func.id not in BY_NAME or not isinstance(reference, ast.Constant):
        return ""
    return str(reference.value).partition(":")[0]


def imports_of(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Every module of tinycore that a source imports, now or by name at first use."""

    def visit(node: ast.AST, inside: bool) -> Iterator[Import]:
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, inside)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: None if is_package else -1]
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            if origin == "tinycore":
                for alias in node.names:
                    yield Import(f"tinycore.{alias.name}", node.lineno, inside)
            else:
                yield Import(origin, node.lineno, inside)
        elif isinstance(node, ast.Call) and (named := named_module(node)):
            yield Import(named, node.lineno, False)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    for found in visit(ast.parse(source), False):
        if found.module.split(".")[0] == "tinycore":
            yield found


def part_of(module: str) -> str:
    """The part of the core that a module belongs to; names of the package itself are `__init__`."""
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else "__init__"
    return name if name in FLOORS or name == "builtin" else "__init__"


def objection(module: str, found: Import) -> str | None:
    """Why `module` of the core may not have this import, None when it may."""
    here, there = "__init__" if module == DOOR else part_of(module), part_of(found.module)
    if found.inside_function:
        return "inside a function; import it above, or defer it by tinycore.plugin.deferred"
    if here == there or (module, found.module) in UPWARD:
        return None
    if here == "builtin":
        return None if there in FACE else f"a backend imports only {', '.join(sorted(FACE))}"
    if there == "builtin":
        return "the core's own backends are found by their entry points"
    (height, group), (other_height, other_group) = FLOORS[here], FLOORS[there]
    if other_height > height:
        return f"{there} lies above {here}"
    if other_height == height and other_group != group:
        return f"{there} lies beside {here}"
    return None


# The tree


def test_every_part_of_the_core_has_a_floor() -> None:
    parts = {path.relative_to(CORE).parts[0].removesuffix(".py") for path in python_files(CORE)}

    assert parts - {"builtin"} <= FLOORS.keys()


@pytest.mark.parametrize("path", python_files(CORE), ids=shown)
def test_a_file_imports_from_lower_floors_only(path: Path) -> None:
    module = module_of(path, ROOT)
    wrong = [
        f"{shown(path)}:{found.line}: imports {found.module}: {why}"
        for found in imports_of(path.read_text("utf-8"), module, path.name == "__init__.py")
        if (why := objection(module, found))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_floor_comes_in_by_the_door() -> None:
    """Files of the package of tensors import its modules, never names of its `__init__`."""
    folder = CORE / "tensor"
    names = {
        f"{shown(path)}: {alias.name}"
        for path in python_files(folder)
        if path != folder / "__init__.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == DOOR
        for alias in node.names
        if not (folder / f"{alias.name}.py").exists() and not (folder / alias.name).is_dir()
    }
    assert not names


PLUGIN_FILES = [
    path for source in sorted(ROOT.glob("plugins/*/src")) for path in python_files(source)
]


BACKEND_FILES = [path for path in PLUGIN_FILES if path.relative_to(ROOT).parts[1] != KIT]


@pytest.mark.parametrize("path", BACKEND_FILES, ids=shown)
def test_a_plugin_imports_the_face_of_the_core_only(path: Path) -> None:
    module = module_of(path, next(above for above in path.parents if above.name == "src"))
    package = path.relative_to(ROOT).parts[1]
    face = OBSERVERS.get(package, USER_FACE if package in MODEL_PACKAGES else FACE)
    wrong = [
        f"{shown(path)}:{found.line}: imports {found.module}"
        for found in imports_of(path.read_text("utf-8"), module, path.name == "__init__.py")
        if part_of(found.module) not in face or found.inside_function
    ]
    assert not wrong, "\n".join(wrong)


PLUGIN_TESTS = [
    path for tests in sorted(ROOT.glob("plugins/*/tests")) for path in python_files(tests)
]


def test_a_plugins_tests_import_nothing_of_the_cores_tests() -> None:
    """They run beside a built wheel of the core; what both need is in tests/support."""
    found = {
        shown(path)
        for path in PLUGIN_TESTS
        if re.search(r"^\s*(from|import) tests\b", path.read_text("utf-8"), re.MULTILINE)
    }
    assert not found


@pytest.mark.slow
def test_modules_are_imported_by_name_in_one_place_only() -> None:
    users = set()
    for path in python_files(CORE):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            if name in {"import_module", "__import__"}:
                users.add(shown(path))
    assert users <= IMPORTS_BY_NAME


def test_every_setting_is_read_somewhere() -> None:
    files = [*python_files(CORE), *PLUGIN_FILES]
    code = "".join(path.read_text("utf-8") for path in files)
    names = {entry.name for entry in settings}

    read = {name for name in names if re.search(rf'ettings\.{name}\b|values\["{name}"\]', code)}

    assert read == names


def test_every_trace_channel_is_made_somewhere() -> None:
    code = "".join(path.read_text("utf-8") for path in python_files(CORE))
    made = set(re.findall(r'Trace\("([a-z]+)"\)', code))

    assert made == CHANNELS.keys()


# Ways around the floors. Each list is of the day on which its test began: entries only leave it.


NAMED_LATER = frozenset(
    {
        ("device.discovery", "builtin.null"),
        ("device.discovery", "builtin.python"),
        ("engine.compile", "lower.pipeline"),
        ("schedule.disk", "uop.parse"),
        ("tensor.methods.custom", "schedule.kernel"),
        ("tensor.graph", "schedule.shard"),
        ("tensor.interop.interop", "helpers"),
        ("tensor.methods.pixels", "schedule.limits"),
        ("tensor.storage.realization", "schedule.canonical"),
        ("tensor.storage.realization", "schedule.retention"),
        ("tensor.storage.realize", "device.discovery"),  # tensors import no devices
        ("tensor.runtime", "engine.engine"),
        ("tensor.tensor", "array_api"),
    }
)
"""Modules that another part imports at first use: an import that no tool shows."""

FILLED_FROM_ABOVE = frozenset(
    {
        ("cli.tune", "engine.counters:profilers"),
        ("engine.captured_step", "device.registry:at_close"),
        ("engine.compile", "device.registry:at_close"),
        ("engine.engine", "device.registry:at_close"),
        ("engine.engine", "schedule.device_memory:buffers"),
        ("tensor.capture.proxies", "schedule.device_memory:buffers"),
        ("tensor.capture.recorded_call", "schedule.device_memory:buffers"),
        ("tensor.tensor", "_setting:process"),
    }
)
"""Global collections of a floor that a higher one fills, by which the lower one calls it."""

SLOTS_OF_HIGHER_FLOORS = frozenset({"_past"})
"""Slots of a node that no module of its floor reads."""

MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "remove"}
    | {"setdefault", "update"}
)
LATER = re.compile(r"tinycore[.\w]+:\w|module_named")
WHERE = re.compile(r"(tinycore(?:\.\w+)+):\w+")
"""Reference to what a module has, as `deferred` and entry points take it."""


def named_later(source: str) -> Iterator[str]:
    """Modules of tinycore that a source names for a later import, in a call or in a table."""
    if not LATER.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = WHERE.fullmatch(node.value)
            named = found[1] if found else ""
        else:
            named = named_module(node)
        if named.split(".")[0] == "tinycore":
            yield named


def imported_names(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """Module of tinycore, and the name there, that each imported name of a source stands for."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if node.module.split(".")[0] == "tinycore"
    }


def filled(source: str) -> Iterator[tuple[str, str]]:
    """Module and name of each imported collection that a source adds to or removes from."""
    tree = ast.parse(source)
    origin = imported_names(tree)
    for node in ast.walk(tree):
        changed: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = [node.func.value] if node.func.attr in MUTATORS else []
        elif isinstance(node, ast.Assign | ast.Delete):
            changed = [t.value for t in node.targets if isinstance(t, ast.Subscript)]
        elif isinstance(node, ast.AugAssign):
            changed = [node.target.value if isinstance(node.target, ast.Subscript) else node.target]
        for target in changed:
            if isinstance(target, ast.Name) and target.id in origin:
                yield origin[target.id]


def without_top(module: str) -> str:
    """A module's name below `tinycore`."""
    return module.removeprefix("tinycore.")


def test_modules_named_for_a_later_import_are_known() -> None:
    found = {
        (without_top(module), without_top(named))
        for path in python_files(CORE)
        for module in [module_of(path, ROOT)]
        for named in named_later(path.read_text("utf-8"))
        if part_of(named) != part_of(module) and FLOORS.get(part_of(module), (0, ""))[0] < 6
    }
    assert found == NAMED_LATER


@pytest.mark.slow
def test_collections_that_a_higher_floor_fills_are_known() -> None:
    found = {
        (without_top(module), f"{without_top(owner)}:{name}")
        for path in python_files(CORE)
        for module in [module_of(path, ROOT)]
        for owner, name in filled(path.read_text("utf-8"))
        if part_of(owner) != part_of(module)
    }
    assert found == FILLED_FROM_ABOVE


def test_slots_of_nodes_that_belong_to_higher_floors_are_known() -> None:
    read = {
        node.attr
        for path in python_files(CORE / "uop")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert {slot for slot in UOp.__slots__ if slot[:2] != "__"} - read == SLOTS_OF_HIGHER_FLOORS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f = deferred('tinycore.lower.plan:f')", "tinycore.lower.plan"),
        ("TABLE = {'a': 'tinycore.lower.plan:f'}", "tinycore.lower.plan"),
    ],
)
def test_a_module_named_later_is_found(source: str, expected: str) -> None:
    assert set(named_later(source)) == {expected}


@pytest.mark.parametrize("change", ["planners.append(f)", "planners['a'] = f", "del planners[0]"])
def test_a_collection_that_is_filled_is_found(change: str) -> None:
    source = f"from tinycore.schedule.chains import planners\ndef f():\n    {change}"

    assert list(filled(source)) == [("tinycore.schedule.chains", "planners")]


# No backend's name


PROTOCOLS = frozenset({"__cuda_array_interface__"})
"""Attributes by which libraries of Python find each other's memory: their names are not ours."""


@cache
def words_of(text: str) -> frozenset[str]:
    """The words of an identifier or a text, in lower case: `NvDevice` and `nv_device` are two."""
    if text in PROTOCOLS:
        return frozenset()
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return frozenset(word.lower() for word in re.split(r"[^A-Za-z]+", parted))


def backend_names_in(source: str) -> Iterator[tuple[int, str]]:
    """Places where code, that is neither comment nor docstring, names a backend."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        texts = [getattr(node, slot, None) for slot in ("id", "attr", "name", "arg", "module")]
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            texts.append(node.value)
            if node.value in DEVICES:
                yield line, node.value
        for text in texts:
            if isinstance(text, str):
                yield from ((line, word) for word in words_of(text) & BACKENDS)
                if text not in HOST_NAMES | LANGUAGES and " " not in text:
                    yield from ((line, word) for word in words_of(text) & SHARED)
                if "tiny_" in text:
                    yield line, text


@pytest.mark.parametrize("path", python_files(CORE), ids=shown)
def test_the_core_names_no_backend(path: Path) -> None:
    module = module_of(path, ROOT)
    said = {"llvm"} if module in LANGUAGES else {"cpu"} if module == NAMES_OF_TORCH else set()
    found = [
        f"{shown(path)}:{line}: {word}"
        for line, word in backend_names_in(path.read_text("utf-8"))
        if word not in said
    ]
    assert not found, "\n".join(found)


# The test itself


@pytest.mark.parametrize(
    ("module", "source", "why"),
    [
        ("tinycore.uop.node", "from tinycore.tensor import Tensor", "tensor lies above uop"),
        ("tinycore.uop.node", "import tinycore.device", "device lies beside uop"),
        ("tinycore.lower.tile", "from tinycore import schedule", "schedule lies beside lower"),
        ("tinycore.engine.run", "from tinycore import Tensor", "__init__ lies above engine"),
        ("tinycore.engine.run", "from ..tensor import grad", "tensor lies above engine"),
        ("tinycore.engine.run", "def f():\n  from tinycore.uop import UOp", "inside a function"),
        ("tinycore.engine.run", "import tinycore.builtin.null", "found by their entry points"),
        ("tinycore.builtin.null", "import tinycore.engine", "a backend imports only"),
        ("tinycore.uop.node", "f = deferred('tinycore.tensor.core:f')", "tensor lies above uop"),
        ("tinycore.lower.tile", "f = deferred('tinycore.schedule.kernel:f')", "lies beside lower"),
        ("tinycore.engine.run", "f = deferred('tinycore.lower.pipeline:lower')", None),
        ("tinycore.uop.node", "from tinycore.dtype import DType", None),
        ("tinycore.uop.node", "from .op import Op", None),
        ("tinycore.plugin", "from tinycore.device.backend import Backend", None),
        ("tinycore.builtin.null", "from tinycore.plugin import Backend", None),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str, why: str | None) -> None:
    (found,) = imports_of(source, module)
    told = objection(module, found)

    assert told == why or (why and told and why in told)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("if device == 'CPU': pass", "CPU"),
        ("class MetalDevice: pass", "metal"),
        ("import tiny_cpu", "tiny_cpu"),
        ("x = renderer.is_cuda", "cuda"),
        ("x = renderer.is_cpu", "cpu"),
        ("x = device.startswith('CPU:')", "cpu"),
        ("def open_nv(index): pass", "nv"),
        ("from tinycore.render.cl import Cl", "cl"),
        ("x = toolchain.name == 'CLANG'", "clang"),
        ("class LlvmCompiler: pass", "llvm"),
        ("print('install it for WebGPU' if nvrtc else '')", "nvrtc"),
    ],
)
def test_a_backends_name_is_found(source: str, word: str) -> None:
    assert word in {word for _, word in backend_names_in(source)}


def test_text_for_people_may_name_backends() -> None:
    source = '"""For AMD and CUDA."""\n\ndef f():\n    """As METAL does."""  # or QCOM\n'
    message = "raise SettingError('Devices are named as in CPU or CPU:1.')"

    assert not list(backend_names_in(source))
    assert not list(backend_names_in(message))
