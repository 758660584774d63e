#pragma clang fp contract(fast)
typedef long long int64_t;
static void variable_size_body(float *restrict data0, const float *restrict data1, int64_t value0) {
  for (int64_t i0 = 0; i0 < value0; i0++) {
    data0[i0] = -data1[i0];
  }
}
void variable_size(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  variable_size_body(buffers[0], buffers[1], values[0]);
}
