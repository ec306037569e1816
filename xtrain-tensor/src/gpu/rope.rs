//! Rotary position embedding with a table in device memory.
use super::{Arg, Gpu, Grid, args};
use crate::{Dtype, Result, RopeTable, Tensor};

/// Kernel variant and the positions of the rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RopeKernel<'a> {
    /// `rope_rows`: one position per row.
    Rows(&'a [u32]),
    /// `rope_backward`: the inverse rotation, one position per row.
    Back(&'a [u32]),
    /// `rope_pos`: one position per row.
    Pos(&'a [u32]),
    /// `rope_at`: consecutive rows from this position on.
    At(u32),
}

/// Rotates `x [N, H, hd]`; the result has dtype `out`. Shapes and positions have been checked against the table.
pub(crate) fn rope(
    gpu: &Gpu,
    x: &Tensor,
    table: &RopeTable,
    variant: RopeKernel<'_>,
    out: Dtype,
) -> Result<Tensor> {
    let &[n, heads, hd] = x.shape() else { unreachable!("rope checks its shapes") };
    let kernel = match (variant, x.dtype(), out) {
        (RopeKernel::Rows(_), Dtype::BF16, Dtype::BF16) => "rope_rows_bf16",
        (RopeKernel::Rows(_), Dtype::BF16, _) => "rope_rows_bf16_f32",
        (RopeKernel::Rows(_), _, Dtype::BF16) => "rope_rows_f32_bf16",
        (RopeKernel::Rows(_), _, _) => "rope_rows_f32",
        (RopeKernel::Back(_), _, _) => "rope_backward_f32",
        (RopeKernel::Pos(_), Dtype::BF16, _) => "rope_pos_bf16",
        (RopeKernel::Pos(_), _, _) => "rope_pos_f32",
        (RopeKernel::At(_), Dtype::BF16, _) => "rope_at_bf16",
        (RopeKernel::At(_), _, _) => "rope_at_f32",
    };
    let y = Tensor::on_gpu(gpu, x.shape(), out)?;
    let (table, position) = match variant {
        RopeKernel::Rows(pos) | RopeKernel::Back(pos) | RopeKernel::Pos(pos) => {
            (table.device_addresses(gpu, pos.iter().map(|&p| p as usize))?, Arg::from(gpu.indices(pos)?))
        }
        RopeKernel::At(first) => {
            (table.device_addresses(gpu, first as usize..first as usize + n)?, Arg::from(first))
        }
    };
    let (x_at, y_at) = (x.at(gpu, x.dtype())?, y.at(gpu, out)?);
    let args = args![x_at, table, position, y_at, n as u32, heads as u32, hd as u32];
    let per_thread = if hd % 8 == 0 { 4 } else { 1 };
    // SAFETY: x and y are [n, heads, hd]; the table covers the n positions.
    unsafe { gpu.launch(kernel, Grid::over(n * heads * (hd / 2) / per_thread, 256), args)? };
    Ok(y)
}
