// sample_greedy    sample_pick for rows without temperature and penalty:
//                  token = the lowest i with x_i = max x;  log-prob = x_token - lse(x);  processed = 0
//                  x [N, V], raw [N, ceil(V / 128)] -> samples [step, N, 4], tokens [N], as sample_pick
// Launch: one warp per row, after sample_chunks. Order: maxima; lse as sample_pick. CPU twin: reference/sample.rs.
#include "sample.cuh"

XT_KERNEL(sample_greedy_f32, 32)(const float* x, const uint32_t* step, const ChunkSums* raw, uint32_t* samples,
                                 uint32_t* tokens, uint32_t v, uint32_t chunks) {
  xt_grid_dependency_sync();
  uint32_t lane = threadIdx.x;
  samples += 4 * ((size_t)*step * gridDim.x + blockIdx.x);
  x += (size_t)blockIdx.x * v;
  raw += (size_t)blockIdx.x * chunks;
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
    if (lane == 0) tokens[blockIdx.x] = 0;
    if (lane < 4) samples[lane] = lane == 0 ? fault : 0;
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
  samples[0] = 0;
  samples[1] = tokens[blockIdx.x] = token;
  samples[2] = xt_f_bits(x[token] - whole);
  samples[3] = 0;
}
XT_EXPORT(sample_greedy_f32)
