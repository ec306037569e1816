// linear_bf16_wgmma_64     linear_bf16_wgmma in tiles of 64 x 64 outputs
// linears_bf16_wgmma_64    linears_bf16_wgmma, likewise
// Hopper, as linear_wgmma.cu; the operands are read without tensor maps. For products whose tiles of 128 x 128 outputs
//   would leave most SMs without work: those of 65 to a few hundred rows.
// Launch: grid (tiles of outputs, tiles of rows). Each of one to three warpgroups, as many as there are chunks, computes a
//   chunk of k at a time; the first one adds them. Dynamic shared memory: four stages of 64 k of both operands for each,
//   and the chunk sums of all but the first: 225 KB for three.
// Order: as linear_wgmma.cu. CPU twin: none; gate: gpu/linear/tests.rs.
// Cost: as linear_bf16; each block reads 64 rows of both operands from L2, 16 flop per byte.
#include "attention_wgmma.cuh"
#include "linear_matrices.cuh"

const uint32_t SMALL_STAGES = 4, MAX_SMALL_GROUPS = 3;  // a round has a step per stage

// y = y + chunk for each chunk of 256 k, in the first warpgroup: 64 rows of x by 64 of w. x_row(n), w_row(n): row n of an
// operand, or nullptr. The warpgroups run in step; past the end of k they multiply zeros.
template <class XRow, class WRow>
XT_DEV void add_small_chunks(float (&y)[32], uint32_t width, const bf16* any, XRow x_row, WRow w_row) {
  XT_DYN_SHARED(bf16, memory);
  using Copies = PanelCopies<64>;
  const uint32_t group = threadIdx.x / 128, thread = threadIdx.x % 128, groups = blockDim.x / 128,
                 chunks = (width + 255) / 256, steps = (chunks + groups - 1) / groups * 4;
  bf16* all = aligned_panels(memory);
  bf16* stages = all + group * SMALL_STAGES * 2 * PANEL;
  float* sums = reinterpret_cast<float*>(all + groups * SMALL_STAGES * 2 * PANEL);
  const bf16 *x[Copies::COPIES], *w[Copies::COPIES];
#pragma unroll
  for (uint32_t i = 0; i < Copies::COPIES; i++) x[i] = x_row(Copies::row(i)), w[i] = w_row(Copies::row(i));
  auto load = [&](uint32_t step) {
    if (step < steps) {
      bf16* to = stages + step % SMALL_STAGES * 2 * PANEL;
      const uint32_t k = (step / 4 * groups + group) * 256 + step % 4 * 64;
      const bool inside = k + Copies::column() < width;
      copy_panels<64>(to, any, [&](uint32_t i) { return inside && x[i] ? x[i] + k : nullptr; });
      copy_panels<64>(to + PANEL, any, [&](uint32_t i) { return inside && w[i] ? w[i] + k : nullptr; });
    }
    xt_cp_commit();
  };
  for (uint32_t step = 0; step < SMALL_STAGES - 2; step++) load(step);
  float c[32] = {};
  for (uint32_t round = 0; round < steps / 4; round++) {
    // Unrolled: with a branch between the steps, the compiler waits for the products of each step.
#pragma unroll
    for (uint32_t part = 0; part < 4; part++) {
      xt_cp_wait<SMALL_STAGES - 3>();
      publish_panels();
      load(round * 4 + part + SMALL_STAGES - 2);  // to the stage of two steps before, whose products are finished
      const bf16* stage = stages + part * 2 * PANEL;
      xt_wgmma_fence();
#pragma unroll
      for (uint32_t i = 0; i < 4; i++)
        xt_wgmma_m64n64k16(c, xt_wgmma_desc(stage) + i * 2, xt_wgmma_desc(stage + PANEL) + i * 2,
                           part != 0 || i != 0);
      xt_wgmma_commit();
      if (part != 3) xt_wgmma_wait<1>();
    }
    xt_wgmma_wait<0>();
    xt_wgmma_results(c);
    if (group) {
#pragma unroll
      for (uint32_t i = 0; i < 32; i++) sums[((group - 1) * 32 + i) * 128 + thread] = c[i];
    }
    __syncthreads();
    if (group) continue;
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) y[i] = y[i] + c[i];
#pragma unroll
    for (uint32_t j = 1; j < MAX_SMALL_GROUPS; j++) {
      const uint32_t other = XT_FAULT(SmallChunksSwapped) ? groups - j : j;
      if (j >= groups || round * groups + other >= chunks) continue;
#pragma unroll
      for (uint32_t i = 0; i < 32; i++) y[i] = y[i] + sums[((other - 1) * 32 + i) * 128 + thread];
    }
  }
}

// f(y[i], y[i + 1], row, column of the first) for the pairs of this thread.
template <class F> XT_DEV void each_pair(float (&y)[32], F f) {
  const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (uint32_t i = 0; i < 32; i += 2) f(y[i], y[i + 1], first + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2);
}

// Stores the outputs from o0 on, of `outs`, of the rows from n0 on. The residuals are loaded before any output is stored.
XT_DEV void store_small(float (&y)[32], const Epilogue& out, uint32_t n0, uint32_t rows, uint32_t o0, uint32_t outs) {
  if (out.bias)
    each_pair(y, [&](float& a, float& b, uint32_t, uint32_t column) {
      if (o0 + column < outs) a = a + out.bias[o0 + column];
      if (o0 + column + 1 < outs) b = b + out.bias[o0 + column + 1];
    });
  const bool pairs = outs % 2 == 0;
  if (out.h) {
    float h[32];
    each_pair(h, [&](float& a, float& b, uint32_t row, uint32_t column) {
      const uint32_t n = n0 + row, o = o0 + column;
      a = b = 0.0f;
      if (n >= rows || o >= outs) return;
      const float* from = out.h + (size_t)n * outs + o;
      if (pairs) {
        const float2 v = *(const float2*)from;
        a = v.x, b = v.y;
      } else {
        a = from[0];
        if (o + 1 < outs) b = from[1];
      }
    });
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) y[i] = residual_of(h[i]) + y[i];
  }
  each_pair(y, [&](float& a, float& b, uint32_t row, uint32_t column) {
    const uint32_t n = n0 + row, o = o0 + column;
    if (n >= rows || o >= outs) return;
    const size_t at = (size_t)n * outs + o;
    if (pairs) {
      if (out.y_bf16)
        *(uint32_t*)(out.y_bf16 + at) = xt_pack_bf16(a, b);
      else
        *(float2*)(out.y + at) = make_float2(a, b);
      return;
    }
    for (uint32_t e = 0; e < 2 && o + e < outs; e++) {
      if (out.y_bf16)
        store(out.y_bf16 + at + e, e ? b : a);
      else
        out.y[at + e] = e ? b : a;
    }
  });
}

XT_DEV void small_tile(const bf16* x, const bf16* w, uint32_t rows, uint32_t outs, uint32_t width, uint32_t o0,
                       const Epilogue& out) {
  const uint32_t n0 = blockIdx.y * 64;
  float y[32] = {};
  add_small_chunks(
      y, width, x, [&](uint32_t n) { return n0 + n < rows ? x + (size_t)(n0 + n) * width : nullptr; },
      [&](uint32_t n) { return o0 + n < outs ? w + (size_t)(o0 + n) * width : nullptr; });
  if (threadIdx.x < 128) store_small(y, out, n0, rows, o0, outs);
}

XT_KERNEL_FOR(linear_bf16_wgmma_64, 384, 1)(const bf16* x, const bf16* w, const float* bias, const float* h, float* y,
                                            bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  if (!xt_has_wgmma()) return xt_trap();
  small_tile(x, w, rows, outs, width, blockIdx.x * 64, Epilogue{nullptr, bias, h, y, y_bf16});
}
XT_EXPORT(linear_bf16_wgmma_64)

XT_KERNEL_FOR(linears_bf16_wgmma_64, 384, 1)(const bf16* x, const bf16* w0, const bf16* w1, const bf16* w2,
                                             const float* b0, const float* b1, const float* b2, bf16* y0, bf16* y1,
                                             bf16* y2, uint32_t rows, uint32_t outs0, uint32_t outs1, uint32_t outs2,
                                             uint32_t width) {
  xt_grid_dependency_sync();
  if (!xt_has_wgmma()) return xt_trap();
  const Matrices<bf16> w = {w0, w1, w2, b0, b1, b2, y0, y1, y2, outs0, outs1, outs2};
  const MatrixTile of = matrix_tile(w, blockIdx.x, 64);
  small_tile(x, matrix(w, of.part), rows, outs_of(w, of.part), width, of.o0,
             Epilogue{nullptr, bias_of(w, of.part), nullptr, nullptr, output_of(w, of.part)});
}
XT_EXPORT(linears_bf16_wgmma_64)
