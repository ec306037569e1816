// linear_dx_bf16_wgmma          dx[n][k] = init + sum over a group's weights of (dot over o of dy[n][o] w[o][k]), as
//                               linear_dx_bf16
// linear_dx_swiglu_bf16_wgmma   the gradient of SwiGLU of that sum, as linear_dx_swiglu
// linear_dw_bf16_wgmma          dw[o][k] = dw[o][k] (or +0) + rowsum dy[r][o] x[r][k] for several products, as linear_dw
//                               The operands are tensor maps (gpu/linear/wgmma.rs): boxes of 64 columns, of dy in the
//                               first two 128 rows, otherwise 64.
// Hopper and launch: as linear_wgmma.cu; linear_dw: the tiles of the products one after another.
// Order: as linear_bf16 and linear_dw. dy is the 64-row operand. w, and in linear_dw dy and x, are MN-major: their rows
//   are the k of the sum. The rows of a sample that end within a stage are followed by zeros, because its tensor map ends
//   there. CPU twin: none; gates: gates/wgmma.rs, gpu/linear/tests.
// Cost: as linear_dx_bf16, linear_dx_swiglu and linear_dw; see linear_wgmma.cu.
#include "linear_matrices.cuh"
#include "weight_products.cuh"
#include "wgmma_product.cuh"

// A group of up to three weights; an absent one has 0 outputs. maps: dy0, dy1, dy2, w0, w1, w2.
struct InputGradient {
  const TensorMap* maps;
  UniformChunks outs;
  uint32_t rows, width;

  XT_MEMBER uint32_t tiles() const { return p_tiles() * q_tiles(); }
  XT_MEMBER uint32_t p_tiles() const { return (width + 127) / 128; }
  XT_MEMBER uint32_t q_tiles() const { return (rows + 127) / 128; }
  XT_MEMBER Tile tile(uint32_t block) const { return tile_of(block, p_tiles(), q_tiles()); }

  XT_MEMBER void fill(WgmmaRing& ring, uint32_t block) const {
    Tile at = tile(block);
#pragma unroll 1
    for (uint32_t part = 0; part < 3; part++)
      fill_stages(ring, k_extent(outs, part), [&](bf16* s, uint32_t o, uint64_t* barrier) {
        copy_rows(s, maps + part, at.q * 128, o, barrier);
        copy_columns(s + WgmmaRing::OPERAND, maps + 3 + part, at.p * 128, o, barrier);
      });
  }
  XT_MEMBER void sum(WgmmaRing& ring, float (&y)[64]) const {
#pragma unroll 1
    for (uint32_t part = 0; part < 3; part++) add_chunks<Major::K, Major::MN>(ring, k_extent(outs, part), y);
  }
};

template <class Out> XT_DEV void input_gradient(const InputGradient& product, const Out& out) {
  fence_maps(product.maps, 6);
  by_wgmma(
      product.tiles(), [&](WgmmaRing& ring, uint32_t block) { product.fill(ring, block); },
      [&](WgmmaRing& ring, uint32_t block) {
        Tile tile = product.tile(block);
        float y[64] = {};
        if (out.init && !XT_FAULT(WgmmaStartsFromZero))
          load_fragments(tile, product.width, product.rows, y, out.init);
        product.sum(ring, y);
        store_fragments<128>(tile, product.width, product.rows, y, out);
      });
}

XT_KERNEL(linear_dx_bf16_wgmma, WGMMA_THREADS)(const TensorMap* maps, uint32_t outs0, uint32_t outs1, uint32_t outs2,
                                               const float* init, float* dx, bf16* dx_bf16, uint32_t rows,
                                               uint32_t width) {
  xt_grid_dependency_sync();
  if (!xt_has_wgmma()) return xt_trap();
  input_gradient({maps, {outs0, outs1, outs2}, rows, width}, Epilogue{init, nullptr, nullptr, dx, dx_bf16});
}
XT_EXPORT(linear_dx_bf16_wgmma)

XT_KERNEL(linear_dx_swiglu_bf16_wgmma, WGMMA_THREADS)(const TensorMap* maps, const bf16* gate, const bf16* up,
                                                      bf16* dgate, bf16* dup, uint32_t rows, uint32_t outs,
                                                      uint32_t width) {
  xt_grid_dependency_sync();
  if (!xt_has_wgmma()) return xt_trap();
  input_gradient({maps, {outs, 0, 0}, rows, width}, SwiGluGradientEpilogue<bf16>{gate, up, dgate, dup});
}
XT_EXPORT(linear_dx_swiglu_bf16_wgmma)

// The rows of a sample: those from row `first` on of tensor map `map` of dy and of x. Written by gpu/linear/wgmma.rs.
struct SampleRows {
  uint32_t map, first, rows;
};

// all: the products; samples: their rows; maps: the number of tensor maps of each dy and each x.
XT_KERNEL(linear_dw_bf16_wgmma, WGMMA_THREADS)(const WeightProduct* all, uint32_t products, uint32_t tiles,
                                               const SampleRows* samples, uint32_t count, uint32_t maps) {
  xt_grid_dependency_sync();
  if (!xt_has_wgmma()) return xt_trap();
  auto product_of = [=](uint32_t block) { return tensor_of_block<&WeightProduct::block>(all, products, block); };
  const TensorMap *dy_before = nullptr, *x_before = nullptr;  // those of the tile before, which are fenced
  by_wgmma(
      tiles,
      [=](WgmmaRing& ring, uint32_t block) mutable {
        WeightProduct one = product_of(block);
        Tile tile = tile_of_product<128>(one, block);
        const TensorMap *dy = static_cast<const TensorMap*>(one.dy), *x = static_cast<const TensorMap*>(one.x);
        if (dy != dy_before) fence_maps(dy, maps);
        if (x != x_before) fence_maps(x, maps);
        dy_before = dy, x_before = x;
        for (uint32_t i = 0; i < count; i++) {
          SampleRows sample = samples[i];
          fill_stages(ring, sample.rows, [&](bf16* s, uint32_t row, uint64_t* barrier) {
            copy_columns(s, dy + sample.map, tile.q * 128, sample.first + row, barrier);
            copy_columns(s + WgmmaRing::OPERAND, x + sample.map, tile.p * 128, sample.first + row, barrier);
          });
        }
      },
      [=](WgmmaRing& ring, uint32_t block) {
        WeightProduct one = product_of(block);
        Tile tile = tile_of_product<128>(one, block);
        float* dw = xt_global(one.dw);
        float y[64] = {};
        if (one.accumulate && !XT_FAULT(WgmmaStartsFromZero)) load_fragments(tile, one.width, one.outs, y, dw);
        for (uint32_t i = 0; i < count; i++) add_chunks<Major::MN, Major::MN>(ring, samples[i].rows, y);
        store_fragments<128>(tile, one.width, one.outs, y, Epilogue{nullptr, nullptr, nullptr, dw, nullptr});
      });
}
XT_EXPORT(linear_dw_bf16_wgmma)
