// The f32 tile product on FFMA; see linear_f32.cu for launch geometry and order.
#pragma once
#include "linear_chunks.cuh"

// Registers that hold the prefetched operands of one step of 8 k.
template <int TILE> struct Prefetched {
  float4 v[128 / TILE];
};

// Four consecutive elements; elements at or past `end` are +0.
XT_DEV float4 load_vec4(const float* p, uint32_t at, uint32_t end, bool vector) {
  if (vector && at + 4 <= end) return *reinterpret_cast<const float4*>(p);
  return make_float4(at < end ? p[0] : 0.0f, at + 1 < end ? p[1] : 0.0f, at + 2 < end ? p[2] : 0.0f,
                     at + 3 < end ? p[3] : 0.0f);
}

// K-major: [row][k] with k extent `len`. Otherwise [k][row] with lines.n rows.
template <int TILE, bool K_MAJOR, class L>
XT_DEV void prefetch(const L& lines, const float* base, uint32_t first, const Chunk& c, uint32_t len,
                     Prefetched<TILE>& f) {
#pragma unroll
  for (int i = 0; i < 128 / TILE; i++) {
    uint32_t u = threadIdx.x + i * (TILE * TILE / 64);
    f.v[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (K_MAJOR) {
      uint32_t k = c.at + (u & 1) * 4;
      const float* from = operand_row<TILE>(lines, base, first, u >> 1, len);
      if (from && k < c.end) f.v[i] = load_vec4(from + k, k, c.end, (len & 3) == 0);
    } else {
      uint32_t line = first + u % (TILE / 4) * 4, k = c.at + u / (TILE / 4);
      if (line < lines.n && k < c.end)
        f.v[i] = load_vec4(base + (size_t)k * lines.n + line, line, lines.n, (lines.n & 3) == 0);
    }
  }
}

template <int TILE, bool K_MAJOR> XT_DEV void store_shared(float (*s)[TILE + 4], const Prefetched<TILE>& f) {
#pragma unroll
  for (int i = 0; i < 128 / TILE; i++) {
    uint32_t u = threadIdx.x + i * (TILE * TILE / 64);
    if (K_MAJOR) {
      uint32_t line = u >> 1, k = (u & 1) * 4;
      s[k][line] = f.v[i].x, s[k + 1][line] = f.v[i].y, s[k + 2][line] = f.v[i].z, s[k + 3][line] = f.v[i].w;
    } else {
      *reinterpret_cast<float4*>(&s[u / (TILE / 4)][u % (TILE / 4) * 4]) = f.v[i];
    }
  }
}

// A fragment of eight operand rows: four from 4 t, four from TILE / 2 + 4 t.
template <int TILE> XT_DEV void load_fragment8(const float* row, uint32_t t, float v[8]) {
  float4 a = *reinterpret_cast<const float4*>(row + 4 * t),
         b = *reinterpret_cast<const float4*>(row + TILE / 2 + 4 * t);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Stores a thread's eight outputs of row q: columns 4 t .. 4 t + 3 of each half of the tile.
template <int TILE>
XT_DEV void store_outputs8(const float y[8], const Epilogue& out, const Tile& tile, uint32_t t, uint32_t q,
                           uint32_t p_n) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    uint32_t p = tile.p * TILE + 4 * t + (i < 4 ? 0 : TILE / 2);
    size_t at = (size_t)q * p_n + p;
    if (out.y && (p_n & 3) == 0 && p < p_n) {
      float4 v =
          make_float4(apply_epilogue(out, y[i], p, at), apply_epilogue(out, y[i + 1], p + 1, at + 1),
                      apply_epilogue(out, y[i + 2], p + 2, at + 2), apply_epilogue(out, y[i + 3], p + 3, at + 3));
      *reinterpret_cast<float4*>(out.y + at) = v;
      continue;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (p + e < p_n) store_output(out, y[i + e], p + e, at + e);
  }
}

// SwiGLU: y[0 .. 3] are the gate, y[4 .. 7] are up.
template <int TILE>
XT_DEV void store_outputs8(const float y[8], const SwiGluEpilogue<float>& out, const Tile& tile, uint32_t t,
                           uint32_t q, uint32_t p_n) {
  uint32_t p = tile.p * (TILE / 2) + 4 * t;
#pragma unroll
  for (int e = 0; e < 4; e++)
    if (p + e < p_n) {
      size_t at = (size_t)q * p_n + p + e;
      SwiGlu<float> one = swiglu_of(out, y[e], y[4 + e], p + e);
      out.y[at] = one.y;
      if (out.gate) out.gate[at] = one.gate, out.up[at] = one.up;
    }
}

template <int TILE>
XT_DEV void store_outputs8(const float y[8], const SwiGluGradientEpilogue<float>& out, const Tile& tile, uint32_t t,
                           uint32_t q, uint32_t p_n) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    uint32_t p = tile.p * TILE + 4 * t + i + (i < 4 ? 0 : TILE / 2 - 4);
    size_t at = (size_t)q * p_n + p;
    if (p < p_n) {
      SiluGradient one = silu_mul_backward_of(out.gate[at], out.up[at], y[i]);
      out.dgate[at] = one.g, out.dup[at] = one.u;
    }
  }
}

template <int TILE, bool P_K_MAJOR, bool Q_K_MAJOR, class P, class Chunks, class Out>
XT_DEV void product_f32(const Tile& tile, const P& p, const Operand<float>& q, const Chunks& chunks, const Out& out) {
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
      y[j][i] = out.init && pi < p.n && qi < q.n ? out.init[(size_t)qi * p.n + pi] : 0.0f;
    }

  Chunk current = first_chunk(chunks);
  Prefetched<TILE> fp, fq;
  prefetch<TILE, P_K_MAJOR>(p, operand_base(chunks, p, current), p0, current, k_extent(chunks, current.part), fp);
  prefetch<TILE, Q_K_MAJOR>(q, operand_base(chunks, q, current), q0, current, k_extent(chunks, current.part), fq);
  store_shared<TILE, P_K_MAJOR>(ps, fp);
  store_shared<TILE, Q_K_MAJOR>(qs, fq);
  __syncthreads();
  for (uint32_t half = 0;; half ^= 8) {
    Chunk next = {current.part, current.at + 8, current.end};
    bool ends = next.at >= current.end, more = !ends || next_chunk(chunks, next);
    if (more) {
      prefetch<TILE, P_K_MAJOR>(p, operand_base(chunks, p, next), p0, next, k_extent(chunks, next.part), fp);
      prefetch<TILE, Q_K_MAJOR>(q, operand_base(chunks, q, next), q0, next, k_extent(chunks, next.part), fq);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float a[8], b[8];
      load_fragment8<TILE>(ps[half + k], tp, a);
      load_fragment8<TILE>(qs[half + k], tq, b);
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) c[j][i] = fmaf(a[i], b[j], c[j][i]);
    }
    if (ends) {
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) y[j][i] = y[j][i] + c[j][i], c[j][i] = XT_FAULT(ChunkSumKept) ? c[j][i] : 0.0f;
    }
    if (!more) break;
    store_shared<TILE, P_K_MAJOR>(ps + (half ^ 8), fp);
    store_shared<TILE, Q_K_MAJOR>(qs + (half ^ 8), fq);
    if (!XT_FAULT(StepBarrierMissing)) __syncthreads();
    current = next;
  }

#pragma unroll
  for (int j = 0; j < 8; j++) {
    uint32_t qi = q0 + 4 * tq + j + (j < 4 ? 0 : TILE / 2 - 4);
    if (qi < q.n) store_outputs8<TILE>(y[j], out, tile, tp, qi, p.n);
  }
}
