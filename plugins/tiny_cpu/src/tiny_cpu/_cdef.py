"""Every C declaration the plugin uses, of which `_native.py` is made.

`_native.py` is cffi's out-of-line form. After a change run
`python -m tiny_testing.native` on this file; a test holds the two together.
"""

from typing import Final

__all__ = ["DECLARATIONS", "MODULE"]

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
    typedef int64_t (*pool_run_slice)(void *pool, uintptr_t entry, const char *buffers,
        const char *values, int64_t begin, int64_t extent, int64_t chunk);
    typedef void (*pool_run_many)(void *pool, void *records, int64_t count);

    /* Queues; see queue.c. Commands travel as bytes. */
    typedef uint64_t (*queue_bytes)(uint64_t capacity);
    typedef int64_t (*queue_start)(void *queue, void *pool, uint64_t capacity, int64_t spins,
        int64_t darwin);
    typedef uint64_t (*queue_submit)(void *queue, const char *commands, uint64_t count);
    typedef void (*queue_stop)(void *queue);
    typedef int64_t (*queue_await)(uintptr_t place, uint64_t value, int64_t spins, int64_t naps);

    typedef int64_t (*system_call)(int64_t number, int64_t first, int64_t second);
    typedef void (*clear_cache)(uintptr_t begin, uintptr_t end);
    typedef void (*invalidate_cache)(uintptr_t begin, size_t size);
"""
