#pragma clang fp contract(fast)
/* subnormal numbers are 0 */
#if defined(__x86_64__)
#define FLOATS_OF unsigned
#define GET_FLOATS __builtin_ia32_stmxcsr()
#define SET_FLOATS(mode) __builtin_ia32_ldmxcsr(mode)
#define FLUSH 0x8040
#else
#define FLOATS_OF unsigned long
#define GET_FLOATS ({ unsigned long now; __asm__ volatile("mrs %0, fpcr" : "=r"(now)); now; })
#define SET_FLOATS(mode) __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory")
#define FLUSH (1ul << 24)
#endif
typedef long long int64_t;
__attribute__((noinline))
static void variable_size_body(float *restrict data0, const float *restrict data1, int64_t value0) {
  for (int64_t i0 = 0; i0 < value0; i0++) {
    data0[i0] = -data1[i0];
  }
}
void variable_size(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  FLOATS_OF mode = GET_FLOATS;
  SET_FLOATS(mode | FLUSH);
  variable_size_body(buffers[0], buffers[1], values[0]);
  SET_FLOATS(mode);
}
