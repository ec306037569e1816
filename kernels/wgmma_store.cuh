// Stores the output tile of a wgmma product from the accumulators of two warpgroups: 128 rows of q by 128 of p. They are
// fragments as of mma.sync: a thread has pairs of neighboring outputs, and four threads have a sector of 32 bytes (f32).
#pragma once
#include "linear_chunks.cuh"

// A tile and the outputs it may store. WHOLE: all of them, in rows of an even number p_n of outputs, so that pairs are
// aligned and need no test.
template <bool WHOLE, uint32_t COLUMNS> struct PairTile {
  Tile tile;
  uint32_t p_n, q_n;

  // f(i, p, at) for the pairs y[i], y[i + 1] at outputs p and p + 1 of a row, first <= i < end; `at` is the index of the
  // first output of a pair.
  template <class F> XT_MEMBER void each(F f, uint32_t first = 0, uint32_t end = COLUMNS / 2) const {
    uint32_t lane = threadIdx.x % 32, q0 = tile.q * 128 + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (uint32_t i = first; i < end; i += 2) {
      uint32_t p = tile.p * COLUMNS + i / 4 * 8 + lane % 4 * 2, q = q0 + i % 4 * 4;
      if (WHOLE || (p < p_n && q < q_n)) f(i, p, (size_t)q * p_n + p);
    }
  }
  XT_MEMBER bool has(uint32_t p) const { return WHOLE || p < p_n; }

  XT_MEMBER void load(float to[2], const bf16* from, uint32_t p) const {
    if (WHOLE) {
      uint32_t v = *reinterpret_cast<const uint32_t*>(from);
      to[0] = xt_bits_f(v << 16), to[1] = xt_bits_f(v & 0xffff0000);
    } else {
      to[0] = from_bf16(from[0]);
      if (has(p + 1)) to[1] = from_bf16(from[1]);
    }
  }
  XT_MEMBER void load(float to[2], const float* from, uint32_t p) const {
    if (WHOLE) {
      float2 v = *reinterpret_cast<const float2*>(from);
      to[0] = v.x, to[1] = v.y;
    } else {
      to[0] = from[0];
      if (has(p + 1)) to[1] = from[1];
    }
  }
  XT_MEMBER void store(float* to, const float v[2], uint32_t p) const {
    if (WHOLE) {
      *reinterpret_cast<float2*>(to) = make_float2(v[0], v[1]);
    } else {
      to[0] = v[0];
      if (has(p + 1)) to[1] = v[1];
    }
  }
  XT_MEMBER void store(bf16* to, const float v[2], uint32_t p) const {
    if (WHOLE) {
      *reinterpret_cast<uint32_t*>(to) = xt_pack_bf16(v[0], v[1]);
    } else {
      to[0] = to_bf16(v[0]);
      if (has(p + 1)) to[1] = to_bf16(v[1]);
    }
  }
};

// y = f(loaded, y) with the values that load(to, p, at) loads for a pair: 32 of them at a time, before any is used.
template <bool WHOLE, class Load, class Add>
XT_DEV void add_loaded(const PairTile<WHOLE, 128>& to, float (&y)[64], Load load, Add add) {
#pragma unroll
  for (uint32_t half = 0; half < 64; half += 32) {
    float v[32] = {};
    to.each([&](uint32_t i, uint32_t p, size_t at) { load(v + i - half, p, at); }, half, half + 32);
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) y[half + i] = add(v[i], y[half + i]);
  }
}

template <bool WHOLE> XT_DEV void store_pairs(const PairTile<WHOLE, 128>& to, float (&y)[64], const Epilogue& out) {
  if (out.bias)
    add_loaded(
        to, y, [&](float v[2], uint32_t p, size_t) { to.load(v, out.bias + p, p); },
        [](float bias, float sum) { return sum + bias; });
  if (out.h)
    add_loaded(
        to, y, [&](float v[2], uint32_t p, size_t at) { to.load(v, out.h + at, p); },
        [](float h, float sum) { return residual_of(h) + sum; });
  if (out.y_bf16)
    to.each([&](uint32_t i, uint32_t p, size_t at) { to.store(out.y_bf16 + at, y + i, p); });
  else
    to.each([&](uint32_t i, uint32_t p, size_t at) { to.store(out.y + at, y + i, p); });
}

// SwiGLU: a thread has the gate of an output in y[i] and up in y[i + 32].
template <bool WHOLE>
XT_DEV void store_pairs(const PairTile<WHOLE, 64>& to, float (&y)[64], const SwiGluEpilogue<bf16>& out) {
  to.each([&](uint32_t i, uint32_t p, size_t at) {
    float value[2] = {}, gate[2] = {}, up[2] = {};
#pragma unroll
    for (uint32_t e = 0; e < 2; e++)
      if (to.has(p + e)) {
        SwiGlu<bf16> one = swiglu_of(out, y[i + e], y[i + e + 32], p + e);
        value[e] = from_bf16(one.y), gate[e] = from_bf16(one.gate), up[e] = from_bf16(one.up);
      }
    to.store(out.y + at, value, p);
    if (out.gate) to.store(out.gate + at, gate, p), to.store(out.up + at, up, p);
  });
}

// The gradient of SwiGLU: the sums are dy. The gates and ups of 16 pairs are loaded before any is used.
template <bool WHOLE>
XT_DEV void store_pairs(const PairTile<WHOLE, 128>& to, float (&y)[64], const SwiGluGradientEpilogue<bf16>& out) {
#pragma unroll
  for (uint32_t half = 0; half < 64; half += 32) {
    float gate[32] = {}, up[32] = {};
    to.each(
        [&](uint32_t i, uint32_t p, size_t at) {
          to.load(gate + i - half, out.gate + at, p);
          to.load(up + i - half, out.up + at, p);
        },
        half, half + 32);
    to.each(
        [&](uint32_t i, uint32_t p, size_t at) {
          float dgate[2], dup[2];
#pragma unroll
          for (uint32_t e = 0; e < 2; e++) {
            float dy = XT_FAULT(GradientOfRoundedSwiGlu) ? from_bf16(to_bf16(y[i + e])) : y[i + e];
            SiluGradient one = silu_mul_backward_of(gate[i + e - half], up[i + e - half], dy);
            dgate[e] = one.g, dup[e] = one.u;
          }
          to.store(out.dgate + at, dgate, p);
          to.store(out.dup + at, dup, p);
        },
        half, half + 32);
  }
}

// Whether all outputs of a tile can be stored as aligned pairs: COLUMNS outputs per row of p_n, and 128 of q_n rows.
template <uint32_t COLUMNS> XT_DEV bool is_whole(const Tile& tile, uint32_t p_n, uint32_t q_n) {
  return (tile.p + 1) * COLUMNS <= p_n && (tile.q + 1) * 128 <= q_n && p_n % 2 == 0;
}

// y = init, the earlier sums of a tile, in the layout of its accumulators.
XT_DEV void load_fragments(const Tile& tile, uint32_t p_n, uint32_t q_n, float (&y)[64], const float* init) {
  if (is_whole<128>(tile, p_n, q_n)) {
    PairTile<true, 128> from = {tile, p_n, q_n};
    from.each([&](uint32_t i, uint32_t p, size_t at) { from.load(y + i, init + at, p); });
  } else {
    PairTile<false, 128> from = {tile, p_n, q_n};
    from.each([&](uint32_t i, uint32_t p, size_t at) { from.load(y + i, init + at, p); });
  }
}

// Stores a tile of COLUMNS outputs per row of p_n, and 128 of q_n rows.
template <uint32_t COLUMNS, class Out>
XT_DEV void store_fragments(const Tile& tile, uint32_t p_n, uint32_t q_n, float (&y)[64], const Out& out) {
  if (is_whole<COLUMNS>(tile, p_n, q_n))
    store_pairs(PairTile<true, COLUMNS>{tile, p_n, q_n}, y, out);
  else
    store_pairs(PairTile<false, COLUMNS>{tile, p_n, q_n}, y, out);
}
