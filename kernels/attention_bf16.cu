// attention in bf16    y = softmax(q k^T scale) v over the visible keys of each row;  L = m + log l
//                      q, y [N, nh, hd], k and v [S, nkv, hd] in bf16, L [N, nh] in f32
// Launch: grid (tiles, nkv), 4 warps per block (2 for hd > 192). A tile is 16 query vectors per warp, as in
//   attention.cu. Software pipeline (cp.async): V of a chunk is loaded while its scores are computed, K of the next
//   chunk during the softmax.
// Order: as attention.cu, with both products by mma.sync: q k over hd in k-steps of 16 from zero; p (rounded) v over
//   the 64 slots of a chunk in four k-steps from zero, absent slots zero. Query vectors are the 16-row A operand.
// Shared memory: K and V of a chunk, 64 rows of hd + 8: 18 KB at hd = 64, 35 KB at 128; 85 KB at 256 with the
//   queries.
// Registers: o takes hd / 2, scores 32, queries hd / 4.
// Cost: reads 4 hd bytes per key for 64 vectors: 64 flop per byte of L2. Bound by the softmax (about 20 instructions
//   per exp) at hd = 64.
// CPU twin: cpu/attention.
#include "attention_mma.cuh"

template <uint32_t D, uint32_t WARPS>
XT_DEV void attention_tile_bf16(const bf16* q, const bf16* k, const bf16* v, bf16* y, float* lse,
                                const uint32_t* tiles, const AttnMask& mask, const Heads& heads) {
  constexpr bool Q_IN_REGISTERS = WARPS == 4;  // query fragments stay in registers
  constexpr uint32_t TILES = D == 192 ? 2 : 4;
  XT_DYN_SHARED(bf16, memory);
  const uint32_t hd = heads.hd, ld = mma_ld(hd), warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4;
  bf16 *keys = memory, *values = keys + CHUNK * ld, *q_smem = Q_IN_REGISTERS ? keys : values + CHUNK * ld;
  uint32_t* slots =
      (uint32_t*)(values + CHUNK * ld + (Q_IN_REGISTERS ? 0 : WARPS * 16 * ld));  // two chunks, double-buffered
  const QueryTile t = query_tile(tiles + 3 * blockIdx.x, heads);
  const uint32_t seq = mask.seq[t.row];
  const uint32_t lo = first_visible(mask, mask.pos[query_row(t, 0)]), hi = mask.pos[query_row(t, t.count - 1)] + 1;
  const uint32_t from = lo / CHUNK, to = (hi + CHUNK - 1) / CHUNK;

  zero_padding(keys, CHUNK, hd);
  zero_padding(values, CHUNK, hd);
  if (!Q_IN_REGISTERS) zero_padding(q_smem, WARPS * 16, hd);
  copy_rows_async<WARPS * 32>(q_smem, WARPS * 16, hd, q,
                              [&](uint32_t i) { return i < t.count ? q + query_offset(t, heads, i) * hd : nullptr; });
  xt_cp_commit();
  load_chunk_slots(slots + from % 2 * CHUNK, mask, seq, from, lo, hi);
  xt_cp_wait<0>();
  __syncthreads();
  q_smem += warp * 16 * ld;
  uint32_t a[Q_IN_REGISTERS ? D / 16 : 1][4];
  if (Q_IN_REGISTERS) {
#pragma unroll
    for (uint32_t i = 0; i < (Q_IN_REGISTERS ? D / 16 : 1); i++)
      if (i * 16 < hd) load_fragment_a(a[i], q_smem, ld, i);
    __syncthreads();
  }
  auto kv_row = [&](const bf16* x, uint32_t c) {
    return [=](uint32_t n) {
      uint32_t slot = slots[c % 2 * CHUNK + n];
      const bf16* from = x + ((size_t)(slot == NO_SLOT ? 0 : slot) * heads.nkv + blockIdx.y) * hd;
      return slot == NO_SLOT ? nullptr : from;
    };
  };
  uint32_t start[2], end[2], all_from, all_to, any_from, any_to;
  float m[2], l[2], o[D / 8][4] = {};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t n = warp * 16 + lane / 4 + 8 * i;
    end[i] = n < t.count ? mask.pos[query_row(t, n)] + 1 : 0;
    start[i] = end[i] ? first_visible(mask, end[i] - 1) : 0;
    m[i] = minus_infinity();
    l[i] = 0.0f;
  }
  {  // key ranges visible to at least one and to every vector of this warp; empty for a warp without vectors
    uint32_t first = min(warp * 16, t.count - 1), last = min(warp * 16 + 15, t.count - 1);
    bool full = warp * 16 + 15 < t.count, empty = warp * 16 >= t.count;
    any_from = first_visible(mask, mask.pos[query_row(t, first)]);
    any_to = empty ? 0 : mask.pos[query_row(t, last)] + 1;
    all_from = first_visible(mask, mask.pos[query_row(t, last)]);
    all_to = full ? mask.pos[query_row(t, first)] + 1 : 0;
  }
  copy_rows_async<WARPS * 32>(keys, CHUNK, hd, k, kv_row(k, from));
  xt_cp_commit();
  for (uint32_t c = from; c < to; c++) {
    const uint32_t at = c * CHUNK;
    const bool any_visible = at < any_to && at + CHUNK > any_from,
               all_visible = at >= all_from && at + CHUNK <= all_to + XT_FAULT(LastKeyOfChunkUnmasked);
    copy_rows_async<WARPS * 32>(values, CHUNK, hd, v, kv_row(v, c));
    xt_cp_commit();
    if (c + 1 < to) load_chunk_slots(slots + (c + 1) % 2 * CHUNK, mask, seq, c + 1, lo, hi);
    xt_cp_wait<1>();
    __syncthreads();
    float s[8][4] = {};
    if (any_visible) {
#pragma unroll
      for (uint32_t i = 0; i < D / 16; i++) {
        if (i * 16 >= hd) continue;
        if (!Q_IN_REGISTERS) load_fragment_a(a[0], q_smem, ld, i);
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
          uint32_t b[4];
          load_fragments_b(b, keys + n * 16 * ld, ld, i);
          xt_mma_bf16_16816(s[2 * n], a[Q_IN_REGISTERS ? i : 0], b);
          xt_mma_bf16_16816(s[2 * n + 1], a[Q_IN_REGISTERS ? i : 0], b + 2);
        }
      }
    }
    __syncthreads();
    if (c + 1 < to) copy_rows_async<WARPS * 32>(keys, CHUNK, hd, k, kv_row(k, c + 1));
    xt_cp_commit();
    float scale_old[2], scale_new[2];
    uint32_t p[4][4];
    if (any_visible) {
#pragma unroll
      for (uint32_t n = 0; n < 8; n++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) s[n][e] = s[n][e] * heads.scale;
      if (!all_visible) {
#pragma unroll
        for (uint32_t n = 0; n < 8; n++)
#pragma unroll
          for (uint32_t e = 0; e < 4; e++) {
            uint32_t key = at + n * 8 + quad * 2 + e % 2;
            bool visible = (key >= start[e / 2]) & (key < end[e / 2]);
            s[n][e] = visible ? s[n][e] : minus_infinity();
          }
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float mc = minus_infinity();
#pragma unroll
        for (uint32_t n = 0; n < 8; n++)
#pragma unroll
          for (uint32_t e = 0; e < 2; e++) mc = max_f32(mc, s[n][2 * i + e]);
        mc = quad_max(mc);
        bool any = max(start[i], at) < min(end[i], at + CHUNK);
        float top = any ? mc : 0.0f;  // p = exp(-inf) = +0 if no key is visible
#pragma unroll
        for (uint32_t n = 0; n < 8; n++)
#pragma unroll
          for (uint32_t e = 0; e < 2; e++) s[n][2 * i + e] = exp_f32(s[n][2 * i + e] - top);
        float lc = quad_sum(s, 2 * i);
        scale_old[i] = 1.0f;  // no visible key: o = o * 1 + 0 * 0
        scale_new[i] = 0.0f;
        if (any && l[i] == 0.0f) {
          scale_new[i] = 1.0f;  // first chunk: o = 0 * 1 + o_c
          m[i] = mc;
          l[i] = lc;
        } else if (any) {
          top = max_f32(m[i], mc);
          scale_old[i] = exp_f32(m[i] - top);
          scale_new[i] = exp_f32(mc - top);
          l[i] = fmaf(l[i], scale_old[i], lc * scale_new[i]);
          m[i] = top;
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) pack_fragment_a(p[i], s, i);
    }
    xt_cp_wait<1>();
    __syncthreads();
    if (any_visible) {
#pragma unroll
      for (uint32_t d = 0; d < D / 8; d += TILES) {  // independent column tiles hide the latency of mma
        float oc[TILES][4] = {};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
          for (uint32_t e = 0; e < TILES; e++) {
            if ((d + e) * 8 >= hd) continue;
            uint32_t b[2];
            load_fragment_b_trans(b, values, ld, i, (d + e) * 8);
            xt_mma_bf16_16816(oc[e], p[i], b);
          }
#pragma unroll
        for (uint32_t e = 0; e < TILES; e++)
#pragma unroll
          for (uint32_t f = 0; f < 4; f++)
            o[d + e][f] = fmaf(o[d + e][f], scale_old[f / 2], oc[e][f] * scale_new[f / 2]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t n = warp * 16 + lane / 4 + 8 * i;
    if (n >= t.count) continue;
    size_t row = query_offset(t, heads, n);
    if (quad == 0) lse[row] = m[i] + log_f32(l[i]);
#pragma unroll
    for (uint32_t first = 0; first < D / 8; first += 8) {
      float x[16];
#pragma unroll
      for (uint32_t d = 0; d < 16; d++) x[d] = o[first + d / 2][2 * i + d % 2];
      divide_by(x, l[i]);
#pragma unroll
      for (uint32_t d = 0; d < 8; d++)
        if ((first + d) * 8 < hd)
          *(uint32_t*)(y + row * hd + (first + d) * 8 + quad * 2) =
              xt_pack_bf16(x[2 * d] + 0.0f, x[2 * d + 1] + 0.0f);
    }
  }
}

// A constant head size leaves no division and few addresses per copy.
#define ATTENTION_BF16(name, d, warps, blocks)                                                                       \
  XT_KERNEL_FOR(name, warps * 32, blocks)(const bf16* q, const bf16* k, const bf16* v, bf16* y, float* lse,          \
                                          const uint32_t* tiles, MASK_PARAMS, HEAD_PARAMS) {                         \
    xt_grid_dependency_sync();                                                                                       \
    const AttnMask mask = {seq, pos, table, page, stride, window};                                                   \
    if (d <= 128 && hd == d)                                                                                         \
      attention_tile_bf16<d, warps>(q, k, v, y, lse, tiles, mask, {nh, nkv, d, scale});                              \
    else                                                                                                             \
      attention_tile_bf16<d, warps>(q, k, v, y, lse, tiles, mask, {nh, nkv, hd, scale});                             \
  }                                                                                                                  \
  XT_EXPORT(name)
ATTENTION_BF16(attention_bf16_hd64, 64, 4, 3)
ATTENTION_BF16(attention_bf16_hd128, 128, 4, 2)
ATTENTION_BF16(attention_bf16_hd192, 192, 4, 2)
ATTENTION_BF16(attention_bf16_hd256, 256, 2, 2)
