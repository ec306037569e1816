// sample_pick      kept[n][c] = (max, sum of exp(z - max)), total[n][c] = sum of W, over the kept tokens of each chunk
//                  r = high 64 bits of u S (0 when greedy);  token = the lowest i with W_0 + ... + W_i > r
//                  log-prob = x_token - lse(x);  processed = z_token - lse(kept z) (0 when greedy)
//                  x, y [N, V]: logits before and after the penalty; raw, penalized: see sample_chunks.cu
//                  kept, total [N, ceil(V / 128)]; samples [step, N, 4]: fault, token, bits of both log-probabilities;
//                  also tokens[n]
// Launch: 256 threads, 32 chunks of one row per block, one warp per chunk. The last block of a row picks its token;
//   counters [N] are zero before and after a launch.
// Order: sum32 of chunks; integer sums are independent of order. CPU twin: reference/sample.rs.
#include "philox.cuh"
#include "sample.cuh"

// kept and total of four chunks, from chunk `first` on in steps of 8. Executed by one warp.
XT_DEV void chunk_weights(const float* y, const SampleRow& row, float max_z, uint64_t cutoff, ChunkSums* kept,
                          uint64_t* total, uint32_t v, uint32_t first) {
  uint32_t lane = threadIdx.x % 32, chunks = (v + 127) / 128;
  float x[4][4];
#pragma unroll
  for (int c = 0; c < 4; c++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      uint32_t i = 128 * (first + 8 * c) + 32 * k + lane;
      x[c][k] = i < v ? y[i] : xt_bits_f(0xff800000u);
    }
#pragma unroll
  for (int c = 0; c < 4; c++) {
    uint32_t chunk = first + 8 * c;
    if (chunk >= chunks) return;
    float z[4];
    uint64_t weight = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      Token token = token_of(x[c][k], 128 * chunk + 32 * k + lane, row, max_z, cutoff);
      z[k] = token.z;
      weight += token.weight;
    }
    ChunkSums sums = chunk_sums(z);
    weight = warp_total(weight);
    if (lane == 0) kept[chunk] = sums, total[chunk] = weight;
  }
}

// The chunk in which the sum from the start of the row exceeds r, and what remains of r at its start.
struct Place {
  uint64_t rest;
  uint32_t chunk;
};

// Executed by a block of 256 threads, each of which adds four or more consecutive chunks.
XT_DEV Place place_of(const SampleRow& row, uint32_t position, const uint64_t* total, uint32_t chunks) {
  XT_SHARED(Place, found, 1);
  uint32_t whole = XT_FAULT(LastChunksNotSearched) ? chunks : chunks + 255, per = max(4u, whole / 256);
  uint32_t first = per * threadIdx.x, end = min(chunks, first + per);
  uint64_t mine = 0;
  in_flight<8>(first, end, 1u, [=](uint32_t c) { return total[c]; }, [&](uint32_t, uint64_t w) { mine += w; });
  Running running = block_running(mine);
  uint64_t r = 0;
  if (row.temperature != 0.0f) r = high_product(philox_of(row.seed, row.id, position, 0), running.total);
  if (running.sum - mine <= r && running.sum > r) {
    uint64_t rest = r - (running.sum - mine);
    uint32_t chunk = first;
    for (; total[chunk] <= rest; chunk++) rest -= total[chunk];
    *found = {rest, chunk};
  }
  __syncthreads();
  return *found;
}

// The lowest token of a chunk at which the sum from the start of the chunk exceeds `rest`. Executed by one warp.
XT_DEV uint32_t token_in(const float* y, const SampleRow& row, float max_z, uint64_t cutoff, uint32_t v,
                         Place place) {
  uint64_t before = 0;
  uint32_t token = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t first = 128 * place.chunk + 32 * k, i = first + threadIdx.x % 32;
    uint64_t running = warp_running(i < v ? token_of(y[i], i, row, max_z, cutoff).weight : 0);
    uint32_t passed = __ballot_sync(0xffffffffu, before + running > place.rest);
    if (passed) {
      token = first + __ffs(passed) - 1;
      break;
    }
    before += __shfl_sync(0xffffffffu, running, 31);
  }
  return token;
}

XT_KERNEL(sample_pick_f32, 256)(const float* x, const float* y, const SampleRow* rows, const uint32_t* step,
                                const RowSelect* selects, const ChunkSums* raw, ChunkSums* kept, uint64_t* total,
                                uint32_t* samples, uint32_t* tokens, uint32_t* counters, const float* penalized,
                                uint32_t v, uint32_t chunks) {
  xt_grid_dependency_sync();
  XT_SHARED(float, lse, 2);
  XT_SHARED(uint32_t, picked, 1);
  uint32_t n = blockIdx.x, warp = threadIdx.x / 32;
  SampleRow row = rows[n];
  RowMaxima maxima = row_maxima(row, raw, penalized, v);
  samples += 4 * ((size_t)*step * gridDim.x + n);
  if (maxima.fault) {
    if (blockIdx.y != 0) return;
    if (threadIdx.x == 0) tokens[n] = 0;
    if (threadIdx.x < 4) samples[threadIdx.x] = threadIdx.x == 0 ? maxima.fault : 0;
    return;
  }
  uint64_t cutoff = has_top_k(row, v) || has_top_p(row) ? selects[n].cutoff : 0;
  x += (size_t)n * v;
  y += (size_t)n * v;
  raw += (size_t)n * chunks;
  kept += (size_t)n * chunks;
  total += (size_t)n * chunks;
  chunk_weights(y, row, maxima.z, cutoff, kept, total, v, 32 * blockIdx.y + warp);
  if (!xt_last_block(counters + n, XT_FAULT(PickBeforeOtherBlocks) ? 1 : gridDim.y)) return;

  Place place = place_of(row, row.position + *step, total, chunks);
  if (warp < 2) {
    float sum = warp == 0 ? lse_of(raw, chunks, maxima.x) : lse_of(kept, chunks, maxima.z);
    if (threadIdx.x % 32 == 0) lse[warp] = sum;
  } else if (warp == 2) {
    uint32_t token = token_in(y, row, maxima.z, cutoff, v, place);
    if (threadIdx.x % 32 == 0) *picked = token;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t token = *picked;
  samples[0] = 0;
  samples[1] = tokens[n] = token;
  samples[2] = xt_f_bits(x[token] - lse[0]);
  samples[3] = xt_f_bits(row.temperature == 0.0f ? 0.0f : y[token] / row.temperature - lse[1]);
}
XT_EXPORT(sample_pick_f32)
