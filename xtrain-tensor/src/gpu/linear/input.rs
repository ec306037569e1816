//! Input gradients. They are deferred (`device/gpu/buffer.rs`), so that the operation that reads one can run in its
//! epilogue: a cast to bf16, or the gradient of SwiGLU.
use super::{Tile, TileKernels, tile_kernels};
use crate::device::gpu::{Arg, At, Deferred, Gpu, args};
use crate::faults::{self, Fault};
use crate::operands::Weight;
use crate::{Dtype, Result, Tensor};

/// Maximum number of weights per launch.
const WEIGHTS: usize = 3;

const INPUT_GRADIENT: TileKernels = tile_kernels!("linear_dx", [false, true]);
const SWIGLU_GRADIENT: TileKernels = tile_kernels!("linear_dx_swiglu", [false, true]);

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
        unsafe { input(gpu, &group, shape, start, dx, Tile::of(shape[0], shape[1])) }
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
        let args = args![at(g)?, at(w)?, at(gate)?, at(up)?, dgate, dup, rows, outs, width];
        let (kernel, grid) = Tile::of(rows, width).launch(&SWIGLU_GRADIENT, out, [rows, width]);
        // SAFETY: g [rows, outs], w [outs, width]; gate, up and their gradients have the shape of dy, [rows, width].
        unsafe { gpu.launch(kernel, grid, args)? };
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

/// `dx = start + dy w`; a null `start` means zero. `dx` is an f32 and a bf16 output, of which one is null; f32 products
/// have the first only.
///
/// # Safety
/// The addresses hold operands of these shapes and the group's type; `start` is null or the f32 `dx`.
pub(in crate::gpu) unsafe fn input(
    gpu: &Gpu,
    Group { parts: [a, b, c], dtype }: &Group,
    [rows, width]: [usize; 2],
    start: At,
    [dx, dx_bf16]: [At; 2],
    tile: Tile,
) -> Result<()> {
    let (kernel, grid) = tile.launch(&INPUT_GRADIENT, *dtype, [rows, width]);
    let operands = args![a.dy, b.dy, c.dy, a.w, b.w, c.w, a.outs, b.outs, c.outs, start, dx];
    let rounded = if *dtype == Dtype::BF16 { args![dx_bf16].to_vec() } else { Vec::new() };
    let args = [operands as &[Arg], &rounded, args![rows, width]].concat();
    // SAFETY: as promised by the caller.
    unsafe { gpu.launch(kernel, grid, &args) }
}
