// The bf16 tile product on tensor cores (mma.sync); see linear_bf16.cu for launch geometry and order.
#pragma once
#include "linear_chunks.cuh"
#include "vec4.cuh"

// One pipeline stage: 32 k of TILE operand rows in shared memory. K-major: [row][k], pitch 80 bytes; otherwise
// [k][row], pitch TILE + 8. In both layouts the 8 rows of 16 bytes of one ldmatrix fall into different banks.
template <int TILE, bool K_MAJOR> struct Stage {
  static const int size = K_MAJOR ? TILE * 40 : 32 * (TILE + 8);
};

// Copies 8 consecutive elements to shared memory; elements at or past n are zero-filled.
XT_DEV void load_vec8(bf16* s, const bf16* g, uint32_t n, bool vector) {
  if (vector) {
    xt_cp_async16(s, g, n != 0);
    return;
  }
  if (XT_FAULT(TailOfVectorNotCopied) && n % 8 != 0) n--;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) s[i].u = i < n ? g[i].u : (uint16_t)0;
}

template <int TILE, bool K_MAJOR, int THREADS, class L>
XT_DEV void load_stage(bf16* s, const L& lines, const bf16* base, uint32_t first, const Chunk& c, uint32_t len) {
#pragma unroll
  for (int i = 0; i < TILE * 4 / THREADS; i++) {
    uint32_t u = threadIdx.x + i * THREADS;
    if (K_MAJOR) {
      const bf16* from = operand_row<TILE>(lines, base, first, u / 4, len);
      uint32_t k = c.at + u % 4 * 8, n = from && k < c.end ? min(8u, c.end - k) : 0;
      load_vec8(s + u / 4 * 40 + u % 4 * 8, n ? from + k : base, n, (len & 7) == 0);
    } else {
      uint32_t k = u / (TILE / 8), at = u % (TILE / 8) * 8, line = first + at;
      uint32_t n = line < lines.n && c.at + k < c.end ? min(8u, lines.n - line) : 0;
      load_vec8(s + k * (TILE + 8) + at, n ? base + (size_t)(c.at + k) * lines.n + line : base, n,
                (lines.n & 7) == 0);
    }
  }
}

// A fragment (16 x 16): operand rows line .. line + 15, k .. k + 15 of a stage.
template <int TILE, bool K_MAJOR>
XT_DEV void load_fragment_p(const bf16* s, uint32_t line, uint32_t k, uint32_t a[4]) {
  uint32_t lane = threadIdx.x & 31;
  if (K_MAJOR) {
    xt_ldmatrix_x4(a, s + (line + (lane & 15)) * 40 + k + (lane >> 4) * 8);
  } else {
    const bf16* at = s + (k + (lane & 7)) * (TILE + 8) + line + (lane >> 3 & 1) * 8;
    xt_ldmatrix_x2_trans(a, at);
    xt_ldmatrix_x2_trans(a + 2, at + 8 * (TILE + 8));
  }
}

// B fragments (16 x 8) of two adjacent mma.
template <int TILE, bool K_MAJOR>
XT_DEV void load_fragments_q(const bf16* s, uint32_t line, uint32_t k, uint32_t b[4]) {
  uint32_t lane = threadIdx.x & 31;
  if (K_MAJOR) {
    xt_ldmatrix_x4(b, s + (line + (lane & 7) + (lane >> 4) * 8) * 40 + k + (lane >> 3 & 1) * 8);
  } else {
    const bf16* at = s + (k + (lane & 15)) * (TILE + 8) + line;
    xt_ldmatrix_x2_trans(b, at);
    xt_ldmatrix_x2_trans(b + 2, at + 8);
  }
}

// The output tile in shared memory: [q][p], pitch TILE + 4 floats, so that a warp's accumulator fragment falls into
// 32 different banks; global accesses are coalesced, four values per thread.
template <int TILE, class F> XT_DEV void for_each_vec4(const Tile& tile, uint32_t p_n, uint32_t q_n, F f) {
  for (uint32_t u = threadIdx.x; u < TILE * (TILE / 4); u += blockDim.x) {
    uint32_t q = u / (TILE / 4), p = u % (TILE / 4) * 4;
    if (tile.q * TILE + q < q_n && tile.p * TILE + p < p_n)
      f(q * (TILE + 4) + p, tile.p * TILE + p, tile.q * TILE + q);
  }
}

template <int TILE>
XT_DEV void load_init_tile(float* s, const float* init, const Tile& tile, uint32_t p_n, uint32_t q_n) {
  bool vector = (p_n & 3) == 0;
  for_each_vec4<TILE>(tile, p_n, q_n, [&](uint32_t to, uint32_t p, uint32_t q) {
    const float* from = init + (size_t)q * p_n + p;
    if (vector)
      store4(s + to, load4(from));
    else
      for (uint32_t e = 0; e < 4 && p + e < p_n; e++) s[to + e] = from[e];
  });
}

template <int TILE>
XT_DEV void store_tile(const float* s, const Epilogue& out, const Tile& tile, uint32_t p_n, uint32_t q_n) {
  bool vector = (p_n & 3) == 0;
  for_each_vec4<TILE>(tile, p_n, q_n, [&](uint32_t from, uint32_t p, uint32_t q) {
    size_t at = (size_t)q * p_n + p;
    if (!vector) {
      for (uint32_t e = 0; e < 4 && p + e < p_n; e++) store_output(out, s[from + e], p + e, at + e);
      return;
    }
    Vec4<float> v = load4(s + from);
    if (out.bias) {
      Vec4<float> b = load4(out.bias + p);
#pragma unroll
      for (int e = 0; e < 4; e++) v.v[e] = v.v[e] + b.v[e];
    }
    if (out.h) {
      Vec4<float> h = load4(out.h + at);
#pragma unroll
      for (int e = 0; e < 4; e++) v.v[e] = residual_of(h.v[e]) + v.v[e];
    }
    if (out.y_bf16) {
      Vec4<bf16> r;
#pragma unroll
      for (int e = 0; e < 4; e++) r.v[e] = to_bf16(v.v[e]);
      store4(out.y_bf16 + at, r);
    } else {
      store4(out.y + at, v);
    }
  });
}

// SwiGLU: the left half of the tile is the gate, the right half up; y [q_n, p_n].
template <int TILE>
XT_DEV void store_tile(const float* s, const SwiGluEpilogue<bf16>& out, const Tile& tile, uint32_t p_n,
                       uint32_t q_n) {
  const uint32_t HALF = TILE / 2;
  bool vector = (p_n & 3) == 0;
  for (uint32_t u = threadIdx.x; u < TILE * (HALF / 4); u += blockDim.x) {
    uint32_t at = u / (HALF / 4), i = u % (HALF / 4) * 4, q = tile.q * TILE + at, p = tile.p * HALF + i;
    if (q >= q_n || p >= p_n) continue;
    const float *gate = s + at * (TILE + 4) + i, *up = gate + HALF;
    Vec4<bf16> y, g, v;
    float x[4], silu[4];
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
      uint32_t o = min(p + e, p_n - 1);
      g.v[e] = round_to<bf16>(gate_of(out, gate[e], o)), v.v[e] = round_to<bf16>(up_of(out, up[e], o));
      x[e] = load(g.v + e);
    }
    silu_of(x, silu);
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) y.v[e] = round_to<bf16>(silu[e] * load(v.v + e));
    auto store_vec4 = [=](bf16* to, const Vec4<bf16>& r) {
      to += (size_t)q * p_n + p;
      if (vector)
        store4(to, r);
      else
        for (uint32_t e = 0; e < 4 && p + e < p_n; e++) to[e] = r.v[e];
    };
    store_vec4(out.y, y);
    if (out.gate) store_vec4(out.gate, g), store_vec4(out.up, XT_FAULT(KeptUpIsGate) ? g : v);
  }
}

// The gradient of SwiGLU: the tile is dy; gate and up [q_n, p_n]. The operands of four vectors are in flight.
template <int TILE>
XT_DEV void store_tile(const float* s, const SwiGluGradientEpilogue<bf16>& out, const Tile& tile, uint32_t p_n,
                       uint32_t q_n) {
  bool vector = (p_n & 3) == 0;
  struct GateUpVec4 {
    Vec4<bf16> gate, up;
  };
  auto position = [&](uint32_t u) {
    return uint2{tile.p * TILE + u % (TILE / 4) * 4, tile.q * TILE + u / (TILE / 4)};
  };
  auto load_at = [&](uint32_t u) {
    uint2 at = position(u);
    size_t from = (size_t)at.y * p_n + at.x;
    GateUpVec4 r = {};
    if (at.x >= p_n || at.y >= q_n) return r;
    if (vector) return GateUpVec4{load4(out.gate + from), load4(out.up + from)};
    for (uint32_t e = 0; e < 4 && at.x + e < p_n; e++) r.gate.v[e] = out.gate[from + e], r.up.v[e] = out.up[from + e];
    return r;
  };
  in_flight<4>(threadIdx.x, (uint32_t)(TILE * TILE / 4), blockDim.x, load_at, [&](uint32_t u, const GateUpVec4& x) {
    uint2 at = position(u);
    if (at.x >= p_n || at.y >= q_n) return;
    const float* dy = s + u / (TILE / 4) * (TILE + 4) + u % (TILE / 4) * 4;
    Vec4<bf16> dgate, dup;
    float gate[4], q[4];
#pragma unroll
    for (int e = 0; e < 4; e++) gate[e] = load(x.gate.v + e);
    sigmoid_of(gate, q);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      float g = XT_FAULT(GradientOfRoundedSwiGlu) ? from_bf16(to_bf16(dy[e])) : dy[e];
      SiluGradient one = silu_mul_gradient(gate[e], q[e], load(x.up.v + e), g);
      dgate.v[e] = to_bf16(one.g), dup.v[e] = to_bf16(one.u);
    }
    size_t to = (size_t)at.y * p_n + at.x;
    if (vector) {
      store4(out.dgate + to, dgate);
      store4(out.dup + to, dup);
      return;
    }
    for (uint32_t e = 0; e < 4 && at.x + e < p_n; e++) out.dgate[to + e] = dgate.v[e], out.dup[to + e] = dup.v[e];
  });
}

template <int TILE, bool P_K_MAJOR, bool Q_K_MAJOR, class P, class Chunks, class Out>
XT_DEV void product_bf16(const Tile& tile, const P& p, const Operand<bf16>& q, const Chunks& chunks, const Out& out) {
  const int STAGES = 4, WARPS_P = 2, WARPS_Q = TILE / 32, THREADS = 32 * WARPS_P * WARPS_Q;
  const int MI = TILE / WARPS_P / 16, NI = TILE / WARPS_Q / 8;  // mma tiles per warp
  const int P_SIZE = Stage<TILE, P_K_MAJOR>::size, Q_SIZE = Stage<TILE, Q_K_MAJOR>::size;
  XT_DYN_SHARED(bf16, smem);
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint32_t p0 = tile.p * TILE, q0 = tile.q * TILE;
  uint32_t wp = warp % WARPS_P * (TILE / WARPS_P), wq = warp / WARPS_P * (TILE / WARPS_Q);
  float c[MI][NI][4], y[MI][NI][4];
  float* tile_smem = reinterpret_cast<float*>(smem);
  // index of accumulator element e of mma tile (i, j) in the output tile
  auto smem_index = [&](int i, int j, int e) {
    return (wq + 8 * j + (lane & 3) * 2 + e % 2) * (TILE + 4) + wp + 16 * i + (lane >> 2) + e / 2 * 8;
  };
  if (out.init) {
    load_init_tile<TILE>(tile_smem, out.init, tile, p.n, q.n);
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
        y[i][j][e] = out.init && pi < p.n && qi < q.n ? tile_smem[smem_index(i, j, e)] : 0.0f;
      }
  if (out.init) __syncthreads();

  Chunk current = first_chunk(chunks), next = current;
  bool more = true;
  auto load_next_stage = [&](uint32_t slot) {
    if (more) {
      bf16* s = smem + slot * (P_SIZE + Q_SIZE);
      uint32_t len = k_extent(chunks, next.part);
      load_stage<TILE, P_K_MAJOR, THREADS>(s, p, operand_base(chunks, p, next), p0, next, len);
      load_stage<TILE, Q_K_MAJOR, THREADS>(s + P_SIZE, q, operand_base(chunks, q, next), q0, next, len);
      next.at += 32;
      if (next.at >= next.end) more = next_chunk(chunks, next);
    }
    xt_cp_commit();
  };
  for (uint32_t slot = 0; slot < STAGES - 1; slot++) load_next_stage(slot);

  for (uint32_t slot = 0;; slot = (slot + 1) % STAGES) {
    if (XT_FAULT(StageNotAwaited))
      xt_cp_wait<STAGES - 1>();
    else
      xt_cp_wait<STAGES - 2>();
    __syncthreads();
    load_next_stage((slot + STAGES - 1) % STAGES);
    const bf16 *ps = smem + slot * (P_SIZE + Q_SIZE), *qs = ps + P_SIZE;
    // the fragments of the second k-step are loaded while the first one is multiplied
    bool two = current.at + 16 < current.end;
    uint32_t a[2][MI][4], b[2][NI / 2][4];
#pragma unroll
    for (uint32_t step = 0; step < 2; step++) {
      if (step == 1 && !two) break;
#pragma unroll
      for (int i = 0; i < MI; i++) load_fragment_p<TILE, P_K_MAJOR>(ps, wp + 16 * i, 16 * step, a[step][i]);
#pragma unroll
      for (int j = 0; j < NI / 2; j++) load_fragments_q<TILE, Q_K_MAJOR>(qs, wq + 16 * j, 16 * step, b[step][j]);
    }
#pragma unroll
    for (uint32_t step = 0; step < 2; step++) {
      if (step == 1 && !two) break;
#pragma unroll
      for (int i = 0; i < MI; i++)
#pragma unroll
        for (int j = 0; j < NI; j++) xt_mma_bf16_16816(c[i][j], a[step][i], b[step][j / 2] + j % 2 * 2);
    }
    current.at += 32;
    if (current.at < current.end) continue;
#pragma unroll
    for (int i = 0; i < MI; i++)
#pragma unroll
      for (int j = 0; j < NI; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) y[i][j][e] = y[i][j][e] + c[i][j][e], c[i][j][e] = 0.0f;
    if (!next_chunk(chunks, current)) break;
  }

  __syncthreads();  // the last stage has been consumed; no copy is in flight
#pragma unroll
  for (int i = 0; i < MI; i++)
#pragma unroll
    for (int j = 0; j < NI; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) tile_smem[smem_index(i, j, e)] = y[i][j][e];
  __syncthreads();
  store_tile<TILE>(tile_smem, out, tile, p.n, q.n);
}
