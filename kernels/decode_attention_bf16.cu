// decode_attention in bf16    decode_attention.cu with its products by mma.sync, as in attention_bf16.cu
//                             q [N, nh, hd], k and v [S, nkv, hd] in bf16
//                             -> partial results (m, l) [R, nh, C] and o [R, nh, C, hd] in f32 -> y, L
// Launch: grid (rows, nkv, C), 4 warps. Scores: 16 keys per warp; p v: every fourth group of 8 columns per warp.
//   shared [R, 2]: a block computes a chunk below shared[r][1] for the shared[r][0] rows from its own one, which see the
//   same keys of it; 0 rows: an earlier block does. A later chunk is computed for one row.
// Order: as attention_bf16.cu. The 16-row A operand holds the query heads of the rows (zero-padded to 16); a row of a
//   product does not depend on the others. A partial result is one chunk of 64 keys; merged as in
//   decode_attention.cu.
// Shared memory: K and V (64 rows of hd + 8, all in flight at once), 16 queries, scores, p: 27 KB at hd = 64, so 8
//   blocks per SM and 128 KB in flight, which covers the latency at 4 TB/s.
// Cost: K and V once for the group and the rows that share them, (2 + hd) * 4 bytes of partial results per head: at
//   hd = 64 and two heads per group, 1/16 of the bytes of keys and values of a row alone.
// CPU twin: cpu/attention.
//
// append_attention in bf16    write_heads and decode_attention in one launch, see decode_attention.cu
// Shared memory: as above; a key and the queries are normed and rotated in place, the scores hold one head per warp.
#include "attention_mma.cuh"
#include "decode_attention.cuh"

// What the rotation of a lane's values at a position reads, if hd is 64 or 128: it is on the way while keys are copied.
struct LaneRotation {
  float c[4], q_gain[4], k_gain[4];
};
template <int K>
XT_DEV void load_rotation(LaneRotation& to, const NewRows<bf16>& x, uint32_t position, uint32_t lane) {
  float c[K], q[K] = {}, k[K] = {};
  lane_load(c, rope_row(x.table, position, 32 * K), 32 * K, lane);
  if (x.q_gain) lane_load(q, x.q_gain, 32 * K, lane);
  if (x.k_gain) lane_load(k, x.k_gain, 32 * K, lane);
#pragma unroll
  for (int i = 0; i < K; i++) to.c[i] = c[i], to.q_gain[i] = q[i], to.k_gain[i] = k[i];
}
template <int K>
XT_DEV void rotate_loaded(const LaneRotation& from, const NewRows<bf16>& x, bool is_key, bf16* head, uint32_t lane) {
  float v[K], c[K], g[K];
  lane_load(v, head, 32 * K, lane);
#pragma unroll
  for (int i = 0; i < K; i++) c[i] = from.c[i], g[i] = is_key ? from.k_gain[i] : from.q_gain[i];
  norm_rotate_loaded(v, (is_key ? x.k_gain : x.q_gain) != nullptr, g, c, head, x.eps, lane);
}

#define DECODE_PARAMS                                                                                                \
  float *partial_ml, float *partial_o, bf16 *y, float *lse, uint32_t *counters, const uint32_t *rows,                \
      const uint32_t *shared, MASK_PARAMS, uint32_t chunks, HEAD_PARAMS
#define DECODE_ARGS                                                                                                  \
  partial_ml, partial_o, y, lse, counters, rows, shared, seq, pos, table, page, stride, window, chunks, nh, nkv

template <class New>
XT_DEV void decode_chunk(const New& x, const bf16* q, const bf16* k, const bf16* v, DECODE_PARAMS) {
  const AttnMask mask = {seq, pos, table, page, stride, window};
  XT_DYN_SHARED(bf16, keys);
  constexpr uint32_t P_LD = CHUNK + 8;
  const uint32_t ld = mma_ld(hd), group = nh / nkv, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
                 row = row_of(rows, blockIdx.x), last = pos[row], sequence = seq[row];
  const uint2 share = *(const uint2*)(shared + 2 * blockIdx.x);
  bf16 *values = keys + CHUNK * ld, *queries = values + CHUNK * ld, *p = queries + 16 * ld;
  float* scores = (float*)(p + 16 * P_LD);
  uint32_t* slots = (uint32_t*)(scores + 16 * TILE_LD);
  const uint32_t lo = first_visible(mask, last), hi = last + 1, c = lo / CHUNK + blockIdx.z;
  if (c * CHUNK >= hi) return;
  const uint32_t count = c < share.y ? share.x : 1, pairs = count * group;
  if (count == 0) return;
  // query i of the block: head i % group of row i / group; its index in [N, nh], and that of its partial result
  auto query = [&](uint32_t i) {
    uint32_t n = XT_FAULT(SharedQueriesOfFirstRow) ? 0 : i / group;
    return q + ((size_t)row_of(rows, blockIdx.x + n) * nh + blockIdx.y * group + i % group) * hd;
  };
  auto part = [&](uint32_t i) {
    return ((size_t)(blockIdx.x + i / group) * nh + blockIdx.y * group + i % group) * chunks + blockIdx.z;
  };

  load_chunk_slots(slots, mask, sequence, c, lo, hi);
  zero_padding(keys, CHUNK, hd);
  zero_padding(values, CHUNK, hd);
  zero_padding(queries, 16, hd);
  __syncthreads();
  // the row's own position in the chunk; CHUNK: another block computes its chunk
  const uint32_t own = New::NEW && c == (hi - 1) / CHUNK ? (hi - 1) % CHUNK : CHUNK;
  const size_t new_head = ((size_t)row * nkv + blockIdx.y) * hd;
  auto kv_row = [&](const bf16* pool, const bf16* fresh) {
    return [=](uint32_t n) {
      if (New::NEW && n == own) return fresh + new_head;
      return slots[n] == NO_SLOT ? nullptr : pool + ((size_t)slots[n] * nkv + blockIdx.y) * hd;
    };
  };
  const bf16 *new_k = nullptr, *new_v = nullptr;
  if constexpr (New::NEW) new_k = x.k, new_v = x.v;
  copy_rows_async<128>(queries, 16, hd, q, [&](uint32_t i) { return i < pairs ? query(i) : nullptr; });
  copy_rows_async<128>(keys, CHUNK, hd, k, kv_row(k, new_k));
  xt_cp_commit();
  copy_rows_async<128>(values, CHUNK, hd, v, kv_row(v, new_v));
  xt_cp_commit();
  LaneRotation rotation;
  if constexpr (New::NEW) {
    if (hd == 64) load_rotation<2>(rotation, x, last, lane);
    if (hd == 128) load_rotation<4>(rotation, x, last, lane);
  }
  // norms and rotates a head in place: a query at a position, or the new key
  auto rotate = [&](const New& x, bf16* head, uint32_t position, bool is_key) {
    if constexpr (New::NEW) {
      if (hd == 64 && position == last)
        rotate_loaded<2>(rotation, x, is_key, head, lane);
      else if (hd == 128 && position == last)
        rotate_loaded<4>(rotation, x, is_key, head, lane);
      else
        norm_rotate(head, is_key ? x.k_gain : x.q_gain, rope_row(x.table, position, hd), head, hd, x.eps,
                    scores + warp * 256, lane);
    }
  };
  xt_cp_wait<1>();
  __syncthreads();
  for (uint32_t first = 0; first < pairs; first += 16) {
    if (first) {
      copy_rows_async<128>(queries, 16, hd, q,
                           [&](uint32_t i) { return first + i < pairs ? query(first + i) : nullptr; });
      xt_cp_commit();
      xt_cp_wait<0>();
      __syncthreads();
    }
    const uint32_t live = min(16u, pairs - first);
    if constexpr (New::NEW) {
      const bool has_key = own < CHUNK && first == 0;
      for (uint32_t i = warp; i < live + has_key; i += 4) {
        const bool is_key = i == live;
        uint32_t at = count == 1 ? last : pos[row_of(rows, blockIdx.x + (first + i) / group)];
        rotate(x, is_key ? keys + own * ld : queries + i * ld, at, is_key);
        __syncwarp();
      }
      __syncthreads();
      if (has_key) {
        const size_t to = ((size_t)slots[own] * nkv + blockIdx.y) * hd;
        store_head(x.k_pool + to, keys + own * ld, hd);
        if (!XT_FAULT(NewValueNotStored)) store_head(x.v_pool + to, x.v + new_head, hd);
      }
    }
    float s[2][4] = {};
    for (uint32_t i = 0; i * 16 < hd; i++) {
      uint32_t a[4], b[4];
      load_fragment_a(a, queries, ld, i);
      load_fragments_b(b, keys + warp * 16 * ld, ld, i);
      xt_mma_bf16_16816(s[0], a, b);
      xt_mma_bf16_16816(s[1], a, b + 2);
    }
#pragma unroll
    for (uint32_t n = 0; n < 2; n++)
#pragma unroll
      for (uint32_t e = 0; e < 4; e++) {
        uint32_t key = warp * 16 + n * 8 + lane % 4 * 2 + e % 2;
        bool visible = c * CHUNK + key >= lo && c * CHUNK + key < hi;
        scores[(lane / 4 + e / 2 * 8) * TILE_LD + key] = visible ? s[n][e] * scale : minus_infinity();
      }
    __syncthreads();
    // rows warp, warp + 4, ...: as many as there are queries
    auto softmax = [&](uint32_t i) {
      uint32_t n = warp + 4 * i;
      const float x0 = scores[n * TILE_LD + lane], x1 = scores[n * TILE_LD + lane + 32];
      float m = max32(max_f32(x0, x1)), p0 = exp_f32(x0 - m), p1 = exp_f32(x1 - m), l = sum32(p0 + p1);
      p[n * P_LD + lane] = to_bf16(p0);
      p[n * P_LD + lane + 32] = to_bf16(p1);
      if (lane == 0 && n < live) {
        float* ml = partial_ml + part(first + n) * 2;
        *(float2*)ml = make_float2(m, l);
      }
    };
    if (live > 8) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) softmax(i);
    } else {
      softmax(0);
      if (live > 4) softmax(1);
#pragma unroll
      for (uint32_t i = 1; i < 4; i++) {
        uint32_t n = warp + 4 * i;
        if (n >= live) p[n * P_LD + lane] = p[n * P_LD + lane + 32] = to_bf16(0.0f);
      }
    }
    xt_cp_wait<0>();
    __syncthreads();
    uint32_t a[4][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) load_fragment_a(a[i], p, P_LD, i);
    for (uint32_t d = warp * 8; d < hd; d += 32) {
      float o[4] = {};
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        uint32_t b[2];
        load_fragment_b_trans(b, values, ld, i, d);
        xt_mma_bf16_16816(o, a[i], b);
      }
#pragma unroll
      for (uint32_t i = 0; i < 2; i++) {
        uint32_t n = first + lane / 4 + 8 * i;
        if (n < pairs)
          *(float2*)(partial_o + part(n) * hd + d + lane % 4 * 2) = make_float2(o[2 * i] + 0.0f, o[2 * i + 1] + 0.0f);
      }
    }
    if (first + 16 < pairs) __syncthreads();
  }
  merge_if_last(PartialResults<bf16>{partial_ml, partial_o, y, lse, counters}, rows, count, mask, chunks, nh, hd,
                group);
}

// A constant head size leaves no division and few addresses per copy; `size` is a constant or the argument hd.
#define DECODE_ATTENTION_BF16(suffix, size)                                                                          \
  XT_KERNEL(decode_attention_bf16##suffix, 128)(const bf16* q, const bf16* k, const bf16* v, DECODE_PARAMS) {        \
    xt_grid_dependency_sync();                                                                                       \
    decode_chunk(StoredRows{}, q, k, v, DECODE_ARGS, size, scale);                                                   \
  }                                                                                                                  \
  XT_EXPORT(decode_attention_bf16##suffix)                                                                           \
  XT_KERNEL_FOR(append_attention_bf16##suffix, 128, 8)(                                                              \
      const bf16* q, const bf16* new_k, const bf16* new_v, const float* q_gain, const float* k_gain,                 \
      const uint64_t* rope, float eps, bf16* k, bf16* v, DECODE_PARAMS) {                                            \
    xt_grid_dependency_sync();                                                                                       \
    const NewRows<bf16> rows_of_pass = {new_k, new_v, k, v, q_gain, k_gain, rope, eps};                              \
    decode_chunk(rows_of_pass, q, k, v, DECODE_ARGS, size, scale);                                                   \
  }                                                                                                                  \
  XT_EXPORT(append_attention_bf16##suffix)
DECODE_ATTENTION_BF16(, hd)
DECODE_ATTENTION_BF16(_hd32, 32)
DECODE_ATTENTION_BF16(_hd64, 64)
DECODE_ATTENTION_BF16(_hd128, 128)
#undef DECODE_ATTENTION_BF16
#undef DECODE_PARAMS
#undef DECODE_ARGS
