"""Every C declaration the plugin uses, of which `_native.py` is made.

Source: webgpu.h as Dawn of Chromium 133 (branch 6940) has it; what is not used is left out. Run
`python -m tiny_testing.native` on this file after a change; a test holds the two together.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DECLARATIONS", "MODULE"]

MODULE: Final = "tiny_webgpu._native"

DECLARATIONS: Final = """
    typedef struct { const char *data; size_t length; } WGPUStringView;
    typedef struct WGPUChainedStruct {
        struct WGPUChainedStruct *next; uint32_t sType;
    } WGPUChainedStruct;
    typedef struct { uint64_t id; } WGPUFuture;
    typedef struct { WGPUFuture future; uint32_t completed; } WGPUFutureWaitInfo;

    typedef struct {
        void *nextInChain;
        struct { void *nextInChain; uint32_t timedWaitAnyEnable; size_t timedWaitAnyMaxCount; }
            features;
    } WGPUInstanceDescriptor;
    typedef struct {
        void *nextInChain; void *compatibleSurface; uint32_t featureLevel;
        uint32_t powerPreference; uint32_t backendType; uint32_t forceFallbackAdapter;
        uint32_t compatibilityMode;
    } WGPURequestAdapterOptions;
    typedef struct {
        void *nextInChain; WGPUStringView vendor; WGPUStringView architecture;
        WGPUStringView device; WGPUStringView description; uint32_t backendType;
        uint32_t adapterType; uint32_t vendorID; uint32_t deviceID; uint32_t compatibilityMode;
    } WGPUAdapterInfo;
    typedef struct {
        uint32_t maxTextureDimension1D; uint32_t maxTextureDimension2D;
        uint32_t maxTextureDimension3D; uint32_t maxTextureArrayLayers; uint32_t maxBindGroups;
        uint32_t maxBindGroupsPlusVertexBuffers; uint32_t maxBindingsPerBindGroup;
        uint32_t maxDynamicUniformBuffersPerPipelineLayout;
        uint32_t maxDynamicStorageBuffersPerPipelineLayout;
        uint32_t maxSampledTexturesPerShaderStage; uint32_t maxSamplersPerShaderStage;
        uint32_t maxStorageBuffersPerShaderStage; uint32_t maxStorageTexturesPerShaderStage;
        uint32_t maxUniformBuffersPerShaderStage; uint64_t maxUniformBufferBindingSize;
        uint64_t maxStorageBufferBindingSize; uint32_t minUniformBufferOffsetAlignment;
        uint32_t minStorageBufferOffsetAlignment; uint32_t maxVertexBuffers;
        uint64_t maxBufferSize; uint32_t maxVertexAttributes; uint32_t maxVertexBufferArrayStride;
        uint32_t maxInterStageShaderComponents; uint32_t maxInterStageShaderVariables;
        uint32_t maxColorAttachments; uint32_t maxColorAttachmentBytesPerSample;
        uint32_t maxComputeWorkgroupStorageSize; uint32_t maxComputeInvocationsPerWorkgroup;
        uint32_t maxComputeWorkgroupSizeX; uint32_t maxComputeWorkgroupSizeY;
        uint32_t maxComputeWorkgroupSizeZ; uint32_t maxComputeWorkgroupsPerDimension;
        uint32_t maxStorageBuffersInVertexStage; uint32_t maxStorageTexturesInVertexStage;
        uint32_t maxStorageBuffersInFragmentStage; uint32_t maxStorageTexturesInFragmentStage;
    } WGPULimits;
    typedef struct { void *nextInChain; WGPULimits limits; } WGPUSupportedLimits;
    typedef struct {
        WGPUChainedStruct chain; size_t enabledToggleCount; const char *const *enabledToggles;
        size_t disabledToggleCount; const char *const *disabledToggles;
    } WGPUDawnTogglesDescriptor;

    typedef void (*adapter_callback)(
        uint32_t status, void *adapter, WGPUStringView message, void *ticket, void *unused);
    typedef void (*device_callback)(
        uint32_t status, void *device, WGPUStringView message, void *ticket, void *unused);
    typedef void (*message_callback)(
        uint32_t status, WGPUStringView message, void *ticket, void *unused);
    typedef void (*status_callback)(uint32_t status, void *ticket, void *unused);
    typedef void (*error_callback)(
        void *const *device, uint32_t type, WGPUStringView message, void *ticket, void *unused);

    typedef struct {
        void *nextInChain; uint32_t mode; void *callback; void *userdata1; void *userdata2;
    } CallbackInfo;
    typedef struct {
        void *nextInChain; void *callback; void *userdata1; void *userdata2;
    } ErrorCallbackInfo;
    typedef struct {
        void *nextInChain; WGPUStringView label;
        size_t requiredFeatureCount; const uint32_t *requiredFeatures;
        const WGPUSupportedLimits *requiredLimits;
        struct { void *nextInChain; WGPUStringView label; } defaultQueue;
        CallbackInfo deviceLostCallbackInfo; ErrorCallbackInfo uncapturedErrorCallbackInfo;
    } WGPUDeviceDescriptor;

    typedef struct {
        void *nextInChain; WGPUStringView label; uint64_t usage; uint64_t size;
        uint32_t mappedAtCreation;
    } WGPUBufferDescriptor;
    typedef struct { WGPUChainedStruct chain; WGPUStringView code; } WGPUShaderSourceWGSL;
    typedef struct { void *nextInChain; WGPUStringView label; } WGPUPlainDescriptor;
    typedef struct {
        void *nextInChain; WGPUStringView label; void *layout;
        struct {
            void *nextInChain; void *module; WGPUStringView entryPoint; size_t constantCount;
            const void *constants;
        } compute;
    } WGPUComputePipelineDescriptor;
    typedef struct {
        void *nextInChain; uint32_t binding; uint64_t visibility;
        struct {
            void *nextInChain; uint32_t type; uint32_t hasDynamicOffset; uint64_t minBindingSize;
        } buffer;
        struct { void *nextInChain; uint32_t type; } sampler;
        struct {
            void *nextInChain; uint32_t sampleType; uint32_t viewDimension; uint32_t multisampled;
        } texture;
        struct {
            void *nextInChain; uint32_t access; uint32_t format; uint32_t viewDimension;
        } storageTexture;
    } WGPUBindGroupLayoutEntry;
    typedef struct {
        void *nextInChain; WGPUStringView label; size_t entryCount;
        const WGPUBindGroupLayoutEntry *entries;
    } WGPUBindGroupLayoutDescriptor;
    typedef struct {
        void *nextInChain; WGPUStringView label; size_t bindGroupLayoutCount;
        void *const *bindGroupLayouts; uint32_t immediateDataRangeByteSize;
    } WGPUPipelineLayoutDescriptor;
    typedef struct {
        void *nextInChain; uint32_t binding; void *buffer; uint64_t offset; uint64_t size;
        void *sampler; void *textureView;
    } WGPUBindGroupEntry;
    typedef struct {
        void *nextInChain; WGPUStringView label; void *layout; size_t entryCount;
        const WGPUBindGroupEntry *entries;
    } WGPUBindGroupDescriptor;
    typedef struct {
        void *querySet; uint32_t beginningOfPassWriteIndex; uint32_t endOfPassWriteIndex;
    } WGPUComputePassTimestampWrites;
    typedef struct {
        void *nextInChain; WGPUStringView label;
        const WGPUComputePassTimestampWrites *timestampWrites;
    } WGPUComputePassDescriptor;
    typedef struct {
        void *nextInChain; WGPUStringView label; uint32_t type; uint32_t count;
    } WGPUQuerySetDescriptor;

    void *wgpuCreateInstance(const WGPUInstanceDescriptor *descriptor);
    WGPUFuture wgpuInstanceRequestAdapter2(
        void *instance, const WGPURequestAdapterOptions *options, CallbackInfo callback);
    uint32_t wgpuInstanceWaitAny(
        void *instance, size_t count, WGPUFutureWaitInfo *infos, uint64_t timeout);
    uint32_t wgpuAdapterGetInfo(void *adapter, WGPUAdapterInfo *info);
    void wgpuAdapterInfoFreeMembers(WGPUAdapterInfo info);
    uint32_t wgpuAdapterGetLimits(void *adapter, WGPUSupportedLimits *limits);
    uint32_t wgpuAdapterHasFeature(void *adapter, uint32_t feature);
    WGPUFuture wgpuAdapterRequestDevice2(
        void *adapter, const WGPUDeviceDescriptor *descriptor, CallbackInfo callback);

    void *wgpuDeviceGetQueue(void *device);
    void *wgpuDeviceCreateBuffer(void *device, const WGPUBufferDescriptor *descriptor);
    void *wgpuDeviceCreateShaderModule(void *device, const WGPUPlainDescriptor *descriptor);
    void *wgpuDeviceCreateBindGroupLayout(
        void *device, const WGPUBindGroupLayoutDescriptor *descriptor);
    void *wgpuDeviceCreatePipelineLayout(
        void *device, const WGPUPipelineLayoutDescriptor *descriptor);
    void *wgpuDeviceCreateComputePipeline(
        void *device, const WGPUComputePipelineDescriptor *descriptor);
    void *wgpuDeviceCreateBindGroup(void *device, const WGPUBindGroupDescriptor *descriptor);
    void *wgpuDeviceCreateCommandEncoder(void *device, const WGPUPlainDescriptor *descriptor);
    void *wgpuDeviceCreateQuerySet(void *device, const WGPUQuerySetDescriptor *descriptor);
    void wgpuDeviceDestroy(void *device);
    void wgpuDeviceTick(void *device);

    void wgpuQueueWriteBuffer(
        void *queue, void *buffer, uint64_t offset, const void *data, size_t size);
    void wgpuQueueSubmit(void *queue, size_t count, void *const *commands);
    WGPUFuture wgpuQueueOnSubmittedWorkDone2(void *queue, CallbackInfo callback);

    WGPUFuture wgpuBufferMapAsync2(
        void *buffer, uint64_t mode, size_t offset, size_t size, CallbackInfo callback);
    const void *wgpuBufferGetConstMappedRange(void *buffer, size_t offset, size_t size);
    void wgpuBufferUnmap(void *buffer);
    void wgpuBufferDestroy(void *buffer);

    void *wgpuCommandEncoderBeginComputePass(
        void *encoder, const WGPUComputePassDescriptor *descriptor);
    void wgpuCommandEncoderCopyBufferToBuffer(
        void *encoder, void *source, uint64_t source_offset, void *destination,
        uint64_t destination_offset, uint64_t size);
    void wgpuCommandEncoderResolveQuerySet(
        void *encoder, void *queries, uint32_t first, uint32_t count, void *destination,
        uint64_t offset);
    void *wgpuCommandEncoderFinish(void *encoder, const WGPUPlainDescriptor *descriptor);
    void wgpuComputePassEncoderSetPipeline(void *encoder, void *pipeline);
    void wgpuComputePassEncoderSetBindGroup(
        void *encoder, uint32_t group, void *bind_group, size_t count, const uint32_t *offsets);
    void wgpuComputePassEncoderDispatchWorkgroups(
        void *encoder, uint32_t x, uint32_t y, uint32_t z);
    void wgpuComputePassEncoderEnd(void *encoder);

    void wgpuAdapterRelease(void *object);
    void wgpuBindGroupLayoutRelease(void *object);
    void wgpuBindGroupRelease(void *object);
    void wgpuBufferRelease(void *object);
    void wgpuCommandBufferRelease(void *object);
    void wgpuCommandEncoderRelease(void *object);
    void wgpuComputePassEncoderRelease(void *object);
    void wgpuComputePipelineRelease(void *object);
    void wgpuDeviceRelease(void *object);
    void wgpuPipelineLayoutRelease(void *object);
    void wgpuQuerySetRelease(void *object);
    void wgpuQueueRelease(void *object);
    void wgpuShaderModuleRelease(void *object);
"""
