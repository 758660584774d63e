"""Every C declaration the plugin uses, of which `_native.py` is made.

`objc_msgSend` has no type of its own: `_messages.py` says which it is called with for each message.
A BOOL is a byte on every Mac. `_native.py` is cffi's out-of-line form. After a change run
`python -m tiny_testing.native` on this file; a test holds the two together.
"""

from typing import Final

__all__ = ["DECLARATIONS", "MODULE"]

MODULE: Final = "tiny_metal._native"

DECLARATIONS: Final = """
    typedef void *id;
    typedef void *SEL;
    typedef unsigned char BOOL;
    typedef long NSInteger;
    typedef unsigned long NSUInteger;
    typedef struct { NSUInteger width, height, depth; } MTLSize;
    typedef struct { NSUInteger location, length; } NSRange;

    id objc_getClass(const char *name);
    SEL sel_registerName(const char *name);
    void objc_msgSend(void);
    void *objc_autoreleasePoolPush(void);
    void objc_autoreleasePoolPop(void *pool);

    id MTLCreateSystemDefaultDevice(void);
    id MTLCopyAllDevices(void);
"""
