"""C declarations of `_native.py`: system calls of a driver.

After a change run `python -m tiny_testing.native` on this file; a test holds the two together.
"""

from typing import Final

MODULE: Final = "tiny_hcq._native"

DECLARATIONS: Final = """
    void *mmap(void *address, size_t size, int protection, int flags, int file, int64_t offset);
    int munmap(void *address, size_t size);
    int ioctl(int file, unsigned long request, ...);
"""
