"""Every C declaration the plugin uses, of which `_native.py` is made.

System calls, for NV; functions of the driver, for CUDA: those of cuda.h of CUDA 12 and 13, by the
names that the library exports (`_v2` where the header renames them). `_native.py` is cffi's
out-of-line form. After a change run `python -m tiny_testing.native` on this file; a test holds
the two together.
"""

from typing import Final

__all__ = ["DECLARATIONS", "MODULE"]

MODULE: Final = "tiny_nv._native"

DECLARATIONS: Final = """

    typedef int CUresult;
    typedef int CUdevice;
    typedef uint64_t CUdeviceptr;
    typedef struct CUctx_st *CUcontext;
    typedef struct CUmod_st *CUmodule;
    typedef struct CUfunc_st *CUfunction;
    typedef struct CUkern_st *CUkernel;
    typedef struct CUstream_st *CUstream;
    typedef struct CUevent_st *CUevent;
    typedef struct CUgraph_st *CUgraph;
    typedef struct CUgraphNode_st *CUgraphNode;
    typedef struct CUgraphExec_st *CUgraphExec;
    typedef struct {
        CUfunction func;
        unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
        void **kernelParams;
        void **extra;
        CUkernel kern;
        CUcontext ctx;
    } CUDA_KERNEL_NODE_PARAMS;

    CUresult cuInit(unsigned int flags);
    CUresult cuDriverGetVersion(int *version);
    CUresult cuGetErrorName(CUresult status, const char **text);
    CUresult cuGetErrorString(CUresult status, const char **text);
    CUresult cuDeviceGetCount(int *count);
    CUresult cuDeviceGet(CUdevice *device, int index);
    CUresult cuDeviceGetName(char *name, int room, CUdevice device);
    CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
    CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
    CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);

    CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
    CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
    CUresult cuCtxSetCurrent(CUcontext context);
    CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags);

    CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
    CUresult cuStreamDestroy_v2(CUstream stream);
    CUresult cuStreamSynchronize(CUstream stream);
    CUresult cuStreamQuery(CUstream stream);
    CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
    CUresult cuEventCreate(CUevent *event, unsigned int flags);
    CUresult cuEventDestroy_v2(CUevent event);
    CUresult cuEventRecord(CUevent event, CUstream stream);
    CUresult cuEventSynchronize(CUevent event);
    CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);

    CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
    CUresult cuMemFree_v2(CUdeviceptr address);
    CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
    CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags);
    CUresult cuMemFreeHost(void *address);
    CUresult cuMemcpyHtoDAsync_v2(
        CUdeviceptr target, const void *source, size_t bytes, CUstream stream);
    CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, CUstream stream);
    CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
        CUcontext source_context, size_t bytes, CUstream stream);
    CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address);

    CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
        int *options, void **values);
    CUresult cuModuleUnload(CUmodule module);
    CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
    CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function);
    CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
    CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
        unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z,
        unsigned int shared_bytes, CUstream stream, void **parameters, void **extra);

    typedef struct { uint64_t words[16]; } CUtensorMap;
    CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int dtype, uint32_t rank, void *address,
        const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
        const uint32_t *steps, int interleave, int swizzle, int l2_promotion, int outside);

    CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
    CUresult cuGraphDestroy(CUgraph graph);
    CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph,
        const CUgraphNode *dependencies, size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters);
    CUresult cuGraphInstantiateWithFlags(
        CUgraphExec *executable, CUgraph graph, unsigned long long flags);
    CUresult cuGraphExecKernelNodeSetParams_v2(
        CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters);
    CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream);
    CUresult cuGraphExecDestroy(CUgraphExec executable);

    typedef int nvrtcResult;
    typedef struct _nvrtcProgram *nvrtcProgram;
    const char *nvrtcGetErrorString(nvrtcResult status);
    nvrtcResult nvrtcVersion(int *major, int *minor);
    nvrtcResult nvrtcGetNumSupportedArchs(int *count);
    nvrtcResult nvrtcGetSupportedArchs(int *archs);
    nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name,
        int headers, const char *const *texts, const char *const *names);
    nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program);
    nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options);
    nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size);
    nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log);
    nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size);
    nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin);
    nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size);
    nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx);
"""
