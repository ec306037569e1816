// sample_chunks    raw[n][c] = (max, sum of exp(x - max)) of each chunk of 128 logits; max is +inf if a logit of the
//                  chunk is a NaN or +inf                               x [N, V] -> raw [N, ceil(V / 128)]
//                  step = step + 1, read by the kernels after it
// Launch: one warp per chunk, eight chunks of one row per block. CPU twin: reference/sample.rs. sample_greedy.cu does the
//   same in its first part.
#include "philox.cuh"
#include "sample.cuh"

XT_KERNEL(sample_chunks_f32, 256)(const float* x, ChunkSums* raw, uint32_t* step, uint32_t v, uint32_t chunks) {
  xt_grid_dependency_sync();
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *step += 1;
  store_chunk_sums(x, raw, v, chunks);
}
XT_EXPORT(sample_chunks_f32)

// load_step_indices   current[i] = all[(step + 1) words + i], i < words: the index lists of the next step. Launched
//                     at the beginning of a step, before the sampler increments the counter
//                     all [steps, words] -> current [words]
// Launch: one thread per word.
XT_KERNEL(load_step_indices, 128)(const uint32_t* step, const uint32_t* all, uint32_t* current, uint32_t words) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < words) current[i] = all[(size_t)(*step + 1) * words + i];
}
XT_EXPORT(load_step_indices)

// sample_penalty   y[n] = x[n], except y[n][id] = x > 0 ? x / penalty : x penalty with x = x[n][id], for each id in
//       row n's list (no duplicates) and each id that it sampled in earlier steps   x, y [N, V], samples [step, N, 4]
//       penalized[n][b] = max y over the logits of a block, for rows with a penalty   [N, ceil(V / 4096)]
// Launch: 256 threads per block, 4096 logits of one row per block.
XT_KERNEL(sample_penalty_f32, 256)(const float* x, float* y, const SampleRow* rows, const uint32_t* seen,
                                   const uint32_t* step, const uint32_t* samples, float* penalized, uint32_t v) {
  xt_grid_dependency_sync();
  SampleRow row = rows[blockIdx.x];
  x += (size_t)blockIdx.x * v;
  y += (size_t)blockIdx.x * v;
  uint32_t first = SAMPLE_BLOCK * blockIdx.y, end = min(v, first + SAMPLE_BLOCK);
  in_flight<8>(
      first + threadIdx.x, end, (uint32_t)blockDim.x, [=](uint32_t i) { return x[i]; },
      [=](uint32_t i, float z) { y[i] = z; });
  if (row.penalty == 1.0f) return;
  __syncthreads();
  for (uint32_t i = row.seen + threadIdx.x; i < row.seen_end; i += blockDim.x) {
    uint32_t id = seen[i];
    if (id < first || id >= end) continue;
    y[id] = x[id] > 0.0f ? x[id] / row.penalty : x[id] * row.penalty;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (uint32_t before = 0; before < *step; before++) {
      uint32_t id = samples[4 * ((size_t)before * gridDim.x + blockIdx.x) + 1];
      if (id >= first && id < end) y[id] = x[id] > 0.0f ? x[id] / row.penalty : x[id] * row.penalty;
    }
  }
  __syncthreads();
  float maximum = max_of(end - first, [=](uint32_t i) { return y[first + i]; });
  if (threadIdx.x == 0) penalized[(size_t)blockIdx.x * gridDim.y + blockIdx.y] = maximum;
}
XT_EXPORT(sample_penalty_f32)
