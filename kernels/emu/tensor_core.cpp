// mma.sync and ldmatrix. A sum follows the models of tensor cores in docs/numerics.md, section 2: c and the products
// a_k * b_k are aligned to the largest exponent among them, at least LOWEST, each truncated to FRACTION fractional bits,
// summed exactly, and the sum truncated to f32. Hopper: 25 bits, -133, one sum of 16 products. Ampere: 24 bits, -126,
// two sums of 8. Products are not normalized before the alignment. A product with a zero factor and a zero c do not take
// part in it.
#include "tensor_core.hpp"

#include <string.h>

#include <algorithm>

#include "check.hpp"
#include "worker.hpp"

namespace xtemu {

static uint32_t bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
static float value(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static float widen(uint16_t h) { return value((uint32_t)h << 16); }
static bool special(uint16_t h) { return (h >> 7 & 0xff) == 0xff; }

// A bf16 as mantissa * 2^(exponent - 7), with a signed mantissa.
struct Unpacked {
  int32_t mantissa, exponent;
};
static Unpacked unpack(uint16_t h) {
  constexpr int32_t NEVER_LARGEST = -1000;
  int32_t e = h >> 7 & 0xff, m = h & 0x7f;
  if (e) m |= 0x80;
  return {h & 0x8000 ? -m : m, e ? e - 127 : m ? -126 : NEVER_LARGEST};
}

// sum * 2^exponent, truncated to f32; zero is +0.
static float normalise(int64_t sum, int exponent) {
  if (!sum) return 0.0f;
  uint64_t v = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
  int top = 63 - __builtin_clzll(v), e = exponent + top;
  int drop = top - 23 + (e < -126 ? -126 - e : 0);
  v = drop > 62 ? 0 : drop > 0 ? v >> drop : v << -drop;
  if (!v) return 0.0f;
  uint32_t r = e > 127 ? 0x7f800000u : e < -126 ? (uint32_t)v : (uint32_t)(e + 127) << 23 | (uint32_t)(v & 0x7fffff);
  return value(r | (sum < 0 ? 0x80000000u : 0));
}

// A dot product with an infinity or a NaN among its operands.
template <int WIDTH> static float special_dot(const uint16_t* a, const uint16_t* b, float c) {
  double sum = c;
  for (int k = 0; k < WIDTH; k++) sum += (double)widen(a[k]) * (double)widen(b[k]);
  return sum != sum ? value(0x7fffffff) : (float)sum;
}

// One row by eight columns and WIDTH k, vectorized over the columns.
template <int FRACTION, int LOWEST, int WIDTH>
static void row_step(const Unpacked a[], const int32_t mantissa[][8], const int32_t exponent[][8], float d[8]) {
  int32_t c_mantissa[8], c_exponent[8], top[8], low[8] = {}, high[8] = {};
  for (int i = 0; i < 8; i++) {
    uint32_t u = bits(d[i]);
    int32_t e = u >> 23 & 0xff, m = u & 0x7fffff;
    if (e) m |= 0x800000;
    c_mantissa[i] = u >> 31 ? -m : m;
    c_exponent[i] = e ? e - 127 : m ? -126 : LOWEST;
    top[i] = std::max(c_exponent[i], LOWEST);
  }
  for (int k = 0; k < WIDTH; k++) {
    for (int i = 0; i < 8; i++) top[i] = std::max(top[i], a[k].exponent + exponent[k][i]);
  }
  // a product has 16 bits, 14 of them fractional; eight of them, shifted left by 11, fit in 31 bits
  auto add = [&](int32_t* sum, int k) {
    for (int i = 0; i < 8; i++) {
      int32_t p = a[k].mantissa * mantissa[k][i];
      uint32_t size = (uint32_t)(p < 0 ? -p : p) << (FRACTION - 14);
      uint32_t shift = std::min<uint32_t>((uint32_t)(top[i] - a[k].exponent - exponent[k][i]), 31);
      int32_t cut = (int32_t)(size >> shift);
      sum[i] += p < 0 ? -cut : cut;
    }
  };
  for (int k = 0; k < 8; k++) add(low, k);
  for (int k = 8; k < WIDTH; k++) add(high, k);
  for (int i = 0; i < 8; i++) {
    int32_t m = c_mantissa[i];
    int32_t cut = (int32_t)(((uint32_t)(m < 0 ? -m : m) << (FRACTION - 23)) >> std::min(top[i] - c_exponent[i], 31));
    d[i] = normalise((int64_t)low[i] + high[i] + (m < 0 ? -cut : cut), top[i] - FRACTION);
  }
}

// The sums over k0 <= k < k0 + WIDTH.
template <int FRACTION, int LOWEST, int WIDTH>
static void partial_step(int k0, const uint16_t a[16][16], const uint16_t b[8][16], float d[16][8]) {
  int32_t mantissa[WIDTH][8], exponent[WIDTH][8];
  bool has_special[8] = {};
  for (int i = 0; i < 8; i++) {
    for (int k = 0; k < WIDTH; k++) {
      Unpacked u = unpack(b[i][k0 + k]);
      mantissa[k][i] = u.mantissa;
      exponent[k][i] = u.exponent;
      has_special[i] |= special(b[i][k0 + k]);
    }
  }
  for (int r = 0; r < 16; r++) {
    Unpacked row[WIDTH];
    bool row_has_special = false;
    float c[8];
    memcpy(c, d[r], sizeof c);
    for (int k = 0; k < WIDTH; k++) {
      row[k] = unpack(a[r][k0 + k]);
      row_has_special |= special(a[r][k0 + k]);
    }
    row_step<FRACTION, LOWEST, WIDTH>(row, mantissa, exponent, d[r]);
    for (int i = 0; i < 8; i++) {
      if (row_has_special || has_special[i] || (bits(c[i]) >> 23 & 0xff) == 0xff)
        d[r][i] = special_dot<WIDTH>(a[r] + k0, b[i] + k0, c[i]);
    }
  }
}

void tensor_step(TensorCore core, const uint16_t a[16][16], const uint16_t b[8][16], float d[16][8]) {
  if (core == TensorCore::Hopper) {
    partial_step<25, -133, 16>(0, a, b, d);
  } else {
    partial_step<24, -126, 8>(0, a, b, d);
    partial_step<24, -126, 8>(8, a, b, d);
  }
}

// ---- fragment layouts: PTX ISA 9.7.14
static const uint16_t* row_of(const Lane& lane) {
  const uint16_t* row;
  memcpy(&row, lane.in, 8);
  if ((uintptr_t)row & 15) fail("ldmatrix: row address is not a multiple of 16");
  if (worker->launch->checked) check_access(row, 16, Access::Read, "ldmatrix", 0);
  return row;
}

void ldmatrix_x4(uint32_t, Lane* lanes) {
  const uint16_t* rows[32];
  for (int i = 0; i < 32; i++) rows[i] = row_of(lanes[i]);
  for (int i = 0; i < 32; i++) {
    for (int j = 0; j < 4; j++) memcpy(&lanes[i].out[j], rows[8 * j + i / 4] + 2 * (i % 4), 4);
  }
}

void ldmatrix_x2_trans(uint32_t, Lane* lanes) {
  const uint16_t* rows[16];
  for (int i = 0; i < 16; i++) rows[i] = row_of(lanes[i]);
  for (int i = 0; i < 32; i++) {
    for (int j = 0; j < 2; j++) {
      uint32_t low = rows[8 * j + 2 * (i % 4)][i / 4], high = rows[8 * j + 2 * (i % 4) + 1][i / 4];
      lanes[i].out[j] = low | high << 16;
    }
  }
}

void mma_16816(uint32_t, Lane* lanes) {
  uint16_t a[16][16], b[8][16];
  float d[16][8];
  for (int i = 0; i < 32; i++) {
    int row = i >> 2, pair = (i & 3) * 2;
    const uint32_t* in = lanes[i].in;
    memcpy(&a[row][pair], in, 4);
    memcpy(&a[row + 8][pair], in + 1, 4);
    memcpy(&a[row][pair + 8], in + 2, 4);
    memcpy(&a[row + 8][pair + 8], in + 3, 4);
    memcpy(&b[row][pair], in + 4, 4);
    memcpy(&b[row][pair + 8], in + 5, 4);
    memcpy(&d[row][pair], in + 6, 8);
    memcpy(&d[row + 8][pair], in + 8, 8);
  }
  tensor_step(worker->launch->tensor_core, a, b, d);
  for (int i = 0; i < 32; i++) {
    int row = i >> 2, pair = (i & 3) * 2;
    memcpy(lanes[i].out, &d[row][pair], 8);
    memcpy(lanes[i].out + 2, &d[row + 8][pair], 8);
  }
}

}  // namespace xtemu
