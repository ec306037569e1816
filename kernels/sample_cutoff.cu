// sample_cutoff   maximum z of a row, whether the row can be sampled, and the lowest rank that top-k and top-p keep
//                 x [N, V], raw [N, ceil(V / 128)] -> state [N]
// Launch: one block of 512 threads per row. Order: integer sums. CPU twin: reference/sample.rs.
#include "radix_select.cuh"

XT_KERNEL(sample_cutoff_f32, 512)(const float* x, const SampleRow* rows, const ChunkSums* raw, SampleState* states,
                                  uint32_t v, uint32_t chunks) {
  xt_grid_dependency_sync();
  XT_SHARED(RadixSelect, select, 1);
  const float neg_inf = xt_bits_f(0xff800000u);
  SampleRow row = rows[blockIdx.x];
  x += (size_t)blockIdx.x * v;
  raw += (size_t)blockIdx.x * chunks;
  float maximum = neg_inf;
  in_flight<8>((uint32_t)threadIdx.x, chunks, (uint32_t)blockDim.x, [=](uint32_t c) { return raw[c].m; },
               [&](uint32_t, float m) { maximum = max_f32(maximum, m); });
  maximum = block_max(maximum, select);
  uint32_t fault = maximum == xt_bits_f(0x7f800000u) ? 1 : maximum == neg_inf ? 2 : 0;

  if (row.penalty != 1.0f) {
    maximum = neg_inf;
    in_flight<8>((uint32_t)threadIdx.x, v, (uint32_t)blockDim.x, [=](uint32_t i) { return x[i]; },
                 [&](uint32_t, float logit) { maximum = max_f32(maximum, logit); });
    maximum = block_max(maximum, select);
  }
  float max_z = scaled(maximum, row.temperature);  // dividing by the temperature preserves the order
  if (!fault && (xt_f_bits(max_z) & 0x7fffffffu) == 0x7f800000u) fault = 3;

  uint64_t cutoff = 0;
  if (!fault && row.temperature != 0.0f) {
    if (row.top_k && row.top_k < v)
      cutoff = select_rank<true>(x, v, row.temperature, max_z, 0, v - row.top_k, select);
    if (row.top_p < 1.0f) cutoff = top_p_rank(x, v, row.temperature, max_z, cutoff, row.top_p, select);
  }
  if (threadIdx.x == 0) states[blockIdx.x] = {cutoff, max_z, fault};
}
XT_EXPORT(sample_cutoff_f32)
