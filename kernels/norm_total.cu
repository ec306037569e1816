// row_squares  sums[row] = sum32(g_i g_i) for every row of every tensor (a vector is one row)
// Launch: one warp per row, eight rows of one tensor per block. Order: sum32. CPU twin: cpu/optim.rs.
#include "in_flight.cuh"
#include "optimizer.cuh"

XT_KERNEL(row_squares_f32, 256)(const Parameter* all, uint32_t tensors, float* sums) {
  xt_grid_dependency_sync();
  Parameter p = tensor_of_block<&Parameter::rows_block>(all, tensors, blockIdx.x);
  uint32_t row = (blockIdx.x - p.rows_block) * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.rows) return;
  const float* g = xt_global(p.g) + (size_t)row * p.width;
  float s = 0.0f;
  in_flight<16>(lane, p.width, 32u, [=](uint32_t i) { return g[i]; }, [&](uint32_t, float v) { s = fmaf(v, v, s); });
  s = sum32(s);
  if (lane == 0) sums[p.row + row] = s;
}
XT_EXPORT(row_squares_f32)

// tensor_squares   squares[tensor] = sum32 over its row sums
// Launch: one warp per tensor.
XT_KERNEL(tensor_squares_f32, 32)(const Parameter* all, const float* sums, float* squares) {
  xt_grid_dependency_sync();
  Parameter p = all[blockIdx.x];
  float s = 0.0f;
  in_flight<32>((uint32_t)threadIdx.x, p.rows, 32u, [=](uint32_t i) { return sums[p.row + i]; },
                [&](uint32_t, float v) { s = s + v; });
  s = sum32(s);
  if (threadIdx.x == 0) squares[blockIdx.x] = s;
}
XT_EXPORT(tensor_squares_f32)

// norm_total   total = chain over the tensors in walk order from +0;  norm = sqrt(total);
//              clip = min(1, max_norm / (norm + 1e-6));  finite = 1 if the norm is finite, else 0
// Launch: one warp; its lanes load 32 tensors at a time, and every lane adds them in the same order.
XT_KERNEL(norm_total_f32, 32)(const float* squares, uint32_t tensors, float max_norm, ClipState* clip_state) {
  xt_grid_dependency_sync();
  float total = 0.0f;
  for (uint32_t first = 0; first < tensors; first += 32) {
    float mine = first + threadIdx.x < tensors ? squares[first + threadIdx.x] : 0.0f;
    uint32_t here = tensors - first < 32 ? tensors - first : 32;
    for (uint32_t i = 0; i < here; i++) total = total + __shfl_sync(0xffffffffu, mine, i);
  }
  if (threadIdx.x != 0) return;
  float norm = sqrtf(total), ratio = max_norm / (norm + 1e-6f);
  bool finite = (xt_f_bits(norm) & 0x7f800000u) != 0x7f800000u;
  *clip_state = {total, norm, ratio < 1.0f ? ratio : 1.0f, finite ? 1.0f : 0.0f, 0};
}
XT_EXPORT(norm_total_f32)
