//! Rotary position embedding by a table on the device.
use super::{Arg, Gpu, Grid, args};
use crate::{Dtype, Result, RopeTable, Tensor};

/// Where a row's position comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RopeArgs<'a> {
    /// A position for each row.
    Rows(&'a [u32]),
    /// The gradient of `Rows`.
    Back(&'a [u32]),
    /// `rope_pos`: a position for each row.
    Pos(&'a [u32]),
    /// `rope_at`: rows at this position and those after it.
    At(u32),
}

/// `x [N, H, hd]` turned, in `out`; shapes and positions have been checked against the table.
pub(crate) fn rope(
    gpu: &Gpu,
    x: &Tensor,
    table: &RopeTable,
    turn: RopeArgs<'_>,
    out: Dtype,
) -> Result<Tensor> {
    let &[n, heads, hd] = x.shape() else { unreachable!("rope checks its shapes") };
    let kernel = match (turn, x.dtype(), out) {
        (RopeArgs::Rows(_), Dtype::BF16, Dtype::BF16) => "rope_rows_bf16",
        (RopeArgs::Rows(_), Dtype::BF16, _) => "rope_rows_bf16_f32",
        (RopeArgs::Rows(_), _, Dtype::BF16) => "rope_rows_f32_bf16",
        (RopeArgs::Rows(_), _, _) => "rope_rows_f32",
        (RopeArgs::Back(_), _, _) => "rope_backward_f32",
        (RopeArgs::Pos(_), Dtype::BF16, _) => "rope_pos_bf16",
        (RopeArgs::Pos(_), _, _) => "rope_pos_f32",
        (RopeArgs::At(_), Dtype::BF16, _) => "rope_at_bf16",
        (RopeArgs::At(_), _, _) => "rope_at_f32",
    };
    let y = Tensor::on_gpu(gpu, x.shape(), out)?;
    let (table, place) = match turn {
        RopeArgs::Rows(pos) | RopeArgs::Back(pos) | RopeArgs::Pos(pos) => {
            (table.device_addresses(gpu, pos.iter().map(|&p| p as usize))?, Arg::from(gpu.indices(pos)?))
        }
        RopeArgs::At(first) => {
            (table.device_addresses(gpu, first as usize..first as usize + n)?, Arg::from(first))
        }
    };
    let (x_at, y_at) = (x.at(gpu, x.dtype())?, y.at(gpu, out)?);
    let args = args![x_at, table, place, y_at, n as u32, heads as u32, hd as u32];
    let per_thread = if hd % 8 == 0 { 4 } else { 1 };
    // SAFETY: x and y [n, heads, hd], a table that has the rows of the n positions.
    unsafe { gpu.launch(kernel, Grid::over(n * heads * (hd / 2) / per_thread, 256), args)? };
    Ok(y)
}
