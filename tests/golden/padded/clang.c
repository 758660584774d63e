#pragma clang fp contract(fast)
typedef long long int64_t;
static void padded_body(float *restrict data0, const float *restrict data1) {
  for (int64_t i0 = 0; i0 < 10; i0++) {
    float val0 = (!(i0 < 1) & (i0 < 9)) ? data1[i0 - 1] : 0.0f;
    data0[i0] = val0;
  }
}
void padded(void *const *buffers, const int64_t *values, int64_t begin, int64_t end) {
  padded_body(buffers[0], buffers[1]);
}
