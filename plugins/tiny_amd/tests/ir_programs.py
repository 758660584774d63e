"""Functions of LLVM IR, compiled for a card of the emulator and for this machine."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import llvmlite.binding as llvm
import numpy
from code_object import compile_kernel, run
from emulator.dispatch import Emulator
from listings import DECODERS

Array = numpy.ndarray[Any, Any]
SEED = 20261122
COUNT = 256
ATTRIBUTES = " ".join(
    f'"amdgpu-no-{name}"'
    for name in (
        *("dispatch-ptr", "queue-ptr", "dispatch-id", "implicitarg-ptr", "workgroup-id-y"),
        *("workgroup-id-z", "workitem-id-y", "workitem-id-z", "lds-kernel-id", "heap-ptr"),
        *("multigrid-sync-arg", "hostcall-ptr", "default-queue", "completion-action"),
    )
)
NUMPY = {
    **{f"i{8 * n}": numpy.dtype(f"u{n}").type for n in (1, 2, 4, 8)},
    "half": numpy.float16,
    "float": numpy.float32,
    "double": numpy.float64,
}


def kernel(body: str, arguments: int = 2, more: str = "", size: int = 256) -> str:
    """A module with one kernel `k`: %i is the work-item of the grid, %t that of the group."""
    names = ", ".join(f"ptr addrspace(1) %p{n}" for n in range(arguments))
    return f"""
target triple = "amdgcn-amd-amdhsa"
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare void @llvm.amdgcn.s.barrier()
{more}
define amdgpu_kernel void @k({names}) #0 {{
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %s = mul i32 %g, {size}
  %i = add i32 %s, %t
{body}
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,1024" {ATTRIBUTES} }}
"""


def at(name: str, base: str, kind: str, index: str = "%i", space: int = 1) -> str:
    """The address of an element."""
    return f"%{name} = getelementptr {kind}, ptr addrspace({space}) {base}, i32 {index}\n"


def module_of(function: str) -> str:
    """A module that applies a function of two arguments to elements."""
    (kind,) = re.findall(r"define (\w+) @f", function)
    body = ""
    for n in range(2):
        body += at(f"a{n}", f"%p{n + 1}", kind)
        body += f"%v{n} = load {kind}, ptr addrspace(1) %a{n}\n"
    body += f"%r = call {kind} @f({kind} %v0, {kind} %v1)\n{at('o', '%p0', kind)}"
    return kernel(body + f"store {kind} %r, ptr addrspace(1) %o\n", 3, function)


def on_card(
    function: str, result: str, sources: list[str], *values: Array, arch: str = "gfx1100"
) -> tuple[Array, Emulator]:
    """Result of a function on the emulator, for each element."""
    body = ""
    for n, kind in enumerate(sources):
        body += at(f"a{n}", f"%p{n + 1}", kind)
        body += f"%v{n} = load {kind}, ptr addrspace(1) %a{n}\n"
    passed = ", ".join(f"{kind} %v{n}" for n, kind in enumerate(sources))
    body += f"%r = call {result} @f({passed})\n{at('o', '%p0', result)}"
    body += f"store {result} %r, ptr addrspace(1) %o\n"
    found: Array = numpy.zeros(COUNT, NUMPY[result])
    text = kernel(body, 1 + len(sources), function, 64)
    emulator = Emulator(decoder=DECODERS[arch])
    run(compile_kernel(text, arch), [found, *values], COUNT // 64, 64, emulator=emulator)
    return found, emulator


def on_processor(function: str, result: str, sources: list[str], *values: Array) -> Array:
    """Result of a function on this machine's processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    pointers = ", ".join(f"ptr %p{n}" for n in range(1 + len(sources)))
    loads = "".join(
        f"%a{n} = getelementptr {kind}, ptr %p{n + 1}, i64 %i\n%v{n} = load {kind}, ptr %a{n}\n"
        for n, kind in enumerate(sources)
    )
    passed = ", ".join(f"{kind} %v{n}" for n, kind in enumerate(sources))
    text = f"""{function}
define void @k({pointers}) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  {loads}
  %r = call {result} @f({passed})
  %o = getelementptr {result}, ptr %p0, i64 %i
  store {result} %r, ptr %o
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, {COUNT}
  br i1 %more, label %loop, label %end
end:
  ret void
}}"""
    module = llvm.parse_assembly(text)
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )
    found: Array = numpy.zeros(COUNT, NUMPY[result])
    with llvm.create_mcjit_compiler(module, machine) as engine:
        engine.finalize_object()
        address = engine.get_function_address("k")
        arrays = [found, *values]
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(address)(
            *(a.ctypes.data for a in arrays)
        )
    return found


def numbers(kind: str, generator: numpy.random.Generator) -> Array:
    """Random values of a type, with its special ones in front."""
    wanted = NUMPY[kind]
    if kind[0] != "i":
        special = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            numpy.inf,
            -numpy.inf,
            numpy.nan,
            3e-41,
            6e4,
            -0.3,
            0.5,
            2.5,
        ]
        values = generator.standard_normal(COUNT) * 10.0 ** generator.integers(-3, 4, COUNT)
        values[: len(special)] = special
        with numpy.errstate(all="ignore"):
            return values.astype(wanted)
    bounds = numpy.iinfo(wanted)
    values = generator.integers(0, bounds.max, COUNT, wanted, endpoint=True)
    values[::3] %= 100
    special = [0, 1, bounds.max, bounds.max // 2, bounds.max // 2 + 1, 7]
    values[: len(special)] = special
    return values


def same(found: Array, wanted: Array) -> None:
    """Equal bits; any NaN is like another, and zeros of either sign are alike."""
    if found.dtype.kind == "f":
        numpy.testing.assert_array_equal(found, wanted)
    else:
        assert found.tolist() == wanted.tolist()


def intrinsic(name: str, kind: str, count: int, tail: str = "") -> str:
    """A function that calls an intrinsic."""
    kinds = ", ".join([kind] * count)
    passed = ", ".join(f"{kind} %{'xyz'[i]}" for i in range(count))
    suffix = {"half": "f16", "float": "f32", "double": "f64"}.get(kind, kind)
    more = ", i1" if tail else ""
    return (
        f"declare {kind} @llvm.{name}.{suffix}({kinds}{more})\n"
        f"define {kind} @f({passed}) alwaysinline {{\n"
        f"%r = call {kind} @llvm.{name}.{suffix}({passed}{tail})\nret {kind} %r\n}}"
    )


def statement(text: str, result: str, sources: list[str]) -> str:
    """A function of one instruction or more; %x, %y and %z are its arguments."""
    passed = ", ".join(f"{kind} %{'xyz'[i]}" for i, kind in enumerate(sources))
    return f"define {result} @f({passed}) alwaysinline {{\n{text}\nret {result} %r\n}}"


SHARED = "@tile = internal addrspace(3) global [256 x i32] poison, align 16"


def reversed_in_shared(barrier: str) -> str:
    """A kernel that turns the words of a group of 64 around."""
    body = f"""{at("a", "%p1", "i32")} %v = load i32, ptr addrspace(1) %a
  {at("w", "@tile", "i32", "%t", 3)} store i32 %v, ptr addrspace(3) %w
  {barrier}
  %n = sub i32 63, %t
  {at("q", "@tile", "i32", "%n", 3)} %u = load i32, ptr addrspace(3) %q
  {at("o", "%p0", "i32")} store i32 %u, ptr addrspace(1) %o"""
    return kernel(body, 2, SHARED, 64)


BARRIER = """fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire"""
