#pragma clang fp contract(fast)
typedef float float32x4 __attribute__((ext_vector_type(4), aligned(4)));
typedef long long int64_t;
static inline float32x4 max_float32x4(float32x4 a, float32x4 b) { float32x4 c = a < b ? b : a; return b == b ? c : (float32x4)__builtin_nanf(""); }
static void greatest_vector_body(float *restrict data0, const float *restrict data1) {
  float32x4 acc0;
  acc0 = (float32x4)(-__builtin_inff());
  for (int64_t r0 = 0; r0 < 16; r0++) {
    acc0 = max_float32x4(acc0, *(float32x4 *)(data1 + r0 * 4));
  }
  *(float32x4 *)(data0) = acc0;
}
void greatest_vector(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  greatest_vector_body(buffers[0], buffers[1]);
}
