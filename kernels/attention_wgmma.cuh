// Shared by the attention kernels of Hopper: operands of wgmma in shared memory, and its two kinds of products.
// An operand has 64 rows (queries or keys) of HD = 64 or 128 columns, in panels of 64 columns with the 128-byte swizzle.
// The same panels serve as a K-major operand, whose k are the columns, and as an MN-major one, whose k are the rows.
// Accumulators are fragments as of mma.sync: s[4 n + e] is row lane / 4 + 8 (e / 2) of the warp's 16, column
// 8 n + 2 (lane % 4) + e % 2.
#pragma once
#include "attention_mma.cuh"

constexpr uint32_t WGMMA_ROWS = 64, PANEL = WGMMA_ROWS * 64;

// The dynamic shared memory from the first multiple of 1024 on.
XT_DEV bf16* aligned_panels(bf16* shared) {
  return shared + (1024 - (reinterpret_cast<uintptr_t>(shared) & 1023)) % 1024 / 2;
}

// The rows of an operand that a thread copies, of the 128 threads of a warpgroup: row(i), i < COPIES, in chunk `chunk` of eight columns.
template <uint32_t HD> struct PanelCopies {
  static constexpr uint32_t PARTS = HD / 8, STEP = 128 / PARTS, COPIES = WGMMA_ROWS / STEP;
  static XT_MEMBER uint32_t row(uint32_t i) { return threadIdx.x % 128 / PARTS + i * STEP; }
  static XT_MEMBER uint32_t column() { return threadIdx.x % 128 % PARTS * 8; }
  // Where row n of this thread is stored.
  static XT_MEMBER bf16* to(bf16* panels, uint32_t n) {
    const uint32_t c = column();
    return panels + c / 64 * PANEL + n * 64 + ((c % 64 / 8) ^ (n & 7)) * 8;
  }
};

// Copies 64 rows asynchronously; the caller commits and waits. from(i) is copy i's row of this thread; nullptr: zeros.
// `any` is a valid address.
template <uint32_t HD, class From> XT_DEV void copy_panels(bf16* panels, const bf16* any, From from) {
  using Copies = PanelCopies<HD>;
#pragma unroll
  for (uint32_t i = 0; i < Copies::COPIES; i++) {
    const bf16* row = from(i);
    xt_cp_async16(Copies::to(panels, Copies::row(i)), row ? row + Copies::column() : any, row != nullptr);
  }
}

// Copies x of the query vectors of a tile.
template <uint32_t HD> XT_DEV void copy_queries(bf16* panels, const bf16* x, const QueryTile& t, const Heads& heads) {
  copy_panels<HD>(panels, x, [&](uint32_t i) {
    const uint32_t n = PanelCopies<HD>::row(i);
    return n < t.count ? x + query_offset(t, heads, n) * HD : nullptr;
  });
}

// The keys and values of one KV head of a sequence at positions lo .. hi - 1.
template <uint32_t HD> struct KeysOfTile {
  const bf16 *k, *v;
  const AttnMask& mask;
  uint32_t seq, lo, hi, nkv;

  // Copies those of chunk c, keys first; the others are zero.
  XT_MEMBER void copy_chunk(bf16* panels, uint32_t c) const {
    using Copies = PanelCopies<HD>;
    size_t row[Copies::COPIES];
    bool inside[Copies::COPIES];
#pragma unroll
    for (uint32_t i = 0; i < Copies::COPIES; i++) {
      const uint32_t p = c * CHUNK + Copies::row(i);
      inside[i] = p >= lo && p < hi;
      row[i] = ((size_t)slot_of(mask, seq, inside[i] ? p : lo) * nkv + blockIdx.y) * HD;
    }
    copy_panels<HD>(panels, k, [&](uint32_t i) { return inside[i] ? k + row[i] : nullptr; });
    copy_panels<HD>(panels + WGMMA_ROWS * HD, v, [&](uint32_t i) { return inside[i] ? v + row[i] : nullptr; });
  }
};

// Makes the rows of all threads' finished copies visible to wgmma. All threads call it.
XT_DEV void publish_panels() {
  xt_proxy_fence();
  __syncthreads();
}

// Starts s = a b^T, in k-steps of 16 columns from zero.
template <uint32_t HD> XT_DEV void start_dot(float (&s)[32], const bf16* a, const bf16* b) {
#pragma unroll
  for (uint32_t i = 0; i < HD / 16; i++)
    xt_wgmma_m64n64k16(s, xt_wgmma_desc(a + i / 4 * PANEL) + i % 4 * 2, xt_wgmma_desc(b + i / 4 * PANEL) + i % 4 * 2,
                       i != 0);
}

// Starts sum = w b, or sum += w b with `accumulate`, in four k-steps of 16 rows of b. w: fragments, rounded.
template <uint32_t HD>
XT_DEV void start_sum(float (&sum)[HD / 2], const uint32_t (&w)[4][4], const bf16* b, bool accumulate) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    const uint64_t rows = xt_wgmma_desc_mn(b, PANEL * 2) + i * 128;
    if constexpr (HD == 64)
      xt_wgmma_m64n64k16_fragment(sum, w[i], rows, accumulate || i != 0);
    else
      xt_wgmma_m64n128k16_fragment(sum, w[i], rows, accumulate || i != 0);
  }
}

// Waits for the products of this thread that have been committed.
template <int... SIZES> XT_DEV void finish_started(float (&... d)[SIZES]) {
  xt_wgmma_wait<0>();
  (xt_wgmma_results(d), ...);
}

// Commits the started products, and waits for them.
template <int... SIZES> XT_DEV void finish(float (&... d)[SIZES]) {
  xt_wgmma_commit();
  finish_started(d...);
}

// Fragments of 16 rows x 64 columns, rounded to bf16, as the first operand of start_sum.
XT_DEV void pack_fragments(uint32_t (&w)[4][4], const float (&s)[32]) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++)
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) w[i][r] = xt_pack_bf16(s[8 * i + 2 * r], s[8 * i + 2 * r + 1]);
}

// ---- query vectors: 64 per block, 16 per warp
// The key ranges of the warp's vectors: from any_from to any_to some vector sees a key, from all_from to all_to all do.
// start, end: the keys of the two vectors of this lane.
struct VisibleKeys {
  uint32_t start[2], end[2], any_from, any_to, all_from, all_to;
};

XT_DEV VisibleKeys visible_keys(const QueryTile& t, const AttnMask& mask) {
  VisibleKeys keys;
  const uint32_t first = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t n = first + lane / 4 + 8 * i;
    keys.end[i] = n < t.count ? mask.pos[query_row(t, n)] + 1 : 0;
    keys.start[i] = n < t.count ? first_visible(mask, keys.end[i] - 1) : 0;
  }
  const uint32_t low = mask.pos[query_row(t, min(first, t.count - 1))],
                 high = mask.pos[query_row(t, min(first + 15, t.count - 1))];
  keys.any_from = first_visible(mask, low);
  keys.any_to = first < t.count ? high + 1 : 0;
  keys.all_from = first_visible(mask, high);
  keys.all_to = first + 15 < t.count ? low + 1 : 0;
  return keys;
}

// What masked entries get, s[n][e] for key `at` + 8 n + ..., unless all vectors of the warp see all 64 keys.
XT_DEV void mask_keys(float (&s)[32], const VisibleKeys& keys, uint32_t at, float masked) {
  if (at >= keys.all_from && at + WGMMA_ROWS <= keys.all_to + XT_FAULT(LastKeyOfChunkUnmasked)) return;
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) {
    uint32_t key = at + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    bool visible = (key >= keys.start[i / 2 % 2]) & (key < keys.end[i / 2 % 2]);
    s[i] = visible ? s[i] : masked;
  }
}
