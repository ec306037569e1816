//! Causal grouped-query attention in chunks of 64 keys.
use super::mode::{Mode, Scalar};
use super::reduce::{dot, sum32};
use crate::faults::{self, Fault};
use crate::operands::{AttnMask, Heads};

/// `1 / sqrt(hd)`, in f64, rounded once.
fn scale<S: Scalar>(heads: Heads) -> S {
    S::of(1.0 / (heads.hd as f64).sqrt())
}

/// The results of the forward that the backward reads.
#[derive(Debug)]
pub(crate) struct AttentionOutput<S> {
    /// `[N, nh, hd]`, unrounded.
    pub(crate) y: Vec<S>,
    /// `L = m + log l`, `[N, nh]`.
    pub(crate) lse: Vec<S>,
}

/// `x + 0`, the end of every reduction. It makes padding with zeros bit-neutral.
fn no_minus_zero<S: Scalar>(x: S) -> S {
    if faults::on(Fault::FinalZeroNotAdded) { x } else { x + S::ZERO }
}

/// `y[n][h] = softmax(q k scale) v` over the keys visible to row `n`.
pub(crate) fn attention<M: Mode>(
    [q, k, v]: [&[M::S]; 3],
    heads: Heads,
    mask: &AttnMask<'_>,
) -> AttentionOutput<M::S> {
    let (mut y, mut lse) = (Vec::with_capacity(q.len()), Vec::new());
    for n in 0..mask.rows() {
        let (seq, keys) = (mask.seq[n], mask.keys(n));
        let slot = |pos: usize| mask.slots.slot(seq, pos);
        for h in 0..heads.nh {
            let q = &q[heads.q(n, h)];
            let (mut m, mut l) = (M::S::NEG_INFINITY, M::S::ZERO);
            let mut o = vec![M::S::ZERO; heads.hd];
            for c in keys.start / 64..keys.end.div_ceil(64) {
                let visible = keys.start.max(c * 64)..keys.end.min(c * 64 + 64);
                let mut s = [M::S::NEG_INFINITY; 64];
                for pos in visible.clone() {
                    let k = &k[heads.kv(slot(pos), h)];
                    s[pos % 64] = dot::<M>(M::S::ZERO, heads.hd, |d| q[d], |d| k[d]) * scale(heads);
                }
                let mc = s.iter().fold(M::S::NEG_INFINITY, |m, &s| m.max(s));
                let mut p = [M::S::ZERO; 64];
                for pos in visible.clone() {
                    p[pos % 64] = (s[pos % 64] - mc).exp();
                }
                let lc = sum32(64, |v, j| v + p[j]);
                let oc: Vec<M::S> = (0..heads.hd)
                    .map(|d| {
                        let value = |j: usize| match visible.contains(&(c * 64 + j)) {
                            true => v[heads.kv(slot(c * 64 + j), h)][d],
                            false => M::S::ZERO,
                        };
                        M::chain(M::S::ZERO, 0..64, |j| M::round(p[j]), value)
                    })
                    .collect();
                if c == keys.start / 64 || m == M::S::NEG_INFINITY && faults::on(Fault::FirstChunkByMaximum) {
                    (m, l, o) = (mc, lc, oc);
                } else {
                    let top = m.max(mc);
                    let (a, b) = ((m - top).exp(), (mc - top).exp());
                    l = l.fma(a, lc * b);
                    for (o, oc) in o.iter_mut().zip(oc) {
                        *o = o.fma(a, oc * b);
                    }
                    m = top;
                }
            }
            y.extend(o.iter().map(|&o| no_minus_zero(o / l)));
            lse.push(m + l.log());
        }
    }
    AttentionOutput { y, lse }
}

/// The operands of the backward: those of the forward, its results, and the upstream gradient. `L` is the type of lse.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionSaved<'a, S, L = S> {
    pub(crate) q: &'a [S],
    pub(crate) k: &'a [S],
    pub(crate) v: &'a [S],
    pub(crate) y: &'a [S],
    pub(crate) lse: &'a [L],
    pub(crate) dy: &'a [S],
}

/// Returns `[dq, dk, dv]` for the upstream gradient `dy`, which is already rounded where it enters a product. `y` is
/// the stored output, `lse` the `L` of the forward.
pub(crate) fn attention_backward<M: Mode>(
    saved: AttentionSaved<'_, M::S>,
    heads: Heads,
    mask: &AttnMask<'_>,
) -> [Vec<M::S>; 3] {
    let AttentionSaved { q, k, v, y, lse, dy } = saved;
    let zero = M::S::ZERO;
    let scale: M::S = scale(heads);
    let hd = heads.hd;
    let delta: Vec<M::S> = y
        .chunks_exact(hd)
        .zip(dy.chunks_exact(hd))
        .map(|(y, dy)| sum32(hd, |v, d| dy[d].fma(y[d], v)))
        .collect();
    // (p, ds) of row n, head h for the key at position pos
    let p_and_ds = |n: usize, h: usize, pos: usize| {
        let kv = heads.kv(mask.slots.slot(mask.seq[n], pos), h);
        let (q, dy, k, v) = (&q[heads.q(n, h)], &dy[heads.q(n, h)], &k[kv.clone()], &v[kv]);
        let s = dot::<M>(zero, hd, |d| q[d], |d| k[d]) * scale;
        let p = (s - lse[n * heads.nh + h]).exp();
        let dp = dot::<M>(zero, hd, |d| dy[d], |d| v[d]);
        (p, p * (dp - delta[n * heads.nh + h]))
    };

    let mut dq = vec![zero; q.len()];
    for n in 0..mask.rows() {
        let keys = mask.keys(n);
        for h in 0..heads.nh {
            let ds: Vec<M::S> = keys.clone().map(|pos| M::round(p_and_ds(n, h, pos).1)).collect();
            for (d, dq) in dq[heads.q(n, h)].iter_mut().enumerate() {
                let key = |pos| k[heads.kv(mask.slots.slot(mask.seq[n], pos), h)][d];
                *dq = no_minus_zero(M::chain(zero, keys.clone(), |pos| ds[pos - keys.start], key) * scale);
            }
        }
    }

    let (mut dk, mut dv) = (vec![zero; k.len()], vec![zero; v.len()]);
    for (seq, rows) in mask.rows_by_sequence() {
        let prefix = mask.pos[rows[0]] as usize;
        for pos in 0..prefix + rows.len() {
            let at = pos.max(prefix)..mask.visible_until(pos, prefix + rows.len()).max(prefix);
            let row = |t: usize| rows[t - prefix];
            for g in 0..heads.nkv {
                let kv = heads.kv(mask.slots.slot(seq, pos), g * (heads.nh / heads.nkv));
                let (mut sum_k, mut sum_v) = (vec![zero; hd], vec![zero; hd]);
                for h in g * heads.nh / heads.nkv..(g + 1) * heads.nh / heads.nkv {
                    let w: Vec<(M::S, M::S)> = at.clone().map(|t| p_and_ds(row(t), h, pos)).collect();
                    let p = |t: usize| M::round(w[t - at.start].0);
                    let ds = |t: usize| M::round(w[t - at.start].1);
                    for d in 0..hd {
                        sum_k[d] = M::chain(sum_k[d], at.clone(), ds, |t| q[heads.q(row(t), h)][d]);
                        sum_v[d] = M::chain(sum_v[d], at.clone(), p, |t| dy[heads.q(row(t), h)][d]);
                    }
                }
                for d in 0..hd {
                    let (dk, dv) = (&mut dk[kv.start + d], &mut dv[kv.start + d]);
                    *dk = *dk + no_minus_zero(sum_k[d] * scale);
                    *dv = *dv + no_minus_zero(sum_v[d]);
                }
            }
        }
    }
    [dq, dk, dv]
}
