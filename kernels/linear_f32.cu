#include "linear_chunks.cuh"
// linear_f32       y[n][o] = dot(x[n], w[o]) (+ bias[o]) (h[n][o] + that); f32 or rounded to bf16     x [N, in], w [out, in]
// linear_dx_f32    dx[n][k] = start + sum over a group's weights of dot over o of dy[n][o] w[o][k]    dy [N, out], w [out, in]
// linear_dw_f32    dw[o][k] = dw[o][k] + rowsum dy[r][o] x[r][k]                                      dy [R, out], x [R, in]
// Launch: a block a tile of TILE x TILE outputs (TILE = 128: 256 threads, 64: 64 threads), 8 x 8 outputs
//   a thread, grid (P / TILE, Q / TILE). No dynamic shared memory. Order: linear_chunks.cuh; chunk and
//   total in registers, so tiles, grids and batches change no bit. CPU twin: cpu/gemm.
// Cost: 2 P Q K flops on FFMA (67 TFLOP/s on an H200); a tile reads 8 TILE bytes a k, 32 flops a byte of
//   L2 at 128 (2.1 TB/s at peak), 16 at 64. A step of 8 k is 512 FFMA a thread between barriers, with
//   32 shared loads of 16 bytes; the next step's operands are in flight meanwhile. Two accumulators of
//   64 registers: one block of 256 threads an SM (8 warps of 64 independent chains), or five of 64.

// The operands of one step of 8 k on their way from memory to shared memory.
template <int TILE>
struct Fetched { float4 v[128 / TILE]; };

// Four elements of a line along k (or of four lines at one k); what lies outside is +0.
XT_DEV float4 four(const float* p, uint32_t at, uint32_t end, bool vector) {
  if (vector && at + 4 <= end) return *reinterpret_cast<const float4*>(p);
  return make_float4(at < end ? p[0] : 0.0f, at + 1 < end ? p[1] : 0.0f, at + 2 < end ? p[2] : 0.0f, at + 3 < end ? p[3] : 0.0f);
}

// ALONG: a line's elements lie side by side, `len` to a line. Otherwise those of one k do, n to a k.
template <int TILE, bool ALONG, class L>
XT_DEV void fetch(const L& lines, const float* base, uint32_t first, const Chunk& c, uint32_t len, Fetched<TILE>& f) {
#pragma unroll
  for (int i = 0; i < 128 / TILE; i++) {
    uint32_t u = threadIdx.x + i * (TILE * TILE / 64);
    f.v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (ALONG) {
      uint32_t k = c.at + (u & 1) * 4;
      const float* from = line_of<TILE>(lines, base, first, u >> 1, len);
      if (from && k < c.end) f.v[i] = four(from + k, k, c.end, (len & 3) == 0);
    } else {
      uint32_t line = first + u % (TILE / 4) * 4, k = c.at + u / (TILE / 4);
      if (line < lines.n && k < c.end) f.v[i] = four(base + (size_t)k * lines.n + line, line, lines.n, (lines.n & 3) == 0);
    }
  }
}

template <int TILE, bool ALONG>
XT_DEV void put(float (*s)[TILE + 4], const Fetched<TILE>& f) {
#pragma unroll
  for (int i = 0; i < 128 / TILE; i++) {
    uint32_t u = threadIdx.x + i * (TILE * TILE / 64);
    if (ALONG) {
      uint32_t line = u >> 1, k = (u & 1) * 4;
      s[k][line] = f.v[i].x, s[k + 1][line] = f.v[i].y, s[k + 2][line] = f.v[i].z, s[k + 3][line] = f.v[i].w;
    } else {
      *reinterpret_cast<float4*>(&s[u / (TILE / 4)][u % (TILE / 4) * 4]) = f.v[i];
    }
  }
}

// Eight of a tile's lines: four from 4 t, four from TILE / 2 + 4 t.
template <int TILE>
XT_DEV void eight(const float* row, uint32_t t, float v[8]) {
  float4 a = *reinterpret_cast<const float4*>(row + 4 * t), b = *reinterpret_cast<const float4*>(row + TILE / 2 + 4 * t);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// A thread's eight values of row q leave: lines 4 t .. 4 t + 3 of the tile, and as many from its middle on.
template <int TILE>
XT_DEV void leave_eight(const float y[8], const Output& out, const Tile& tile, uint32_t t, uint32_t q, uint32_t p_n) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    uint32_t p = tile.p * TILE + 4 * t + (i < 4 ? 0 : TILE / 2);
    size_t at = (size_t)q * p_n + p;
    if (out.y && (p_n & 3) == 0 && p < p_n) {
      float4 v = make_float4(finished(out, y[i], p, at), finished(out, y[i + 1], p + 1, at + 1),
                             finished(out, y[i + 2], p + 2, at + 2), finished(out, y[i + 3], p + 3, at + 3));
      *reinterpret_cast<float4*>(out.y + at) = v;
      continue;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (p + e < p_n) leave(out, y[i + e], p + e, at + e);
  }
}

// Of a pair's tile: four of the gate, and as many of up.
template <int TILE>
XT_DEV void leave_eight(const float y[8], const Gated<float>& out, const Tile& tile, uint32_t t, uint32_t q, uint32_t p_n) {
  uint32_t p = tile.p * (TILE / 2) + 4 * t;
#pragma unroll
  for (int e = 0; e < 4; e++)
    if (p + e < p_n) out.y[(size_t)q * p_n + p + e] = gated(out, y[e], y[4 + e], p + e);
}

template <int TILE, bool P_ALONG, bool Q_ALONG, class P, class Walk, class Out>
XT_DEV void product_f32(const Tile& tile, const P& p, const Lines<float>& q, const Walk& walk, const Out& out) {
  XT_SHARED2(float, ps, 16, TILE + 4);
  XT_SHARED2(float, qs, 16, TILE + 4);
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t p0 = tile.p * TILE, q0 = tile.q * TILE;
  uint32_t tp = (lane & 7) + 8 * (warp % (TILE / 64)), tq = (lane >> 3) + 4 * (warp / (TILE / 64));
  float c[8][8], y[8][8];
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int i = 0; i < 8; i++) {
      uint32_t pi = p0 + 4 * tp + i + (i < 4 ? 0 : TILE / 2 - 4), qi = q0 + 4 * tq + j + (j < 4 ? 0 : TILE / 2 - 4);
      c[j][i] = 0.0f;
      y[j][i] = out.start && pi < p.n && qi < q.n ? out.start[(size_t)qi * p.n + pi] : 0.0f;
    }

  Chunk now = first_chunk(walk);
  Fetched<TILE> fp, fq;
  fetch<TILE, P_ALONG>(p, base_of(walk, p, now), p0, now, length_of(walk, now.part), fp);
  fetch<TILE, Q_ALONG>(q, base_of(walk, q, now), q0, now, length_of(walk, now.part), fq);
  put<TILE, P_ALONG>(ps, fp);
  put<TILE, Q_ALONG>(qs, fq);
  __syncthreads();
  for (uint32_t half = 0;; half ^= 8) {
    Chunk then = {now.part, now.at + 8, now.end};
    bool ends = then.at >= now.end, more = !ends || next_chunk(walk, then);
    if (more) {
      fetch<TILE, P_ALONG>(p, base_of(walk, p, then), p0, then, length_of(walk, then.part), fp);
      fetch<TILE, Q_ALONG>(q, base_of(walk, q, then), q0, then, length_of(walk, then.part), fq);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float a[8], b[8];
      eight<TILE>(ps[half + k], tp, a);
      eight<TILE>(qs[half + k], tq, b);
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) c[j][i] = fmaf(a[i], b[j], c[j][i]);
    }
    if (ends) {
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) y[j][i] = y[j][i] + c[j][i], c[j][i] = 0.0f;
    }
    if (!more) break;
    put<TILE, P_ALONG>(ps + (half ^ 8), fp);
    put<TILE, Q_ALONG>(qs + (half ^ 8), fq);
    __syncthreads();
    now = then;
  }

#pragma unroll
  for (int j = 0; j < 8; j++) {
    uint32_t qi = q0 + 4 * tq + j + (j < 4 ? 0 : TILE / 2 - 4);
    if (qi < q.n) leave_eight<TILE>(y[j], out, tile, tp, qi, p.n);
  }
}

template <int TILE>
XT_DEV void linear_tile(const float* x, const float* w, const Output& out, const NormAfter& norm, uint32_t rows, uint32_t outs, uint32_t width) {
  Tile tile = tile_of_block();
  product_f32<TILE, true, true>(tile, Lines<float>{w, w, w, outs}, Lines<float>{x, x, x, rows}, Fixed{width, 0, 0}, out);
  norm_rows(norm, out.y, outs, tile.q, gridDim.x, tile.q * TILE, min(rows, (tile.q + 1) * TILE));
}

XT_KERNEL(linear_f32_128, 256)(const float* x, const float* w, const float* bias, const float* h, float* y, bf16* rounded, uint32_t rows, uint32_t outs, uint32_t width,
                       const float* gain, float eps, float* n, bf16* n_rounded, uint32_t* met) {
  linear_tile<128>(x, w, {nullptr, bias, h, y, rounded}, {gain, eps, n, n_rounded, met}, rows, outs, width);
}
XT_EXPORT(linear_f32_128)

XT_KERNEL(linear_f32_64, 64)(const float* x, const float* w, const float* bias, const float* h, float* y, bf16* rounded, uint32_t rows, uint32_t outs, uint32_t width,
                       const float* gain, float eps, float* n, bf16* n_rounded, uint32_t* met) {
  linear_tile<64>(x, w, {nullptr, bias, h, y, rounded}, {gain, eps, n, n_rounded, met}, rows, outs, width);
}
XT_EXPORT(linear_f32_64)

// A group's weights: up to three, absent ones of 0 outputs. start: null, or dx itself.
XT_KERNEL(linear_dx_f32_128, 256)(const float* dy0, const float* dy1, const float* dy2, const float* w0, const float* w1, const float* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2, const float* start, float* dx, uint32_t rows, uint32_t width) {
  product_f32<128, false, true>(tile_of_block(), Lines<float>{w0, w1, w2, width}, Lines<float>{dy0, dy1, dy2, rows}, Fixed{outs0, outs1, outs2}, Output{start, nullptr, nullptr, dx, nullptr});
}
XT_EXPORT(linear_dx_f32_128)

XT_KERNEL(linear_dx_f32_64, 64)(const float* dy0, const float* dy1, const float* dy2, const float* w0, const float* w1, const float* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2, const float* start, float* dx, uint32_t rows, uint32_t width) {
  product_f32<64, false, true>(tile_of_block(), Lines<float>{w0, w1, w2, width}, Lines<float>{dy0, dy1, dy2, rows}, Fixed{outs0, outs1, outs2}, Output{start, nullptr, nullptr, dx, nullptr});
}
XT_EXPORT(linear_dx_f32_64)

// bounds: chunks + 1 rows.
XT_KERNEL(linear_dw_f32_128, 256)(float* dw, const float* dy, const float* x, const uint32_t* bounds, uint32_t chunks, uint32_t outs, uint32_t width) {
  product_f32<128, false, false>(tile_of_block(), Lines<float>{x, x, x, width}, Lines<float>{dy, dy, dy, outs}, Listed{bounds, chunks}, Output{dw, nullptr, nullptr, dw, nullptr});
}
XT_EXPORT(linear_dw_f32_128)

XT_KERNEL(linear_dw_f32_64, 64)(float* dw, const float* dy, const float* x, const uint32_t* bounds, uint32_t chunks, uint32_t outs, uint32_t width) {
  product_f32<64, false, false>(tile_of_block(), Lines<float>{x, x, x, width}, Lines<float>{dy, dy, dy, outs}, Listed{bounds, chunks}, Output{dw, nullptr, nullptr, dw, nullptr});
}
XT_EXPORT(linear_dw_f32_64)
