// cat_seq    y = a followed by b along the sequence: a of m values, b of n -> y of m + n
// Launch: a thread an element. Not in the hot path, which writes in place. CPU twin: ops/kv.rs.
#include "xt.cuh"

XT_KERNEL(cat_seq_f32, 256)(const float* a, const float* b, float* y, uint32_t m, uint32_t n) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < m + n) y[i] = i < m ? a[i] : b[i - m];
}
XT_EXPORT(cat_seq_f32)
