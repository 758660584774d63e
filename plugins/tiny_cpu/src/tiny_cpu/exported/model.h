/* A model of tinycore in C: memory by name, and a call that computes.

     const char *error;
     model *m = model_open("weights.safetensors", 4, &error);
     if (!m) ...                                  // error says why
     memcpy(model_data(m, "image"), image, model_inputs[0].bytes);
     model_run(m);
     const float *output = model_data(m, "output");

   Tensors are contiguous, the last axis is the one whose elements are neighbors. A model is not for
   two threads at once; several may be open, opened by one thread at a time. Two libraries of two models have the
   same names: open them by dlopen. A forked child has one thread; fork while no model runs. */
#ifndef TINYCORE_MODEL_H
#define TINYCORE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct model model;

typedef struct {
  const char *name;
  const char *dtype; /* as tinycore says it: float32, int64, bool (a byte of 0 or 1), ... */
  int rank;
  const int64_t *shape;
  size_t bytes;
} model_tensor;

/* What is given and what is computed. */
extern const model_tensor model_inputs[], model_outputs[];
extern const int model_input_count, model_output_count;

/* Read the weights. Kernels run on `threads` threads (0: on one); the first call decides for the process, whose
   threads then wait until it ends. Returns NULL where that fails, with the reason in *error unless error is NULL. */
model *model_open(const char *weights, int threads, const char **error);

/* The memory of an input or output, aligned to 64 bytes, until model_close; NULL for another name.
   Inputs are 0 at first, and keep what was written unless the model itself changes them. */
void *model_data(model *m, const char *name);

/* Compute all outputs. */
void model_run(model *m);

void model_close(model *m);

#ifdef __cplusplus
}
#endif
#endif
