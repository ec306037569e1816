//! Input gradients. They are deferred (`device/gpu/buffer.rs`), so that the operation that reads one can run in its
//! epilogue: a cast to bf16, or the gradient of SwiGLU.
use super::{Tile, TileKernels, tile_kernels, wgmma};
use crate::device::gpu::{Arg, At, Deferred, Gpu, Grid, args};
use crate::faults::{self, Fault};
use crate::operands::Weight;
use crate::{Dtype, Result, Tensor};

/// Maximum number of weights per launch.
const WEIGHTS: usize = 3;

/// The kernels of an input gradient.
struct Kernels {
    square: TileKernels,
    wgmma: &'static str,
}

const INPUT_GRADIENT: Kernels =
    Kernels { square: tile_kernels!("linear_dx", [false, true]), wgmma: "linear_dx_bf16_wgmma" };
const SWIGLU_GRADIENT: Kernels = Kernels {
    square: tile_kernels!("linear_dx_swiglu", [false, true]),
    wgmma: "linear_dx_swiglu_bf16_wgmma",
};

impl Kernels {
    /// The kernel of a tile and its grid over `rows x width` outputs.
    fn launch(&self, gpu: &Gpu, tile: Tile, dtype: Dtype, [rows, width]: [usize; 2]) -> (&'static str, Grid) {
        match tile {
            Tile::Wgmma => (self.wgmma, wgmma::grid(gpu, rows, width.div_ceil(tile.side()))),
            _ => tile.launch(&self.square, dtype, [rows, width]),
        }
    }
}

/// `dx` for a group of weights that read the same `x [rows, width]`, f32 and deferred. The operands have been checked.
pub(crate) fn input_gradient(gpu: &Gpu, dys: &[&Tensor], ws: &[&Weight]) -> Result<Tensor> {
    let dx = Tensor::on_gpu(gpu, &[dys[0].shape()[0], ws[0].in_features()], Dtype::F32)?;
    let ws = ws.iter().map(|w| w.matrix().cloned()).collect::<Result<Vec<_>>>()?;
    let dys: Vec<Tensor> = dys.iter().map(|&dy| dy.clone()).collect();
    for (dy, w) in dys.iter().zip(&ws) {
        dy.at(gpu, w.dtype())?;
    }
    dx.defer(DeferredInputGradient { dys, ws });
    Ok(dx)
}

/// `linear_backward_input`: `dy_i [rows, outs_i]` and `w_i [outs_i, width]` in one dtype.
#[derive(Debug, Clone)]
struct DeferredInputGradient {
    dys: Vec<Tensor>,
    ws: Vec<Tensor>,
}

impl Deferred for DeferredInputGradient {
    fn launch(&self, gpu: &Gpu, to: At) -> Result<()> {
        for group in 0..self.dys.len().div_ceil(WEIGHTS) {
            let start = if group == 0 { At(0) } else { to };
            self.launch_group(gpu, group, start, [to, At(0)])?;
        }
        Ok(())
    }
}

impl DeferredInputGradient {
    fn dtype(&self) -> Dtype {
        self.ws[0].dtype()
    }

    /// Rows and width of the gradient.
    fn shape(&self) -> [usize; 2] {
        [self.dys[0].shape()[0], self.ws[0].width()]
    }

    /// Adds the products of a group of weights to `start`.
    fn launch_group(&self, gpu: &Gpu, group: usize, start: At, dx: [At; 2]) -> Result<()> {
        let mut parts = [Part::default(); WEIGHTS];
        let all = self.dys.iter().zip(&self.ws).skip(group * WEIGHTS);
        for (part, (dy, w)) in parts.iter_mut().zip(all) {
            *part = Part { dy: dy.at(gpu, w.dtype())?, w: w.at(gpu, w.dtype())?, outs: dy.width() };
        }
        let (shape, group) = (self.shape(), Group { parts, dtype: self.dtype() });
        // SAFETY: dy_i [rows, outs_i], w_i [outs_i, width], dx [rows, width], of the types named.
        unsafe { input(gpu, &group, shape, start, dx, group.tile(gpu, shape)) }
    }
}

/// `x` rounded to bf16, if it is an input gradient of bf16 products that no kernel has computed yet.
pub(in crate::gpu) fn rounded(gpu: &Gpu, x: &Tensor) -> Option<Result<Tensor>> {
    let gradient: DeferredInputGradient =
        x.deferred().filter(|_| !faults::on(Fault::InputGradientNotFused))?;
    (gradient.dtype() == Dtype::BF16 && gradient.dys.len() <= WEIGHTS).then(|| {
        let y = Tensor::on_gpu(gpu, x.shape(), Dtype::BF16)?;
        gradient.launch_group(gpu, 0, At(0), [At(0), y.at(gpu, Dtype::BF16)?])?;
        Ok(y)
    })
}

/// `[dgate, dup]` of `silu(gate) up`, if `dy` is the input gradient of one weight that no kernel has computed yet, and
/// all are in dtype `out`.
pub(in crate::gpu) fn swiglu_gradient(
    gpu: &Gpu,
    [gate, up]: [&Tensor; 2],
    dy: &Tensor,
    out: Dtype,
) -> Option<Result<[Tensor; 2]>> {
    let DeferredInputGradient { dys, ws } =
        dy.deferred().filter(|_| !faults::on(Fault::InputGradientNotFused))?;
    let ([g], [w]) = (&*dys, &*ws) else { return None };
    (gate.dtype() == out && w.dtype() == out).then(|| {
        let [rows, outs, width] = [g.shape()[0], g.width(), w.width()];
        let gradients = [Tensor::on_gpu(gpu, gate.shape(), out)?, Tensor::on_gpu(gpu, gate.shape(), out)?];
        let at = |x: &Tensor| x.at(gpu, out);
        let [dgate, dup] = [at(&gradients[0])?, at(&gradients[1])?];
        let part = Part { dy: at(g)?, w: at(w)?, outs };
        let group = Group { parts: [part, Part::default(), Part::default()], dtype: out };
        let (shape, values) = ([rows, width], [at(gate)?, at(up)?, dgate, dup]);
        // SAFETY: g [rows, outs], w [outs, width]; gate, up and their gradients have the shape of dy, [rows, width].
        unsafe { swiglu_input(gpu, &group, shape, values, group.tile(gpu, shape))? };
        Ok(gradients)
    })
}

/// Up to three products accumulated into one running sum. An absent product has no outputs.
pub(in crate::gpu) struct Group {
    pub(in crate::gpu) parts: [Part; WEIGHTS],
    pub(in crate::gpu) dtype: Dtype,
}

/// `dy [rows, outs]` and `w [outs, width]`.
#[derive(Clone, Copy, Default)]
pub(in crate::gpu) struct Part {
    pub(in crate::gpu) dy: At,
    pub(in crate::gpu) w: At,
    pub(in crate::gpu) outs: usize,
}

impl Group {
    /// The tile of `dx [rows, width]` on a device.
    pub(in crate::gpu) fn tile(&self, gpu: &Gpu, [rows, width]: [usize; 2]) -> Tile {
        Tile::of(rows, width).or_wgmma(gpu, &self.by_tma([rows, width]), self.dtype)
    }

    fn by_tma(&self, shape: [usize; 2]) -> wgmma::Operands {
        wgmma::Operands::of_input_gradient(&self.parts.map(|part| (part.dy, part.w, part.outs)), shape)
    }
}

/// `dx = start + dy w`; a null `start` means zero. `dx` is an f32 and a bf16 output, of which one is null; f32 products
/// have the first only.
///
/// # Safety
/// The addresses hold operands of these shapes and the group's type; `start` is null or the f32 `dx`.
pub(in crate::gpu) unsafe fn input(
    gpu: &Gpu,
    group: &Group,
    shape: [usize; 2],
    start: At,
    [dx, dx_bf16]: [At; 2],
    tile: Tile,
) -> Result<()> {
    let Group { parts: [a, b, c], dtype } = group;
    let (kernel, grid) = INPUT_GRADIENT.launch(gpu, tile, *dtype, shape);
    let operands = match tile {
        Tile::Wgmma => args![group.by_tma(shape).maps(gpu)?].to_vec(),
        _ => args![a.dy, b.dy, c.dy, a.w, b.w, c.w].to_vec(),
    };
    let rounded = if *dtype == Dtype::BF16 { args![dx_bf16].to_vec() } else { Vec::new() };
    let outs = args![a.outs, b.outs, c.outs, start, dx];
    let args = [&operands, outs as &[Arg], &rounded, args![shape[0], shape[1]]].concat();
    // SAFETY: as promised by the caller.
    unsafe { gpu.launch(kernel, grid, &args) }
}

/// The gradients `dgate`, `dup` of `silu(gate) up` whose gradient is `dy w`, the first product of the group.
///
/// # Safety
/// The addresses hold operands of these shapes and the group's type: gate, up, dgate and dup `[rows, width]`.
pub(in crate::gpu) unsafe fn swiglu_input(
    gpu: &Gpu,
    group: &Group,
    shape: [usize; 2],
    [gate, up, dgate, dup]: [At; 4],
    tile: Tile,
) -> Result<()> {
    let Group { parts: [part, ..], dtype } = group;
    let (kernel, grid) = SWIGLU_GRADIENT.launch(gpu, tile, *dtype, shape);
    let operands = match tile {
        Tile::Wgmma => args![group.by_tma(shape).maps(gpu)?].to_vec(),
        _ => args![part.dy, part.w].to_vec(),
    };
    let rest = args![gate, up, dgate, dup, shape[0], part.outs, shape[1]];
    // SAFETY: as promised by the caller.
    unsafe { gpu.launch(kernel, grid, &[&operands, rest as &[Arg]].concat()) }
}
