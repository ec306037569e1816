// attention_backward    D = sum32(dy_d y_d);  p = exp(s - L);  ds = p (dp - D) with dp = dot(dy, v)
//                       dq = (chain over visible keys, ascending: ds k) scale + 0
//                       dk = (chain over the group's heads, ascending, then rows, ascending: ds q) scale + 0
//                       dv = (the same chain: p dy) + 0
//                       q, y, dy, dq [N, nh, hd]; k, v, dk, dv [S, nkv, hd]; L, D [N, nh]
// Order: docs/numerics.md, section 4: one chain from +0 per element. Two passes, each of which recomputes the scores
//   (7 products instead of 5), so no two blocks write the same gradient and no atomics are needed.
// CPU twin: cpu/attention.
#include "attention.cuh"
#include "attention_backward.cuh"

// D = sum32(dy_d y_d by fma). Launch: one warp per (row, head).
template <class T> XT_DEV void attention_delta(const T* y, const T* dy, float* delta, uint32_t n, uint32_t hd) {
  uint32_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (i >= n) return;
  float v = 0.0f;
  for (uint32_t d = threadIdx.x % 32; d < hd; d += 32)
    v = fmaf(load(dy + (size_t)i * hd + d), load(y + (size_t)i * hd + d), v);
  v = sum32(v);
  if (threadIdx.x % 32 == 0) delta[i] = v;
}

XT_KERNEL(attention_delta_f32, 256)(const float* y, const float* dy, float* delta, uint32_t n, uint32_t hd) {
  xt_grid_dependency_sync();
  attention_delta(y, dy, delta, n, hd);
}
XT_EXPORT(attention_delta_f32)

XT_KERNEL(attention_delta_bf16, 256)(const bf16* y, const bf16* dy, float* delta, uint32_t n, uint32_t hd) {
  xt_grid_dependency_sync();
  attention_delta(y, dy, delta, n, hd);
}
XT_EXPORT(attention_delta_bf16)

// dq. Launch: as attention.cu: one block per (tile of 32 query vectors, KV head); it iterates over the key chunks.
// Shared memory: q and dy (32 rows of hd + 4 each), a slice of k or v, ds: 44 KB at hd = 64, 93 KB at 256.
template <uint32_t SLICES>
XT_DEV void attention_dq(const float* q, const float* k, const float* v, const float* dy, const float* lse,
                         const float* delta, float* dq, const uint32_t* tiles, const AttnMask& mask,
                         const Heads& heads) {
  XT_DYN_SHARED(float, memory);
  const uint32_t hd = heads.hd, ld = hd + 4, ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float *a = memory, *da = a + TILE_ROWS * ld, *b = da + TILE_ROWS * ld, *w = b + TILE_COLUMNS * TILE_LD;
  uint32_t* slots = (uint32_t*)(w + TILE_ROWS * TILE_LD);
  const QueryTile t = query_tile(tiles + 3 * blockIdx.x, heads);
  const uint32_t seq = mask.seq[t.row];
  const uint32_t lo = first_visible(mask, mask.pos[query_row(t, 0)]), hi = mask.pos[query_row(t, t.count - 1)] + 1;

  load_tile(a, ld, TILE_ROWS, hd,
            [&](uint32_t i) { return i < t.count ? q + query_offset(t, heads, i) * hd : nullptr; });
  load_tile(da, ld, TILE_ROWS, hd,
            [&](uint32_t i) { return i < t.count ? dy + query_offset(t, heads, i) * hd : nullptr; });
  uint32_t start[4], end[4];
  float l[4], dl[4], sum[SLICES][4][4] = {};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t n = ty * 4 + i;
    bool valid = n < t.count;
    end[i] = valid ? mask.pos[query_row(t, n)] + 1 : 0;
    start[i] = valid ? first_visible(mask, end[i] - 1) : 0;
    l[i] = valid ? lse[query_offset(t, heads, n)] : 0.0f;
    dl[i] = valid ? delta[query_offset(t, heads, n)] : 0.0f;
  }
  auto kv_row = [&](const float* x, uint32_t slice) {
    return [=](uint32_t n) {
      return slots[n] == NO_SLOT ? nullptr : x + ((size_t)slots[n] * heads.nkv + blockIdx.y) * hd + slice * SLICE;
    };
  };
  for (uint32_t c = lo / CHUNK; c * CHUNK < hi; c++) {
    __syncthreads();
    load_chunk_slots(slots, mask, seq, c, lo, hi);
    float s[4][4] = {}, dp[4][4] = {};
    for (uint32_t d = 0; d < hd; d += SLICE) {
      uint32_t n = min(hd - d, SLICE);
      __syncthreads();
      load_tile(b, TILE_LD, TILE_COLUMNS, n, kv_row(k, d / SLICE));
      __syncthreads();
      tile_dot(s, a + d, ld, b, n);
      __syncthreads();
      load_tile(b, TILE_LD, TILE_COLUMNS, n, kv_row(v, d / SLICE));
      __syncthreads();
      tile_dot(dp, da + d, ld, b, n);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t at = c * CHUNK + tx + 16 * j;
        float p, ds;
        score_gradient(p, ds, at >= start[i] && at < end[i], s[i][j], dp[i][j], heads.scale, l[i], dl[i]);
        w[(ty * 4 + i) * TILE_LD + tx + 16 * j] = ds;
      }
#pragma unroll
    for (uint32_t e = 0; e < SLICES; e++) {
      __syncthreads();
      load_tile(b, TILE_LD, TILE_COLUMNS, min(hd - e * SLICE, SLICE), kv_row(k, e));
      __syncthreads();
      if (e * SLICE + tx * 4 < hd) tile_weighted_sum(sum[e], w, b);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t n = ty * 4 + i;
    if (n >= t.count) continue;
#pragma unroll
    for (uint32_t e = 0; e < SLICES; e++) {
      uint32_t d = e * SLICE + tx * 4;
      const float* x = sum[e][i];
      if (d < hd)
        *(float4*)(dq + query_offset(t, heads, n) * hd + d) =
            make_float4(x[0] * heads.scale + 0.0f, x[1] * heads.scale + 0.0f, x[2] * heads.scale + 0.0f,
                        x[3] * heads.scale + 0.0f);
    }
  }
}

// dk, dv. Launch: one block per (tile of 32 positions, KV head). tiles holds (offset of the sequence's rows in
// `order`, number of rows, first position); order[offset + p] is the row at position p. For each head of the group
// the block iterates over the rows from its first position, 64 at a time; the keys are the rows of the tile.
// Shared memory: k and v (32 rows of hd + 4 each), a slice of q or dy, p, ds: 53 KB at hd = 64, 99 KB at 256.
template <uint32_t SLICES>
XT_DEV void attention_dkv(const float* q, const float* k, const float* v, const float* dy, const float* lse,
                          const float* delta, float* dk, float* dv, const uint32_t* tiles, const uint32_t* order,
                          const AttnMask& mask, const Heads& heads) {
  XT_DYN_SHARED(float, memory);
  const uint32_t hd = heads.hd, ld = hd + 4, ty = threadIdx.x / 16, tx = threadIdx.x % 16,
                 group = heads.nh / heads.nkv;
  float *a = memory, *da = a + TILE_ROWS * ld, *b = da + TILE_ROWS * ld, *w = b + TILE_COLUMNS * TILE_LD,
        *dw = w + TILE_ROWS * TILE_LD;
  const uint32_t *tile = tiles + 3 * blockIdx.x, *rows = order + tile[0], len = tile[1], j0 = tile[2];
  const uint32_t seq = mask.seq[rows[j0]], count = min(len - j0, TILE_ROWS);
  // one past the last row for which the last position of this tile is visible
  const uint32_t end = mask.window ? min(len, j0 + count - 1 + mask.window - XT_FAULT(LastRowOfWindowSkipped)) : len;

  auto key = [&](const float* x) {
    return [=](uint32_t n) {
      return n < count ? x + ((size_t)slot_of(mask, seq, j0 + n) * heads.nkv + blockIdx.y) * hd : nullptr;
    };
  };
  load_tile(a, ld, TILE_ROWS, hd, key(k));
  load_tile(da, ld, TILE_ROWS, hd, key(v));
  float sum_k[SLICES][4][4] = {}, sum_v[SLICES][4][4] = {};
  for (uint32_t h = blockIdx.y * group; h < blockIdx.y * group + group; h++) {
    for (uint32_t t0 = j0; t0 < end; t0 += TILE_COLUMNS) {
      auto query = [&](const float* x, uint32_t slice) {
        return [=](uint32_t n) {
          return t0 + n < end ? x + ((size_t)rows[t0 + n] * heads.nh + h) * hd + slice * SLICE : nullptr;
        };
      };
      float s[4][4] = {}, dp[4][4] = {};
      for (uint32_t d = 0; d < hd; d += SLICE) {
        uint32_t n = min(hd - d, SLICE);
        __syncthreads();
        load_tile(b, TILE_LD, TILE_COLUMNS, n, query(q, d / SLICE));
        __syncthreads();
        tile_dot(s, a + d, ld, b, n);
        __syncthreads();
        load_tile(b, TILE_LD, TILE_COLUMNS, n, query(dy, d / SLICE));
        __syncthreads();
        tile_dot(dp, da + d, ld, b, n);
      }
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t t = t0 + tx + 16 * j;
        size_t at = t < end ? (size_t)rows[t] * heads.nh + h : 0;
        float l = lse[at], dl = delta[at];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          uint32_t p = j0 + ty * 4 + i, o = (ty * 4 + i) * TILE_LD + tx + 16 * j;
          bool visible = p <= t && t < end && (!mask.window || t < p + mask.window);
          score_gradient(w[o], dw[o], visible, s[i][j], dp[i][j], heads.scale, l, dl);
        }
      }
#pragma unroll
      for (uint32_t e = 0; e < SLICES; e++) {
        uint32_t n = min(hd - e * SLICE, SLICE);
        __syncthreads();
        load_tile(b, TILE_LD, TILE_COLUMNS, n, query(dy, e));
        __syncthreads();
        if (e * SLICE + tx * 4 < hd) tile_weighted_sum(sum_v[e], w, b);
        __syncthreads();
        load_tile(b, TILE_LD, TILE_COLUMNS, n, query(q, e));
        __syncthreads();
        if (e * SLICE + tx * 4 < hd) tile_weighted_sum(sum_k[e], dw, b);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t n = ty * 4 + i;
    if (n >= count) continue;
    size_t at = ((size_t)slot_of(mask, seq, j0 + n) * heads.nkv + blockIdx.y) * hd;
#pragma unroll
    for (uint32_t e = 0; e < SLICES; e++) {
      uint32_t d = e * SLICE + tx * 4;
      if (d >= hd) continue;
      const float *x = sum_k[e][i], *z = sum_v[e][i], scale = heads.scale;
      *(float4*)(dk + at + d) =
          make_float4(x[0] * scale + 0.0f, x[1] * scale + 0.0f, x[2] * scale + 0.0f, x[3] * scale + 0.0f);
      *(float4*)(dv + at + d) = make_float4(z[0] + 0.0f, z[1] + 0.0f, z[2] + 0.0f, z[3] + 0.0f);
    }
  }
}

#define ATTENTION_BACKWARD(hd_, slices, blocks)                                                                      \
  XT_KERNEL(attention_dq_f32_##hd_, 128)(const float* q, const float* k, const float* v, const float* dy,            \
                                         const float* lse, const float* delta, float* dq, const uint32_t* tiles,     \
                                         MASK_PARAMS, HEAD_PARAMS) {                                                 \
    xt_grid_dependency_sync();                                                                                       \
    attention_dq<slices>(q, k, v, dy, lse, delta, dq, tiles, {seq, pos, table, page, stride, window},                \
                         {nh, nkv, hd, scale});                                                                      \
  }                                                                                                                  \
  XT_EXPORT(attention_dq_f32_##hd_)                                                                                  \
  XT_KERNEL_FOR(attention_dkv_f32_##hd_, 128, blocks)(                                                               \
      const float* q, const float* k, const float* v, const float* dy, const float* lse, const float* delta,         \
      float* dk, float* dv, const uint32_t* tiles, const uint32_t* order, MASK_PARAMS, HEAD_PARAMS) {                \
    xt_grid_dependency_sync();                                                                                       \
    attention_dkv<slices>(q, k, v, dy, lse, delta, dk, dv, tiles, order, {seq, pos, table, page, stride, window},    \
                          {nh, nkv, hd, scale});                                                                     \
  }                                                                                                                  \
  XT_EXPORT(attention_dkv_f32_##hd_)
ATTENTION_BACKWARD(hd64, 1, 4)
ATTENTION_BACKWARD(hd128, 2, 3)
ATTENTION_BACKWARD(hd192, 3, 2)
ATTENTION_BACKWARD(hd256, 4, 2)
