#pragma clang fp contract(fast)
typedef float float32x8 __attribute__((ext_vector_type(8), aligned(4)));
typedef long long int64_t;
static void matmul_body(float *restrict data0, const float *restrict data1, const float *restrict data2, int64_t begin, int64_t end) {
  float32x8 acc0;
  float32x8 acc1;
  float32x8 acc2;
  float32x8 acc3;
  float32x8 acc4;
  float32x8 acc5;
  float32x8 acc6;
  float32x8 acc7;
  for (int64_t p1_0_0 = begin; p1_0_0 < end; p1_0_0++) {
    int64_t idx0 = (p1_0_0 / 16) * 16;
    int64_t idx1 = (p1_0_0 % 16) * 256;
    int64_t idx2 = idx0 + idx1;
    acc0 = (float32x8)(0.0f);
    acc1 = (float32x8)(0.0f);
    acc2 = (float32x8)(0.0f);
    acc3 = (float32x8)(0.0f);
    acc4 = (float32x8)(0.0f);
    acc5 = (float32x8)(0.0f);
    acc6 = (float32x8)(0.0f);
    acc7 = (float32x8)(0.0f);
    for (int64_t r2 = 0; r2 < 64; r2++) {
      int64_t idx3 = idx1 + r2;
      float val0 = data1[idx3];
      float32x8 vec0 = (float32x8)(val0);
      int64_t idx4 = idx0 + (r2 * 64);
      float32x8 val1 = *(float32x8 *)(data2 + idx4);
      acc0 = acc0 + (vec0 * val1);
      float32x8 val2 = *(float32x8 *)(data2 + idx4 + 8);
      acc1 = acc1 + (vec0 * val2);
      float val3 = data1[idx3 + 64];
      float32x8 vec1 = (float32x8)(val3);
      acc2 = acc2 + (vec1 * val1);
      acc3 = acc3 + (vec1 * val2);
      float val4 = data1[idx3 + 128];
      float32x8 vec2 = (float32x8)(val4);
      acc4 = acc4 + (vec2 * val1);
      acc5 = acc5 + (vec2 * val2);
      float val5 = data1[idx3 + 192];
      float32x8 vec3 = (float32x8)(val5);
      acc6 = acc6 + (vec3 * val1);
      acc7 = acc7 + (vec3 * val2);
    }
    *(float32x8 *)(data0 + idx2) = acc0;
    *(float32x8 *)(data0 + idx2 + 8) = acc1;
    *(float32x8 *)(data0 + idx2 + 64) = acc2;
    *(float32x8 *)(data0 + idx2 + 72) = acc3;
    *(float32x8 *)(data0 + idx2 + 128) = acc4;
    *(float32x8 *)(data0 + idx2 + 136) = acc5;
    *(float32x8 *)(data0 + idx2 + 192) = acc6;
    *(float32x8 *)(data0 + idx2 + 200) = acc7;
  }
}
void matmul(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  matmul_body(buffers[0], buffers[1], buffers[2], begin, end);
}
