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
typedef int int32_t;
typedef unsigned int uint32_t;
static inline int32_t divide_int32(int32_t a, int32_t b) { int32_t d = (b == 0) | (b == -1) ? (int32_t)1 : b; return b == 0 ? b : b == -1 ? (int32_t)(-(uint32_t)a) : a / d; }
static inline int32_t float32_to_int32(float x) { int32_t y = ((x >= -0x1p31f) & (x < 0x1p31f)) ? (int32_t)x : (int32_t)(-2147483647 - 1); return (int32_t)y; }
__attribute__((noinline))
static void integers_body(int32_t *restrict data0, int32_t *restrict data1, int32_t *restrict data2, const int32_t *restrict data3, const int32_t *restrict data4, const float *restrict data5) {
  for (int64_t i0 = 0; i0 < 64; i0++) {
    int32_t val0 = data3[i0];
    int32_t val1 = data4[i0];
    float val2 = data5[i0];
    data0[i0] = (int32_t)((uint32_t)val0 + (uint32_t)val1);
    data1[i0] = divide_int32(val0, val1);
    data2[i0] = float32_to_int32(val2);
  }
}
void integers(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  FLOATS_OF mode = GET_FLOATS;
  SET_FLOATS(mode | FLUSH);
  integers_body(buffers[0], buffers[1], buffers[2], buffers[3], buffers[4], buffers[5]);
  SET_FLOATS(mode);
}
