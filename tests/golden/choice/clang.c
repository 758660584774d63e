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
typedef float float32x4 __attribute__((ext_vector_type(4), aligned(4)));
typedef unsigned char uint8_t;
typedef uint8_t boolx4 __attribute__((ext_vector_type(4), aligned(1)));
typedef int int32_t;
typedef int32_t int32x4 __attribute__((ext_vector_type(4), aligned(4)));
__attribute__((noinline))
static void choice_body(float *restrict data0, uint8_t *restrict data1, const float *restrict data2, const float *restrict data3, const uint8_t *restrict data4) {
  for (int64_t i0 = 0; i0 < 16; i0++) {
    int64_t idx0 = i0 * 4;
    float32x4 val0 = *(float32x4 *)(data2 + idx0);
    float32x4 val1 = *(float32x4 *)(data3 + idx0);
    boolx4 vec0 = __builtin_convertvector(val0 < val1, boolx4) & 1;
    boolx4 val2 = __builtin_convertvector(*(boolx4 *)(data4 + idx0) != 0, boolx4) & 1;
    *(float32x4 *)(data0 + idx0) = (__builtin_convertvector(vec0 & val2, int32x4) != 0) ? val0 : val1;
    *(boolx4 *)(data1 + idx0) = vec0 | val2;
  }
}
void choice(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  FLOATS_OF mode = GET_FLOATS;
  SET_FLOATS(mode | FLUSH);
  choice_body(buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]);
  SET_FLOATS(mode);
}
