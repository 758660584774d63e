"""The messages that are sent: what each returns and takes, by its selector.

Types are those of Apple's headers (Metal.framework, Foundation.framework of macOS 14). On arm64 a
function that takes a fixed number of arguments must not be called as one that takes any: each
message is sent through `objc_msgSend` as the function that it is.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MESSAGES", "prototype"]

MESSAGES: Final[dict[str, tuple[str, ...]]] = {
    # NSObject
    "alloc": ("id",),
    "init": ("id",),
    "retain": ("id",),
    "release": ("void",),
    "respondsToSelector:": ("BOOL", "SEL"),
    # NSString, NSError, NSArray
    "stringWithUTF8String:": ("id", "const char *"),
    "UTF8String": ("const char *",),
    "localizedDescription": ("id",),
    "domain": ("id",),
    "code": ("NSInteger",),
    "count": ("NSUInteger",),
    "objectAtIndex:": ("id", "NSUInteger"),
    # MTLDevice
    "name": ("id",),
    "registryID": ("uint64_t",),
    "hasUnifiedMemory": ("BOOL",),
    "maxBufferLength": ("NSUInteger",),
    "maxThreadgroupMemoryLength": ("NSUInteger",),
    "supportsFamily:": ("BOOL", "NSInteger"),
    "newCommandQueue": ("id",),
    "newBufferWithLength:options:": ("id", "NSUInteger", "NSUInteger"),
    "newBufferWithBytesNoCopy:length:options:deallocator:": (
        *("id", "void *", "NSUInteger", "NSUInteger", "id"),
    ),
    "newLibraryWithSource:options:error:": ("id", "id", "id", "id *"),
    "newComputePipelineStateWithDescriptor:options:reflection:error:": (
        *("id", "id", "NSUInteger", "id *", "id *"),
    ),
    "newSharedEvent": ("id",),
    "newIndirectCommandBufferWithDescriptor:maxCommandCount:options:": (
        *("id", "id", "NSUInteger", "NSUInteger"),
    ),
    # MTLCompileOptions
    "setFastMathEnabled:": ("void", "BOOL"),
    "setMathMode:": ("void", "NSInteger"),
    "setLanguageVersion:": ("void", "NSUInteger"),
    # MTLLibrary, MTLComputePipelineDescriptor, MTLComputePipelineState
    "newFunctionWithName:": ("id", "id"),
    "setComputeFunction:": ("void", "id"),
    "setMaxTotalThreadsPerThreadgroup:": ("void", "NSUInteger"),
    "setSupportIndirectCommandBuffers:": ("void", "BOOL"),
    "maxTotalThreadsPerThreadgroup": ("NSUInteger",),
    # MTLBuffer
    "contents": ("void *",),
    "length": ("NSUInteger",),
    "storageMode": ("NSUInteger",),
    # MTLSharedEvent
    "setSignaledValue:": ("void", "uint64_t"),
    # MTLCommandQueue, MTLCommandBuffer
    "commandBuffer": ("id",),
    "computeCommandEncoder": ("id",),
    "blitCommandEncoder": ("id",),
    "commit": ("void",),
    "waitUntilCompleted": ("void",),
    "status": ("NSUInteger",),
    "error": ("id",),
    "GPUStartTime": ("double",),
    "GPUEndTime": ("double",),
    "encodeSignalEvent:value:": ("void", "id", "uint64_t"),
    "encodeWaitForEvent:value:": ("void", "id", "uint64_t"),
    # MTLComputeCommandEncoder, MTLBlitCommandEncoder
    "setComputePipelineState:": ("void", "id"),
    "setBuffer:offset:atIndex:": ("void", "id", "NSUInteger", "NSUInteger"),
    "setBytes:length:atIndex:": ("void", "const void *", "NSUInteger", "NSUInteger"),
    "dispatchThreadgroups:threadsPerThreadgroup:": ("void", "MTLSize", "MTLSize"),
    "useResources:count:usage:": ("void", "id *", "NSUInteger", "NSUInteger"),
    "executeCommandsInBuffer:withRange:": ("void", "id", "NSRange"),
    "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:": (
        *("void", "id", "NSUInteger", "id", "NSUInteger", "NSUInteger"),
    ),
    "endEncoding": ("void",),
    # MTLIndirectCommandBufferDescriptor, MTLIndirectCommandBuffer, MTLIndirectComputeCommand
    "setCommandTypes:": ("void", "NSUInteger"),
    "setInheritBuffers:": ("void", "BOOL"),
    "setInheritPipelineState:": ("void", "BOOL"),
    "setMaxKernelBufferBindCount:": ("void", "NSUInteger"),
    "indirectComputeCommandAtIndex:": ("id", "NSUInteger"),
    "setKernelBuffer:offset:atIndex:": ("void", "id", "NSUInteger", "NSUInteger"),
    "concurrentDispatchThreadgroups:threadsPerThreadgroup:": ("void", "MTLSize", "MTLSize"),
    "setBarrier": ("void",),
}
"""By selector: what is returned, then what is taken."""


def prototype(selector: str) -> str:
    """The C type of the function that a message is sent through: `void(*)(id, SEL, NSUInteger)`."""
    returned, *taken = MESSAGES[selector]
    return f"{returned}(*)({', '.join(('id', 'SEL', *taken))})"
