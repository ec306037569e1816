// decode_attention    attention of single rows, split over the chunks of their keys, merged in rising order by the last block
//                     q [N, nh, hd], k and v [S, nkv, hd] -> parts: (m, l) [R, nh, C], o [R, nh, C, hd] -> y [N, nh, hd],
//                     L [N, nh] if it is wanted, of the rows listed in `rows` [R]
// Order: as attention.cu: a part is one chunk of 64 keys, never a merged one (merging is not associative), and
// the merge walks a row's chunks in rising order. C: the most chunks that a row sees.
// CPU twin: ops/attention.rs.
#include "attention.cuh"

// The chunks of one head's row, n of them, into y and, where it is not null, L: a thread four d's of hd.
// Reads the parts once: (2 + hd) * 4 bytes a chunk; the loads of a chunk do not wait for the chain.
template <class T>
XT_DEV void merge_parts(const float* ml, const float* parts, uint32_t n, T* y, float* lse, uint32_t d, uint32_t hd) {
  float m = ml[0], l = ml[1];
  float4 o = *(const float4*)(parts + d);
  for (uint32_t i = 1; i < n; i++) {
    float mc = ml[2 * i], lc = ml[2 * i + 1];
    float4 oc = *(const float4*)(parts + (size_t)i * hd + d);
    float top = max_of(m, mc), a = exp_of(m - top), b = exp_of(mc - top);
    l = fmaf(l, a, lc * b);
    o.x = fmaf(o.x, a, oc.x * b);
    o.y = fmaf(o.y, a, oc.y * b);
    o.z = fmaf(o.z, a, oc.z * b);
    o.w = fmaf(o.w, a, oc.w * b);
    m = top;
  }
  if (lse && d == 0) *lse = m + log_of(l);
  store(y + d, o.x / l + 0.0f);
  store(y + d + 1, o.y / l + 0.0f);
  store(y + d + 2, o.z / l + 0.0f);
  store(y + d + 3, o.w / l + 0.0f);
}

// Where the parts of the heads of a (row, kv head) lie, and their ends: [R, nh, C] (m, l) and o [hd], y [N, nh, hd].
template <class T>
struct Parts {
  float *ml, *o;
  T* y;
  float* lse;
  uint32_t* met;   // a counter a (row, kv head), at zero
};

// Ends a block of chunk attention: the last of the row's `n` blocks merges what all have left.
template <class T>
XT_DEV void merge_last(const Parts<T>& p, uint32_t row, uint32_t n, uint32_t chunks, uint32_t nh, uint32_t hd, uint32_t group) {
  if (n == 1) __syncthreads();
  else if (!xt_last_block(p.met + blockIdx.x * gridDim.y + blockIdx.y, n)) return;
  uint32_t quads = hd / 4, first = blockIdx.y * group;
  for (uint32_t i = threadIdx.x; i < group * quads; i += blockDim.x) {
    uint32_t h = first + i / quads;
    size_t from = ((size_t)blockIdx.x * nh + h) * chunks, at = (size_t)row * nh + h;
    merge_parts(p.ml + from * 2, p.o + from * hd, n, p.y + at * hd, p.lse ? p.lse + at : nullptr, i % quads * 4, hd);
  }
}

// o[h][d] = the chain over the keys first .. last of p[h][n] value(n, d), for HEADS heads at a time: a value is read once
// for all of them.
template <uint32_t HEADS_AT_ONCE, class Value>
XT_DEV void weigh_values(const float* p, Value value, uint32_t first, uint32_t last, float* out, size_t stride, uint32_t hd, uint32_t group) {
  constexpr uint32_t H = HEADS_AT_ONCE;
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

// Launch: a block of 128 threads a (row, kv head, chunk); blocks beyond a row's own chunks end at once, so the
// grid may stay while rows grow. Shared memory: K (64 rows of hd + 4), the group's queries and p: 19 KB at hd = 64.
// Scores: a thread a (key, every other head), one chain over hd. p v: a thread a d, for 4 or 16 heads at a time.
// Bytes: K and V of 64 keys once for the whole group, and (2 + hd) * 4 * group bytes of parts.
XT_KERNEL_FOR(decode_attention_f32, 128, 8)(const float* q, const float* k, const float* v, float* parts_ml, float* parts_o, float* y, float* lse, uint32_t* met,
                                     const uint32_t* rows, SEEN, uint32_t chunks, HEADS) {
  const Seen see = {seq, pos, table, page, stride, window};
  XT_DYN_SHARED(float, keys);
  const uint32_t ld = hd + 4, group = nh / nkv, t = threadIdx.x, row = rows[blockIdx.x];
  float *queries = keys + CHUNK * ld, *p = queries + group * hd;
  uint32_t* slots = (uint32_t*)(p + group * CHUNK);
  const uint32_t lo = first_seen(see, pos[row]), hi = pos[row] + 1, c = lo / CHUNK + blockIdx.z;
  if (c * CHUNK >= hi) return;
  const uint32_t first = max(lo, c * CHUNK) - c * CHUNK, last = min(hi, c * CHUNK + CHUNK) - c * CHUNK;
  const size_t head = (size_t)row * nh + blockIdx.y * group, out = ((size_t)blockIdx.x * nh + blockIdx.y * group) * chunks + blockIdx.z;

  chunk_slots(slots, see, seq[row], c, lo, hi);
  for (uint32_t i = t; i < group * hd; i += 128) queries[i] = q[head * hd + i];
  __syncthreads();
  auto at = [&](uint32_t n) { return ((size_t)slots[n] * nkv + blockIdx.y) * hd; };
  load_tile(keys + first * ld, ld, last - first, hd, [&](uint32_t n) { return k + at(first + n); });
  __syncthreads();
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
    float *x = p + h * CHUNK + n, m = max32_of(max_of(x[0], x[32]));
    float p0 = exp_of(x[0] - m), p1 = exp_of(x[32] - m);   // exp(-inf) = +0
    x[0] = p0;
    x[32] = p1;
    float l = sum32_of(p0 + p1);
    if (n == 0) {
      float* ml = parts_ml + (out + (size_t)h * chunks) * 2;
      ml[0] = m;
      ml[1] = l;
    }
  }
  __syncthreads();
  auto value = [&](uint32_t n, uint32_t d) { return v[at(n) + d]; };
  float* o = parts_o + out * hd;
  if (group <= 4) weigh_values<4>(p, value, first, last, o, (size_t)chunks * hd, hd, group);
  else weigh_values<16>(p, value, first, last, o, (size_t)chunks * hd, hd, group);
  merge_last(Parts<float>{parts_ml, parts_o, y, lse, met}, row, (hi + CHUNK - 1) / CHUNK - lo / CHUNK, chunks, nh, hd, group);
}
XT_EXPORT(decode_attention_f32)
