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
typedef float float32x8 __attribute__((ext_vector_type(8), aligned(4)));
typedef long long int64_t;
__attribute__((noinline))
static void multiply_add_body(float *restrict data0, const float *restrict data1, const float *restrict data2) {
  for (int64_t i0 = 0; i0 < 8; i0++) {
    int64_t idx0 = i0 * 8;
    float32x8 vec0 = (*(float32x8 *)(data1 + idx0) * *(float32x8 *)(data2 + idx0)) + (float32x8)(0.5f);
    *(float32x8 *)(data0 + idx0) = vec0;
  }
}
void multiply_add(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  FLOATS_OF mode = GET_FLOATS;
  SET_FLOATS(mode | FLUSH);
  multiply_add_body(buffers[0], buffers[1], buffers[2]);
  SET_FLOATS(mode);
}
