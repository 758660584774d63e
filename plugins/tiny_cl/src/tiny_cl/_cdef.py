"""Every C declaration the plugin uses, and the generator of `_native.py` from them.

`_native.py` is cffi's out-of-line form: importing it takes a millisecond, where parsing the text
below would take thirty. Run `python -m tiny_cl._cdef` after a change; a test holds the two
together.
"""

import ast
import string
from pathlib import Path
from typing import Final

__all__ = ["DECLARATIONS", "MODULE", "generate"]

MODULE: Final = "tiny_cl._native"

DECLARATIONS: Final = """
    typedef int32_t cl_int;
    typedef uint32_t cl_uint;
    typedef uint64_t cl_ulong;
    typedef struct platform_s *cl_platform_id;
    typedef struct device_s *cl_device_id;
    typedef struct context_s *cl_context;
    typedef struct queue_s *cl_command_queue;
    typedef struct memory_s *cl_mem;
    typedef struct program_s *cl_program;
    typedef struct kernel_s *cl_kernel;
    typedef struct event_s *cl_event;

    cl_int clGetPlatformIDs(cl_uint room, cl_platform_id *platforms, cl_uint *count);
    cl_int clGetPlatformInfo(
        cl_platform_id platform, cl_uint name, size_t room, void *value, size_t *size);
    cl_int clGetDeviceIDs(cl_platform_id platform, cl_ulong kind, cl_uint room,
        cl_device_id *devices, cl_uint *count);
    cl_int clGetDeviceInfo(
        cl_device_id device, cl_uint name, size_t room, void *value, size_t *size);

    cl_context clCreateContext(const intptr_t *properties, cl_uint count,
        const cl_device_id *devices, void *notify, void *data, cl_int *status);
    cl_command_queue clCreateCommandQueue(
        cl_context context, cl_device_id device, cl_ulong properties, cl_int *status);
    cl_int clReleaseCommandQueue(cl_command_queue queue);
    cl_int clFlush(cl_command_queue queue);
    cl_int clFinish(cl_command_queue queue);

    cl_mem clCreateBuffer(
        cl_context context, cl_ulong flags, size_t size, void *host, cl_int *status);
    cl_int clRetainMemObject(cl_mem memory);
    cl_int clReleaseMemObject(cl_mem memory);
    cl_int clGetMemObjectInfo(
        cl_mem memory, cl_uint name, size_t room, void *value, size_t *size);
    cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem memory, cl_uint blocking,
        size_t start, size_t size, void *host, cl_uint waits, const cl_event *wait,
        cl_event *event);
    cl_int clEnqueueWriteBuffer(cl_command_queue queue, cl_mem memory, cl_uint blocking,
        size_t start, size_t size, const void *host, cl_uint waits, const cl_event *wait,
        cl_event *event);
    void *clSVMAlloc(cl_context context, cl_ulong flags, size_t size, cl_uint alignment);
    void clSVMFree(cl_context context, void *pointer);

    cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
        const size_t *lengths, cl_int *status);
    cl_program clCreateProgramWithBinary(cl_context context, cl_uint count,
        const cl_device_id *devices, const size_t *lengths, const unsigned char **binaries,
        cl_int *each, cl_int *status);
    cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices,
        const char *options, void *notify, void *data);
    cl_int clGetProgramInfo(
        cl_program program, cl_uint name, size_t room, void *value, size_t *size);
    cl_int clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_uint name,
        size_t room, void *value, size_t *size);
    cl_int clReleaseProgram(cl_program program);

    cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *status);
    cl_int clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_uint name,
        size_t room, void *value, size_t *size);
    cl_int clSetKernelArg(cl_kernel kernel, cl_uint position, size_t size, const void *value);
    cl_int clReleaseKernel(cl_kernel kernel);
    cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint axes,
        const size_t *start, const size_t *global, const size_t *local, cl_uint waits,
        const cl_event *wait, cl_event *event);
    cl_int clWaitForEvents(cl_uint count, const cl_event *events);
    cl_int clGetEventProfilingInfo(
        cl_event event, cl_uint name, size_t room, void *value, size_t *size);
    cl_int clReleaseEvent(cl_event event);
"""


def generate(target: Path) -> None:
    """Write the module for DECLARATIONS to `target`."""
    from cffi import FFI  # noqa: PLC0415  its parser is needed here only

    ffi = FFI()
    ffi.cdef(DECLARATIONS)
    ffi.set_source(MODULE, None)
    ffi.emit_python_code(str(target))
    made = _formatted(target.read_text(encoding="utf-8"))
    target.write_text("# ruff: noqa\n# mypy: ignore-errors\n" + made, encoding="utf-8")


def _formatted(made: str) -> str:
    """cffi's module, which is one call, in the layout that the tree's formatter keeps."""
    head, _, text = made.partition("ffi = ")
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    rows = [_literal(value) for value in call.args]
    rows += [f"{keyword.arg}={_literal(keyword.value)}" for keyword in call.keywords]
    arguments = "".join(f"    {row},\n" for row in rows)
    return f"{head}ffi = {ast.unparse(call.func)}(\n{arguments})\n"


def _literal(node: ast.expr) -> str:
    """A constant: strings in double quotes, the elements of a tuple on a line each."""
    if isinstance(node, ast.Tuple) and len(node.elts) == 1:
        return f"({_literal(node.elts[0])},)"
    if isinstance(node, ast.Tuple):
        return "(\n" + "".join(f"        {_literal(item)},\n" for item in node.elts) + "    )"
    value = ast.literal_eval(node)
    if isinstance(value, bytes):
        plain = frozenset(string.ascii_letters + string.digits + "_")
        shown = (chr(byte) if chr(byte) in plain else f"\\x{byte:02x}" for byte in value)
        return 'b"' + "".join(shown) + '"'
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    generate(Path(__file__).with_name("_native.py"))
