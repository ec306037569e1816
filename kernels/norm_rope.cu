// norm_rope             y = rope(rms_norm(x, gain)) over each head           x [N, H, hd], gain [hd] -> y [N, H, hd]
// Launch: 16 heads per block of four warps: eight lanes per head of 64 or 128 values, a warp per head of another size.
//   Order: sum32. CPU twin: cpu/rope.rs.
#include "head_lanes.cuh"
#include "norm_rotate.cuh"

// The head of these eight lanes, hd = 32 K; it is stored if `present`.
template <int K, class T>
XT_DEV void norm_rope_lanes(const T* x, const float* gain, const float* cos, T* y, float eps, bool present) {
  HeadLane<K> v, table, g;
  v.load(x);
  table.load(cos);
  g.load(gain);
  const float r = inverse_rms_of(head_dot(v, v), 32 * K, eps);
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int e = 0; e < 4; e++) v.v[k][e] = (v.v[k][e] * r) * g.v[k][e];
  rotate_head(v, table, true);
  if (present) v.store(y);
}

template <class T>
XT_DEV void norm_rope(const T* x, const float* gain, const uint64_t* table, const uint32_t* pos, T* y, uint32_t pairs,
                      uint32_t heads, uint32_t hd, float eps) {
  XT_SHARED2(float, staging, 4, 256);
  auto cos = [&](uint32_t pair) {
    return rope_row(table, pos[XT_FAULT(HeadsAtFirstPosition) ? 0 : pair / heads], hd);
  };
  if (hd == 64 || hd == 128) {
    const uint32_t pair = blockIdx.x * 16 + threadIdx.x / 8, read = min(pair, pairs - 1);
    const size_t at = (size_t)read * hd;
    if (hd == 64)
      norm_rope_lanes<2>(x + at, gain, cos(read), y + at, eps, pair < pairs);
    else
      norm_rope_lanes<4>(x + at, gain, cos(read), y + at, eps, pair < pairs);
    return;
  }
  const uint32_t warp = threadIdx.x / 32, end = min((blockIdx.x + 1) * 16, pairs);
  for (uint32_t pair = blockIdx.x * 16 + warp; pair < end; pair += 4) {
    const size_t at = (size_t)pair * hd;
    norm_rotate(x + at, gain, cos(pair), y + at, hd, eps, staging[warp], threadIdx.x % 32);
    __syncwarp();
  }
}

#define NORM_ROPE(name, T)                                                                                           \
  XT_KERNEL(name, 128)(const T* x, const float* gain, const uint64_t* table, const uint32_t* pos, T* y,              \
                       uint32_t pairs, uint32_t heads, uint32_t hd, float eps) {                                     \
    xt_grid_dependency_sync();                                                                                       \
    norm_rope(x, gain, table, pos, y, pairs, heads, hd, eps);                                                        \
  }                                                                                                                  \
  XT_EXPORT(name)
NORM_ROPE(norm_rope_f32, float)
NORM_ROPE(norm_rope_bf16, bf16)
#undef NORM_ROPE

// norm_rope_backward    e = dy rotated back; dx as rms_norm_backward of e; part[p][i] = chain over the pairs of chunk
//                       p: fma(e_i, x_i r, .) from +0
//                       x, dy [N, H, hd], gain [hd], chunk [P, 2] (first pair, end pair) -> dx [N, H, hd], part [P, hd]
// Launch: one block of 256 threads per chunk of at most 256 (row, head) pairs: eight lanes per pair of 64 or 128 values, a
//   warp per pair of another size. 32 pairs stay in dynamic shared memory (gpu/heads.rs), then one thread per column adds
//   them to its chain.
// Order: sum32; pairs in ascending order. hd is even, at most 256. CPU twin: cpu/rope.rs.
// Cost: x, dy and dx once.

// Pairs in shared memory.
const uint32_t STAGED_PAIRS = 32;

// Column i of dy, rotated back.
XT_DEV float rotated_back(const float* dy, const float* cos, uint32_t i, uint32_t half) {
  const float* sin = cos + half;
  return i < half ? fmaf(dy[i], cos[i], dy[i + half] * sin[i])
                  : fmaf(dy[i], cos[i - half], -(dy[i - half] * sin[i - half]));
}

// The columns lane + 32 k of a pair: x, and e.
template <int K> struct PairColumns {
  float h[K], e[K];
};

template <int K, class T>
XT_DEV void load_pair(PairColumns<K>& p, const T* x, const float* cos, const float* dy, uint32_t hd, uint32_t lane) {
  lane_load(p.h, x, hd, lane);
#pragma unroll
  for (int k = 0; k < K; k++) {
    uint32_t i = lane + 32 * k;
    p.e[k] = i < hd ? rotated_back(dy, cos, i, hd / 2) : 0.0f;
  }
}

// Writes dx of a pair, and e and x r to shared memory. g: the gain.
template <int K, class O>
XT_DEV void pair_gradient(PairColumns<K>& p, const float (&g)[K], O* dx, float* e_smem, float* h_smem, uint32_t hd,
                          float eps, uint32_t lane) {
  float t = 0.0f, r = inverse_rms(lane_sum_squares(p.h), hd, eps);
#pragma unroll
  for (int k = 0; k < K; k++) {
    uint32_t i = lane + 32 * k;
    p.h[k] = p.h[k] * r;
    if (i < hd) {
      e_smem[i] = p.e[k];
      h_smem[i] = p.h[k];
    }
    p.e[k] = p.e[k] * g[k];
    t = fmaf(p.e[k], p.h[k], t);
  }
  t = sum32(t) / (float)hd;
#pragma unroll
  for (int k = 0; k < K; k++) {
    uint32_t i = lane + 32 * k;
    if (i < hd) store(dx + i, fmaf(-p.h[k], t, p.e[k]) * r);
  }
}

// The pairs of a chunk and the heads they belong to.
template <class T, class O> struct HeadPairs {
  const T* x;
  const float *gain, *dy;
  const uint64_t* table;
  const uint32_t* pos;
  O* dx;
  uint32_t heads, hd;
  float eps;
};

// The pairs at .. at + staged - 1, hd <= 32 K.
template <int K, class T, class O>
XT_DEV void pair_gradients(const HeadPairs<T, O>& p, uint32_t at, uint32_t staged, float* e_smem, float* h_smem) {
  const uint32_t lane = threadIdx.x % 32;
  float g[K];
  lane_load(g, p.gain, p.hd, lane);
  for (uint32_t i = threadIdx.x / 32; i < staged; i += 8) {
    const size_t pair = at + i, from = pair * p.hd;
    PairColumns<K> columns;
    load_pair(columns, p.x + from, rope_row(p.table, p.pos[pair / p.heads], p.hd), p.dy + from, p.hd, lane);
    pair_gradient(columns, g, p.dx + from, e_smem + i * p.hd, h_smem + i * p.hd, p.hd, p.eps, lane);
  }
}

// The same for hd = 32 K by eight lanes per pair: 32 pairs at once.
template <int K, class T, class O>
XT_DEV void pair_gradients_of_lanes(const HeadPairs<T, O>& p, uint32_t at, uint32_t staged, float* e_smem,
                                    float* h_smem) {
  constexpr uint32_t HD = 32 * K;
  const uint32_t i = threadIdx.x / 8, pair = at + min(i, staged - 1);
  const size_t from = (size_t)pair * HD;
  HeadLane<K> h, e, table;
  e.load(p.dy + from);
  h.load(p.x + from);
  table.load(rope_row(p.table, p.pos[pair / p.heads], HD));
  rotate_head(e, table, false);
  const float r = inverse_rms_of(head_dot(h, h), HD, p.eps);
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int n = 0; n < 4; n++) h.v[k][n] = h.v[k][n] * r;
  if (i < staged) {
    e.store(e_smem + i * HD);
    h.store(h_smem + i * HD);
  }
  HeadLane<K> g;
  g.load(p.gain);
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int n = 0; n < 4; n++) e.v[k][n] = e.v[k][n] * g.v[k][n];
  const float t = head_dot(e, h) / (float)HD;
#pragma unroll
  for (int k = 0; k < K; k++)
#pragma unroll
    for (int n = 0; n < 4; n++) e.v[k][n] = fmaf(-h.v[k][n], t, e.v[k][n]) * r;
  if (i < staged) e.store(p.dx + from);
}

template <class T, class O>
XT_DEV void norm_rope_backward(const T* x, const float* gain, const uint64_t* table, const uint32_t* pos,
                               const float* dy, O* dx, const uint32_t* chunk, float* part, uint32_t heads,
                               uint32_t hd, float eps) {
  XT_DYN_SHARED(float, e_smem);
  float *h_smem = e_smem + STAGED_PAIRS * hd, sum = 0.0f;
  const uint32_t first = chunk[2 * blockIdx.x], end = chunk[2 * blockIdx.x + 1];
  const HeadPairs<T, O> pairs = {x, gain, dy, table, pos, dx, heads, hd, eps};
  for (uint32_t at = first; at < end; at += STAGED_PAIRS) {
    const uint32_t staged = min(STAGED_PAIRS, end - at);
    if (hd == 64)
      pair_gradients_of_lanes<2>(pairs, at, staged, e_smem, h_smem);
    else if (hd == 128)
      pair_gradients_of_lanes<4>(pairs, at, staged, e_smem, h_smem);
    else if (hd < 64)
      pair_gradients<2>(pairs, at, staged, e_smem, h_smem);
    else if (hd < 128)
      pair_gradients<4>(pairs, at, staged, e_smem, h_smem);
    else
      pair_gradients<8>(pairs, at, staged, e_smem, h_smem);
    __syncthreads();
    const uint32_t used = staged - (XT_FAULT(LastPairOfChunkNotSummed) && at + staged == end);
    if (threadIdx.x < hd) {
#pragma unroll 8
      for (uint32_t i = 0; i < used; i++) sum = fmaf(e_smem[i * hd + threadIdx.x], h_smem[i * hd + threadIdx.x], sum);
    }
    if (!XT_FAULT(StagedPairsOverwritten)) __syncthreads();
  }
  if (threadIdx.x < hd) part[(size_t)blockIdx.x * hd + threadIdx.x] = sum;
}

#define NORM_ROPE_BACKWARD(name, T, O)                                                                               \
  XT_KERNEL_FOR(name, 256, 2)                                                                                        \
  (const T* x, const float* gain, const uint64_t* table, const uint32_t* pos, const float* dy, O* dx,                \
   const uint32_t* chunk, float* part, uint32_t heads, uint32_t hd, float eps) {                                     \
    xt_grid_dependency_sync();                                                                                       \
    norm_rope_backward(x, gain, table, pos, dy, dx, chunk, part, heads, hd, eps);                                    \
  }                                                                                                                  \
  XT_EXPORT(name)
NORM_ROPE_BACKWARD(norm_rope_backward_f32_f32, float, float)
NORM_ROPE_BACKWARD(norm_rope_backward_bf16_f32, bf16, float)
NORM_ROPE_BACKWARD(norm_rope_backward_bf16_bf16, bf16, bf16)
#undef NORM_ROPE_BACKWARD
