// attention    y = softmax(q k^T scale) v over the visible keys of each row;  L = m + log l
//              q [N, nh, hd], k and v [S, nkv, hd] (contiguous or paged slots) -> y [N, nh, hd], L [N, nh]
// Launch: grid (tiles, nkv), 128 threads per block. A tile is 32 query vectors: (row, head) pairs of one KV head's
//   group, from rows at consecutive positions of one sequence, so each key is read once for all heads of its group.
//   The block iterates over the chunks of 64 keys: K in slices of 64 columns of hd, scores in registers, p in shared
//   memory, V in slices. Variants hd64, hd128, hd192, hd256 take head sizes up to that number (16 accumulators per
//   thread and slice).
// Order: docs/numerics.md, section 3: chunks of 64 keys at absolute positions, merged in ascending order.
// Shared memory: (32 (hd + 4) + 96 * 68) floats + 64 slots: 35 KB at hd = 64, so 6 blocks per SM; 60 KB at 256.
// Cost: reads 2 * 4 * hd bytes per key for 32 vectors: 16 flop per byte of L2; bound by the FFMA units.
// CPU twin: cpu/attention.
#include "attention.cuh"

template <uint32_t SLICES>
XT_DEV void attention_tile(const float* q, const float* k, const float* v, float* y, float* lse,
                           const uint32_t* tiles, const AttnMask& mask, const Heads& heads) {
  XT_DYN_SHARED(float, memory);
  const uint32_t hd = heads.hd, ld = hd + 4, ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float *a = memory, *b = a + TILE_ROWS * ld, *w = b + TILE_COLUMNS * TILE_LD;
  uint32_t* slots = (uint32_t*)(w + TILE_ROWS * TILE_LD);
  const QueryTile t = query_tile(tiles + 3 * blockIdx.x, heads);
  const uint32_t seq = mask.seq[t.row];
  const uint32_t lo = first_visible(mask, mask.pos[query_row(t, 0)]), hi = mask.pos[query_row(t, t.count - 1)] + 1;

  load_tile(a, ld, TILE_ROWS, hd,
            [&](uint32_t i) { return i < t.count ? q + query_offset(t, heads, i) * hd : nullptr; });
  uint32_t start[4], end[4];
  float m[4], l[4], o[SLICES][4][4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t n = ty * 4 + i;
    end[i] = n < t.count ? mask.pos[query_row(t, n)] + 1 + XT_FAULT(NextKeyAttended) : 0;
    start[i] = end[i] ? first_visible(mask, end[i] - 1) : 0;
    m[i] = minus_infinity();
    l[i] = 0.0f;
  }
  auto kv_row = [&](const float* x, uint32_t slice) {
    return [=](uint32_t n) {
      return slots[n] == NO_SLOT ? nullptr : x + ((size_t)slots[n] * heads.nkv + blockIdx.y) * hd + slice * SLICE;
    };
  };
  for (uint32_t c = lo / CHUNK; c * CHUNK < hi; c++) {
    __syncthreads();
    load_chunk_slots(slots, mask, seq, c, lo, hi);
    float s[4][4] = {};
    for (uint32_t d = 0; d < hd; d += SLICE) {
      uint32_t n = min(hd - d, SLICE);
      __syncthreads();
      load_tile(b, TILE_LD, TILE_COLUMNS, n, kv_row(k, d / SLICE));
      __syncthreads();
      tile_dot(s, a + d, ld, b, n);
    }
    float scale_old[4], scale_new[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float p[4], mc = minus_infinity();
      bool visible[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t at = c * CHUNK + tx + 16 * j;
        visible[j] = at >= start[i] && at < end[i];
        s[i][j] = s[i][j] * heads.scale;
        if (visible[j]) mc = max_f32(mc, s[i][j]);
      }
      mc = row_max(mc);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        p[j] = visible[j] ? exp_f32(s[i][j] - mc) : 0.0f;
        w[(ty * 4 + i) * TILE_LD + tx + 16 * j] = p[j];
      }
      float lc = row_sum(p);
      bool any = max(start[i], c * CHUNK) < min(end[i], c * CHUNK + CHUNK);
      scale_old[i] = 1.0f;  // no visible key in this chunk: o = o * 1 + o_c * 0, and o_c is 0
      scale_new[i] = 0.0f;
      if (any && l[i] == 0.0f) {
        scale_new[i] = 1.0f;  // first chunk: o = 0 * 1 + o_c
        m[i] = mc;
        l[i] = lc;
      } else if (any) {
        float top = max_f32(m[i], mc);
        scale_old[i] = exp_f32(m[i] - top);
        scale_new[i] = exp_f32(mc - top);
        l[i] = fmaf(l[i], scale_old[i], lc * scale_new[i]);
        m[i] = top;
      }
    }
#pragma unroll
    for (uint32_t e = 0; e < SLICES; e++) {
      __syncthreads();
      load_tile(b, TILE_LD, TILE_COLUMNS, min(hd - e * SLICE, SLICE), kv_row(v, e));
      __syncthreads();
      if (e * SLICE + tx * 4 < hd) {
        float oc[4][4] = {};
        tile_weighted_sum(oc, w, b);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int f = 0; f < 4; f++) o[e][i][f] = fmaf(o[e][i][f], scale_old[i], oc[i][f] * scale_new[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t n = ty * 4 + i;
    if (n >= t.count) continue;
    size_t at = query_offset(t, heads, n);
    if (tx == 0) lse[at] = m[i] + log_f32(l[i]);
#pragma unroll
    for (uint32_t e = 0; e < SLICES; e++) {
      uint32_t d = e * SLICE + tx * 4;
      const float* x = o[e][i];
      if (d < hd)
        *(float4*)(y + at * hd + d) =
            make_float4(x[0] / l[i] + 0.0f, x[1] / l[i] + 0.0f, x[2] / l[i] + 0.0f, x[3] / l[i] + 0.0f);
    }
  }
}

#define ATTENTION(name, slices)                                                                                      \
  XT_KERNEL(name, 128)(const float* q, const float* k, const float* v, float* y, float* lse, const uint32_t* tiles,  \
                       MASK_PARAMS, HEAD_PARAMS) {                                                                   \
    xt_grid_dependency_sync();                                                                                       \
    attention_tile<slices>(q, k, v, y, lse, tiles, {seq, pos, table, page, stride, window}, {nh, nkv, hd, scale});   \
  }                                                                                                                  \
  XT_EXPORT(name)
ATTENTION(attention_f32_hd64, 1)
ATTENTION(attention_f32_hd128, 2)
ATTENTION(attention_f32_hd192, 3)
ATTENTION(attention_f32_hd256, 4)
