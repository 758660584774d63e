"""Every C declaration the plugin uses, and the generator of `_native.py` from them.

`_native.py` is cffi's out-of-line form: importing it takes a millisecond, where parsing the text
below would take thirty. Run `python -m tiny_cpu._cdef` after a change; a test holds the two
together.
"""

import ast
import string
from pathlib import Path
from typing import Final

__all__ = ["DECLARATIONS", "MODULE", "generate"]

MODULE: Final = "tiny_cpu._native"

DECLARATIONS: Final = """
    void *mmap(void *address, size_t size, int protection, int flags, int file, int64_t offset);
    int munmap(void *address, size_t size);
    int mprotect(void *address, size_t size, int protection);
    int madvise(void *address, size_t size, int advice);
    int posix_memalign(void **result, size_t alignment, size_t size);
    void free(void *address);
    void *dlopen(const char *name, int mode);
    void *dlsym(void *library, const char *name);

    /* A kernel, and the pool's entries; see pool.c. Arrays of int64_t travel as bytes. */
    typedef void (*kernel_entry)(
        const char *buffers, const char *values, int64_t begin, int64_t end);
    typedef uint64_t (*pool_bytes)(void);
    typedef int64_t (*pool_start)(void *pool, int64_t workers, int64_t spins, int64_t darwin);
    typedef void (*pool_run)(void *pool, uintptr_t entry, const char *buffers, const char *values,
        int64_t extent, int64_t chunk);
    typedef void (*pool_run_many)(void *pool, void *records, int64_t count);

    /* Queues; see queue.c. Commands travel as bytes. */
    typedef uint64_t (*queue_bytes)(uint64_t capacity);
    typedef int64_t (*queue_start)(void *queue, void *pool, uint64_t capacity, int64_t spins,
        int64_t darwin);
    typedef uint64_t (*queue_submit)(void *queue, const char *commands, uint64_t count);
    typedef void (*queue_stop)(void *queue);
    typedef int64_t (*queue_await)(uintptr_t place, uint64_t value, int64_t spins, int64_t naps);

    typedef void (*clear_cache)(uintptr_t begin, uintptr_t end);
    typedef void (*invalidate_cache)(uintptr_t begin, size_t size);
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
