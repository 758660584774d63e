"""Messages against Apple's declarations, and the mock's methods against both.

The declarations are those of Metal.framework and Foundation.framework (macOS 14 and 15), as far as
their messages are sent here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tiny_metal import _cdef, _native
from tiny_metal._messages import MESSAGES, prototype
from tiny_metal._native import ffi
from tiny_testing.native import write_native

DECLARED = """
+ (instancetype)alloc;
- (instancetype)init;
- (instancetype)retain;
- (oneway void)release;
- (BOOL)respondsToSelector:(SEL)aSelector;
+ (instancetype)stringWithUTF8String:(const char *)string;
- (const char *)UTF8String;
- (NSString *)localizedDescription;
- (NSErrorDomain)domain;
- (NSInteger)code;
- (NSUInteger)count;
- (id)objectAtIndex:(NSUInteger)index;
- (NSString *)name;
- (uint64_t)registryID;
- (BOOL)hasUnifiedMemory;
- (NSUInteger)maxBufferLength;
- (NSUInteger)maxThreadgroupMemoryLength;
- (BOOL)supportsFamily:(MTLGPUFamily)gpuFamily;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer length:(NSUInteger)length options:(MTLResourceOptions)options deallocator:(MTLDeallocator)deallocator;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor options:(MTLPipelineOption)options reflection:(MTLAutoreleasedComputePipelineReflection *)reflection error:(NSError **)error;
- (id<MTLSharedEvent>)newSharedEvent;
- (id<MTLIndirectCommandBuffer>)newIndirectCommandBufferWithDescriptor:(MTLIndirectCommandBufferDescriptor *)descriptor maxCommandCount:(NSUInteger)maxCount options:(MTLResourceOptions)options;
- (void)setFastMathEnabled:(BOOL)fastMathEnabled;
- (void)setMathMode:(MTLMathMode)mathMode;
- (void)setLanguageVersion:(MTLLanguageVersion)languageVersion;
- (id<MTLFunction>)newFunctionWithName:(NSString *)functionName;
- (void)setComputeFunction:(id<MTLFunction>)computeFunction;
- (void)setMaxTotalThreadsPerThreadgroup:(NSUInteger)maxTotalThreadsPerThreadgroup;
- (void)setSupportIndirectCommandBuffers:(BOOL)supportIndirectCommandBuffers;
- (NSUInteger)maxTotalThreadsPerThreadgroup;
- (void *)contents;
- (NSUInteger)length;
- (MTLStorageMode)storageMode;
- (void)setSignaledValue:(uint64_t)signaledValue;
- (id<MTLCommandBuffer>)commandBuffer;
- (id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (id<MTLBlitCommandEncoder>)blitCommandEncoder;
- (void)commit;
- (void)waitUntilCompleted;
- (MTLCommandBufferStatus)status;
- (NSError *)error;
- (CFTimeInterval)GPUStartTime;
- (CFTimeInterval)GPUEndTime;
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value;
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)threadgroupsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)useResources:(const id<MTLResource> *)resources count:(NSUInteger)count usage:(MTLResourceUsage)usage;
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)indirectCommandBuffer withRange:(NSRange)executionRange;
- (void)copyFromBuffer:(id<MTLBuffer>)sourceBuffer sourceOffset:(NSUInteger)sourceOffset toBuffer:(id<MTLBuffer>)destinationBuffer destinationOffset:(NSUInteger)destinationOffset size:(NSUInteger)size;
- (void)endEncoding;
- (void)setCommandTypes:(MTLIndirectCommandType)commandTypes;
- (void)setInheritBuffers:(BOOL)inheritBuffers;
- (void)setInheritPipelineState:(BOOL)inheritPipelineState;
- (void)setMaxKernelBufferBindCount:(NSUInteger)maxKernelBufferBindCount;
- (id<MTLIndirectComputeCommand>)indirectComputeCommandAtIndex:(NSUInteger)commandIndex;
- (void)setKernelBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)concurrentDispatchThreadgroups:(MTLSize)threadgroupsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)setBarrier;
"""  # noqa: E501  one declaration a line, as in the headers
PLAIN = {
    "oneway void": "void",
    "instancetype": "id",
    "CFTimeInterval": "double",
    "NSErrorDomain": "id",
    "MTLDeallocator": "id",  # our name of `void (^)(void *, NSUInteger)`, a block: an object
    "MTLGPUFamily": "NSInteger",
    "MTLMathMode": "NSInteger",
    "MTLAutoreleasedComputePipelineReflection *": "id *",
    **dict.fromkeys(
        "MTLResourceOptions MTLPipelineOption MTLLanguageVersion MTLStorageMode MTLResourceUsage "
        "MTLCommandBufferStatus MTLIndirectCommandType".split(),
        "NSUInteger",
    ),
}
"""C equivalents of Apple's types; enumerations are of the width of their base."""


def plain(kind: str) -> str:
    """A type of Objective-C as one of C."""
    kind = PLAIN.get(kind, kind)
    kind = re.sub(r"^(const )?id<\w+>", "id", kind)
    kind = re.sub(r"^(NS|MTL)[A-Z]\w+ \*\*$", "id *", kind)
    return re.sub(r"^(NS|MTL)[A-Z]\w+ \*$", "id", kind)


def declared() -> dict[str, tuple[str, ...]]:
    """Selectors and their types, as Apple declares them."""
    found = {}
    for line in DECLARED.strip().splitlines():
        kinds = [plain(kind) for kind in re.findall(r"\(([^)]*)\)", line)]
        rest = re.sub(r"^[+-] \([^)]*\)|;$", "", line)
        selector = "".join(re.findall(r"\w+:", rest)) or rest
        found[selector] = tuple(kinds)
    return found


def test_every_message_is_sent_with_apples_types() -> None:
    assert declared() == MESSAGES


def test_every_message_that_is_sent_is_listed() -> None:
    folder = Path(_native.__file__).parent
    text = "\n".join(path.read_text() for path in folder.glob("*.py") if path.name[:2] != "_m")
    quoted = set(re.findall(r'"([a-z]\w*(?::\w*)+)"', text))
    assert quoted <= MESSAGES.keys(), quoted - MESSAGES.keys()


def test_no_function_takes_any_number_of_arguments() -> None:
    """Arm64 passes such arguments in memory, where methods do not look for them."""
    for selector in MESSAGES:
        assert "..." not in prototype(selector)
        assert ffi.typeof(prototype(selector)).ellipsis is False
        assert selector.count(":") == len(ffi.typeof(prototype(selector)).args) - 2


def test_what_is_passed_by_value_has_apples_layout() -> None:
    assert [ffi.sizeof("MTLSize"), ffi.alignof("MTLSize")] == [24, 8]
    assert [ffi.offsetof("MTLSize", name) for name in ("width", "height", "depth")] == [0, 8, 16]
    assert ffi.sizeof("NSRange") == 16
    assert [ffi.offsetof("NSRange", name) for name in ("location", "length")] == [0, 8]
    assert ffi.sizeof("BOOL") == 1
    assert ffi.sizeof("NSUInteger") == ffi.sizeof("NSInteger") == 8


def test_nothing_that_is_returned_is_larger_than_registers() -> None:
    """Other functions return such structures on x86-64, and none is needed here."""
    for selector, (returned, *_) in MESSAGES.items():
        assert returned not in ("MTLSize", "NSRange"), selector


def test_the_generated_declarations_are_current(tmp_path: Path) -> None:
    made = tmp_path / "_native.py"
    write_native(_cdef.MODULE, _cdef.DECLARATIONS, made)
    assert made.read_text() == Path(_native.__file__).read_text()


@pytest.mark.usefixtures("mock")
def test_the_mock_answers_every_message_with_the_same_types() -> None:
    from mock_metal import metal, objective  # noqa: PLC0415

    answered: dict[str, set[tuple[str, ...]]] = {}
    for module in (metal, objective):
        for kind in vars(module).values():
            if not isinstance(kind, type):
                continue
            for value in vars(kind).values():
                function = value.__func__ if isinstance(value, classmethod) else value
                message = getattr(value, "message", None) or getattr(function, "message", None)
                if message:
                    answered.setdefault(message[0], set()).add(message[1])
    for selector, types in MESSAGES.items():
        assert answered.get(selector) == {types}, selector
