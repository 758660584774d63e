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
typedef float float32x4 __attribute__((ext_vector_type(4), aligned(4)));
typedef long long int64_t;
static inline float32x4 max_float32x4(float32x4 a, float32x4 b) { float32x4 c = a < b ? b : a; return b == b ? c : (float32x4)__builtin_nanf(""); }
__attribute__((noinline))
static void greatest_vector_body(float *restrict data0, const float *restrict data1) {
  float32x4 acc0;
  acc0 = (float32x4)(-__builtin_inff());
  for (int64_t r0 = 0; r0 < 16; r0++) {
    acc0 = max_float32x4(acc0, *(float32x4 *)(data1 + r0 * 4));
  }
  *(float32x4 *)(data0) = acc0;
}
void greatest_vector(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  FLOATS_OF mode = GET_FLOATS;
  SET_FLOATS(mode | FLUSH);
  greatest_vector_body(buffers[0], buffers[1]);
  SET_FLOATS(mode);
}
