//! Cases of operations that move rows: by id, along the sequence, from KV heads to query heads.
use super::{DTYPES, SAMPLES, part_of};
use crate::gates::case::{Case, chunks, pick, split, tensor};
use crate::gates::values::{CaseRng, Values, label};
use crate::ops::{self, WeightPacker};
use crate::{Dtype, Tensor};

pub(crate) fn embedding() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, v, c]) in
        [[1, 1, 1], [5, 37, 33], [33, 7, 5], [3, 300, 64], [65, 2, 3], [300, 37, 70]].into_iter().enumerate()
    {
        for dtype in DTYPES {
            let (seed, values) = (i as u64 + 1001, Values::of(i));
            let (w, id) = (values.fill(v * c, seed), CaseRng::new(seed).ids(n, v));
            let name = format!("{n}x{v}x{c}-{}", label(dtype, values));
            cases.push(Case::rows("embedding", name, seed, n, move |dev, rows| {
                let w = tensor(dev, &[v, c], &w, Dtype::F32)?;
                split(&ops::embedding(&w, &pick(&id, 1, rows), dtype)?, rows.len())
            }));
        }
    }
    cases
}

/// Tables that are packed while they are read, in pieces of any length.
pub(crate) fn weight_rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, v, c]) in
        [[1, 1, 1], [5, 37, 33], [33, 7, 5], [3, 300, 64], [40, 4100, 70], [65, 2, 3]].into_iter().enumerate()
    {
        for (dtype, values) in DTYPES.into_iter().flat_map(|d| [(d, Values::of(i)), (d, Values::Tiny)]) {
            let seed = i as u64 + 1021;
            let (w, id) = (values.fill(v * c, seed), CaseRng::new(seed).ids(n, v));
            let name = format!("{n}x{v}x{c}-{}", label(dtype, values));
            cases.push(Case::rows("weight_rows", name, seed, n, move |dev, rows| {
                let mut packing = WeightPacker::new(dev, &[v, c], dtype)?.table();
                w.chunks(97 + 50_000 * rows.len()).for_each(|piece| packing.push(piece));
                split(&ops::weight_rows(&packing.finish()?, &pick(&id, 1, rows))?, rows.len())
            }));
        }
    }
    cases
}

pub(crate) fn embedding_backward() -> Vec<Case> {
    let mut cases = Vec::new();
    let tables = [[1, 1], [37, 5], [3, 33], [300, 2], [2, 64], [7, 3], [37, 70]];
    for (i, [v, c]) in tables.into_iter().enumerate() {
        for values in [Values::of(i), Values::of(i + 1)] {
            // the last one is large enough for several threads
            let (seed, lengths) = (i as u64 + 1051, SAMPLES[i.min(5)]);
            let n = lengths.iter().sum::<usize>();
            let (dy, id) = (values.fill(n * c, seed), CaseRng::new(seed).ids(n, v));
            let name = format!("{lengths:?}x{v}x{c}-{}", label(Dtype::F32, values)).replace(' ', "");
            cases.push(Case::sums("embedding_backward", name, seed, lengths.len(), move |dev, parts| {
                let mut dw = Tensor::zeros(dev, &[v, c], Dtype::F32)?;
                for part in parts {
                    let (rows, _) = part_of(lengths, part);
                    let dy = &dy[rows.start * c..rows.end * c];
                    let dy = tensor(dev, &[rows.len(), c], dy, Dtype::F32)?;
                    ops::embedding_backward(&mut dw, &id[rows], &dy)?;
                }
                split(&dw, v)
            }));
        }
    }
    cases
}

pub(crate) fn cat_seq() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [t, u, h, hd]) in
        [[1, 1, 1, 1], [5, 3, 2, 6], [0, 7, 1, 3], [33, 1, 4, 8]].into_iter().enumerate()
    {
        let (seed, values) = (i as u64 + 1101, Values::of(i));
        let (a, b) = (values.fill(t * h * hd, seed), values.fill(u * h * hd, seed + 1000));
        let name = format!("{t}+{u}x{h}x{hd}-{}", label(Dtype::F32, values));
        cases.push(Case::rows("cat_seq", name, seed, 1, move |dev, _| {
            let (a, b) =
                (Tensor::new(dev, &[t, h, hd], a.clone())?, Tensor::new(dev, &[u, h, hd], b.clone())?);
            split(&ops::cat_seq(&a, &b)?, 1)
        }));
    }
    cases
}

/// Rows, query heads, KV heads, head size.
const HEADS: [[usize; 4]; 6] =
    [[1, 1, 1, 2], [5, 4, 2, 6], [3, 6, 2, 33], [7, 3, 3, 5], [2, 8, 1, 64], [33, 5, 5, 4]];

pub(crate) fn repeat_kv() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, nh, nkv, hd]) in HEADS.into_iter().enumerate() {
        let (seed, values) = (i as u64 + 1151, Values::of(i));
        let x = values.fill(n * nkv * hd, seed);
        let name = format!("{n}x{nkv}-{nh}x{hd}-{}", label(Dtype::F32, values));
        cases.push(Case::rows("repeat_kv", name, seed, n, move |dev, rows| {
            let x = tensor(dev, &[rows.len(), nkv, hd], &pick(&x, nkv * hd, rows), Dtype::F32)?;
            split(&ops::repeat_kv(&x, nh)?, rows.len())
        }));
    }
    cases
}

pub(crate) fn repeat_kv_backward() -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, [n, nh, nkv, hd]) in HEADS.into_iter().enumerate() {
        let (seed, values) = (i as u64 + 1201, Values::of(i));
        let dy = values.fill(n * nh * hd, seed);
        let name = format!("{n}x{nh}-{nkv}x{hd}-{}", label(Dtype::F32, values));
        cases.push(Case::rows("repeat_kv_backward", name, seed, n, move |dev, rows| {
            let dy = tensor(dev, &[rows.len(), nh, hd], &pick(&dy, nh * hd, rows), Dtype::F32)?;
            let dx = ops::repeat_kv_backward(&dy, nkv)?;
            Ok(chunks(&dx.to_vec::<f32>()?, rows.len()))
        }));
    }
    cases
}
