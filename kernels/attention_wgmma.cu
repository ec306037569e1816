// attention_bf16_wgmma_hd64, _hd128    attention_bf16.cu with its products by wgmma
// Hopper, as linear_wgmma.cu.
// Launch: grid (tiles, nkv), one warpgroup. A tile is 64 query vectors, 16 per warp; K and V of a chunk of 64 keys are
//   copied while the chunk before is computed.
// Order: as attention_bf16.cu. Query vectors are the 64-row operand of both products; p is in registers.
// Shared memory: queries, two chunks of K and V: 40 KB at hd = 64, 80 KB at 128.
// Cost: as attention_bf16.cu, but each chunk is read once from shared memory for 64 vectors instead of 16.
// CPU twin: cpu/attention.
#include "attention_wgmma.cuh"

// p = exp(s scale - m) of one chunk of a lane's two vectors, and what the running sums are scaled by; m and l are updated.
struct ChunkScales {
  float old_sum[2], chunk[2];
};
XT_DEV ChunkScales softmax_chunk(float (&s)[32], float (&m)[2], float (&l)[2], const VisibleKeys& keys, uint32_t at,
                                 float scale) {
  ChunkScales scales;
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) s[i] = s[i] * scale;
  mask_keys(s, keys, at, minus_infinity());
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float mc = minus_infinity();
#pragma unroll
    for (uint32_t n = 0; n < 8; n++)
#pragma unroll
      for (uint32_t e = 0; e < 2; e++) mc = max_f32(mc, s[4 * n + 2 * i + e]);
    mc = quad_max(mc);
    const bool any = max(keys.start[i], at) < min(keys.end[i], at + WGMMA_ROWS);
    float top = any ? mc : 0.0f;  // p = exp(-inf) = +0 if no key is visible
#pragma unroll
    for (uint32_t n = 0; n < 8; n++)
#pragma unroll
      for (uint32_t e = 0; e < 2; e++) s[4 * n + 2 * i + e] = s[4 * n + 2 * i + e] - top;
    exp_each<16>(s, [i](int n) { return n / 2 * 4 + 2 * i + n % 2; });
    float p[8][4];
#pragma unroll
    for (uint32_t n = 0; n < 8; n++)
#pragma unroll
      for (uint32_t e = 0; e < 2; e++) p[n][2 * i + e] = s[4 * n + 2 * i + e];
    const float lc = quad_sum(p, 2 * i);
    scales.old_sum[i] = 1.0f;  // no visible key: o = o * 1 + 0 * 0
    scales.chunk[i] = 0.0f;
    if (any && l[i] == 0.0f) {
      scales.chunk[i] = 1.0f;  // first chunk: o = 0 * 1 + o_c
      m[i] = mc;
      l[i] = lc;
    } else if (any) {
      top = max_f32(m[i], mc);
      scales.old_sum[i] = exp_f32(m[i] - top);
      scales.chunk[i] = exp_f32(mc - top);
      l[i] = fmaf(l[i], scales.old_sum[i], lc * scales.chunk[i]);
      m[i] = top;
    }
  }
  return scales;
}

template <uint32_t HD>
XT_DEV void attention_tile_wgmma(const bf16* q, const bf16* k, const bf16* v, bf16* y, float* lse,
                                 const uint32_t* tiles, const AttnMask& mask, const Heads& heads) {
  XT_DYN_SHARED(bf16, memory);
  bf16 *queries = aligned_panels(memory), *stages = queries + WGMMA_ROWS * HD;
  const QueryTile t = query_tile(tiles + 3 * blockIdx.x, heads);
  const uint32_t seq = mask.seq[t.row], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t lo = first_visible(mask, mask.pos[query_row(t, 0)]), hi = mask.pos[query_row(t, t.count - 1)] + 1;
  const uint32_t from = lo / CHUNK, to = (hi + CHUNK - 1) / CHUNK;
  copy_queries<HD>(queries, q, t, heads);
  const KeysOfTile<HD> source = {k, v, mask, seq, lo, hi, heads.nkv};
  auto load_stage = [&](uint32_t c) { source.copy_chunk(stages + c % 2 * 2 * WGMMA_ROWS * HD, c); };
  load_stage(from);
  xt_cp_commit();
  const VisibleKeys visible = visible_keys(t, mask);
  float m[2] = {minus_infinity(), minus_infinity()}, l[2] = {}, o[HD / 2] = {};
  for (uint32_t c = from; c < to; c++) {
    const bf16* keys = stages + c % 2 * 2 * WGMMA_ROWS * HD;
    xt_cp_wait<0>();
    publish_panels();  // also: all warps have read the stage of c - 1
    float s[32];
    xt_wgmma_fence();
    start_dot<HD>(s, queries, keys);
    xt_wgmma_commit();
    if (c + 1 < to) load_stage(c + 1);
    xt_cp_commit();
    finish_started(s);
    const uint32_t at = c * CHUNK;
    const bool any_visible = at < visible.any_to && at + CHUNK > visible.any_from;
    ChunkScales scales;
    uint32_t p[4][4] = {};
    if (any_visible) {
      scales = softmax_chunk(s, m, l, visible, at, heads.scale);
      pack_fragments(p, s);
    }
    float oc[HD / 2];
    xt_wgmma_fence();
    start_sum<HD>(oc, p, keys + WGMMA_ROWS * HD, false);
    finish(oc);
    if (any_visible) {
#pragma unroll
      for (uint32_t i = 0; i < HD / 2; i++)
        o[i] = fmaf(o[i], scales.old_sum[i / 2 % 2], oc[i] * scales.chunk[i / 2 % 2]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t n = warp * 16 + lane / 4 + 8 * i;
    if (n >= t.count) continue;
    size_t row = query_offset(t, heads, n);
    if (lane % 4 == 0) lse[row] = m[i] + log_f32(l[i]);
#pragma unroll
    for (uint32_t first = 0; first < HD / 8; first += 8) {
      float x[16];
#pragma unroll
      for (uint32_t d = 0; d < 16; d++) x[d] = o[(first + d / 2) * 4 + 2 * i + d % 2];
      divide_by(x, l[i]);
#pragma unroll
      for (uint32_t d = 0; d < 8; d++)
        *(uint32_t*)(y + row * HD + (first + d) * 8 + lane % 4 * 2) =
            xt_pack_bf16(x[2 * d] + 0.0f, x[2 * d + 1] + 0.0f);
    }
  }
}

#define ATTENTION_WGMMA(name, d, blocks)                                                                             \
  XT_KERNEL_FOR(name, 128, blocks)(const bf16* q, const bf16* k, const bf16* v, bf16* y, float* lse,                 \
                                   const uint32_t* tiles, MASK_PARAMS, HEAD_PARAMS) {                                \
    xt_grid_dependency_sync();                                                                                       \
    if (!xt_has_wgmma()) return xt_trap();                                                                           \
    attention_tile_wgmma<d>(q, k, v, y, lse, tiles, {seq, pos, table, page, stride, window}, {nh, nkv, d, scale});   \
  }                                                                                                                  \
  XT_EXPORT(name)
ATTENTION_WGMMA(attention_bf16_wgmma_hd64, 64, 4)
ATTENTION_WGMMA(attention_bf16_wgmma_hd128, 128, 2)
#undef ATTENTION_WGMMA
