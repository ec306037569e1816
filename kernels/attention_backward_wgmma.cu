// attention_dq_bf16_wgmma_hd64, _hd128, attention_dkv_bf16_wgmma_hd64, _hd128    attention_backward_bf16.cu with its products by
//                                                                     wgmma
// Hopper, as linear_wgmma.cu.
// Order: as attention_backward_bf16.cu; the queries (dq) or keys (dk, dv) are the 64-row operand of all products.
// CPU twin: cpu/attention.
#include "attention_backward.cuh"
#include "attention_wgmma.cuh"

// dq. Launch: as attention_wgmma.cu. Shared memory: queries and dy, two chunks of K and V: 48 KB at hd = 64, 96 KB at 128.
template <uint32_t HD>
XT_DEV void attention_dq_wgmma(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse,
                               const float* delta, float* dq, const uint32_t* tiles, const AttnMask& mask,
                               const Heads& heads) {
  XT_DYN_SHARED(bf16, memory);
  constexpr uint32_t SIZE = WGMMA_ROWS * HD;
  bf16 *queries = aligned_panels(memory), *grads = queries + SIZE, *stages = grads + SIZE;
  const QueryTile t = query_tile(tiles + 3 * blockIdx.x, heads);
  const uint32_t seq = mask.seq[t.row], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t lo = first_visible(mask, mask.pos[query_row(t, 0)]), hi = mask.pos[query_row(t, t.count - 1)] + 1;
  copy_queries<HD>(queries, q, t, heads);
  copy_queries<HD>(grads, dy, t, heads);
  const KeysOfTile<HD> source = {k, v, mask, seq, lo, hi, heads.nkv};
  auto load_stage = [&](uint32_t c) { source.copy_chunk(stages + c % 2 * 2 * SIZE, c); };
  const uint32_t from = lo / CHUNK, to = (hi + CHUNK - 1) / CHUNK;
  load_stage(from);
  xt_cp_commit();
  const VisibleKeys visible = visible_keys(t, mask);
  float l[2], dl[2], sum[HD / 2] = {};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t n = warp * 16 + lane / 4 + 8 * i;
    l[i] = n < t.count ? lse[query_offset(t, heads, n)] : 0.0f;
    dl[i] = n < t.count ? delta[query_offset(t, heads, n)] : 0.0f;
  }
  for (uint32_t c = from; c < to; c++) {
    const bf16 *keys = stages + c % 2 * 2 * SIZE, *values = keys + SIZE;
    xt_cp_wait<0>();
    publish_panels();  // also: all warps have read the stage of c - 1
    float s[32], dp[32];
    xt_wgmma_fence();
    start_dot<HD>(s, queries, keys);
    start_dot<HD>(dp, grads, values);
    xt_wgmma_commit();
    if (c + 1 < to) load_stage(c + 1);
    xt_cp_commit();
    finish_started(s, dp);
    const uint32_t at = c * CHUNK;
    uint32_t ds[4][4] = {};
    if (at < visible.any_to && at + CHUNK > visible.any_from) {
#pragma unroll
      for (uint32_t i = 0; i < 32; i++) s[i] = s[i] * heads.scale - l[i / 2 % 2];
      exp_each<32>(s, [](int n) { return n; });
#pragma unroll
      for (uint32_t i = 0; i < 32; i++) s[i] = s[i] * (dp[i] - dl[i / 2 % 2]);
      if (!XT_FAULT(GradientOfMaskedScores)) mask_keys(s, visible, at, 0.0f);
      pack_fragments(ds, s);
    }
    xt_wgmma_fence();
    start_sum<HD>(sum, ds, keys, !XT_FAULT(GradientOfLastKeysOnly));
    finish(sum);
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t n = warp * 16 + lane / 4 + 8 * i;
    if (n >= t.count) continue;
    float* row = dq + query_offset(t, heads, n) * HD + lane % 4 * 2;
#pragma unroll
    for (uint32_t d = 0; d < HD / 8; d++)
      *(float2*)(row + d * 8) =
          make_float2(sum[4 * d + 2 * i] * heads.scale + 0.0f, sum[4 * d + 2 * i + 1] * heads.scale + 0.0f);
  }
}

// dk, dv. Launch: one warpgroup per (tile of 64 positions, KV head); tiles and order as in attention_backward.cu.
// Shared memory: k and v of the tile, 64 rows of q and dy twice: 48 KB at hd = 64, 96 KB at 128.
template <uint32_t HD>
XT_DEV void attention_dkv_wgmma(const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse,
                                const float* delta, float* dk, float* dv, const uint32_t* tiles,
                                const uint32_t* order, const AttnMask& mask, const Heads& heads) {
  XT_DYN_SHARED(bf16, memory);
  XT_SHARED2(float2, stats, 2, WGMMA_ROWS);  // (L, D) per row
  using Copies = PanelCopies<HD>;
  constexpr uint32_t SIZE = WGMMA_ROWS * HD;
  bf16 *keys = aligned_panels(memory), *values = keys + SIZE, *stages = values + SIZE;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = heads.nh / heads.nkv;
  const uint32_t *tile = tiles + 3 * blockIdx.x, *rows = order + tile[0], len = tile[1], j0 = tile[2];
  const uint32_t seq = mask.seq[rows[j0]], count = min(len - j0, WGMMA_ROWS);
  const uint32_t end = mask.window ? min(len, j0 + count - 1 + mask.window) : len;
  auto copy_keys = [&](bf16* to, const bf16* x) {
    copy_panels<HD>(to, x, [&](uint32_t i) {
      uint32_t n = Copies::row(i);
      return n < count ? x + ((size_t)slot_of(mask, seq, j0 + n) * heads.nkv + blockIdx.y) * HD : nullptr;
    });
  };
  copy_keys(keys, k);
  copy_keys(values, v);
  // heads ascending, then rows ascending: iteration i is 64 rows of one head
  const uint32_t blocks_per_head = (end - j0 + WGMMA_ROWS - 1) / WGMMA_ROWS, iterations = group * blocks_per_head;
  auto load_stage = [&](uint32_t i) {
    const uint32_t h = blockIdx.y * group + i / blocks_per_head, t0 = j0 + i % blocks_per_head * WGMMA_ROWS;
    bf16* queries = stages + i % 2 * 2 * SIZE;
    uint32_t row[Copies::COPIES];
#pragma unroll
    for (uint32_t r = 0; r < Copies::COPIES; r++) row[r] = rows[min(t0 + Copies::row(r), end - 1)];
    auto from = [&](const bf16* x) {
      return [&, x](uint32_t r) {
        return t0 + Copies::row(r) < end ? x + ((size_t)row[r] * heads.nh + h) * HD : nullptr;
      };
    };
    copy_panels<HD>(queries, q, from(q));
    copy_panels<HD>(queries + SIZE, dy, from(dy));
    if (threadIdx.x < WGMMA_ROWS) {
      size_t at = (size_t)rows[min(t0 + threadIdx.x, end - 1)] * heads.nh + h;
      stats[i % 2][threadIdx.x] = make_float2(lse[at], delta[at]);
    }
  };
  load_stage(0);
  xt_cp_commit();
  const uint32_t first_key = j0 + warp * 16;  // first position of this warp
  float sum_k[HD / 2] = {}, sum_v[HD / 2] = {};
  for (uint32_t i = 0; i < iterations; i++) {
    const uint32_t t0 = j0 + i % blocks_per_head * WGMMA_ROWS;
    const bf16 *queries = stages + i % 2 * 2 * SIZE, *grads = queries + SIZE;
    xt_cp_wait<0>();
    publish_panels();  // also: all warps have read the stage and the statistics of i - 1
    float s[32], dp[32];
    xt_wgmma_fence();
    start_dot<HD>(s, keys, queries);
    start_dot<HD>(dp, values, grads);
    xt_wgmma_commit();
    if (i + 1 < iterations) load_stage(i + 1);
    xt_cp_commit();
    finish_started(s, dp);
#pragma unroll
    for (uint32_t n = 0; n < 8; n++) {
      const float4 pair = *(const float4*)&stats[i % 2][n * 8 + lane % 4 * 2];
#pragma unroll
      for (uint32_t e = 0; e < 4; e++) {
        s[4 * n + e] = s[4 * n + e] * heads.scale - (e % 2 ? pair.z : pair.x);
        dp[4 * n + e] = dp[4 * n + e] - (e % 2 ? pair.w : pair.y);
      }
    }
#pragma unroll
    for (int first = 0; first < 32; first += 16) exp_each<16>(s, [first](int n) { return first + n; });
#pragma unroll
    for (uint32_t n = 0; n < 32; n++) dp[n] = s[n] * dp[n];
    // rows that all see every key of this warp; a key that is absent is after every row
    const bool all = first_key + 15 <= t0 && t0 + WGMMA_ROWS <= end &&
                     (!mask.window || t0 + WGMMA_ROWS - 1 < first_key + mask.window);
    if (!all && !XT_FAULT(GradientOfMaskedScores)) {
#pragma unroll
      for (uint32_t n = 0; n < 32; n++) {
        uint32_t t = t0 + n / 4 * 8 + lane % 4 * 2 + n % 2, j = first_key + lane / 4 + n / 2 % 2 * 8;
        bool visible = (j <= t) & (t < end) & (!mask.window | (t < j + mask.window));
        s[n] = visible ? s[n] : 0.0f;
        dp[n] = visible ? dp[n] : 0.0f;
      }
    }
    uint32_t p[4][4], ds[4][4];
    pack_fragments(p, s);
    pack_fragments(ds, dp);
    xt_wgmma_fence();
    start_sum<HD>(sum_v, p, grads, true);
    start_sum<HD>(sum_k, ds, queries, true);
    finish(sum_v, sum_k);
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t j = first_key + lane / 4 + 8 * i;
    if (j >= j0 + count) continue;
    size_t at = ((size_t)slot_of(mask, seq, j) * heads.nkv + blockIdx.y) * HD + lane % 4 * 2;
#pragma unroll
    for (uint32_t d = 0; d < HD / 8; d++) {
      const float *x = sum_k + 4 * d + 2 * i, *z = sum_v + 4 * d + 2 * i;
      *(float2*)(dk + at + d * 8) = make_float2(x[0] * heads.scale + 0.0f, x[1] * heads.scale + 0.0f);
      *(float2*)(dv + at + d * 8) = make_float2(z[0] + 0.0f, z[1] + 0.0f);
    }
  }
}

#define ATTENTION_BACKWARD_WGMMA(hd_, d, dq_blocks, dkv_blocks)                                                      \
  XT_KERNEL_FOR(attention_dq_bf16_wgmma_##hd_, 128, dq_blocks)(                                                      \
      const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse, const float* delta, float* dq,  \
      const uint32_t* tiles, MASK_PARAMS, HEAD_PARAMS) {                                                             \
    xt_grid_dependency_sync();                                                                                       \
    if (!xt_has_wgmma()) return xt_trap();                                                                           \
    attention_dq_wgmma<d>(q, k, v, dy, lse, delta, dq, tiles, {seq, pos, table, page, stride, window},               \
                          {nh, nkv, d, scale});                                                                      \
  }                                                                                                                  \
  XT_EXPORT(attention_dq_bf16_wgmma_##hd_)                                                                           \
  XT_KERNEL_FOR(attention_dkv_bf16_wgmma_##hd_, 128, dkv_blocks)(                                                    \
      const bf16* q, const bf16* k, const bf16* v, const bf16* dy, const float* lse, const float* delta, float* dk,  \
      float* dv, const uint32_t* tiles, const uint32_t* order, MASK_PARAMS, HEAD_PARAMS) {                           \
    xt_grid_dependency_sync();                                                                                       \
    if (!xt_has_wgmma()) return xt_trap();                                                                           \
    attention_dkv_wgmma<d>(q, k, v, dy, lse, delta, dk, dv, tiles, order, {seq, pos, table, page, stride, window},   \
                           {nh, nkv, d, scale});                                                                     \
  }                                                                                                                  \
  XT_EXPORT(attention_dkv_bf16_wgmma_##hd_)
ATTENTION_BACKWARD_WGMMA(hd64, 64, 3, 3)
ATTENTION_BACKWARD_WGMMA(hd128, 128, 2, 2)
#undef ATTENTION_BACKWARD_WGMMA
