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
static void matmul_body(float *restrict data0, const float *restrict data1, const float *restrict data2, int64_t begin, int64_t end) {
  _Alignas(64) float temp0[1024];
  float32x8 acc0;
  float32x8 acc1;
  float32x8 acc2;
  float32x8 acc3;
  float32x8 acc4;
  float32x8 acc5;
  float32x8 acc6;
  float32x8 acc7;
  for (int64_t p0_0 = begin; p0_0 < end; p0_0++) {
    int64_t idx0 = (p0_0 / 4) * 2048;
    int64_t idx1 = (p0_0 % 4) * 16;
    int64_t idx2 = idx0 + idx1;
    for (int64_t i2_6_0 = 0; i2_6_0 < 64; i2_6_0++) {
      int64_t idx3 = i2_6_0 * 16;
      int64_t idx4 = i2_6_0 * 64;
      for (int64_t i1_0_1_6_0_0 = 0; i1_0_1_6_0_0 < 2; i1_0_1_6_0_0++) {
        int64_t idx5 = i1_0_1_6_0_0 * 8;
        *(float32x8 *)(temp0 + idx5 + idx3) = *(float32x8 *)(data2 + (idx1 + idx5) + idx4);
      }
    }
    for (int64_t i0_1_0 = 0; i0_1_0 < 8; i0_1_0++) {
      int64_t idx6 = i0_1_0 * 256;
      int64_t idx7 = idx2 + idx6;
      acc0 = (float32x8)(0.0f);
      int64_t idx8 = idx0 + idx6;
      acc1 = (float32x8)(0.0f);
      acc2 = (float32x8)(0.0f);
      acc3 = (float32x8)(0.0f);
      acc4 = (float32x8)(0.0f);
      acc5 = (float32x8)(0.0f);
      acc6 = (float32x8)(0.0f);
      acc7 = (float32x8)(0.0f);
      for (int64_t r2 = 0; r2 < 64; r2++) {
        int64_t idx9 = idx8 + r2;
        float val0 = data1[idx9];
        float32x8 vec0 = (float32x8)(val0);
        int64_t idx10 = r2 * 16;
        float32x8 val1 = *(float32x8 *)(temp0 + idx10);
        acc0 = acc0 + (vec0 * val1);
        float32x8 val2 = *(float32x8 *)(temp0 + idx10 + 8);
        acc1 = acc1 + (vec0 * val2);
        float val3 = data1[idx9 + 64];
        float32x8 vec1 = (float32x8)(val3);
        acc2 = acc2 + (vec1 * val1);
        acc3 = acc3 + (vec1 * val2);
        float val4 = data1[idx9 + 128];
        float32x8 vec2 = (float32x8)(val4);
        acc4 = acc4 + (vec2 * val1);
        acc5 = acc5 + (vec2 * val2);
        float val5 = data1[idx9 + 192];
        float32x8 vec3 = (float32x8)(val5);
        acc6 = acc6 + (vec3 * val1);
        acc7 = acc7 + (vec3 * val2);
      }
      float32x8 val6 = acc1;
      float32x8 val7 = acc2;
      float32x8 val8 = acc3;
      float32x8 val9 = acc4;
      float32x8 val10 = acc5;
      float32x8 val11 = acc6;
      float32x8 val12 = acc7;
      *(float32x8 *)(data0 + idx7) = acc0;
      *(float32x8 *)(data0 + idx7 + 8) = val6;
      *(float32x8 *)(data0 + idx7 + 64) = val7;
      *(float32x8 *)(data0 + idx7 + 72) = val8;
      *(float32x8 *)(data0 + idx7 + 128) = val9;
      *(float32x8 *)(data0 + idx7 + 136) = val10;
      *(float32x8 *)(data0 + idx7 + 192) = val11;
      *(float32x8 *)(data0 + idx7 + 200) = val12;
    }
  }
}
void matmul(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  FLOATS_OF mode = GET_FLOATS;
  SET_FLOATS(mode | FLUSH);
  matmul_body(buffers[0], buffers[1], buffers[2], begin, end);
  SET_FLOATS(mode);
}
