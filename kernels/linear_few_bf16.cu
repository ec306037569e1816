#include "linear_chunks.cuh"
// linear_few_bf16  linear_bf16 for few rows                            x [N, in], w [out, in]
// Launch: 16 outputs and 8 T rows a block, T = 1, 2 or 4, grid (N / (8 T), out / 16), so that blocks of the
//   same weights run together; a warp a chunk of 256 k, as many at a time as gpu/linear.rs gives 96 KiB of
//   dynamic shared memory to, 8 at most.
// Order: as linear_bf16, weights as the 16-row operand, rows that are not there zero; chunks run beside
//   each other and are added in order. CPU twin: none; gate: gpu/linear/tests.rs.
// Cost: memory. A block's weights, 8 KiB a chunk, are in flight at once: 24 KiB at in = 768, 64 at 2048 (one
//   row), so that three blocks an SM cover the latency (22 KB). 16 mma a warp follow, one after another:
//   0.3 us. One row's share of the shared memory is 0.5 KiB a warp.

// `lines` lines of one chunk into shared memory, 264 elements apart; what is not there is zero.
XT_DEV void bring_chunk(bf16* s, const bf16* g, uint32_t lines, uint32_t there, uint32_t width, uint32_t at) {
  uint32_t lane = threadIdx.x & 31, n = min(256u, width - at), padded = (n + 15) / 16 * 16;
  bool vector = (width & 7) == 0;
  for (uint32_t line = 0; line < lines; line++) {
    uint32_t k = lane * 8;
    if (k >= padded) continue;
    uint32_t left = line < there && k < n ? min(8u, n - k) : 0;
    const bf16* from = left ? g + (size_t)line * width + at + k : g;
    bf16* to = s + line * 264 + k;
    if (vector) {
      xt_cp_async16(to, from, left != 0);
      continue;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) to[i].u = i < left ? from[i].u : (uint16_t)0;
  }
}

// The rows x [N, in] of a product, and what must be known of them before the first chunk: nothing.
struct PlainRows { const bf16* x; };
XT_DEV void settle(const PlainRows&, uint32_t, uint32_t, uint32_t, uint32_t) {}
XT_DEV void bring_rows(const PlainRows& x, bf16* s, uint32_t lines, uint32_t n0, uint32_t rows, uint32_t width, uint32_t at) {
  bring_chunk(s, x.x + (size_t)n0 * width, lines, rows - n0, width, at);
}

// The weights w [out, in] of a block, the outputs o0 .. o0 + 15 of a product.
struct PlainWeights {
  const bf16* w;
  Output out;
  uint32_t o0, outs;
};
XT_DEV void bring_weights(const PlainWeights& w, bf16* s, uint32_t width, uint32_t at) {
  bring_chunk(s, w.w + (size_t)w.o0 * width, 16, w.outs - w.o0, width, at);
}
XT_DEV void leave_all(const PlainWeights& w, const float* total, uint32_t values, uint32_t n0, uint32_t rows) {
  for (uint32_t i = threadIdx.x; i < values; i += blockDim.x) {
    uint32_t o = w.o0 + i % 16, n = n0 + i / 16;
    if (o < w.outs && n < rows) leave(w.out, total[i], o, (size_t)n * w.outs + o);
  }
}

template <int T, class Rows, class Weights>
XT_DEV void few_rows_bf16(const Rows& x, const Weights& w, uint32_t rows, uint32_t width) {
  const uint32_t ROWS = 8 * T, VALUES = 16 * ROWS;
  XT_DYN_SHARED(float, total);                          // [row][output], then the same for each warp's chunk
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x / 32;
  uint32_t n0 = blockIdx.x * ROWS, chunks = (width + 255) / 256, lines = min(ROWS, rows);
  float* part = total + VALUES;
  bf16* ws = reinterpret_cast<bf16*>(part + warps * VALUES) + warp * (16 + lines) * 264;
  bf16* xs = ws + 16 * 264;
  for (uint32_t i = threadIdx.x; i < VALUES; i += blockDim.x) total[i] = 0.0f;
  for (uint32_t first = 0; first < chunks; first += warps) {
    uint32_t at = (first + warp) * 256;
    bool here = at < width;
    if (here) {
      bring_weights(w, ws, width, at);
      xt_cp_commit();
    }
    if (first == 0) settle(x, lines, n0, rows, width);  // while the weights are on their way
    if (here) {
      bring_rows(x, xs, lines, n0, rows, width, at);
      xt_cp_commit();
      xt_cp_wait<0>();
      __syncwarp();
      float c[T][4];
#pragma unroll
      for (int t = 0; t < T; t++) c[t][0] = c[t][1] = c[t][2] = c[t][3] = 0.0f;
#pragma unroll 4
      for (uint32_t k = 0; k < min(256u, width - at); k += 16) {
        uint32_t a[4];
        xt_ldmatrix_x4(a, ws + (lane & 15) * 264 + k + (lane >> 4) * 8);
#pragma unroll
        for (int t = 0; t < T; t++) {
          uint32_t b[2] = {0, 0}, line = 8 * t + (lane >> 2);
          if (line < lines) {
            const bf16* at = xs + line * 264 + k + (lane & 3) * 2;
            b[0] = *reinterpret_cast<const uint32_t*>(at), b[1] = *reinterpret_cast<const uint32_t*>(at + 8);
          }
          xt_mma_bf16_16816(c[t], a, b);
        }
      }
#pragma unroll
      for (int t = 0; t < T; t++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          part[warp * VALUES + (8 * t + (lane & 3) * 2 + e % 2) * 16 + (lane >> 2) + e / 2 * 8] = c[t][e];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < VALUES; i += blockDim.x)
      for (uint32_t j = 0; j < min(warps, chunks - first); j++) total[i] = total[i] + part[j * VALUES + i];
    __syncthreads();
  }
  leave_all(w, total, VALUES, n0, rows);
}

XT_KERNEL(linear_few_bf16_8, 256)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y, bf16* rounded, uint32_t rows, uint32_t outs, uint32_t width,
                       const float* gain, float eps, float* n, bf16* n_rounded, uint32_t* met) {
  few_rows_bf16<1>(PlainRows{x}, PlainWeights{w, {nullptr, bias, h, y, rounded}, blockIdx.y * 16, outs}, rows, width);
  norm_rows({gain, eps, n, n_rounded, met}, y, outs, blockIdx.x, gridDim.y, blockIdx.x * 8, min(rows, (blockIdx.x + 1) * 8));
}
XT_EXPORT(linear_few_bf16_8)

XT_KERNEL(linear_few_bf16_16, 256)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y, bf16* rounded, uint32_t rows, uint32_t outs, uint32_t width,
                       const float* gain, float eps, float* n, bf16* n_rounded, uint32_t* met) {
  few_rows_bf16<2>(PlainRows{x}, PlainWeights{w, {nullptr, bias, h, y, rounded}, blockIdx.y * 16, outs}, rows, width);
  norm_rows({gain, eps, n, n_rounded, met}, y, outs, blockIdx.x, gridDim.y, blockIdx.x * 16, min(rows, (blockIdx.x + 1) * 16));
}
XT_EXPORT(linear_few_bf16_16)

XT_KERNEL(linear_few_bf16_32, 128)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y, bf16* rounded, uint32_t rows, uint32_t outs, uint32_t width,
                       const float* gain, float eps, float* n, bf16* n_rounded, uint32_t* met) {
  few_rows_bf16<4>(PlainRows{x}, PlainWeights{w, {nullptr, bias, h, y, rounded}, blockIdx.y * 16, outs}, rows, width);
  norm_rows({gain, eps, n, n_rounded, met}, y, outs, blockIdx.x, gridDim.y, blockIdx.x * 32, min(rows, (blockIdx.x + 1) * 32));
}
XT_EXPORT(linear_few_bf16_32)
