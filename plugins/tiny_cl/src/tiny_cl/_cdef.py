"""Every C declaration the plugin uses, of which `_native.py` is made.

`_native.py` is cffi's out-of-line form. After a change run
`python -m tiny_testing.native` on this file; a test holds the two together.
"""

from typing import Final

__all__ = ["DECLARATIONS", "MODULE"]

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
    typedef struct { cl_uint order; cl_uint channel; } cl_image_format;
    typedef struct {
        cl_uint kind;
        size_t width, height, depth, count, row_pitch, slice_pitch;
        cl_uint levels, samples;
        cl_mem buffer;
    } cl_image_desc;

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
    cl_mem clCreateImage(cl_context context, cl_ulong flags, const cl_image_format *format,
        const cl_image_desc *description, void *host, cl_int *status);
    cl_int clEnqueueReadImage(cl_command_queue queue, cl_mem memory, cl_uint blocking,
        const size_t *start, const size_t *size, size_t row_pitch, size_t slice_pitch, void *host,
        cl_uint waits, const cl_event *wait, cl_event *event);
    cl_int clEnqueueWriteImage(cl_command_queue queue, cl_mem memory, cl_uint blocking,
        const size_t *start, const size_t *size, size_t row_pitch, size_t slice_pitch,
        const void *host, cl_uint waits, const cl_event *wait, cl_event *event);
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
