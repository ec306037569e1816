// attention_backward in bf16    attention_backward.cu with its products by mma.sync
//                               q, y, dy [N, nh, hd]; k, v [S, nkv, hd] in bf16; L, D [N, nh]; dq, dk, dv in f32
// Order: s and dp over hd in k-steps of 16 from zero. dq: steps of 16 keys at absolute positions into the running
//   sum, ds rounded. dk, dv: for each head of the group, ascending, steps of 16 rows at absolute positions into the
//   running sum, p and ds rounded, dy rounded at the entry. Masked entries are zero; a step of zeros changes no bit.
//   For s and dp, dq uses the queries as the 16-row A operand, and dk, dv use the keys (same bits: a product
//   commutes).
// CPU twin: cpu/attention.
#include "attention_backward.cuh"
#include "attention_mma.cuh"

// s += a b^T: 16 rows of a by 32 rows of b, over hd.
XT_DEV void mma_dot(float s[4][4], const bf16* a, const bf16* b, uint32_t ld, uint32_t hd) {
  for (uint32_t i = 0; i * 16 < hd; i++) {
    uint32_t x[4], z[4];
    load_fragment_a(x, a, ld, i);
#pragma unroll
    for (uint32_t n = 0; n < 2; n++) {
      load_fragments_b(z, b + n * 16 * ld, ld, i);
      xt_mma_bf16_16816(s[2 * n], x, z);
      xt_mma_bf16_16816(s[2 * n + 1], x, z + 2);
    }
  }
}

// sum[d] += w b: 16 rows x 32 columns of w (rounded) by 32 rows of b, columns d0 .. min(d0 + 8 TILES, hd) of b.
template <uint32_t TILES>
XT_DEV void mma_sum(float sum[TILES][4], const float w[4][4], const bf16* b, uint32_t ld, uint32_t d0, uint32_t hd) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t a[4];
    pack_fragment_a(a, w, i);
#pragma unroll
    for (uint32_t d = 0; d < TILES; d++) {
      if (d0 + d * 8 >= hd) continue;
      uint32_t z[2];
      load_fragment_b_trans(z, b, ld, i, d0 + d * 8);
      xt_mma_bf16_16816(sum[d], a, z);
    }
  }
}

// dq. Launch: as attention_bf16.cu; KEYS keys per iteration; STAGES == 2 prefetches the next iteration.
// Shared memory: queries and dy (16 rows per warp), k and v per stage: 55 KB at hd = 64, 70 KB at 128, 68 KB at 256.
// Registers: hd / 2 for the sum, 32 for the scores of 32 keys.
// Cost: 3 products of 2 hd flop per score; 4 hd bytes of L2 per key for the vectors of a tile.
template <uint32_t D, uint32_t WARPS, uint32_t KEYS, uint32_t STAGES>
XT_DEV void attention_dq_bf16(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse,
                              const float* delta, float* dq, const uint32_t* tiles, const AttnMask& mask,
                              const Heads& heads) {
  XT_DYN_SHARED(bf16, memory);
  const uint32_t hd = heads.hd, ld = mma_ld(hd), warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4;
  bf16 *q_smem = memory, *dy_smem = q_smem + WARPS * 16 * ld, *stages = dy_smem + WARPS * 16 * ld;
  const QueryTile t = query_tile(tiles + 3 * blockIdx.x, heads);
  const uint32_t seq = mask.seq[t.row];
  const uint32_t lo = first_visible(mask, mask.pos[query_row(t, 0)]), hi = mask.pos[query_row(t, t.count - 1)] + 1;

  zero_padding(memory, WARPS * 32 + KEYS * 2 * STAGES, hd);
  auto query = [&](const bf16* x) {
    return [=](uint32_t i) { return i < t.count ? x + query_offset(t, heads, i) * hd : nullptr; };
  };
  copy_rows_async<WARPS * 32>(q_smem, WARPS * 16, hd, q, query(q));
  copy_rows_async<WARPS * 32>(dy_smem, WARPS * 16, hd, dy, query(dy));
  uint32_t start[2], end[2];
  float l[2], dl[2], sum[D / 8][4] = {};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t n = warp * 16 + lane / 4 + 8 * i;
    bool valid = n < t.count;
    end[i] = valid ? mask.pos[query_row(t, n)] + 1 : 0;
    start[i] = valid ? first_visible(mask, end[i] - 1) : 0;
    l[i] = valid ? lse[query_offset(t, heads, n)] : 0.0f;
    dl[i] = valid ? delta[query_offset(t, heads, n)] : 0.0f;
  }
  const uint32_t any_from = first_visible(mask, mask.pos[query_row(t, min(warp * 16, t.count - 1))]);
  const uint32_t any_to = warp * 16 < t.count ? mask.pos[query_row(t, min(warp * 16 + 15, t.count - 1))] + 1 : 0;
  // keys that every vector of this warp sees
  const bool full = warp * 16 + 15 < t.count;
  const uint32_t all_from = full ? first_visible(mask, mask.pos[query_row(t, warp * 16 + 15)]) : 0;
  const uint32_t all_to = full ? mask.pos[query_row(t, warp * 16)] + 1 : 0;
  auto load_stage = [&](uint32_t at, uint32_t stage) {
    auto kv_row = [&](const bf16* x) {
      return [=](uint32_t n) {
        bool inside = at + n >= lo && at + n < hi;
        const bf16* from = x + ((size_t)slot_of(mask, seq, inside ? at + n : lo) * heads.nkv + blockIdx.y) * hd;
        return inside ? from : nullptr;
      };
    };
    copy_rows_async<WARPS * 32>(stages + stage * 2 * KEYS * ld, KEYS, hd, k, kv_row(k));
    copy_rows_async<WARPS * 32>(stages + (stage * 2 + 1) * KEYS * ld, KEYS, hd, v, kv_row(v));
    xt_cp_commit();
  };
  const uint32_t first = lo / KEYS * KEYS;
  if (STAGES == 2) load_stage(first, 0);
  for (uint32_t at = first, stage = 0; at < hi; at += KEYS, stage = (stage + 1) % STAGES) {
    const bf16 *keys = stages + stage * 2 * KEYS * ld, *values = keys + KEYS * ld;
    if (STAGES == 1)
      load_stage(at, 0);
    else if (at + KEYS < hi)
      load_stage(at + KEYS, 1 - stage);
    else
      xt_cp_commit();
    xt_cp_wait<STAGES - 1>();
    __syncthreads();
#pragma unroll
    for (uint32_t half = 0; half < KEYS; half += 32) {
      if (at + half >= any_to || at + half + 32 <= any_from) continue;
      float s[4][4] = {}, dp[4][4] = {};
      mma_dot(s, q_smem + warp * 16 * ld, keys + half * ld, ld, hd);
      mma_dot(dp, dy_smem + warp * 16 * ld, values + half * ld, ld, hd);
#pragma unroll
      for (uint32_t n = 0; n < 4; n++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
          float p;
          score_gradient(p, s[n][e], s[n][e], dp[n][e], heads.scale, l[e / 2], dl[e / 2]);
        }
      const bool all = at + half >= all_from && at + half + 32 <= all_to;
      if (!all && !XT_FAULT(GradientOfMaskedScores)) {
#pragma unroll
        for (uint32_t n = 0; n < 4; n++)
#pragma unroll
          for (uint32_t e = 0; e < 4; e++) {
            uint32_t key = at + half + n * 8 + quad * 2 + e % 2;
            bool visible = (key >= start[e / 2]) & (key < end[e / 2]);
            s[n][e] = visible ? s[n][e] : 0.0f;
          }
      }
      mma_sum<D / 8>(sum, s, keys + half * ld, ld, 0, hd);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t n = warp * 16 + lane / 4 + 8 * i;
    if (n >= t.count) continue;
    float* to = dq + query_offset(t, heads, n) * hd + quad * 2;
#pragma unroll
    for (uint32_t d = 0; d < D / 8; d++)
      if (d * 8 < hd)
        *(float2*)(to + d * 8) =
            make_float2(sum[d][2 * i] * heads.scale + 0.0f, sum[d][2 * i + 1] * heads.scale + 0.0f);
  }
}

// dk, dv. Launch: one block of WARPS warps per (tile of 16 WARPS positions, KV head, PART columns of hd); tiles and
// order as in attention_backward.cu. ROWS rows per iteration; STAGES == 2 prefetches the next iteration.
// Shared memory: k and v of the tile, q, dy, L and D per stage: 56 KB at hd = 64, 70 KB at 128, 68 KB at 256.
// Registers: PART for the two sums (so hd > 128 takes two parts, each computing all scores), 32 for scores.
// Cost: 4 products of 2 hd flop per score.
template <uint32_t PART, uint32_t WARPS, uint32_t ROWS, uint32_t STAGES>
XT_DEV void attention_dkv_bf16(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse,
                               const float* delta, float* dk, float* dv, const uint32_t* tiles, const uint32_t* order,
                               const AttnMask& mask, const Heads& heads) {
  XT_DYN_SHARED(bf16, memory);
  const uint32_t hd = heads.hd, ld = mma_ld(hd), warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4;
  const uint32_t group = heads.nh / heads.nkv, d0 = blockIdx.z * PART;
  bf16 *keys = memory, *values = keys + WARPS * 16 * ld, *stages = values + WARPS * 16 * ld;
  float2* stats = (float2*)(stages + STAGES * 2 * ROWS * ld);  // (L, D) per row
  const uint32_t *tile = tiles + 3 * blockIdx.x, *rows = order + tile[0], len = tile[1], j0 = tile[2];
  const uint32_t seq = mask.seq[rows[j0]], count = min(len - j0, WARPS * 16);
  const uint32_t end = mask.window ? min(len, j0 + count - 1 + mask.window) : len;

  zero_padding(memory, WARPS * 32 + ROWS * 2 * STAGES, hd);
  auto key = [&](const bf16* x) {
    return [=](uint32_t n) {
      return n < count ? x + ((size_t)slot_of(mask, seq, j0 + n) * heads.nkv + blockIdx.y) * hd : nullptr;
    };
  };
  copy_rows_async<WARPS * 32>(keys, WARPS * 16, hd, k, key(k));
  copy_rows_async<WARPS * 32>(values, WARPS * 16, hd, v, key(v));
  float sum_k[PART / 8][4] = {}, sum_v[PART / 8][4] = {};
  const uint32_t first_key = j0 + warp * 16;  // first position of this warp
  // heads ascending, then rows ascending: iteration i is ROWS rows of one head
  const uint32_t blocks_per_head = (end - j0 + ROWS - 1) / ROWS;
  auto load_stage = [&](uint32_t i, uint32_t stage) {
    const uint32_t h = blockIdx.y * group + i / blocks_per_head, t0 = j0 + i % blocks_per_head * ROWS;
    auto query = [&](const bf16* x) {
      return [=](uint32_t n) { return t0 + n < end ? x + ((size_t)rows[t0 + n] * heads.nh + h) * hd : nullptr; };
    };
    copy_rows_async<WARPS * 32>(stages + stage * 2 * ROWS * ld, ROWS, hd, q, query(q));
    copy_rows_async<WARPS * 32>(stages + (stage * 2 + 1) * ROWS * ld, ROWS, hd, dy, query(dy));
    xt_cp_commit();
    for (uint32_t n = threadIdx.x; n < ROWS; n += WARPS * 32) {
      size_t at = t0 + n < end ? (size_t)rows[t0 + n] * heads.nh + h : 0;
      stats[stage * ROWS + n] = make_float2(lse[at], delta[at]);
    }
  };
  if (STAGES == 2) load_stage(0, 0);
  for (uint32_t i = 0, stage = 0; i < group * blocks_per_head; i++, stage = (stage + 1) % STAGES) {
    const uint32_t t0 = j0 + i % blocks_per_head * ROWS;
    const bf16 *queries = stages + stage * 2 * ROWS * ld, *grads = queries + ROWS * ld;
    const float2* row_stats = stats + stage * ROWS;
    if (STAGES == 1)
      load_stage(i, 0);
    else if (i + 1 < group * blocks_per_head)
      load_stage(i + 1, 1 - stage);
    else
      xt_cp_commit();
    xt_cp_wait<STAGES - 1>();
    __syncthreads();
#pragma unroll
    for (uint32_t half = 0; half < ROWS; half += 32) {
      if (t0 + half >= end || t0 + half + 32 <= first_key || first_key >= j0 + count) continue;
      float s[4][4] = {}, dp[4][4] = {};
      mma_dot(s, keys + warp * 16 * ld, queries + half * ld, ld, hd);
      mma_dot(dp, values + warp * 16 * ld, grads + half * ld, ld, hd);
#pragma unroll
      for (uint32_t n = 0; n < 4; n++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
          uint32_t at = half + n * 8 + quad * 2 + e % 2;
          score_gradient(s[n][e], dp[n][e], s[n][e], dp[n][e], heads.scale, row_stats[at].x, row_stats[at].y);
        }
      // rows that all see every key of this warp; a key that is absent is after every row
      const bool all = first_key + 15 <= t0 + half && t0 + half + 32 <= end &&
                       (!mask.window || t0 + half + 31 < first_key + mask.window);
      if (!all && !XT_FAULT(GradientOfMaskedScores)) {
#pragma unroll
        for (uint32_t n = 0; n < 4; n++)
#pragma unroll
          for (uint32_t e = 0; e < 4; e++) {
            uint32_t t = t0 + half + n * 8 + quad * 2 + e % 2, j = first_key + lane / 4 + e / 2 * 8;
            bool visible = (j <= t) & (t < end) & (!mask.window | (t < j + mask.window));
            s[n][e] = visible ? s[n][e] : 0.0f;
            dp[n][e] = visible ? dp[n][e] : 0.0f;
          }
      }
      mma_sum<PART / 8>(sum_v, s, grads + half * ld, ld, d0, hd);
      mma_sum<PART / 8>(sum_k, dp, queries + half * ld, ld, d0, hd);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t j = first_key + lane / 4 + 8 * i;
    if (j >= j0 + count) continue;
    size_t at = ((size_t)slot_of(mask, seq, j) * heads.nkv + blockIdx.y) * hd + d0 + quad * 2;
#pragma unroll
    for (uint32_t d = 0; d < PART / 8; d++) {
      if (d0 + d * 8 >= hd) continue;
      *(float2*)(dk + at + d * 8) =
          make_float2(sum_k[d][2 * i] * heads.scale + 0.0f, sum_k[d][2 * i + 1] * heads.scale + 0.0f);
      *(float2*)(dv + at + d * 8) = make_float2(sum_v[d][2 * i] + 0.0f, sum_v[d][2 * i + 1] + 0.0f);
    }
  }
}

#define ATTENTION_BACKWARD_BF16(hd_, d, part, warps, columns, stages, blocks)                                        \
  XT_KERNEL(attention_dq_bf16_##hd_, warps * 32)(const bf16* q, const bf16* k, const bf16* v, const bf16* dy,        \
                                                 const float* lse, const float* delta, float* dq,                    \
                                                 const uint32_t* tiles, MASK_PARAMS, HEAD_PARAMS) {                  \
    xt_grid_dependency_sync();                                                                                       \
    const AttnMask mask = {seq, pos, table, page, stride, window};                                                   \
    if (d <= 128 && hd == d)                                                                                         \
      attention_dq_bf16<d, warps, columns, stages>(q, k, v, dy, lse, delta, dq, tiles, mask, {nh, nkv, d, scale});   \
    else                                                                                                             \
      attention_dq_bf16<d, warps, columns, stages>(q, k, v, dy, lse, delta, dq, tiles, mask, {nh, nkv, hd, scale});  \
  }                                                                                                                  \
  XT_EXPORT(attention_dq_bf16_##hd_)                                                                                 \
  XT_KERNEL_FOR(attention_dkv_bf16_##hd_, warps * 32, blocks)(                                                       \
      const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse, const float* delta, float* dk,  \
      float* dv, const uint32_t* tiles, const uint32_t* order, MASK_PARAMS, HEAD_PARAMS) {                           \
    xt_grid_dependency_sync();                                                                                       \
    const AttnMask mask = {seq, pos, table, page, stride, window};                                                   \
    if (d <= 128 && hd == d)                                                                                         \
      attention_dkv_bf16<part, warps, columns, stages>(q, k, v, dy, lse, delta, dk, dv, tiles, order, mask,          \
                                                       {nh, nkv, d, scale});                                         \
    else                                                                                                             \
      attention_dkv_bf16<part, warps, columns, stages>(q, k, v, dy, lse, delta, dk, dv, tiles, order, mask,          \
                                                       {nh, nkv, hd, scale});                                        \
  }                                                                                                                  \
  XT_EXPORT(attention_dkv_bf16_##hd_)
ATTENTION_BACKWARD_BF16(hd64, 64, 64, 4, 64, 2, 4)
ATTENTION_BACKWARD_BF16(hd128, 128, 128, 4, 32, 2, 2)
ATTENTION_BACKWARD_BF16(hd192, 192, 96, 2, 32, 1, 4)
ATTENTION_BACKWARD_BF16(hd256, 256, 128, 2, 32, 1, 4)
