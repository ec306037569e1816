// sample_greedy    sample_chunks and sample_pick in one launch, for rows without temperature and penalty:
//                  token = the lowest i with x_i = max x;  log-prob = x_token - lse(x);  processed = 0
//                  x [N, V] -> raw [N, ceil(V / 128)] as sample_chunks; samples [step + 1, N, 4], tokens [N] as
//                  sample_pick; step = step + 1
// Launch: as sample_chunks. The last block of a row chooses, with one warp; the last row to finish increments `step`,
//   which all rows read. Counters [N + 1] are zero before and after a launch.
// Order: maxima; lse as sample_pick. CPU twin: reference/sample.rs.
// Cost: one read of the logits, and 8 bytes per chunk written and read.
#include "sample.cuh"

// Executed by one warp. sample: the row's entry of this step; x [V] and raw [chunks]: of the row.
XT_DEV void greedy_row(const float* x, const ChunkSums* raw, uint32_t* sample, uint32_t* token_of_row, uint32_t v,
                       uint32_t chunks) {
  uint32_t lane = threadIdx.x;
  // the largest maximum of this lane's chunks, and the first of its chunks that has it
  float maximum = xt_bits_f(0xff800000u);
  uint32_t chunk = lane;
  in_flight<8>(
      lane, chunks, 32u, [=](uint32_t c) { return raw[c].m; },
      [&](uint32_t c, float m) {
        if (m > maximum) chunk = c;
        maximum = max_f32(maximum, m);
      });
  float largest = max32(maximum);
  uint32_t fault = largest == xt_bits_f(0x7f800000u) ? 1 : largest == xt_bits_f(0xff800000u) ? 2 : 0;
  if (fault) {
    if (lane == 0) *token_of_row = 0;
    if (lane < 4) sample[lane] = lane == 0 ? fault : 0;
    return;
  }
  if (maximum != largest) chunk = 0xffffffffu;
#pragma unroll
  for (int o = 16; o; o >>= 1) chunk = min(chunk, __shfl_xor_sync(0xffffffffu, chunk, o));
  uint32_t token = v;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t first = 128 * chunk + 32 * k, i = first + lane;
    uint32_t equal = __ballot_sync(0xffffffffu, i < v && x[i] == largest);
    if (equal && (token == v || XT_FAULT(GreedyTakesLaterTie))) token = first + __ffs(equal) - 1;
  }
  float whole = lse_of(raw, chunks, largest);
  if (lane != 0) return;
  sample[0] = 0;
  sample[1] = *token_of_row = token;
  sample[2] = xt_f_bits(x[token] - whole);
  sample[3] = 0;
}

XT_KERNEL(sample_greedy_f32, 256)(const float* x, uint32_t* step, ChunkSums* raw, uint32_t* samples, uint32_t* tokens,
                                  uint32_t* counters, uint32_t v, uint32_t chunks) {
  xt_grid_dependency_sync();
  const uint32_t n = blockIdx.x, rows = gridDim.x;
  store_chunk_sums(x, raw, v, chunks);
  if (!xt_last_block(counters + n, XT_FAULT(GreedyBeforeOtherBlocks) ? 1 : gridDim.y)) return;
  if (threadIdx.x < 32)
    greedy_row(x + (size_t)n * v, raw + (size_t)n * chunks, samples + 4 * ((size_t)(*step + 1) * rows + n),
               tokens + n, v, chunks);
  if (xt_last_block(counters + rows, XT_FAULT(StepCountedByFirstRow) ? 1 : rows) && threadIdx.x == 0) *step += 1;
}
XT_EXPORT(sample_greedy_f32)
