#include "linear_chunks.cuh"
// linear_bf16      y[n][o] = dot(x[n], w[o]) (+ bias[o]) (h[n][o] + that); f32 or rounded to bf16     x [N, in], w [out, in]
// linear_dx_bf16   dx[n][k] = start + sum over a group's weights of dot over o of dy[n][o] w[o][k]    dy [N, out], w [out, in]
// linear_dw_bf16   dw[o][k] = dw[o][k] + rowsum dy[r][o] x[r][k]                                      dy [R, out], x [R, in]
// Launch: a block a tile of TILE x TILE outputs (TILE = 128: 8 warps of 64 x 32, 64: 4 warps of 32 x 32),
//   grid (P / TILE, Q / TILE), dynamic shared memory of tile_bytes (gpu/linear.rs): four stages of 32 k.
// Order: a chunk is mma.sync steps of 16 k, rising, into an accumulator from zero, its last one padded with
//   zeros; then y = y + chunk in f32. P (weights; in dw the inputs) is the 16-row operand in every shape,
//   so tiles, grids and batches change no bit. CPU twin: none; gate: gpu/linear/tests.rs.
// Cost: 2 P Q K flops. A tile of 128 reads 8 TILE / 2 bytes a k: 64 flops a byte of L2; a warp's step of
//   16 k is 16 mma and 6 ldmatrix. Two accumulators of 64 registers: one block an SM (8 warps); the
//   addition of chunks is one FADD an output each 16 mma steps, 3 % of issue slots. Outputs leave through
//   shared memory, 16 bytes a thread (straight from fragments they are 64 stores of 4).

// 32 k of TILE lines in shared memory. ALONG: [line][k], 80 bytes a line; otherwise [k][line], TILE + 8
// lines a k. Both steps of ldmatrix (8 rows of 16 bytes) fall into different banks.
template <int TILE, bool ALONG>
struct Stage { static const int size = ALONG ? TILE * 40 : 32 * (TILE + 8); };

// Brings 8 elements that lie side by side, of which `n` exist, into shared memory; the others are zero.
XT_DEV void bring(bf16* s, const bf16* g, uint32_t n, bool vector) {
  if (vector) {
    xt_cp_async16(s, g, n != 0);
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) s[i].u = i < n ? g[i].u : (uint16_t)0;
}

template <int TILE, bool ALONG, int THREADS, class L>
XT_DEV void bring_stage(bf16* s, const L& lines, const bf16* base, uint32_t first, const Chunk& c, uint32_t len) {
#pragma unroll
  for (int i = 0; i < TILE * 4 / THREADS; i++) {
    uint32_t u = threadIdx.x + i * THREADS;
    if (ALONG) {
      const bf16* from = line_of<TILE>(lines, base, first, u / 4, len);
      uint32_t k = c.at + u % 4 * 8, n = from && k < c.end ? min(8u, c.end - k) : 0;
      bring(s + u / 4 * 40 + u % 4 * 8, n ? from + k : base, n, (len & 7) == 0);
    } else {
      uint32_t k = u / (TILE / 8), at = u % (TILE / 8) * 8, line = first + at;
      uint32_t n = line < lines.n && c.at + k < c.end ? min(8u, lines.n - line) : 0;
      bring(s + k * (TILE + 8) + at, n ? base + (size_t)(c.at + k) * lines.n + line : base, n, (lines.n & 7) == 0);
    }
  }
}

// The 16 x 16 operand of an mma: lines from `line`, k from `k` of a stage.
template <int TILE, bool ALONG>
XT_DEV void left_fragment(const bf16* s, uint32_t line, uint32_t k, uint32_t a[4]) {
  uint32_t lane = threadIdx.x & 31;
  if (ALONG) {
    xt_ldmatrix_x4(a, s + (line + (lane & 15)) * 40 + k + (lane >> 4) * 8);
  } else {
    const bf16* at = s + (k + (lane & 7)) * (TILE + 8) + line + (lane >> 3 & 1) * 8;
    xt_ldmatrix_x2_trans(a, at);
    xt_ldmatrix_x2_trans(a + 2, at + 8 * (TILE + 8));
  }
}

// The 16 x 8 operands of two mma beside each other.
template <int TILE, bool ALONG>
XT_DEV void right_fragments(const bf16* s, uint32_t line, uint32_t k, uint32_t b[4]) {
  uint32_t lane = threadIdx.x & 31;
  if (ALONG) {
    xt_ldmatrix_x4(b, s + (line + (lane & 7) + (lane >> 4) * 8) * 40 + k + (lane >> 3 & 1) * 8);
  } else {
    const bf16* at = s + (k + (lane & 15)) * (TILE + 8) + line;
    xt_ldmatrix_x2_trans(b, at);
    xt_ldmatrix_x2_trans(b + 2, at + 8);
  }
}

// The tile of the output in shared memory, [q][p], TILE + 4 floats a line: a warp's fragment falls into
// 32 banks, and lines go to and from memory four values a thread, side by side.
template <int TILE, class F>
XT_DEV void for_fours(const Tile& tile, uint32_t p_n, uint32_t q_n, F f) {
  for (uint32_t u = threadIdx.x; u < TILE * (TILE / 4); u += blockDim.x) {
    uint32_t q = u / (TILE / 4), p = u % (TILE / 4) * 4;
    if (tile.q * TILE + q < q_n && tile.p * TILE + p < p_n) f(q * (TILE + 4) + p, tile.p * TILE + p, tile.q * TILE + q);
  }
}

template <int TILE>
XT_DEV void enter_tile(float* s, const float* start, const Tile& tile, uint32_t p_n, uint32_t q_n) {
  bool vector = (p_n & 3) == 0;
  for_fours<TILE>(tile, p_n, q_n, [&](uint32_t to, uint32_t p, uint32_t q) {
    const float* from = start + (size_t)q * p_n + p;
    if (vector) store4(s + to, load4(from));
    else
      for (uint32_t e = 0; e < 4 && p + e < p_n; e++) s[to + e] = from[e];
  });
}

template <int TILE>
XT_DEV void leave_tile(const float* s, const Output& out, const Tile& tile, uint32_t p_n, uint32_t q_n) {
  bool vector = (p_n & 3) == 0;
  for_fours<TILE>(tile, p_n, q_n, [&](uint32_t from, uint32_t p, uint32_t q) {
    size_t at = (size_t)q * p_n + p;
    if (!vector) {
      for (uint32_t e = 0; e < 4 && p + e < p_n; e++) leave(out, s[from + e], p + e, at + e);
      return;
    }
    Four<float> v = load4(s + from);
    if (out.bias) {
      Four<float> b = load4(out.bias + p);
#pragma unroll
      for (int e = 0; e < 4; e++) v.v[e] = v.v[e] + b.v[e];
    }
    if (out.h) {
      Four<float> h = load4(out.h + at);
#pragma unroll
      for (int e = 0; e < 4; e++) v.v[e] = h.v[e] + v.v[e];
    }
    if (out.rounded) {
      Four<bf16> r;
#pragma unroll
      for (int e = 0; e < 4; e++) r.v[e] = to_bf16(v.v[e]);
      store4(out.rounded + at, r);
    } else {
      store4(out.y + at, v);
    }
  });
}

// A pair's tile: its halves beside each other, y [q_n, p_n].
template <int TILE>
XT_DEV void leave_tile(const float* s, const Gated<bf16>& out, const Tile& tile, uint32_t p_n, uint32_t q_n) {
  const uint32_t HALF = TILE / 2;
  bool vector = (p_n & 3) == 0;
  for (uint32_t u = threadIdx.x; u < TILE * (HALF / 4); u += blockDim.x) {
    uint32_t at = u / (HALF / 4), i = u % (HALF / 4) * 4, q = tile.q * TILE + at, p = tile.p * HALF + i;
    if (q >= q_n || p >= p_n) continue;
    const float *gate = s + at * (TILE + 4) + i, *up = gate + HALF;
    bf16* to = out.y + (size_t)q * p_n + p;
    Four<bf16> r;
#pragma unroll
    for (uint32_t e = 0; e < 4; e++)
      if (p + e < p_n) r.v[e] = to_bf16(gated(out, gate[e], up[e], p + e));
    if (vector) store4(to, r);
    else
      for (uint32_t e = 0; e < 4 && p + e < p_n; e++) to[e] = r.v[e];
  }
}

template <int TILE, bool P_ALONG, bool Q_ALONG, class P, class Walk, class Out>
XT_DEV void product_bf16(const Tile& tile, const P& p, const Lines<bf16>& q, const Walk& walk, const Out& out) {
  const int STAGES = 4, DOWN = 2, ACROSS = TILE / 32, THREADS = 32 * DOWN * ACROSS;
  const int MI = TILE / DOWN / 16, NI = TILE / ACROSS / 8;     // mma tiles of a warp
  const int P_SIZE = Stage<TILE, P_ALONG>::size, Q_SIZE = Stage<TILE, Q_ALONG>::size;
  XT_DYN_SHARED(bf16, smem);
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t p0 = tile.p * TILE, q0 = tile.q * TILE;
  uint32_t wp = warp % DOWN * (TILE / DOWN), wq = warp / DOWN * (TILE / ACROSS);
  float c[MI][NI][4], y[MI][NI][4];
  float* whole = reinterpret_cast<float*>(smem);
  // where this thread's values of mma tile (i, j) lie in the whole one
  auto place = [&](int i, int j, int e) {
    return (wq + 8 * j + (lane & 3) * 2 + e % 2) * (TILE + 4) + wp + 16 * i + (lane >> 2) + e / 2 * 8;
  };
  if (out.start) {
    enter_tile<TILE>(whole, out.start, tile, p.n, q.n);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < MI; i++)
#pragma unroll
    for (int j = 0; j < NI; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        uint32_t pi = p0 + wp + 16 * i + (lane >> 2) + e / 2 * 8, qi = q0 + wq + 8 * j + (lane & 3) * 2 + e % 2;
        c[i][j][e] = 0.0f;
        y[i][j][e] = out.start && pi < p.n && qi < q.n ? whole[place(i, j, e)] : 0.0f;
      }
  if (out.start) __syncthreads();

  Chunk now = first_chunk(walk), then = now;
  bool coming = true;
  auto bring_next = [&](uint32_t slot) {
    if (coming) {
      bf16* s = smem + slot * (P_SIZE + Q_SIZE);
      uint32_t len = length_of(walk, then.part);
      bring_stage<TILE, P_ALONG, THREADS>(s, p, base_of(walk, p, then), p0, then, len);
      bring_stage<TILE, Q_ALONG, THREADS>(s + P_SIZE, q, base_of(walk, q, then), q0, then, len);
      then.at += 32;
      if (then.at >= then.end) coming = next_chunk(walk, then);
    }
    xt_cp_commit();
  };
  for (uint32_t slot = 0; slot < STAGES - 1; slot++) bring_next(slot);

  for (uint32_t slot = 0;; slot = (slot + 1) % STAGES) {
    xt_cp_wait<STAGES - 2>();
    __syncthreads();
    bring_next((slot + STAGES - 1) % STAGES);
    const bf16 *ps = smem + slot * (P_SIZE + Q_SIZE), *qs = ps + P_SIZE;
    // the second step's operands are on their way while the first one's are multiplied
    bool two = now.at + 16 < now.end;
    uint32_t a[2][MI][4], b[2][NI / 2][4];
#pragma unroll
    for (uint32_t step = 0; step < 2; step++) {
      if (step == 1 && !two) break;
#pragma unroll
      for (int i = 0; i < MI; i++) left_fragment<TILE, P_ALONG>(ps, wp + 16 * i, 16 * step, a[step][i]);
#pragma unroll
      for (int j = 0; j < NI / 2; j++) right_fragments<TILE, Q_ALONG>(qs, wq + 16 * j, 16 * step, b[step][j]);
    }
#pragma unroll
    for (uint32_t step = 0; step < 2; step++) {
      if (step == 1 && !two) break;
#pragma unroll
      for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NI; j++) xt_mma_bf16_16816(c[i][j], a[step][i], b[step][j / 2] + j % 2 * 2);
    }
    now.at += 32;
    if (now.at < now.end) continue;
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int j = 0; j < NI; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) y[i][j][e] = y[i][j][e] + c[i][j][e], c[i][j][e] = 0.0f;
    if (!next_chunk(walk, now)) break;
  }

  __syncthreads();                      // the last stage has been read; no copy is under way
#pragma unroll
  for (int i = 0; i < MI; i++)
#pragma unroll
    for (int j = 0; j < NI; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) whole[place(i, j, e)] = y[i][j][e];
  __syncthreads();
  leave_tile<TILE>(whole, out, tile, p.n, q.n);
}

template <int TILE>
XT_DEV void linear_tile(const bf16* x, const bf16* w, const Output& out, const NormAfter& norm, uint32_t rows, uint32_t outs, uint32_t width) {
  Tile tile = tile_of_block();
  product_bf16<TILE, true, true>(tile, Lines<bf16>{w, w, w, outs}, Lines<bf16>{x, x, x, rows}, Fixed{width, 0, 0}, out);
  norm_rows(norm, out.y, outs, tile.q, gridDim.x, tile.q * TILE, min(rows, (tile.q + 1) * TILE));
}

XT_KERNEL(linear_bf16_128, 256)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y, bf16* rounded, uint32_t rows, uint32_t outs, uint32_t width,
                       const float* gain, float eps, float* n, bf16* n_rounded, uint32_t* met) {
  linear_tile<128>(x, w, {nullptr, bias, h, y, rounded}, {gain, eps, n, n_rounded, met}, rows, outs, width);
}
XT_EXPORT(linear_bf16_128)

XT_KERNEL(linear_bf16_64, 128)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y, bf16* rounded, uint32_t rows, uint32_t outs, uint32_t width,
                       const float* gain, float eps, float* n, bf16* n_rounded, uint32_t* met) {
  linear_tile<64>(x, w, {nullptr, bias, h, y, rounded}, {gain, eps, n, n_rounded, met}, rows, outs, width);
}
XT_EXPORT(linear_bf16_64)

// A group's weights: up to three, absent ones of 0 outputs. start: null, or dx itself.
XT_KERNEL(linear_dx_bf16_128, 256)(const bf16* dy0, const bf16* dy1, const bf16* dy2, const bf16* w0, const bf16* w1, const bf16* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2, const float* start, float* dx, uint32_t rows, uint32_t width) {
  product_bf16<128, false, true>(tile_of_block(), Lines<bf16>{w0, w1, w2, width}, Lines<bf16>{dy0, dy1, dy2, rows}, Fixed{outs0, outs1, outs2}, Output{start, nullptr, nullptr, dx, nullptr});
}
XT_EXPORT(linear_dx_bf16_128)

XT_KERNEL(linear_dx_bf16_64, 128)(const bf16* dy0, const bf16* dy1, const bf16* dy2, const bf16* w0, const bf16* w1, const bf16* w2, uint32_t outs0, uint32_t outs1, uint32_t outs2, const float* start, float* dx, uint32_t rows, uint32_t width) {
  product_bf16<64, false, true>(tile_of_block(), Lines<bf16>{w0, w1, w2, width}, Lines<bf16>{dy0, dy1, dy2, rows}, Fixed{outs0, outs1, outs2}, Output{start, nullptr, nullptr, dx, nullptr});
}
XT_EXPORT(linear_dx_bf16_64)

// bounds: chunks + 1 rows.
XT_KERNEL(linear_dw_bf16_128, 256)(float* dw, const bf16* dy, const bf16* x, const uint32_t* bounds, uint32_t chunks, uint32_t outs, uint32_t width) {
  product_bf16<128, false, false>(tile_of_block(), Lines<bf16>{x, x, x, width}, Lines<bf16>{dy, dy, dy, outs}, Listed{bounds, chunks}, Output{dw, nullptr, nullptr, dw, nullptr});
}
XT_EXPORT(linear_dw_bf16_128)

XT_KERNEL(linear_dw_bf16_64, 128)(float* dw, const bf16* dy, const bf16* x, const uint32_t* bounds, uint32_t chunks, uint32_t outs, uint32_t width) {
  product_bf16<64, false, false>(tile_of_block(), Lines<bf16>{x, x, x, width}, Lines<bf16>{dy, dy, dy, outs}, Listed{bounds, chunks}, Output{dw, nullptr, nullptr, dw, nullptr});
}
XT_EXPORT(linear_dw_bf16_64)
