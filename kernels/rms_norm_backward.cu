// rms_norm_backward    xh_i = x_i r;  e_i = dy_i w_i;  t = sum32(e_i xh_i) / C;  dx_i = fma(-xh_i, t, e_i) r
//                      x, dy [N, C], w [C] -> dx [N, C], r [N]; with onto: sum_i = onto_i + dx_i instead of dx_i
// Launch: one warp per row, four rows per block. Rows of up to 1024 values stay in registers; longer ones are read
//   again.
// Order: sum32. CPU twin: cpu/norm.rs.
#include "rms_norm.cuh"

// A row of dx, and the row that it is added to; null: none. Both may be the same memory.
struct GradientRow {
  const float* onto;
  float* dx;
};

template <int K, class T>
XT_DEV float rms_norm_dx_short(const T* x, const float* w, const float* dy, GradientRow out, uint32_t c, float eps,
                               uint32_t lane) {
  float h[K], e[K];
  lane_load(h, x, c, lane);
  lane_load(e, dy, c, lane);
  float r = inverse_rms(lane_sum_squares(h), c, eps), t = 0.0f;
#pragma unroll
  for (int k = 0; k < K; k++) {
    uint32_t i = lane + 32 * k;
    h[k] = h[k] * r;
    if (i < c) e[k] = e[k] * w[i];
    t = fmaf(e[k], h[k], t);
  }
  t = sum32(t) / (float)c;
#pragma unroll
  for (int k = 0; k < K; k++) e[k] = fmaf(-h[k], t, e[k]) * r;
  if (out.onto) {
    lane_load(h, out.onto, c, lane);
#pragma unroll
    for (int k = 0; k < K; k++) e[k] = h[k] + e[k];
  }
#pragma unroll
  for (int k = 0; k < K; k++) {
    uint32_t i = lane + 32 * k;
    if (i < c) out.dx[i] = e[k];
  }
  return r;
}

template <class T>
XT_DEV float rms_norm_dx_long(const T* x, const float* w, const float* dy, GradientRow out, uint32_t c, float eps,
                              uint32_t lane) {
  float r = inverse_rms(lane_sum_squares_long(x, c, lane), c, eps), t = 0.0f;
  struct Loaded {
    float x, w, dy;
  };
  auto load_at = [=](uint32_t i) { return Loaded{load(x + i), w[i], dy[i]}; };
  in_flight<8>(lane, c, 32u, load_at, [&](uint32_t, Loaded v) { t = fmaf(v.dy * v.w, v.x * r, t); });
  t = sum32(t) / (float)c;
  auto gradient = [=](Loaded v) { return fmaf(-(v.x * r), t, v.dy * v.w) * r; };
  if (!out.onto) {
    in_flight<8>(lane, c, 32u, load_at, [=](uint32_t i, Loaded v) { out.dx[i] = gradient(v); });
    return r;
  }
  struct Added {
    Loaded v;
    float onto;
  };
  in_flight<8>(
      lane, c, 32u, [=](uint32_t i) { return Added{load_at(i), out.onto[i]}; },
      [=](uint32_t i, Added a) { out.dx[i] = a.onto + gradient(a.v); });
  return r;
}

template <class T>
XT_DEV void rms_norm_dx(const T* x, const float* w, const float* dy, const float* onto, float* dx, float* r,
                        uint32_t n, uint32_t c, float eps) {
  uint32_t row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= n) return;
  size_t at = (size_t)row * c;
  const GradientRow out = {onto ? onto + at : nullptr, dx + at};
  float one;
  if (c <= 128)
    one = rms_norm_dx_short<4>(x + at, w, dy + at, out, c, eps, lane);
  else if (c <= 1024)
    one = rms_norm_dx_short<32>(x + at, w, dy + at, out, c, eps, lane);
  else
    one = rms_norm_dx_long(x + at, w, dy + at, out, c, eps, lane);
  if (lane == 0) r[row] = one;
}

#define RMS_NORM_DX(name, T)                                                                                         \
  XT_KERNEL(name, 128)(const T* x, const float* w, const float* dy, const float* onto, float* dx, float* r,          \
                       uint32_t n, uint32_t c, float eps) {                                                          \
    xt_grid_dependency_sync();                                                                                       \
    rms_norm_dx(x, w, dy, onto, dx, r, n, c, eps);                                                                   \
  }                                                                                                                  \
  XT_EXPORT(name)
RMS_NORM_DX(rms_norm_dx_f32, float)
RMS_NORM_DX(rms_norm_dx_bf16, bf16)
#undef RMS_NORM_DX

// rms_norm_dw    part[p][i] = chain over the rows of chunk p: fma(dy_i, x_i r, .) from +0
//                x, dy [N, C], r [N], chunk [P, 2] (first row, end row) -> part [P, C]
// Launch: one block per (chunk, tile of columns), one thread per column. A chunk has at most 256 rows.
template <class T>
XT_DEV void rms_norm_dw(const T* x, const float* r, const float* dy, const uint32_t* chunk, float* part, uint32_t c) {
  uint32_t i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= c) return;
  uint32_t end = chunk[2 * blockIdx.x + 1];
  float sum = 0.0f;
  struct Loaded {
    float dy, x, r;
  };
  in_flight<16>(
      chunk[2 * blockIdx.x], end, 1u,
      [=](uint32_t row) {
        size_t at = (size_t)row * c + i;
        return Loaded{dy[at], load(x + at), r[row]};
      },
      [&](uint32_t, Loaded v) { sum = fmaf(v.dy, v.x * v.r, sum); });
  part[(size_t)blockIdx.x * c + i] = sum;
}

#define RMS_NORM_DW(name, T)                                                                                         \
  XT_KERNEL(name, 256)(const T* x, const float* r, const float* dy, const uint32_t* chunk, float* part,              \
                       uint32_t c) {                                                                                 \
    xt_grid_dependency_sync();                                                                                       \
    rms_norm_dw(x, r, dy, chunk, part, c);                                                                           \
  }                                                                                                                  \
  XT_EXPORT(name)
RMS_NORM_DW(rms_norm_dw_f32, float)
RMS_NORM_DW(rms_norm_dw_bf16, bf16)
#undef RMS_NORM_DW

// add_chunks     g[i] = init[i] + part[p][i], p ascending         part [P, C], init (null: zeros) and g [C]
// Launch: one thread per column.
XT_KERNEL(add_chunks_f32, 32)(const float* part, const float* init, float* g, uint32_t chunks, uint32_t c) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= c) return;
  float sum = init ? init[i] : 0.0f;
#pragma unroll 16
  for (uint32_t p = 0; p < chunks; p++) sum = sum + part[(size_t)p * c + i];
  g[i] = sum;
}
XT_EXPORT(add_chunks_f32)
