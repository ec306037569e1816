//! Products of one `x` with several matrices in one launch. For few rows, the RMSNorm of `x` is fused into the
//! prologue.
use super::{MAX_GRID_Y, SharedTiles, Tile, TileKernels, skinny, skinny_bf16, tile_kernels, wgmma};
use crate::gpu::{Arg, At, Gpu, Grid, args};
use crate::operands::{Affine, Norm};
use crate::{Dtype, Result, Tensor, Tensors};

/// Maximum number of rows for the kernels with a fused norm. Each block norms all rows; at 8 rows this reads as many
/// bytes as the weights of the block.
pub(crate) const FUSED_NORM_MAX_ROWS: usize = 8;
/// Maximum number of matrices per launch.
const MATRICES: usize = 3;

/// Left operand of the products.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Rows in the weights' dtype.
    Plain(&'a Tensor),
    /// RMSNorm of f32 rows, with gain and eps.
    Normed(&'a Tensor, Norm<'a>),
}

impl Source<'_> {
    fn shape(self) -> [usize; 2] {
        let (Source::Plain(x) | Source::Normed(x, _)) = self;
        [x.shape()[0], x.width()]
    }

    /// The rows for which a skinny bf16 kernel is launched: those without a norm are for more than 8, or none.
    fn rows_of_skinny(self) -> usize {
        match (self, self.shape()[0]) {
            (Source::Plain(_), rows @ 1..) => rows.max(FUSED_NORM_MAX_ROWS + 1),
            (_, rows) => rows,
        }
    }

    fn args(self, gpu: &Gpu, dtype: Dtype) -> Result<Vec<Arg>> {
        Ok(match self {
            Source::Plain(x) => args![x.at(gpu, dtype)?].to_vec(),
            Source::Normed(h, Norm { gain, eps }) => {
                args![h.at(gpu, Dtype::F32)?, gain.at(gpu, Dtype::F32)?, eps].to_vec()
            }
        })
    }

    /// The first arguments of a kernel: the rows and the weights with their numbers of outputs. For [`Tile::Wgmma`]
    /// their tensor maps, the weights in boxes of `box_rows`.
    fn operands(
        self,
        gpu: &Gpu,
        dtype: Dtype,
        weights: &[(At, usize)],
        (tile, box_rows): (Tile, usize),
    ) -> Result<Vec<Arg>> {
        let mut args = self.args(gpu, dtype)?;
        match self {
            Source::Plain(x) if tile == Tile::Wgmma => {
                let x = x.at(gpu, dtype)?;
                let operands = wgmma::Operands::of_forward(x, self.shape(), weights, box_rows);
                args = args![operands.maps(gpu)?].to_vec();
            }
            _ => args.extend(weights.iter().map(|&(at, _)| Arg::from(at))),
        }
        Ok(args)
    }
}

/// Whether the fused kernels support these operands.
pub(crate) fn supports_fused(source: Source<'_>, ws: &[Affine<'_>]) -> bool {
    // at least 8 outputs per block
    let blocks: usize = ws.iter().map(|w| w.weight.out_features().div_ceil(8)).sum();
    let skinny = match source {
        Source::Plain(_) => true,
        Source::Normed(h, _) => h.shape()[0] <= FUSED_NORM_MAX_ROWS && h.dtype() == Dtype::F32,
    };
    skinny && ws.len() <= MATRICES && blocks <= MAX_GRID_Y
}

struct Kernels {
    /// With a fused norm: bf16, f32.
    normed: [&'static str; 2],
    /// Skinny kernels: bf16 up to 16 rows, bf16 up to 32 rows, f32.
    skinny: [&'static str; 3],
    square: TileKernels,
    wgmma: &'static str,
    /// Tiles of 64 x 64 outputs by `wgmma`.
    small_wgmma: Option<&'static str>,
    /// Weight rows per output: 2 for gate and up, else 1.
    operands_per_output: usize,
}

const LINEARS: Kernels = Kernels {
    normed: ["norm_linears_bf16", "norm_linears_f32"],
    skinny: ["linears_skinny_bf16_16", "linears_skinny_bf16_32", "linears_skinny_f32"],
    square: tile_kernels!("linears", [true, true]),
    wgmma: "linears_bf16_wgmma",
    small_wgmma: Some("linears_bf16_wgmma_64"),
    operands_per_output: 1,
};
const SWIGLU: Kernels = Kernels {
    normed: ["norm_swiglu_bf16", "norm_swiglu_f32"],
    skinny: ["swiglu_skinny_bf16_16", "swiglu_skinny_bf16_32", "swiglu_skinny_f32"],
    square: tile_kernels!("swiglu", [true, true]),
    wgmma: "swiglu_bf16_wgmma",
    small_wgmma: None,
    operands_per_output: 2,
};

impl Kernels {
    /// The tile for these matrices.
    fn tile(&self, gpu: &Gpu, source: Source<'_>, ws: &[Affine<'_>]) -> Result<Tile> {
        let Source::Plain(x) = source else { return Ok(Tile::Skinny) };
        let outs = ws.iter().map(|w| w.weight.out_features()).sum();
        let tile = on_hopper(gpu, x, ws, Tile::of_forward(x.shape()[0], outs, ws[0].weight.dtype()))?;
        Ok(if self.small_wgmma.is_some() { tile.or_small(gpu, x.shape()[0], outs) } else { tile })
    }

    /// The kernel, and its grid over the outputs of all matrices.
    fn launch(
        &self,
        gpu: &Gpu,
        source: Source<'_>,
        tile: Tile,
        outs: &[usize],
        dtype: Dtype,
    ) -> (&'static str, Grid) {
        let ([rows, width], bf16) = (source.shape(), dtype == Dtype::BF16);
        if tile == Tile::Wgmma {
            let tiles = outs.iter().map(|n| n.div_ceil(tile.side() / self.operands_per_output)).sum();
            return (self.wgmma, wgmma::grid(gpu, rows, tiles));
        }
        if let (Tile::SmallWgmma, Some(kernel)) = (tile, self.small_wgmma) {
            let tiles = outs.iter().map(|n| n.div_ceil(tile.side())).sum();
            return (kernel, wgmma::small_grid(rows, width, tiles));
        }
        if (tile, bf16) == (Tile::Skinny, true) {
            let kernel = match source {
                Source::Normed(..) => self.normed[0],
                Source::Plain(_) => self.skinny[usize::from(rows > 16)],
            };
            let rows = source.rows_of_skinny();
            let tiles = outs.iter().map(|n| n.div_ceil(16)).sum();
            return (kernel, skinny_bf16(rows, tiles, width, 16 * self.operands_per_output));
        }
        let (kernel, grid, side) = match (tile, source) {
            (Tile::Skinny, _) => {
                let kernel =
                    if matches!(source, Source::Normed(..)) { self.normed[1] } else { self.skinny[2] };
                (kernel, skinny([rows, 8, width], dtype).1, 8)
            }
            _ => {
                let (kernel, grid) = tile.launch(&self.square, dtype, [rows, 1]);
                (kernel, grid, tile.side())
            }
        };
        let mut grid = grid;
        grid.blocks[0] = outs.iter().map(|n| n.div_ceil(side / self.operands_per_output) as u32).sum();
        (kernel, grid)
    }
}

/// The addresses of weights and their numbers of outputs.
fn weights_of(gpu: &Gpu, ws: &[Affine<'_>]) -> Result<Vec<(At, usize)>> {
    ws.iter().map(|w| Ok((w.weight.at(gpu)?, w.weight.out_features()))).collect()
}

/// `tile`, or [`Tile::Wgmma`] where it computes these products.
fn on_hopper(gpu: &Gpu, x: &Tensor, ws: &[Affine<'_>], tile: Tile) -> Result<Tile> {
    let (dtype, weights) = (ws[0].weight.dtype(), weights_of(gpu, ws)?);
    let shape = [x.shape()[0], x.width()];
    let operands = wgmma::Operands::of_forward(x.at(gpu, dtype)?, shape, &weights, tile.side());
    Ok(tile.or_wgmma(gpu, &operands, dtype))
}

/// Products with up to three weights. The operands have been checked.
pub(crate) fn linears(gpu: &Gpu, source: Source<'_>, ws: &[Affine<'_>]) -> Result<Tensors> {
    linears_by(gpu, source, ws, LINEARS.tile(gpu, source, ws)?)
}

/// [`linears`] with a given tile.
pub(super) fn linears_by(gpu: &Gpu, source: Source<'_>, ws: &[Affine<'_>], tile: Tile) -> Result<Tensors> {
    let ([rows, width], dtype) = (source.shape(), ws[0].weight.dtype());
    let ys = ws.iter().map(|w| Tensor::on_gpu(gpu, &[rows, w.weight.out_features()], dtype));
    let ys = ys.collect::<Result<Tensors>>()?;
    let (mut w_at, mut b_at, mut y_at) = ([At(0); MATRICES], [At(0); MATRICES], [At(0); MATRICES]);
    let mut outs = [0; MATRICES];
    for (i, (w, y)) in ws.iter().zip(&ys).enumerate() {
        (w_at[i], y_at[i], outs[i]) = (w.weight.at(gpu)?, y.at(gpu, dtype)?, w.weight.out_features());
        b_at[i] = bias_of(gpu, w)?;
    }
    let (kernel, grid) = LINEARS.launch(gpu, source, tile, &outs, dtype);
    let weights: [(At, usize); MATRICES] = std::array::from_fn(|i| (w_at[i], outs[i]));
    let mut args = source.operands(gpu, dtype, &weights, (tile, tile.side()))?;
    args.extend([b_at, y_at].concat().into_iter().map(Arg::from));
    args.extend([rows, outs[0], outs[1], outs[2], width].map(Arg::from));
    let shared = SharedTiles::of(gpu, &grid, [source.rows_of_skinny(), width], 16, (tile, dtype))?;
    args.extend(&shared.args);
    // SAFETY: x [rows, width] or h [rows, width] and gain [width]; w_i [out_i, width], b_i [out_i] or null,
    // y_i [rows, out_i]; shared tiles have their parts and counters.
    unsafe { gpu.launch(kernel, grid, &args)? };
    Ok(ys)
}

/// The product of a weight with the norm of at most [`FUSED_NORM_MAX_ROWS`] rows, in f32. The operands have been checked.
pub(crate) fn normed_linear(gpu: &Gpu, source: Source<'_>, w: Affine<'_>) -> Result<Tensor> {
    let ([rows, width], outs, dtype) = (source.shape(), w.weight.out_features(), w.weight.dtype());
    if dtype != Dtype::BF16 {
        return Ok(linears(gpu, source, &[w])?.remove(0));
    }
    let y = Tensor::on_gpu(gpu, &[rows, outs], Dtype::F32)?;
    let (_, grid) = skinny([rows, outs, width], dtype);
    let shared = SharedTiles::of(gpu, &grid, [rows, width], 16, (Tile::Skinny, dtype))?;
    let own = args![w.weight.at(gpu)?, bias_of(gpu, &w)?, y.at(gpu, Dtype::F32)?, rows, outs, width];
    let args = [&source.args(gpu, dtype)?, own as &[Arg], &shared.args].concat();
    // SAFETY: h [rows, width], gain [width], w [outs, width], bias [outs] or null, y [rows, outs]; shared tiles have
    // their parts and counters.
    unsafe { gpu.launch("norm_linear_bf16", grid, &args)? };
    Ok(y)
}

/// `silu(x gateᵀ + b) * (x upᵀ + c)`. The operands have been checked.
pub(crate) fn swiglu(gpu: &Gpu, source: Source<'_>, ws: [Affine<'_>; 2]) -> Result<Tensor> {
    let tile = SWIGLU.tile(gpu, source, &ws)?;
    Ok(swiglu_by(gpu, source, ws, tile, false)?.swap_remove(0))
}

/// [`swiglu`] of plain rows, which also returns both products, in the weights' dtype.
pub(crate) fn swiglu_kept(gpu: &Gpu, x: &Tensor, ws: [Affine<'_>; 2]) -> Result<[Tensor; 3]> {
    let tile = on_hopper(gpu, x, &ws, Tile::of(x.shape()[0], 2 * ws[0].weight.out_features()))?;
    let mut all = swiglu_by(gpu, Source::Plain(x), ws, tile, true)?.into_iter();
    Ok(std::array::from_fn(|_| all.next().expect("the value and both products")))
}

/// [`swiglu`] with a given tile; `kept`: also both products, which skinny tiles do not store.
pub(super) fn swiglu_by(
    gpu: &Gpu,
    source: Source<'_>,
    [gate, up]: [Affine<'_>; 2],
    tile: Tile,
    kept: bool,
) -> Result<Vec<Tensor>> {
    let ([rows, width], dtype, outs) = (source.shape(), gate.weight.dtype(), gate.weight.out_features());
    let values = (0..if kept { 3 } else { 1 }).map(|_| Tensor::on_gpu(gpu, &[rows, outs], dtype));
    let values = values.collect::<Result<Vec<_>>>()?;
    let at = |value: usize| values.get(value).map_or(Ok(At(0)), |x| x.at(gpu, dtype));
    let (kernel, grid) = SWIGLU.launch(gpu, source, tile, &[outs], dtype);
    let mut args = source.operands(gpu, dtype, &weights_of(gpu, &[gate, up])?, (tile, tile.side() / 2))?;
    args.extend(args![bias_of(gpu, &gate)?, bias_of(gpu, &up)?, at(0)?, rows, outs, width]);
    let shared = SharedTiles::of(gpu, &grid, [source.rows_of_skinny(), width], 32, (tile, dtype))?;
    args.extend(&shared.args);
    if tile != Tile::Skinny {
        args.extend(args![at(1)?, at(2)?]);
    }
    // SAFETY: x [rows, width] or h [rows, width] and gain [width]; both weights [outs, width], biases [outs] or null,
    // the values [rows, outs] or null.
    unsafe { gpu.launch(kernel, grid, &args)? };
    Ok(values)
}

fn bias_of(gpu: &Gpu, w: &Affine<'_>) -> Result<At> {
    w.bias.map_or(Ok(At(0)), |bias| bias.at(gpu, Dtype::F32))
}
