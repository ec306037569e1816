//! Matrix products.
use super::mode::{Mode, Scalar};
use super::reduce::dot;
use crate::ops::Samples;

/// `y[n][o] = dot(x[n], w[o])`.
pub(crate) fn linear<M: Mode>(x: &[M::S], w: &[M::S], width: usize) -> Vec<M::S> {
    let row = |x: &[M::S]| -> Vec<M::S> {
        w.chunks_exact(width).map(|w| dot::<M>(M::S::ZERO, width, |k| x[k], |k| w[k])).collect()
    };
    x.chunks_exact(width).flat_map(row).collect()
}

/// `dx[n][k] += dot over o of dy[n][o] w[o][k]`. Called once for each weight of a group, in order.
pub(crate) fn linear_dx<M: Mode>(dx: &mut [M::S], dy: &[M::S], w: &[M::S], width: usize) {
    let out = w.len() / width;
    for (dx, dy) in dx.chunks_exact_mut(width).zip(dy.chunks_exact(out)) {
        for (k, dx) in dx.iter_mut().enumerate() {
            *dx = dot::<M>(*dx, out, |o| dy[o], |o| w[o * width + k]);
        }
    }
}

/// `dw[o][k] += rowsum dy[o] x[k]`: for each sample, chunks of rows counted from the sample's first row.
pub(crate) fn linear_dw<M: Mode>(dw: &mut [M::S], dy: &[M::S], x: &[M::S], width: usize, samples: &Samples) {
    let out = dw.len() / width;
    for rows in samples.ranges() {
        for o in 0..out {
            for k in 0..width {
                let dw = &mut dw[o * width + k];
                *dw = dot::<M>(
                    *dw,
                    rows.len(),
                    |r| dy[(rows.start + r) * out + o],
                    |r| x[(rows.start + r) * width + k],
                );
            }
        }
    }
}

/// `db[o] += rowsum fma(dy[o], 1, .)`. `M` must be a mode with the f32 rule.
pub(crate) fn linear_db<M: Mode>(db: &mut [M::S], dy: &[M::S], samples: &Samples) {
    let out = db.len();
    for rows in samples.ranges() {
        for (o, db) in db.iter_mut().enumerate() {
            *db = dot::<M>(*db, rows.len(), |r| dy[(rows.start + r) * out + o], |_| M::S::ONE);
        }
    }
}
