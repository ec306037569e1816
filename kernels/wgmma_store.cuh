// Stores the output tile of a wgmma product from the accumulators of two warpgroups: 128 rows of q by 128 of p. They are
// fragments as of mma.sync: a thread has pairs of neighboring outputs, and four threads have a sector of 32 bytes (f32).
#pragma once
#include "linear_chunks.cuh"

// u[s] of lane l of four neighboring lanes becomes u[l] of lane s.
XT_DEV void quad_transpose(uint32_t (&u)[4]) {
  if (XT_FAULT(QuadNotTransposed)) return;
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
  for (uint32_t i = 0; i < 4; i += 2) {
    uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? u[i] : u[i + 1], 1);
    u[i] = odd ? got : u[i], u[i + 1] = odd ? u[i + 1] : got;
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? u[i] : u[i + 2], 2);
    u[i] = upper ? got : u[i], u[i + 2] = upper ? u[i + 2] : got;
  }
}

// A tile and the outputs it may store. WHOLE: all of them, and p_n, the outputs of a row, is a multiple of eight, so pairs
// and groups of eight are aligned and need no test.
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
  // The same for the 16 outputs from y[first] on, as i < 16. A loop over `first` need not be unrolled.
  template <class F> XT_MEMBER void each_of_16(F f, uint32_t first) const {
    uint32_t lane = threadIdx.x % 32, q0 = tile.q * 128 + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (uint32_t i = 0; i < 16; i += 2) {
      uint32_t p = tile.p * COLUMNS + first / 4 * 8 + i / 4 * 8 + lane % 4 * 2, q = q0 + i % 4 * 4;
      if (WHOLE || (p < p_n && q < q_n)) f(i, p, (size_t)q * p_n + p);
    }
  }
  XT_MEMBER bool has(uint32_t p) const { return WHOLE || p < p_n; }

  XT_MEMBER void load(float to[2], const bf16* from, uint32_t p) const {
    to[0] = from_bf16(from[0]);
    if (has(p + 1)) to[1] = from_bf16(from[1]);
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
    to[0] = to_bf16(v[0]);
    if (has(p + 1)) to[1] = to_bf16(v[1]);
  }

  // Where a lane accesses eight outputs of one row: those of the group of eight columns `lane % 4` among the four that
  // begin with output y[first], of the upper or lower 8 rows. A row of 32 outputs is then one piece of 64 bytes.
  XT_MEMBER size_t row_piece(uint32_t first, uint32_t lower) const {
    uint32_t lane = threadIdx.x % 32, q = tile.q * 128 + threadIdx.x / 32 * 16 + lane / 4 + 8 * lower;
    return (size_t)q * p_n + tile.p * COLUMNS + first / 4 * 8 + lane % 4 * 8;
  }
  // Stores v[i], rounded, as outputs y[first + i], 0 <= i < 16.
  XT_MEMBER void store_16(bf16* out, const float* v, uint32_t first) const {
    if (!WHOLE) {
      each_of_16([&](uint32_t i, uint32_t p, size_t at) { store(out + at, v + i, p); }, first);
      return;
    }
#pragma unroll
    for (uint32_t lower = 0; lower < 2; lower++) {
      uint32_t u[4];
#pragma unroll
      for (uint32_t g = 0; g < 4; g++) u[g] = xt_pack_bf16(v[4 * g + 2 * lower], v[4 * g + 2 * lower + 1]);
      quad_transpose(u);
      *reinterpret_cast<uint4*>(out + row_piece(first, lower)) = make_uint4(u[0], u[1], u[2], u[3]);
    }
  }
  // Loads the values at outputs y[first + i] to v[i]; those out of range stay as they are.
  XT_MEMBER void load_16(float* v, const bf16* from, uint32_t first) const {
    if (!WHOLE) {
      each_of_16([&](uint32_t i, uint32_t p, size_t at) { load(v + i, from + at, p); }, first);
      return;
    }
#pragma unroll
    for (uint32_t lower = 0; lower < 2; lower++) {
      uint4 piece = *reinterpret_cast<const uint4*>(from + row_piece(first, lower));
      uint32_t u[4] = {piece.x, piece.y, piece.z, piece.w};
      quad_transpose(u);
#pragma unroll
      for (uint32_t g = 0; g < 4; g++) {
        v[4 * g + 2 * lower] = xt_bits_f(u[g] << 16);
        v[4 * g + 2 * lower + 1] = xt_bits_f(u[g] & 0xffff0000);
      }
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
  if (out.y_bf16) {
#pragma unroll
    for (uint32_t first = 0; first < 64; first += 16) to.store_16(out.y_bf16, y + first, first);
    return;
  }
  to.each([&](uint32_t i, uint32_t p, size_t at) { to.store(out.y + at, y + i, p); });
}

// y[i] = y[i + 16] for first <= i < end - 16: the next outputs of a loop that is not unrolled. The unrolled code of an
// epilogue with many instructions is larger than the instruction cache.
XT_DEV void next_16(float (&y)[64], uint32_t first, uint32_t end) {
#pragma unroll
  for (uint32_t i = 0; i < 48; i++)
    if (i >= first && i + 16 < end) y[i] = y[i + 16];
}

// SwiGLU: a thread has the gate of an output in y[i] and up in y[i + 32]. Eight pairs at a time.
template <bool WHOLE>
XT_DEV void store_pairs(const PairTile<WHOLE, 64>& to, float (&y)[64], const SwiGluEpilogue<bf16>& out) {
#pragma unroll 1
  for (uint32_t half = 0; half < 32; half += 16) {
    float gate[16] = {}, up[16] = {}, silu[16];
    to.each_of_16(
        [&](uint32_t i, uint32_t p, size_t) {
#pragma unroll
          for (uint32_t e = 0; e < 2; e++) {
            uint32_t o = to.has(p + e) ? p + e : p;
            gate[i + e] = from_bf16(to_bf16(gate_of(out, y[i + e], o)));
            up[i + e] = from_bf16(to_bf16(up_of(out, y[i + e + 32], o)));
          }
        },
        half);
    silu_of(gate, silu);
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) silu[i] = silu[i] * up[i];
    to.store_16(out.y, silu, half);
    if (out.gate) to.store_16(out.gate, gate, half), to.store_16(out.up, up, half);
    next_16(y, 0, 32);
    next_16(y, 32, 64);
  }
}

// The gradient of SwiGLU: the sums are dy. The gates and ups of 8 pairs are loaded before any is used.
template <bool WHOLE>
XT_DEV void store_pairs(const PairTile<WHOLE, 128>& to, float (&y)[64], const SwiGluGradientEpilogue<bf16>& out) {
#pragma unroll 1
  for (uint32_t part = 0; part < 64; part += 16) {
    float gate[16] = {}, up[16] = {}, q[16];
    to.load_16(gate, out.gate, part);
    to.load_16(up, out.up, part);
    sigmoid_of(gate, q);
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
      float dy = XT_FAULT(GradientOfRoundedSwiGlu) ? from_bf16(to_bf16(y[i])) : y[i];
      SiluGradient one = silu_mul_gradient(gate[i], q[i], up[i], dy);
      gate[i] = one.g, up[i] = one.u;
    }
    to.store_16(out.dgate, gate, part);
    to.store_16(out.dup, up, part);
    next_16(y, 0, 64);
  }
}

// Whether all outputs of a tile can be stored as aligned groups of eight: COLUMNS outputs per row of p_n, and 128 of q_n
// rows.
template <uint32_t COLUMNS> XT_DEV bool is_whole(const Tile& tile, uint32_t p_n, uint32_t q_n) {
  return (tile.p + 1) * COLUMNS <= p_n && (tile.q + 1) * 128 <= q_n && p_n % 8 == 0;
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
