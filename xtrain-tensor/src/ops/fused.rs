//! Steps of a forward pass as one kernel on a GPU. Each has the bits of its parts, one after another.
use super::{accumulate, norm_rope, rms_norm, rope, rope_rows, rows, scatter_rows, shapes};
use crate::{Device, Dtype, Error, Result, RopeTable, Tensor, gpu};

/// `h = h + y`, then [`rms_norm`] of `h` in `out`: `h`, `y [N, C]` and `w [C]` f32.
///
/// # Errors
/// Those of [`accumulate`] and [`rms_norm`].
pub fn add_rms_norm(h: &mut Tensor, y: &Tensor, w: &Tensor, eps: f32, out: Dtype) -> Result<Tensor> {
    if h.shape() != y.shape() || w.shape() != [h.width()] || w.is_empty() {
        let want = "h and y [.., C], w [C], C >= 1";
        return Err(Error::Shape { op: "add_rms_norm", want, got: shapes(&[h, y, w]) });
    }
    if let Device::Gpu(gpu) = &h.device().clone() {
        return gpu::add_rms_norm(gpu, (h, y), w, eps, out);
    }
    accumulate(h, y)?;
    rms_norm(h, w, eps, out)
}

/// The queries, keys and values of new rows on their way to an attention, all of one dtype.
#[derive(Debug, Clone, Copy)]
pub struct UnrotatedHeads<'a> {
    /// `[N, nh, hd]`.
    pub q: &'a Tensor,
    /// `[N, nkv, hd]`.
    pub k: &'a Tensor,
    /// `[N, nkv, hd]`.
    pub v: &'a Tensor,
    /// The gains `[hd]` of the norms over query heads and over key heads, and their eps.
    pub norms: Option<([&'a Tensor; 2], f32)>,
    /// Cosines and sines by position.
    pub table: &'a RopeTable,
    /// The position of each row.
    pub pos: &'a [u32],
    /// The slot of each row, no two alike.
    pub slots: &'a [u32],
}

/// Norms and turns queries and keys, and puts keys and values into their slots of the pools
/// `[S, nkv, hd]`. Returns the queries. The bits of [`norm_rope`], or of [`rope_rows`] where there is no norm, and of
/// [`scatter_rows`].
///
/// # Errors
/// Those of the three; [`Error::Argument`] for a head size above 256 on a GPU.
pub fn write_heads(new: &UnrotatedHeads<'_>, [k_pool, v_pool]: [&mut Tensor; 2]) -> Result<Tensor> {
    const OP: &str = "write_heads";
    let UnrotatedHeads { q, k, v, norms, table, pos, slots } = *new;
    rope::check(OP, q, table, pos)?;
    rope::check(OP, k, table, pos)?;
    let pool = k_pool.shape();
    if k.shape() != v.shape() || pool != v_pool.shape() || pool.get(1..) != k.shape().get(1..) {
        let want = "k and v [N, nkv, hd], both pools [S, nkv, hd]";
        return Err(Error::Shape { op: OP, want, got: shapes(&[k, v, k_pool, v_pool]) });
    }
    if let Some(w) = norms.iter().flat_map(|(ws, _)| ws).find(|w| w.shape() != [table.head_dim()]) {
        return Err(Error::Shape { op: OP, want: "gains [hd]", got: shapes(&[w, q]) });
    }
    if slots.len() != pos.len() {
        let got = vec![vec![slots.len()], vec![pos.len()]];
        return Err(Error::Shape { op: OP, want: "a slot for each row", got });
    }
    rows::index(OP, ("slot", pool[0]), slots)?;
    if let Device::Gpu(gpu) = q.device() {
        return gpu::write_heads(gpu, new, [k_pool, v_pool]);
    }
    let turned = |x: &Tensor, which: usize| match norms {
        Some((ws, eps)) => norm_rope(x, (ws[which], eps), (table, pos)),
        None => rope_rows(x, table, pos, x.dtype()),
    };
    scatter_rows(k_pool, &turned(k, 1)?, slots)?;
    scatter_rows(v_pool, v, slots)?;
    turned(q, 0)
}
