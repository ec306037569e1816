//! Cases of fused operations, each one kernel on a GPU.
use super::DTYPES;
use crate::gates::case::{Case, join, split, tensor};
use crate::gates::values::{CaseRng, Values, label};
use crate::ops::{self, QkNorm, RopeArgs, UnrotatedHeads};
use crate::{Dtype, RopeTable, Tensor};

pub(crate) fn write_heads() -> Vec<Case> {
    // rows, query heads, KV heads, head size
    const SHAPES: [[usize; 4]; 6] =
        [[1, 1, 1, 8], [5, 4, 2, 64], [3, 6, 2, 128], [7, 3, 3, 40], [2, 8, 1, 256], [33, 2, 1, 16]];
    let mut cases = Vec::new();
    for (i, [n, nh, nkv, hd]) in SHAPES.into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let (seed, values, normed) = ((i * 2 + d) as u64 + 1651, Values::of(i + d), i % 3 != 2);
            let mut rng = CaseRng::new(seed);
            let slots = n + 5;
            let pos = rng.ids(n, 700);
            let targets: Vec<u32> = rng.shuffled(slots).into_iter().take(n).map(|s| s as u32).collect();
            let q = values.fill(n * nh * hd, seed);
            let [k, v] = [1000, 2000].map(|at| values.fill(n * nkv * hd, seed + at));
            let gains = [3000, 4000].map(|at| Values::Plain.fill(hd, seed + at));
            let name = format!("{n}x{nh}.{nkv}.{hd}-{normed}-{}", label(dtype, values));
            cases.push(Case::rows("write_heads", name, seed, 1, move |device, _| {
                let of = |x: &[f32], heads: usize| tensor(device, &[n, heads, hd], x, dtype);
                let [w, u] = [0, 1].map(|g| tensor(device, &[hd], &gains[g], Dtype::F32));
                let (w, u, table) = (w?, u?, RopeTable::new(1e4, hd, 700)?);
                let new = UnrotatedHeads {
                    q: &of(&q, nh)?,
                    k: &of(&k, nkv)?,
                    v: &of(&v, nkv)?,
                    norms: normed.then_some(QkNorm { q_gain: &w, k_gain: &u, eps: 1e-6 }),
                    rope: RopeArgs { table: &table, positions: &pos },
                    slots: &targets,
                };
                let pool = || Tensor::zeros(device, &[slots, nkv, hd], dtype);
                let (mut k_pool, mut v_pool) = (pool()?, pool()?);
                let rotated = ops::write_heads(&new, &mut k_pool, &mut v_pool)?;
                Ok(join(join(split(&rotated, 1)?, split(&k_pool, 1)?), split(&v_pool, 1)?))
            }));
        }
    }
    cases
}
