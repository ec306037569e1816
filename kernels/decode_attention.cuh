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
// Reads each partial result once, (2 + hd) * 4 bytes per chunk, four chunks at a time before any is used.
template <class T>
XT_DEV void merge_parts(const float* ml, const float* parts, uint32_t n, T* y, float* lse, uint32_t d, uint32_t hd) {
  struct Part {
    float m, l;
    float4 o;
  };
  float m = minus_infinity(), l = 0.0f;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  in_flight<4>(
      0u, n, 1u,
      [=](uint32_t next) {
        uint32_t i = next && XT_FAULT(DecodeChunksMergedInReverse) ? n - next : next;
        float2 x = *(const float2*)(ml + 2 * i);
        return Part{x.x, x.y, *(const float4*)(parts + (size_t)i * hd + d)};
      },
      [&](uint32_t i, const Part& c) {
        if (i == 0) {
          m = c.m, l = c.l, o = c.o;
          return;
        }
        float top = max_f32(m, c.m), a = exp_f32(m - top), b = exp_f32(c.m - top);
        l = fmaf(l, a, c.l * b);
        o.x = fmaf(o.x, a, c.o.x * b);
        o.y = fmaf(o.y, a, c.o.y * b);
        o.z = fmaf(o.z, a, c.o.z * b);
        o.w = fmaf(o.w, a, c.o.w * b);
        m = top;
      });
  if (lse && d == 0) *lse = m + log_f32(l);
  float q[4] = {o.x, o.y, o.z, o.w};
  divide_by(q, l);
#pragma unroll
  for (uint32_t e = 0; e < 4; e++) store(y + d + e, q[e] + 0.0f);
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

// The row of block i along x: rows[i]; null: i.
XT_DEV uint32_t row_of(const uint32_t* rows, uint32_t i) { return rows ? rows[i] : i; }

// Epilogue of each block that computes a chunk of `count` rows, from the `blockIdx.x`-th of the launch on: for each row, the
// last of its blocks to finish merges the partial results of all of them.
template <class T>
XT_DEV void merge_if_last(const PartialResults<T>& p, const uint32_t* rows, uint32_t count, const AttnMask& mask,
                          uint32_t chunks, uint32_t nh, uint32_t hd, uint32_t group) {
  auto blocks = [&](uint32_t i) { return visible_chunks(mask, mask.pos[row_of(rows, blockIdx.x + i)]); };
  const uint32_t* last = xt_last_blocks<SHARED_ROWS>(count, [&](uint32_t i) {
    return XtArrival{p.counters + (blockIdx.x + i) * gridDim.y + blockIdx.y, blocks(i)};
  });
  const uint32_t quads = hd / 4, first = blockIdx.y * group;
  for (uint32_t i = 0; i < count; i++) {
    if (!last[i]) continue;
    const uint32_t index = blockIdx.x + i, row = row_of(rows, index), n = blocks(i);
    for (uint32_t j = threadIdx.x; j < group * quads; j += blockDim.x) {
      uint32_t h = first + j / quads;
      size_t from = ((size_t)index * nh + h) * chunks, at = (size_t)row * nh + h;
      merge_parts(p.ml + from * 2, p.o + from * hd, n, p.y + at * hd, p.lse ? p.lse + at : nullptr, j % quads * 4,
                  hd);
    }
  }
}
