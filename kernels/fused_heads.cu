// write_heads    QK-norm, RoPE and KV-cache append of new rows: queries and keys are normed (unless the gain is null)
//                  and rotated; keys and values are written to their KV slot
//                  q [N, nh, hd], k, v [N, nkv, hd], q_gain, k_gain [hd] or null, pos, slot [N]
//                  -> rotated [N, nh, hd], k_pool, v_pool [S, nkv, hd]; a result whose address is null is not written
// Launch: one warp per head, four heads per block: nh query heads, nkv key heads and nkv value heads per row. A head
//   whose size is not 64 or 128 is staged in shared memory between norm and rotation, because the two halves of a pair
//   belong to different lanes.
// Order: sum32. hd is even, at most 256. CPU twin: rms_norm, rope_rows, scatter_rows.
#include "norm_rotate.cuh"

// Source and destination buffers of the heads.
template <class T> struct HeadBuffers {
  const T *q, *k, *v;
  T *rotated, *k_pool, *v_pool;
  const float *q_gain, *k_gain;
  const uint64_t* table;
  uint32_t nh, nkv, hd;
  float eps;
};

template <class T>
XT_DEV void write_heads(const HeadBuffers<T>& p, const uint32_t* pos, const uint32_t* slot, uint32_t rows) {
  XT_SHARED2(float, staging, 4, 256);
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, heads = p.nh + 2 * p.nkv;
  uint64_t head_index = (uint64_t)blockIdx.x * 4 + warp;
  if (head_index >= (uint64_t)rows * heads) return;
  uint32_t row = (uint32_t)(head_index / heads), head = (uint32_t)(head_index % heads), hd = p.hd;
  const float* cos = rope_row(p.table, pos[row], hd);
  if (head < p.nh) {
    if (!p.rotated) return;
    size_t at = ((size_t)row * (XT_FAULT(QueryRowsOfKeyStride) ? p.nkv : p.nh) + head) * hd;
    norm_rotate(p.q + at, p.q_gain, cos, p.rotated + at, hd, p.eps, staging[warp], lane);
    return;
  }
  head -= p.nh;
  bool value = head >= p.nkv;
  if (!(value ? p.v_pool : p.k_pool)) return;
  if (value) head -= p.nkv;
  size_t from = ((size_t)row * p.nkv + head) * hd, to = ((size_t)slot[row] * p.nkv + head) * hd;
  if (value) {
    for (uint32_t i = lane; i < hd; i += 32) p.v_pool[to + i] = p.v[from + i];
  } else {
    norm_rotate(p.k + from, p.k_gain, cos, p.k_pool + to, hd, p.eps, staging[warp], lane);
  }
}

#define WRITE_HEADS(name, T)                                                                                         \
  XT_KERNEL(name, 128)(const T* q, const T* k, const T* v, T* rotated, T* k_pool, T* v_pool, const float* q_gain,    \
                       const float* k_gain, const uint64_t* table, const uint32_t* pos, const uint32_t* slot,        \
                       uint32_t rows, uint32_t nh, uint32_t nkv, uint32_t hd, float eps) {                           \
    xt_grid_dependency_sync();                                                                                       \
    write_heads<T>({q, k, v, rotated, k_pool, v_pool, q_gain, k_gain, table, nh, nkv, hd, eps}, pos, slot, rows);    \
  }                                                                                                                  \
  XT_EXPORT(name)
WRITE_HEADS(write_heads_f32, float)
WRITE_HEADS(write_heads_bf16, bf16)
#undef WRITE_HEADS
