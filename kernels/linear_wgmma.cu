// linear_bf16_wgmma     y[n][o] = dot(x[n], w[o]) (+ bias[o]) (then h[n][o] + that), as linear_bf16
// linears_bf16_wgmma    y_i = x w_iᵀ + b_i for up to three matrices, as linears_bf16
// swiglu_bf16_wgmma     y = silu(x gateᵀ + b) * (x upᵀ + c), as swiglu_bf16
//                       The operands are tensor maps (gpu/linear/wgmma.rs): x, then the weights, boxes of 64 k.
// Hopper: machine code for sm_90a; in any other image these kernels trap, and the host does not launch them. It also
//   launches them only on a device where wgmma has been compared with mma.sync (device/gpu/wgmma_probe.rs).
// Launch: at most one block per SM, each of which computes tiles of 128 x 128 outputs, one after another. 384 threads:
//   two warpgroups of consumers (64 rows of x each), and one of which a single thread copies. Dynamic shared memory: six
//   stages of 64 k (device/gpu/wgmma.rs).
// Order: as linear_bf16: chunks of 256 k of k-steps of 16 from zero, y = y + chunk. x is the 64-row operand. CPU twin:
//   none; gates: gates/tensor_core.rs (a step), gpu/linear/tests.rs.
// Cost: as linear_bf16. Both accumulators take 128 registers, which limits a warpgroup to 64 x 128 outputs. While one
//   warpgroup adds a chunk or stores its outputs, the other one multiplies, and the producer copies the next tile.
#include "linear_matrices.cuh"
#include "wgmma_product.cuh"

// A product over `width` k. copy(tile, stage, k, barrier) starts the copies of both operands; store(tile, y) stores the
// outputs of a consumer.
template <class Copy, class Store>
XT_DEV void product_wgmma(uint32_t p_tiles, uint32_t q_tiles, uint32_t width, Copy copy, Store store) {
  by_wgmma(
      p_tiles * q_tiles,
      [&](WgmmaRing& ring, uint32_t block) {
        Tile tile = tile_of(block, p_tiles, q_tiles);
        fill_stages(ring, width, [&](bf16* s, uint32_t k, uint64_t* barrier) { copy(tile, s, k, barrier); });
      },
      [&](WgmmaRing& ring, uint32_t block) {
        float y[64] = {};
        add_chunks<Major::K, Major::K>(ring, width, y);
        store(tile_of(block, p_tiles, q_tiles), y);
      });
}

XT_KERNEL(linear_bf16_wgmma, WGMMA_THREADS)(const TensorMap* maps, const float* bias, const float* h, float* y,
                                            bf16* y_bf16, uint32_t rows, uint32_t outs, uint32_t width) {
  xt_grid_dependency_sync();
  if (!xt_has_wgmma()) return xt_trap();
  fence_maps(maps, 2);
  const uint32_t p_tiles = (outs + 127) / 128;
  product_wgmma(
      p_tiles, (rows + 127) / 128, width,
      [=](const Tile& tile, bf16* s, uint32_t k, uint64_t* barrier) {
        copy_rows(s, maps, tile.q * 128, k, barrier);
        copy_rows(s + WgmmaRing::OPERAND, maps + 1, tile.p * 128, k, barrier);
      },
      [=](const Tile& tile, float (&sum)[64]) {
        store_fragments<128>(tile, outs, rows, sum, Epilogue{nullptr, bias, h, y, y_bf16});
      });
}
XT_EXPORT(linear_bf16_wgmma)

XT_KERNEL(linears_bf16_wgmma, WGMMA_THREADS)(const TensorMap* maps, const float* b0, const float* b1, const float* b2,
                                             bf16* y0, bf16* y1, bf16* y2, uint32_t rows, uint32_t outs0,
                                             uint32_t outs1, uint32_t outs2, uint32_t width) {
  xt_grid_dependency_sync();
  if (!xt_has_wgmma()) return xt_trap();
  fence_maps(maps, 4);
  const Matrices<bf16> w = {nullptr, nullptr, nullptr, b0, b1, b2, y0, y1, y2, outs0, outs1, outs2};
  uint32_t p_tiles = (outs0 + 127) / 128 + (outs1 + 127) / 128 + (outs2 + 127) / 128;
  product_wgmma(
      p_tiles, (rows + 127) / 128, width,
      [=](const Tile& tile, bf16* s, uint32_t k, uint64_t* barrier) {
        MatrixTile of = matrix_tile(w, tile.p, 128);
        copy_rows(s, maps, tile.q * 128, k, barrier);
        copy_rows(s + WgmmaRing::OPERAND, maps + 1 + of.part, of.o0, k, barrier);
      },
      [=](const Tile& tile, float (&sum)[64]) {
        MatrixTile of = matrix_tile(w, tile.p, 128);
        Epilogue out = {nullptr, bias_of(w, of.part), nullptr, nullptr, output_of(w, of.part)};
        store_fragments<128>({of.o0 / 128, tile.q}, outs_of(w, of.part), rows, sum, out);
      });
}
XT_EXPORT(linears_bf16_wgmma)

// The first half of operand 1 is the gate, the second half up.
XT_KERNEL(swiglu_bf16_wgmma, WGMMA_THREADS)(const TensorMap* maps, const float* gate_bias, const float* up_bias,
                                            bf16* y, uint32_t rows, uint32_t outs, uint32_t width, bf16* kept_gate,
                                            bf16* kept_up) {
  xt_grid_dependency_sync();
  if (!xt_has_wgmma()) return xt_trap();
  fence_maps(maps, 3);
  product_wgmma(
      (outs + 63) / 64, (rows + 127) / 128, width,
      [=](const Tile& tile, bf16* s, uint32_t k, uint64_t* barrier) {
        copy_rows(s, maps, tile.q * 128, k, barrier);
        for (uint32_t half = 0; half < 2; half++)
          copy_rows(s + WgmmaRing::OPERAND + half * WgmmaRing::ROW_GROUP, maps + 1 + half, tile.p * 64, k, barrier);
      },
      [=](const Tile& tile, float (&sum)[64]) {
        store_fragments<64>(tile, outs, rows, sum, SwiGluEpilogue<bf16>{gate_bias, up_bias, y, kept_gate, kept_up});
      });
}
XT_EXPORT(swiglu_bf16_wgmma)
