//! Products by the `wgmma` kernels and by those with `mma.sync`, from the same operands.
use super::buffer::Buffer;
use super::handle::Gpu;
use super::launch::{Arg, At, Grid, MatrixBoxes, args};
use super::tensor_core_operands::Operands;
use crate::dtype::Dtype;
use crate::error::Result;

/// Outputs of a tile along either axis.
const SIDE: usize = 128;
/// Rows of the first of two samples.
const FIRST_SAMPLE: usize = 70;
const NONE: At = At(0);

/// Operands in bf16: `x [rows, width]`, `w [outs, width]` and `dy [rows, outs]`.
pub(super) struct Products<'a> {
    gpu: &'a Gpu,
    x: Buffer,
    w: Buffer,
    dy: Buffer,
    shape: [usize; 3],
}

/// The result of a kernel with `wgmma` and that of the one with `mma.sync`.
pub(super) type Both = [Vec<f32>; 2];

/// The bytes of shared memory of a tile with `mma.sync`: four stages of 32 k, in rows of 32 with pitch 40 (K-major) or
/// 32 rows with pitch 136.
fn shared(k_major: [bool; 2]) -> usize {
    4 * 2 * k_major.iter().map(|&k| if k { SIDE * 40 } else { 32 * (SIDE + 8) }).sum::<usize>()
}

/// The first `n` results in `out` of a kernel.
///
/// # Safety
/// `args` are those of the kernel if its results are written to this address.
pub(super) unsafe fn results(
    gpu: &Gpu,
    n: usize,
    (kernel, grid): (&'static str, Grid),
    args: &dyn Fn(At) -> Result<Vec<Arg>>,
    out: Dtype,
) -> Result<Vec<f32>> {
    let y = gpu.zeros(4 * n)?;
    // SAFETY: as promised by the caller.
    unsafe { gpu.launch(kernel, grid, &args(y.arg())?)? };
    let bits = |y: &u16| f32::from_bits(u32::from(*y) << 16);
    Ok(match out {
        Dtype::BF16 => gpu.download_first::<u16>(&y, n)?.iter().map(bits).collect(),
        _ => gpu.download(&y)?,
    })
}

fn words(At(at): At) -> [u32; 2] {
    [at as u32, (at >> 32) as u32]
}

impl<'a> Products<'a> {
    /// The first values of the operands.
    pub(super) fn of(gpu: &'a Gpu, operands: &Operands, shape: [usize; 3]) -> Result<Products<'a>> {
        let [rows, outs, width] = shape;
        let (x, w) = (gpu.upload(&operands.a[..rows * width])?, gpu.upload(&operands.b[..outs * width])?);
        // from the end, so that it differs from the weights
        let dy = gpu.upload(&operands.b[operands.b.len() - rows * outs..])?;
        Ok(Products { gpu, x, w, dy, shape })
    }

    fn tensor_maps(&self, matrices: &[(At, [usize; 3])]) -> Result<At> {
        let boxes = |&(at, [rows, columns, box_rows]): &(At, [usize; 3])| {
            Some(MatrixBoxes { at, rows, columns, box_rows })
        };
        self.gpu.tensor_maps(&matrices.iter().map(boxes).collect::<Vec<_>>())
    }

    /// The results, `[q, p]` in `out`, of both kernels. args: all arguments of a kernel, from the address of its result.
    fn both(
        &self,
        [q, p]: [usize; 2],
        kernels: [&'static str; 2],
        square: Grid,
        args: [&dyn Fn(At) -> Result<Vec<Arg>>; 2],
        out: Dtype,
    ) -> Result<Both> {
        let tiles = q.div_ceil(SIDE) * p.div_ceil(SIDE);
        // few blocks, each with several tiles
        let mut persistent = self.gpu.wgmma_grid(tiles);
        persistent.blocks[0] = persistent.blocks[0].min(2);
        self.launched(q * p, kernels, [persistent, square], args, out)
    }

    fn launched(
        &self,
        n: usize,
        kernels: [&'static str; 2],
        grids: [Grid; 2],
        args: [&dyn Fn(At) -> Result<Vec<Arg>>; 2],
        out: Dtype,
    ) -> Result<Both> {
        // SAFETY: the methods below pass operands of their shapes, and n results.
        let run = |i: usize| unsafe { results(self.gpu, n, (kernels[i], grids[i]), args[i], out) };
        Ok([run(0)?, run(1)?])
    }

    /// `x wᵀ`.
    pub(super) fn forward(&self) -> Result<Both> {
        self.product(Dtype::F32)
    }

    /// `x wᵀ`, rounded to bf16.
    pub(super) fn rounded(&self) -> Result<Both> {
        self.product(Dtype::BF16)
    }

    fn product(&self, out: Dtype) -> Result<Both> {
        let ([rows, outs, width], x, w) = (self.shape, self.x.arg(), self.w.arg());
        let rest = |y: At| {
            let [y, y_bf16] = if out == Dtype::BF16 { [NONE, y] } else { [y, NONE] };
            args![NONE, NONE, y, y_bf16, rows, outs, width].to_vec()
        };
        let maps = || self.tensor_maps(&[(x, [rows, width, SIDE]), (w, [outs, width, SIDE])]);
        let square =
            Grid::blocks([outs.div_ceil(SIDE), rows.div_ceil(SIDE), 1], 256).shared(shared([true; 2]));
        self.both(
            [rows, outs],
            ["linear_bf16_wgmma", "linear_bf16_128"],
            square,
            [&|y| Ok([args![maps()?] as &[Arg], &rest(y)].concat()), &|y| {
                Ok([args![x, w] as &[Arg], &rest(y)].concat())
            }],
            out,
        )
    }

    /// `x wᵀ` in tiles of 64 x 64 outputs.
    pub(super) fn forward_small(&self) -> Result<Both> {
        let ([rows, outs, width], x, w) = (self.shape, self.x.arg(), self.w.arg());
        let args = |y: At| Ok(args![x, w, NONE, NONE, y, NONE, rows, outs, width].to_vec());
        let blocks = |side: usize| [outs.div_ceil(side), rows.div_ceil(side), 1];
        let small = Grid::blocks(blocks(64), 384).shared(3 * 4 * (2 * 64 * 64 * 2) + 2 * 64 * 64 * 4 + 1024);
        let square = Grid::blocks(blocks(SIDE), 256).shared(shared([true; 2]));
        self.launched(
            rows * outs,
            ["linear_bf16_wgmma_64", "linear_bf16_128"],
            [small, square],
            [&args; 2],
            Dtype::F32,
        )
    }

    /// `dy w + dy w`: a group of two products.
    pub(super) fn input_gradient(&self) -> Result<Both> {
        let ([rows, outs, width], dy, w) = (self.shape, self.dy.arg(), self.w.arg());
        let outs_of = args![outs, outs, 0usize, NONE].to_vec();
        let rest = |y: At| [&outs_of, args![y, NONE, rows, width] as &[Arg]].concat();
        let maps = || {
            let (dy, w) = ((dy, [rows, outs, SIDE]), (w, [outs, width, 64]));
            self.tensor_maps(&[dy, dy, dy, w, w, w])
        };
        let square = Grid::blocks([width.div_ceil(SIDE), rows.div_ceil(SIDE), 1], 256);
        self.both(
            [rows, width],
            ["linear_dx_bf16_wgmma", "linear_dx_bf16_128"],
            square.shared(shared([false, true])),
            [&|y| Ok([args![maps()?] as &[Arg], &rest(y)].concat()), &|y| {
                Ok([args![dy, dy, NONE, w, w, NONE] as &[Arg], &rest(y)].concat())
            }],
            Dtype::F32,
        )
    }

    /// `rowsum dy x`, of two samples.
    pub(super) fn weight_gradient(&self) -> Result<Both> {
        let ([rows, outs, width], dy, x) = (self.shape, self.dy.arg(), self.x.arg());
        let gpu = self.gpu;
        let table = |dw: At, [dy, x]: [At; 2]| {
            let addresses = [dw, dy, x].map(words).concat();
            gpu.indices(&[addresses, vec![outs as u32, width as u32, 0, 0]].concat())
        };
        let tiles = outs.div_ceil(SIDE) * width.div_ceil(SIDE);
        let rest = rows - FIRST_SAMPLE;
        let by_wgmma = |dw: At| {
            let of = |At(at): At, columns: usize| {
                let second = At(at + (2 * FIRST_SAMPLE * columns) as u64);
                [(At(at), [FIRST_SAMPLE, columns, 64]), (second, [rest, columns, 64])]
            };
            let (dy, x) = (self.tensor_maps(&of(dy, outs))?, self.tensor_maps(&of(x, width))?);
            let samples = gpu.indices(&[0, 0, FIRST_SAMPLE as u32, 1, 0, rest as u32])?;
            Ok(args![table(dw, [dy, x])?, 1usize, tiles, samples, 2usize, 2usize].to_vec())
        };
        let by_mma = |dw: At| {
            let chunks = (FIRST_SAMPLE..rows).step_by(256).chain([rows]).map(|row| row as u32);
            let bounds: Vec<u32> = [0].into_iter().chain(chunks).collect();
            Ok(args![table(dw, [dy, x])?, 1usize, gpu.indices(&bounds)?, bounds.len() - 1].to_vec())
        };
        let square = Grid::blocks([tiles, 1, 1], 256).shared(shared([false; 2]));
        let kernels = ["linear_dw_bf16_wgmma", "linear_dw_bf16_128"];
        self.both([outs, width], kernels, square, [&by_wgmma, &by_mma], Dtype::F32)
    }
}
