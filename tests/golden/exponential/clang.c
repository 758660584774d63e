#pragma clang fp contract(fast)
typedef long long int64_t;
typedef int int32_t;
static inline int32_t float32_as_int32(float x) { int32_t y; __builtin_memcpy(&y, &x, sizeof y); return y; }
typedef unsigned int uint32_t;
static inline float int32_as_float32(int32_t x) { float y; __builtin_memcpy(&y, &x, sizeof y); return y; }
static void exponential_body(float *restrict data0, const float *restrict data1) {
  for (int64_t i0 = 0; i0 < 64; i0++) {
    float val0 = data1[i0];
    float alu0 = (val0 * 1.442695f) + 12582912.0f;
    float alu1 = alu0 - 12582912.0f;
    float alu2 = (val0 - (alu1 * 0.69314575f)) - (alu1 * 1.4286068e-06f);
    float alu3 = ((((alu2 * 0.0013926176f) + 0.008363173f) * alu2) + 0.041666556f) * alu2;
    float alu4 = (((((alu3 + 0.16666578f) * alu2) + 0.5f) * (alu2 * alu2)) + alu2) + 1.0f;
    _Bool is0 = val0 < (-86.0f);
    int32_t alu5 = float32_as_int32(alu0);
    int32_t alu6 = is0 ? (int32_t)((uint32_t)alu5 + (uint32_t)(-1262485440)) : (int32_t)((uint32_t)alu5 + (uint32_t)(-1262485504));
    int32_t alu7 = (int32_t)((uint32_t)float32_as_int32(alu4) + (uint32_t)(int32_t)((uint32_t)alu6 << (uint32_t)23));
    float alu8 = (val0 < (-104.0f)) ? 0.0f : (int32_as_float32(alu7) * (is0 ? 5.421011e-20f : 1.0f));
    data0[i0] = (val0 < 88.72284f) ? alu8 : (val0 + __builtin_inff());
  }
}
void exponential(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  exponential_body(buffers[0], buffers[1]);
}
