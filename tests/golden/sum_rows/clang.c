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
static void sum_rows_body(float *restrict data0, const float *restrict data1, int64_t begin, int64_t end) {
  float acc0;
  for (int64_t p0 = begin; p0 < end; p0++) {
    acc0 = 0.0f;
    int64_t idx0 = p0 * 64;
    for (int64_t r1 = 0; r1 < 64; r1++) {
      acc0 = acc0 + data1[idx0 + r1];
    }
    data0[p0] = acc0 * 0.015625f;
  }
}
void sum_rows(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  FLOATS_OF mode = GET_FLOATS;
  SET_FLOATS(mode | FLUSH);
  sum_rows_body(buffers[0], buffers[1], begin, end);
  SET_FLOATS(mode);
}
