// Operands and the merge of partial results, shared by decode_attention.cu and decode_attention_bf16.cu.
#pragma once
#include "attention.cuh"
#include "norm_rotate.cuh"

// The rows' keys and values are in the pools, and their queries are rotated.
struct StoredRows {
  static constexpr bool NEW = false;
};

// The projections k, v [N, nkv, hd] of the rows, as q before QK-norm and RoPE. The block that computes the chunk of a
// row's own position writes its key and value to the pools; no other row of the launch sees them.
template <class T> struct NewRows {
  static constexpr bool NEW = true;
  const T *k, *v;
  T *k_pool, *v_pool;
  const float *q_gain, *k_gain;  // null: no norm
  const uint64_t* table;
  float eps;
};

// 16 bytes per thread: to[i] = from[i] for i < hd, a multiple of 8.
template <class T> XT_DEV void store_head(T* to, const T* from, uint32_t hd) {
  constexpr uint32_t N = 16 / sizeof(T);
  for (uint32_t i = threadIdx.x * N; i < hd; i += blockDim.x * N) *(uint4*)(to + i) = *(const uint4*)(from + i);
}

// Merges the n chunks of one (row, head) into y and, unless null, L. Each thread owns four columns d .. d + 3.
// Reads each partial result once, (2 + hd) * 4 bytes per chunk; the loads do not depend on the merge chain.
template <class T>
XT_DEV void merge_parts(const float* ml, const float* parts, uint32_t n, T* y, float* lse, uint32_t d, uint32_t hd) {
  float m = ml[0], l = ml[1];
  float4 o = *(const float4*)(parts + d);
  for (uint32_t next = 1; next < n; next++) {
    uint32_t i = XT_FAULT(DecodeChunksMergedInReverse) ? n - next : next;
    float mc = ml[2 * i], lc = ml[2 * i + 1];
    float4 oc = *(const float4*)(parts + (size_t)i * hd + d);
    float top = max_f32(m, mc), a = exp_f32(m - top), b = exp_f32(mc - top);
    l = fmaf(l, a, lc * b);
    o.x = fmaf(o.x, a, oc.x * b);
    o.y = fmaf(o.y, a, oc.y * b);
    o.z = fmaf(o.z, a, oc.z * b);
    o.w = fmaf(o.w, a, oc.w * b);
    m = top;
  }
  if (lse && d == 0) *lse = m + log_f32(l);
  store(y + d, o.x / l + 0.0f);
  store(y + d + 1, o.y / l + 0.0f);
  store(y + d + 2, o.z / l + 0.0f);
  store(y + d + 3, o.w / l + 0.0f);
}

// Chunks of the keys of a row at `pos` with a visible key.
XT_DEV uint32_t visible_chunks(const AttnMask& mask, uint32_t pos) {
  return pos / CHUNK + 1 - first_visible(mask, pos) / CHUNK;
}

// Partial results (m, l) [R, nh, C] and o [R, nh, C, hd], and the outputs y [N, nh, hd] and L [N, nh] (null: not
// wanted).
template <class T> struct PartialResults {
  float *ml, *o;
  T* y;
  float* lse;
  uint32_t* counters;  // one counter per (row, KV head), zero at launch
};

// Maximum number of rows for which a block computes a chunk.
constexpr uint32_t SHARED_ROWS = 32;

// Epilogue of each block that computes a chunk of `count` rows, from the `blockIdx.x`-th of the launch on: for each row, the
// last of its blocks to finish merges the partial results of all of them.
template <class T>
XT_DEV void merge_if_last(const PartialResults<T>& p, const uint32_t* rows, uint32_t count, const AttnMask& mask,
                          uint32_t chunks, uint32_t nh, uint32_t hd, uint32_t group) {
  auto blocks = [&](uint32_t i) { return visible_chunks(mask, mask.pos[rows[blockIdx.x + i]]); };
  const uint32_t* last = xt_last_blocks<SHARED_ROWS>(count, [&](uint32_t i) {
    return XtArrival{p.counters + (blockIdx.x + i) * gridDim.y + blockIdx.y, blocks(i)};
  });
  const uint32_t quads = hd / 4, first = blockIdx.y * group;
  for (uint32_t i = 0; i < count; i++) {
    if (!last[i]) continue;
    const uint32_t index = blockIdx.x + i, row = rows[index], n = blocks(i);
    for (uint32_t j = threadIdx.x; j < group * quads; j += blockDim.x) {
      uint32_t h = first + j / quads;
      size_t from = ((size_t)index * nh + h) * chunks, at = (size_t)row * nh + h;
      merge_parts(p.ml + from * 2, p.o + from * hd, n, p.y + at * hd, p.lse ? p.lse + at : nullptr, j % quads * 4,
                  hd);
    }
  }
}
