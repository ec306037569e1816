//! Steps of a forward pass that a GPU runs as one kernel. Each is bit-identical to its parts.
use super::checks::{check_index, misfit, refuse};
use super::rope::check as check_rope;
use crate::dispatch::backend;
use crate::error::{Error, Result};
use crate::operands::UnrotatedHeads;
use crate::tensor::Tensor;

/// Normalizes and rotates queries and keys, and writes keys and values to their slots in the pools `[S, nkv, hd]`.
/// Returns the queries. Bit-identical to [`norm_rope`](super::norm_rope) (without QK-norm:
/// [`rope_rows`](super::rope_rows)) and [`scatter_rows`](super::scatter_rows).
///
/// # Errors
/// Those of these operations; [`Error::Argument`] for a head size above 256 on a GPU.
pub fn write_heads(new: &UnrotatedHeads<'_>, k_pool: &mut Tensor, v_pool: &mut Tensor) -> Result<Tensor> {
    const OP: &str = "write_heads";
    let UnrotatedHeads { q, k, v, norms, rope, slots } = *new;
    check_rope(OP, q, rope)?;
    check_rope(OP, k, rope)?;
    let pool = k_pool.shape();
    refuse(
        k.shape() != v.shape() || pool != v_pool.shape() || pool.get(1..) != k.shape().get(1..),
        OP,
        "k and v [N, nkv, hd], both pools [S, nkv, hd]",
        &[k, v, k_pool, v_pool],
    )?;
    let mut gains = norms.into_iter().flat_map(|n| [n.q_gain, n.k_gain]);
    if let Some(gain) = gains.find(|gain| gain.shape() != [rope.table.head_dim()]) {
        return Err(misfit(OP, "gains [hd]", &[gain, q]));
    }
    if slots.len() != rope.positions.len() {
        let got = vec![vec![slots.len()], vec![rope.positions.len()]];
        return Err(Error::Shape { op: OP, want: "a slot for each row", got });
    }
    check_index(OP, "slot", pool[0], slots)?;
    if let Some(x) = [v, k_pool, v_pool].into_iter().find(|x| x.dtype() != k.dtype()) {
        return Err(Error::Dtype { op: OP, want: "one dtype", got: x.dtype() });
    }
    backend(q.device()).write_heads(new, [k_pool, v_pool])
}
