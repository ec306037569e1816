//! Rotary position embedding with a table in device memory.
use super::{Arg, Gpu, Grid, args};
use crate::operands::RopeArgs;
use crate::{Dtype, Result, Tensor};

/// Kernel variant. All but `At` read one position per row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RopeKernel {
    Rows,
    /// The inverse rotation.
    Back,
    Pos,
    /// Consecutive rows from this position on.
    At(u32),
}

/// Rotates `x [N, H, hd]`; the result has dtype `out`. Shapes and positions have been checked against the table.
pub(crate) fn rope(
    gpu: &Gpu,
    x: &Tensor,
    rope: RopeArgs<'_>,
    kernel: RopeKernel,
    out: Dtype,
) -> Result<Tensor> {
    let &[n, heads, hd] = x.shape() else { unreachable!("rope checks its shapes") };
    let name = match (kernel, x.dtype(), out) {
        (RopeKernel::Rows, Dtype::BF16, Dtype::BF16) => "rope_rows_bf16",
        (RopeKernel::Rows, Dtype::BF16, _) => "rope_rows_bf16_f32",
        (RopeKernel::Rows, _, Dtype::BF16) => "rope_rows_f32_bf16",
        (RopeKernel::Rows, _, _) => "rope_rows_f32",
        (RopeKernel::Back, _, _) => "rope_backward_f32",
        (RopeKernel::Pos, Dtype::BF16, _) => "rope_pos_bf16",
        (RopeKernel::Pos, _, _) => "rope_pos_f32",
        (RopeKernel::At(_), Dtype::BF16, _) => "rope_at_bf16",
        (RopeKernel::At(_), _, _) => "rope_at_f32",
    };
    let y = Tensor::on_gpu(gpu, x.shape(), out)?;
    let table = rope.table.device_addresses(gpu, rope.positions.iter().map(|&p| p as usize))?;
    let position = match kernel {
        RopeKernel::At(first) => Arg::from(first),
        _ => gpu.indices(rope.positions)?.into(),
    };
    let args = args![x.at(gpu, x.dtype())?, table, position, y.at(gpu, out)?, n, heads, hd];
    let per_thread = if hd % 8 == 0 { 4 } else { 1 };
    // SAFETY: x and y are [n, heads, hd]; the table covers the n positions.
    unsafe { gpu.launch(name, Grid::over(n * heads * (hd / 2) / per_thread, 256), args)? };
    Ok(y)
}
