// Shared by the attention kernels: KV addressing, the attention mask, and f32 tiles of 32 rows x 64 columns.
//
// A tile is computed by 128 threads. Thread (ty, tx) = (t / 16, t % 16) owns rows 4 ty .. 4 ty + 3.
//   Product over d (scores): it owns columns tx + 16 j, so sum32 over 64 columns is two additions in registers
//   (columns 32 apart, then 16 apart) and shuffles by 8, 4, 2, 1 within half a warp.
//   Product over the 64 columns (outputs): it owns four consecutive d.
// Both read shared memory as float4 without bank conflicts (row pitch 64 + 4 floats).
#pragma once
#include "contract.cuh"

constexpr uint32_t TILE_ROWS = 32, TILE_COLUMNS = 64, SLICE = 64, TILE_LD = SLICE + 4, TILE_THREADS = 128;
constexpr uint32_t CHUNK = 64;
constexpr uint32_t NO_SLOT = 0xffffffffu;

// Attention metadata of the query rows: sequence and position of each row, the KV slot table, the sliding window.
// Contiguous sequences: page = 0 and table[seq] is the first KV slot of the sequence.
// Paged cache: table[seq * stride + pos / page] is the page number. window = 0: full causal attention.
struct AttnMask {
  const uint32_t *seq, *pos, *table;
  uint32_t page, stride, window;
};
#define MASK_PARAMS                                                                                                  \
  const uint32_t *seq, const uint32_t *pos, const uint32_t *table, uint32_t page, uint32_t stride, uint32_t window

struct Heads {
  uint32_t nh, nkv, hd;
  float scale;
};
#define HEAD_PARAMS uint32_t nh, uint32_t nkv, uint32_t hd, float scale

XT_DEV uint32_t slot_of(const AttnMask& mask, uint32_t seq, uint32_t pos) {
  if (mask.page == 0) return mask.table[seq] + pos;
  return mask.table[(size_t)seq * mask.stride + pos / mask.page] * mask.page + pos % mask.page;
}

// First visible position of a row at `pos`.
XT_DEV uint32_t first_visible(const AttnMask& mask, uint32_t pos) {
  return mask.window && pos + 1 > mask.window ? pos + 1 - mask.window : 0;
}

XT_DEV float minus_infinity() { return xt_bits_f(0xff800000u); }

// x[i] = x[i] / l, where the sign of a zero is open. One test for all of them: a branch for each would keep them apart.
template <uint32_t N> XT_DEV void divide_by(float (&x)[N], float l) {
  bool in_range = l >= 1.0f && l <= 0x1p30f;
#pragma unroll
  for (uint32_t i = 0; i < N; i++)
    in_range = in_range && (x[i] == 0.0f || (fabsf(x[i]) >= 0x1p-60f && fabsf(x[i]) <= 0x1p60f));
  if (in_range || XT_FAULT(QuotientOutOfRange)) {
#pragma unroll
    for (uint32_t i = 0; i < N; i++) x[i] = xt_quotient(x[i], l);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < N; i++) x[i] = x[i] / l;
  }
}

// Maximum over the 16 lanes that share a row.
XT_DEV float row_max(float v) {
#pragma unroll
  for (int o = 8; o; o >>= 1) v = max_f32(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// sum32 of a row's 64 entries; p[j] holds entry tx + 16 j.
XT_DEV float row_sum(const float p[4]) {
  float v = (p[0] + p[2]) + (p[1] + p[3]);
#pragma unroll
  for (int o = 8; o; o >>= 1) v = v + __shfl_xor_sync(0xffffffffu, v, o);
  return v + 0.0f;
}

// a[m][c] = row(m)[c] for m < rows, c < columns (a multiple of 4). Rows with row(m) == nullptr are zero-filled.
template <class Row> XT_DEV void load_tile(float* a, uint32_t ld, uint32_t rows, uint32_t columns, Row row) {
  uint32_t quads = columns / 4;
  for (uint32_t i = threadIdx.x; i < rows * quads; i += TILE_THREADS) {
    uint32_t m = i / quads, c = i % quads * 4;
    const float* from = row(m);
    *(float4*)(a + m * ld + c) = from ? *(const float4*)(from + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// s[i][j] += sum over d < n (a multiple of 4), ascending, of a[4 ty + i][d] b[tx + 16 j][d]: one fma chain each.
XT_DEV void tile_dot(float s[4][4], const float* a, uint32_t lda, const float* b, uint32_t n) {
  a += threadIdx.x / 16 * 4 * lda;
  b += threadIdx.x % 16 * TILE_LD;
  for (uint32_t d = 0; d < n; d += 4) {
    float4 x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = *(const float4*)(a + i * lda + d);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float4 z = *(const float4*)(b + 16 * j * TILE_LD + d);
#pragma unroll
      for (int i = 0; i < 4; i++)
        s[i][j] = fmaf(x[i].w, z.w, fmaf(x[i].z, z.z, fmaf(x[i].y, z.y, fmaf(x[i].x, z.x, s[i][j]))));
    }
  }
}

// o[i][e] += sum over the 64 columns n, ascending, of w[4 ty + i][n] b[n][4 tx + e]: one fma chain each.
XT_DEV void tile_weighted_sum(float o[4][4], const float* w, const float* b) {
  w += threadIdx.x / 16 * 4 * TILE_LD;
  b += threadIdx.x % 16 * 4;
  for (uint32_t n = 0; n < TILE_COLUMNS; n += 4) {
    float x[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) *(float4*)x[i] = *(const float4*)(w + i * TILE_LD + n);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float4 z = *(const float4*)(b + (n + k) * TILE_LD);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        o[i][0] = fmaf(x[i][k], z.x, o[i][0]);
        o[i][1] = fmaf(x[i][k], z.y, o[i][1]);
        o[i][2] = fmaf(x[i][k], z.z, o[i][2]);
        o[i][3] = fmaf(x[i][k], z.w, o[i][3]);
      }
    }
  }
}

// KV slots of the 64 positions of chunk c. Positions outside lo .. hi get NO_SLOT.
XT_DEV void load_chunk_slots(uint32_t* slots, const AttnMask& mask, uint32_t seq, uint32_t c, uint32_t lo,
                             uint32_t hi) {
  if (threadIdx.x < CHUNK) {
    uint32_t p = c * CHUNK + threadIdx.x;
    slots[threadIdx.x] = p >= lo && p < hi ? slot_of(mask, seq, p) : NO_SLOT;
  }
}

// A tile of query vectors: `count` (row, head) pairs of one KV head's group. Pairs are counted from pair `skip` of
// row `row`; rows are at consecutive ascending positions. `head` is the first query head of the group.
struct QueryTile {
  uint32_t row, skip, count, group, head;
};

XT_DEV QueryTile query_tile(const uint32_t* tile, const Heads& heads) {
  uint32_t group = heads.nh / heads.nkv;
  return {tile[0], tile[1], tile[2], group, blockIdx.y * group};
}
XT_DEV uint32_t query_row(const QueryTile& t, uint32_t i) { return t.row + (t.skip + i) / t.group; }
// Index of query i in [N, nh].
XT_DEV size_t query_offset(const QueryTile& t, const Heads& heads, uint32_t i) {
  return (size_t)query_row(t, i) * heads.nh + t.head + (t.skip + i) % t.group;
}
