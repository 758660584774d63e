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
typedef unsigned int uint32_t;
static inline uint32_t float32_as_uint32(float x) { uint32_t y; __builtin_memcpy(&y, &x, sizeof y); return y; }
static inline float uint32_as_float32(uint32_t x) { float y; __builtin_memcpy(&y, &x, sizeof y); return y; }
__attribute__((noinline))
static void exponential_body(float *restrict data0, const float *restrict data1) {
  for (int64_t i0 = 0; i0 < 64; i0++) {
    float val0 = data1[i0];
    float alu0 = (val0 < (-176.0f)) ? (-176.0f) : val0;
    float alu1 = (89.0f < alu0) ? 89.0f : alu0;
    float alu2 = (alu1 * 1.442695f) + 12583166.0f;
    float alu3 = alu2 - 12583166.0f;
    float alu4 = (alu1 - (alu3 * 0.69314575f)) - (alu3 * 1.4286068e-06f);
    float alu5 = ((((alu4 * 0.0013926176f) + 0.008363173f) * alu4) + 0.041666556f) * alu4;
    uint32_t alu6 = float32_as_uint32(alu2);
    uint32_t alu7 = alu6 >> 1u;
    float alu8 = uint32_as_float32(alu7 << 23u);
    float alu9 = (((((alu5 + 0.16666578f) * alu4) + 0.5f) * (alu4 * alu4)) + alu4) * alu8;
    data0[i0] = (alu9 + alu8) * uint32_as_float32((alu6 - alu7) << 23u);
  }
}
void exponential(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  FLOATS_OF mode = GET_FLOATS;
  SET_FLOATS(mode | FLUSH);
  exponential_body(buffers[0], buffers[1]);
  SET_FLOATS(mode);
}
