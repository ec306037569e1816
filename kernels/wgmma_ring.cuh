// The ring of stages through which TMA feeds wgmma, in shared memory. One thread, the producer, fills stages, two
// warpgroups of consumers multiply them. Two barriers per stage: `full` expects the bytes of its copies, `empty` one
// arrival per consumer warp.
#pragma once
#include "xt.cuh"

// A tensor map (TMA) in global memory, which the host encodes.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

struct WgmmaRing {
  static constexpr uint32_t STAGES = 6, DEPTH = 64;
  static constexpr uint32_t CONSUMERS = 256;          // threads: two warpgroups; the producer follows them
  static constexpr uint32_t OPERAND = 128 * DEPTH;    // elements: 128 rows of 64 k, 128-byte swizzle
  static constexpr uint32_t BYTES = 2 * OPERAND * 2;  // of both operands
  static constexpr uint32_t ROW_GROUP = 64 * DEPTH;   // elements of 64 rows, those of a warpgroup in operand 0

  bf16* stages;
  uint64_t *full, *empty;
  uint32_t slot, parity;  // the next stage, and the parity of its phase

  XT_MEMBER void advance() {
    slot = (slot + 1) % STAGES;
    parity ^= slot == 0;
  }
  // The stage of operand 0 or 1.
  XT_MEMBER bf16* operand(uint32_t which) const { return stages + (2 * slot + which) * OPERAND; }
};

// The ring of this block. All threads must call it; barriers are initialized when it returns.
XT_DEV WgmmaRing wgmma_ring() {
  XT_DYN_SHARED(bf16, shared);
  XT_SHARED(uint64_t, full, WgmmaRing::STAGES);
  XT_SHARED(uint64_t, empty, WgmmaRing::STAGES);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < WgmmaRing::STAGES; i++) {
      xt_mbarrier_init(full + i, 1);
      xt_mbarrier_init(empty + i, WgmmaRing::CONSUMERS / 32);
    }
    if (!XT_FAULT(BarriersNotFenced)) xt_mbarrier_fence();
  }
  __syncthreads();
  uint32_t unaligned = reinterpret_cast<uintptr_t>(shared) & 1023;
  return {shared + (1024 - unaligned) % 1024 / 2, full, empty, 0, 0};
}

// Fills a stage for each 64 k below `width`. copy(stage of operand 0, k, barrier) copies both operands.
template <class Copy> XT_DEV void fill_stages(WgmmaRing& ring, uint32_t width, Copy copy) {
  for (uint32_t k = 0; k < width; k += WgmmaRing::DEPTH) {
    if (!XT_FAULT(StageOverwritten)) xt_mbarrier_wait(ring.empty + ring.slot, ring.parity ^ 1);
    xt_mbarrier_expect(ring.full + ring.slot, WgmmaRing::BYTES);
    copy(ring.operand(0), k, ring.full + ring.slot);
    ring.advance();
  }
}

// Tells the producer that this warp no longer reads a stage.
XT_DEV void release_stage(const WgmmaRing& ring, uint32_t slot) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) xt_mbarrier_arrive(ring.empty + slot);
}

// How an operand is stored in a stage. K-major: 128 rows of 64 k. MN-major: two boxes, each with 64 k of 64 rows.
enum class Major { K, MN };

template <Major M> struct StagedOperand {
  static constexpr uint32_t STEP = M == Major::K ? 2 : 128;  // 16 k: 32 or 2048 bytes in units of the descriptor
  static XT_MEMBER uint64_t descriptor(const bf16* s) {
    if (M == Major::K) return xt_wgmma_desc(s);
    return xt_wgmma_desc_mn(s, XT_FAULT(HalvesOfOperandOverlap) ? 4096 : WgmmaRing::ROW_GROUP * 2);
  }
};

// y = y + chunk for each chunk of 256 k below `width`: 64 rows of operand 0 per warpgroup by 128 rows of operand 1. A
// chunk is a sequence of k-steps of 16 from zero. The last stage is zero-padded to 64 k: steps of zeros change no bit
// (gates/tensor_core.rs), and a branch around a step would serialize all of them. One stage is multiplied while the next
// one is awaited.
template <Major A, Major B> XT_DEV void add_chunks(WgmmaRing& ring, uint32_t width, float (&y)[64]) {
  float c[64] = {};
  uint32_t group = threadIdx.x / 128 * WgmmaRing::ROW_GROUP;
  for (uint32_t at = 0; at < width;) {
    const uint32_t begin = at, end = min(at + 256, width);
    uint32_t previous = 0;
    for (; at < end; at += WgmmaRing::DEPTH) {
      if (!XT_FAULT(WgmmaStageNotAwaited)) xt_mbarrier_wait(ring.full + ring.slot, ring.parity);
      uint64_t a = StagedOperand<A>::descriptor(ring.operand(0) + group);
      uint64_t b = StagedOperand<B>::descriptor(ring.operand(1));
      if (XT_FAULT(RowsOfOperandOverlap)) b -= 512ull >> 4 << 32;  // the distance of groups of 8 rows
      xt_wgmma_fence();
#pragma unroll
      for (uint32_t step = 0; step < 4; step++)
        xt_wgmma_m64n128k16<A == Major::MN, B == Major::MN>(c, a + StagedOperand<A>::STEP * step,
                                                            b + StagedOperand<B>::STEP * step,
                                                            at != begin || step != 0 || XT_FAULT(WgmmaChunkSumKept));
      xt_wgmma_commit();
      if (XT_FAULT(StageReleasedEarly)) release_stage(ring, ring.slot);
      if (at != begin) {
        xt_wgmma_wait<1>();
        if (!XT_FAULT(StageReleasedEarly)) release_stage(ring, previous);
      }
      previous = ring.slot;
      ring.advance();
    }
    xt_wgmma_wait<0>();
    xt_wgmma_results(c);
    if (!XT_FAULT(StageReleasedEarly)) release_stage(ring, previous);
#pragma unroll
    for (uint32_t i = 0; i < 64; i++) y[i] = y[i] + c[i];
  }
}
