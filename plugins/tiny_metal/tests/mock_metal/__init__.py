"""Metal without macOS: its classes, made at run time on GNU's Objective-C runtime (libobjc4).

Messages go through an `objc_msgSend` of ours (`trampoline.c`) to methods in Python, by the types
that each method states for itself. Objects count their references, states are strict, command
buffers are executed by a thread of their queue, and kernels by `shader`.
"""
