/* A stand-in of Qualcomm's libllvm-qcom.so: its functions and the layout of what they return, with
 * fields at the offsets that are known, as numbers of their own. The binary is the chip, the mode and
 * the source as text. A source with "reject" does not compile, one with "unlinked" does not link. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLE = 24, COMPILED = 48, EXECUTABLE = 80 };
int instances, made_instances, handles, binaries;

static char *zeroed(size_t size) { return calloc(1, size); }
static void put32(char *at, int offset, uint32_t n) { memcpy(at + offset, &n, 4); }
static void put64(char *at, int offset, const void *n) { memcpy(at + offset, &n, 8); }
static char *get64(char *at, int offset) {
  char *n;
  memcpy(&n, at + offset, 8);
  return n;
}

void *cl_compiler_create_llvm_instance(void) {
  instances++, made_instances++;
  return zeroed(16);
}

void cl_compiler_destroy_llvm_instance(void *instance) {
  instances--;
  free(instance);
}

static char *handle_of(uint32_t type, int offset, char *result) {
  char *made = zeroed(HANDLE);
  handles++;
  put32(made, 0, type);
  put64(made, offset, result);
  return made;
}

void *cl_compiler_compile_source(void *instance, uint64_t chip, int mode, const char *options, int a,
                                 void *b, void *c, const char *source, uint64_t length,
                                 uint64_t type, void *d) {
  char *made = zeroed(COMPILED), *text;
  if (!instance || a || b || c || length || type || d || options[0]) return NULL;
  text = malloc(strlen(source) + 64);
  sprintf(text, "%llx %d %s", (unsigned long long)chip, mode, source);
  put32(made, 0, (uint32_t)chip);
  put32(made, 8, (uint32_t)mode);
  put64(made, 16, text);
  if (strstr(source, "reject")) {
    put64(made, 32, "line 1: this is rejected");
    put32(made, 44, 3);
  }
  return handle_of(1, 8, made);
}

void *cl_compiler_link_program(void *instance, uint64_t chip, int mode, const char *options,
                               uint32_t count, char **given) {
  char *made = zeroed(EXECUTABLE), *text = get64(get64(given[0], 8), 16);
  if (!instance || options || count != 1) return NULL;
  put32(made, 0, 1);
  put64(made, 8, text);
  put32(made, 64, (uint32_t)chip);
  put32(made, 72, (uint32_t)mode);
  if (strstr(text, "unlinked")) {
    put64(made, 24, "nothing to link");
    put32(made, 16, 7);
  }
  return handle_of(3, 16, made);
}

void cl_compiler_handle_create_binary(char *handle, void **binary, size_t *size) {
  const char *text = get64(get64(handle, 16), 8);
  binaries++;
  *size = strlen(text);
  *binary = malloc(*size);
  memcpy(*binary, text, *size);
}

void cl_compiler_free_handle(void *handle) {
  handles--;
  free(handle);
}

void cl_compiler_free_assembly(void *binary) {
  binaries--;
  free(binary);
}
