// decode_attention  split-K attention of single rows: one block per chunk of keys; the last block of a row merges the
//                     chunks in ascending order (flash-decoding in one launch)
//                     q [N, nh, hd], k and v [S, nkv, hd] -> partial results (m, l) [R, nh, C] and o [R, nh, C, hd]
//                     -> y [N, nh, hd] and, unless null, L [N, nh], for the rows listed in `rows` [R]
// Order: as attention.cu. A partial result is exactly one chunk of 64 keys, never a merged one (merging is not
//   associative); the merge takes a row's chunks in ascending order. C: the largest number of chunks of any row.
// CPU twin: cpu/attention.
//
// append_attention  write_heads and decode_attention in one launch, for rows that do not see each other's new keys
//                     q [N, nh, hd], new_k and new_v [N, nkv, hd] before QK-norm and RoPE -> y, L; keys and values of
//                     the rows are written to the slots of their positions
// Launch, order, shared memory: as decode_attention. Each block norms and rotates the queries that it reads, while keys
//   and values are in flight. The block of a row's own position norms and rotates its key, attends to it in shared
//   memory and writes key and value to the pools. CPU twin: rms_norm, rope_rows, scatter_rows, cpu/attention.
#include "attention.cuh"
#include "decode_attention.cuh"

// o[h][d] = chain over keys first .. last, ascending, of p[h][n] value(n, d). Each thread accumulates
// HEADS_PER_THREAD heads, so a value is read once for all of them.
template <uint32_t HEADS_PER_THREAD, class Value>
XT_DEV void weighted_values(const float* p, Value value, uint32_t first, uint32_t last, float* out, size_t stride,
                            uint32_t hd, uint32_t group) {
  constexpr uint32_t H = HEADS_PER_THREAD;
  for (uint32_t i = threadIdx.x; i < hd * ((group + H - 1) / H); i += 128) {
    uint32_t d = i % hd, h = i / hd * H, n_heads = min(group - h, H);
    float o[H] = {};
    for (uint32_t n = first; n < last; n++) {
      float x = value(n, d);
#pragma unroll
      for (uint32_t e = 0; e < H; e++)
        if (e < n_heads) o[e] = fmaf(p[(h + e) * CHUNK + n], x, o[e]);
    }
#pragma unroll
    for (uint32_t e = 0; e < H; e++)
      if (e < n_heads) out[(h + e) * stride + d] = o[e];
  }
}

// Launch: grid (rows, nkv, C), 128 threads. Blocks past a row's last chunk exit at once, so the grid may stay
//   the same while rows grow.
//   Scores: one thread per (key, every other head), one fma chain over hd. p v: one thread per column d, 4 or 16
//   heads.
// Shared memory: K (64 rows of hd + 4), the group's queries and p: 19 KB at hd = 64.
// Cost: K and V of 64 keys once for the whole group, and (2 + hd) * 4 * group bytes of partial results.
#define DECODE_PARAMS                                                                                                \
  float *partial_ml, float *partial_o, float *y, float *lse, uint32_t *counters, const uint32_t *rows, MASK_PARAMS,  \
      uint32_t chunks, HEAD_PARAMS
#define DECODE_ARGS                                                                                                  \
  partial_ml, partial_o, y, lse, counters, rows, seq, pos, table, page, stride, window, chunks, nh, nkv, hd, scale

template <class New>
XT_DEV void decode_chunk(const New& x, const float* q, const float* k, const float* v, DECODE_PARAMS) {
  const AttnMask mask = {seq, pos, table, page, stride, window};
  XT_DYN_SHARED(float, keys);
  const uint32_t ld = hd + 4, group = nh / nkv, t = threadIdx.x, row = row_of(rows, blockIdx.x);
  float *queries = keys + CHUNK * ld, *p = queries + group * hd;
  uint32_t* slots = (uint32_t*)(p + group * CHUNK);
  const uint32_t lo = first_visible(mask, pos[row]), hi = pos[row] + 1, c = lo / CHUNK + blockIdx.z;
  if (c * CHUNK >= hi) return;
  const uint32_t first = max(lo, c * CHUNK) - c * CHUNK, last = min(hi, c * CHUNK + CHUNK) - c * CHUNK;
  const size_t head = (size_t)row * nh + blockIdx.y * group,
               out = ((size_t)blockIdx.x * nh + blockIdx.y * group) * chunks + blockIdx.z;

  load_chunk_slots(slots, mask, seq[row], c, lo, hi);
  for (uint32_t i = t; i < group * hd; i += 128) queries[i] = q[head * hd + i];
  __syncthreads();
  auto at = [&](uint32_t n) { return ((size_t)slots[n] * nkv + blockIdx.y) * hd; };
  // the row's own position in the chunk; CHUNK: another block computes its chunk
  const uint32_t own = New::NEW && c == (hi - 1) / CHUNK ? (hi - 1) % CHUNK : CHUNK;
  const size_t new_head = ((size_t)row * nkv + blockIdx.y) * hd;
  const float *new_k = nullptr, *new_v = nullptr;
  if constexpr (New::NEW) new_k = x.k, new_v = x.v;
  load_tile(keys + first * ld, ld, last - first, hd,
            [&](uint32_t n) { return New::NEW && first + n == own ? new_k + new_head : k + at(first + n); });
  __syncthreads();
  if constexpr (New::NEW) {
    const float* cos = rope_row(x.table, hi - 1, hd);
    for (uint32_t h = t / 32; h < group; h += 4)
      norm_rotate(queries + h * hd, x.q_gain, cos, queries + h * hd, hd, x.eps, queries + h * hd, t % 32);
    if (own < CHUNK) {
      float* key = keys + own * ld;
      if (t / 32 == 0) norm_rotate(key, x.k_gain, cos, key, hd, x.eps, key, t % 32);
      __syncthreads();
      store_head(x.k_pool + at(own), key, hd);
      store_head(x.v_pool + at(own), x.v + new_head, hd);
    }
    __syncthreads();
  }
  for (uint32_t h = t / CHUNK; h < group; h += 128 / CHUNK) {
    uint32_t n = t % CHUNK;
    float s = 0.0f;
    if (n >= first && n < last) {
      for (uint32_t d = 0; d < hd; d += 4) {
        float4 x = *(const float4*)(queries + h * hd + d), z = *(const float4*)(keys + n * ld + d);
        s = fmaf(x.w, z.w, fmaf(x.z, z.z, fmaf(x.y, z.y, fmaf(x.x, z.x, s))));
      }
      s = s * scale;
    } else {
      s = minus_infinity();
    }
    p[h * CHUNK + n] = s;
  }
  __syncthreads();
  for (uint32_t h = t / 32; h < group; h += 4) {
    uint32_t n = t % 32;
    float *x = p + h * CHUNK + n, m = max32(max_f32(x[0], x[32]));
    float p0 = exp_f32(x[0] - m), p1 = exp_f32(x[32] - m);  // exp(-inf) = +0
    x[0] = p0;
    x[32] = p1;
    float l = sum32(p0 + p1);
    if (n == 0) {
      float* ml = partial_ml + (out + (size_t)h * chunks) * 2;
      ml[0] = m;
      ml[1] = l;
    }
  }
  __syncthreads();
  auto value = [&](uint32_t n, uint32_t d) { return New::NEW && n == own ? new_v[new_head + d] : v[at(n) + d]; };
  float* o = partial_o + out * hd;
  if (group <= 4)
    weighted_values<4>(p, value, first, last, o, (size_t)chunks * hd, hd, group);
  else
    weighted_values<16>(p, value, first, last, o, (size_t)chunks * hd, hd, group);
  merge_if_last(PartialResults<float>{partial_ml, partial_o, y, lse, counters}, rows, 1, mask, chunks, nh, hd, group);
}

XT_KERNEL_FOR(decode_attention_f32, 128, 7)(const float* q, const float* k, const float* v, DECODE_PARAMS) {
  xt_grid_dependency_sync();
  decode_chunk(StoredRows{}, q, k, v, DECODE_ARGS);
}
XT_EXPORT(decode_attention_f32)

XT_KERNEL_FOR(append_attention_f32, 128, 5)(const float* q, const float* new_k, const float* new_v,
                                            const float* q_gain, const float* k_gain, const uint64_t* rope, float eps,
                                            float* k, float* v, DECODE_PARAMS) {
  xt_grid_dependency_sync();
  decode_chunk(NewRows<float>{new_k, new_v, k, v, q_gain, k_gain, rope, eps}, q, k, v, DECODE_ARGS);
}
XT_EXPORT(append_attention_f32)
#undef DECODE_PARAMS
#undef DECODE_ARGS
