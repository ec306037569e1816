//! Cases of attention: every head size, runs and pages, windows, several sequences.
use super::DTYPES;
use crate::gates::Rows;
use crate::gates::case::{Case, join, pick, split, tensor};
use crate::gates::scene::{HeadCounts, Layout, Pool, edges, tree};
use crate::gates::values::{Values, label};
use crate::ops::{self, AttnMask, AttnSaved, Slots};
use crate::{Device, Dtype, Result};

/// Heads, lengths of the sequences, window.
type Scene = (HeadCounts, &'static [usize], Option<usize>);

const SCENES: [Scene; 20] = [
    ([2, 1, 2], &[1, 65, 33], None),
    ([4, 2, 4], &[129, 3], Some(7)),
    ([3, 3, 6], &[31, 32, 64], None),
    ([6, 2, 8], &[257], Some(64)),
    ([5, 1, 10], &[63, 128], None),
    ([1, 1, 16], &[255, 7], Some(65)),
    ([4, 4, 24], &[66], None),
    ([2, 2, 32], &[127, 5], Some(1)),
    ([4, 2, 64], &[130], None),
    ([3, 1, 80], &[65, 2], Some(31)),
    ([2, 1, 96], &[64, 33], None),
    ([4, 1, 128], &[97], Some(128)),
    ([2, 2, 256], &[65], None),
    ([2, 1, 16], &[513], None),
    ([8, 4, 8], &[511, 1], None),
    ([1, 1, 64], &[512], Some(257)),
    ([2, 1, 4], &[513, 200], Some(200)),
    ([7, 1, 2], &[256], None),
    ([1, 1, 12], &[1, 1, 2, 3, 5], None),
    ([12, 3, 14], &[77, 78], Some(33)),
];

/// The operands of an attention over a pool.
struct Operands {
    heads: HeadCounts,
    dtype: Dtype,
    window: Option<usize>,
    pool: Pool,
    /// Sequence and position of each row.
    at: Vec<(u32, u32)>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Operands {
    /// The output of `op` for these rows; that of `attention` is followed by its log-sum-exp.
    fn run(&self, dev: &Device, rows: &[usize], op: &str) -> Result<Rows> {
        let [nh, nkv, hd] = self.heads;
        let (seq, pos): (Vec<u32>, Vec<u32>) = rows.iter().map(|&r| self.at[r]).unzip();
        let mask = AttnMask { seq: &seq, pos: &pos, slots: &self.pool.slots, window: self.window };
        let q = tensor(dev, &[rows.len(), nh, hd], &pick(&self.q, nh * hd, rows), self.dtype)?;
        let kv = |x: &[f32]| tensor(dev, &[self.pool.n_slots, nkv, hd], x, self.dtype);
        let (k, v) = (kv(&self.k)?, kv(&self.v)?);
        match op {
            "attention" => {
                let (y, lse) = ops::attention(&q, &k, &v, &mask)?;
                Ok(join(split(&y, rows.len())?, split(&lse, rows.len())?))
            }
            "int8_attention" => {
                let (k, v) = (ops::quantize_heads(&k)?, ops::quantize_heads(&v)?);
                split(&ops::int8_attention(&q, &k, &v, &mask)?, rows.len())
            }
            _ => split(&ops::decode_attention(&q, &k, &v, &mask)?, rows.len()),
        }
    }
}

/// The kind of values of queries and keys. Half of the cases use plain values, because ugly scores often give one key
/// all the weight.
pub(super) fn score_values(values: Values, i: usize) -> Values {
    if i.is_multiple_of(2) { Values::Plain } else { values }
}

/// Cases of the rows that `rows` selects in each sequence of the scenes. `suffix`: of the names of the cases.
fn over_pools(
    op: &'static str,
    suffix: &str,
    first_seed: u64,
    scenes: impl IntoIterator<Item = Scene>,
    rows: fn(usize) -> Vec<usize>,
) -> Vec<Case> {
    let mut cases = Vec::new();
    for (i, (heads, lengths, window)) in scenes.into_iter().enumerate() {
        let layout = Layout::ALL[i % Layout::ALL.len()];
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let ([nh, nkv, hd], values) = (heads, Values::of(i / 2 + d));
            let seed = (i * 2 + d) as u64 + first_seed;
            let window_name = window.map_or(String::new(), |w| format!("-w{w}"));
            let name = format!(
                "{nh}.{nkv}.{hd}-{lengths:?}{window_name}-{layout:?}-{}{suffix}",
                label(dtype, values)
            );
            let at: Vec<(u32, u32)> = (0u32..)
                .zip(lengths)
                .flat_map(|(s, &len)| rows(len).into_iter().map(move |p| (s, p as u32)))
                .collect();
            let pool = Pool::new(layout, lengths, seed);
            let kv = |values: Values, seed| {
                let n: usize = lengths.iter().sum();
                pool.place(lengths, nkv * hd, &values.fill(n * nkv * hd, seed))
            };
            let score = score_values(values, i);
            let (k, v) = (kv(score, seed + 1000), kv(values, seed + 2000));
            let q = score.fill(at.len() * nh * hd, seed);
            let n = at.len();
            let operands = Operands { heads, dtype, window, pool, at, q, k, v };
            cases.push(Case::rows(op, name.replace(' ', ""), seed, n, move |dev, rows| {
                operands.run(dev, rows, op)
            }));
        }
    }
    cases
}

pub(crate) fn attention() -> Vec<Case> {
    let edges = over_pools("attention", "", 77, SCENES, edges);
    // rows at consecutive positions, which a GPU computes in tiles, for the head sizes that it supports
    let runs = SCENES.into_iter().filter(|([.., hd], ..)| hd.is_multiple_of(8));
    let runs = over_pools("attention", "-run", 10_077, runs, |len| (len.saturating_sub(34)..len).collect());
    edges.into_iter().chain(runs).collect()
}

pub(crate) fn decode_attention() -> Vec<Case> {
    over_pools("decode_attention", "", 77, SCENES, |len| vec![len - 1])
}

pub(crate) fn int8_attention() -> Vec<Case> {
    over_pools("int8_attention", "", 20_077, SCENES, edges)
}

pub(crate) fn attention_backward() -> Vec<Case> {
    whole_sequences().into_iter().chain(shared_prefixes()).collect()
}

/// A row of these cases is a complete sequence: its dq, dk and dv.
fn whole_sequences() -> Vec<Case> {
    const SCENES: [(HeadCounts, &[usize], Option<usize>); 17] = [
        ([2, 1, 2], &[1, 33, 5], None),
        ([4, 2, 4], &[31, 3, 64], Some(7)),
        ([3, 3, 6], &[65], None),
        ([6, 2, 8], &[32, 63], Some(32)),
        ([5, 1, 10], &[66, 1], None),
        ([1, 1, 16], &[97], Some(65)),
        ([4, 4, 24], &[33], None),
        ([2, 2, 32], &[40, 5], Some(1)),
        ([4, 2, 64], &[34], None),
        ([3, 1, 80], &[17, 2], Some(5)),
        ([2, 1, 96], &[35], None),
        ([2, 1, 128], &[7, 31], Some(128)),
        ([1, 1, 256], &[33], None),
        ([1, 1, 4], &[257], Some(130)),
        ([2, 1, 136], &[35, 3], Some(9)),
        // several chunks of keys in the kernels by wgmma
        ([3, 1, 64], &[131, 3], Some(70)),
        ([2, 1, 128], &[130], None),
    ];
    let mut cases = Vec::new();
    for (i, (heads, lengths, window)) in SCENES.into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let ([nh, nkv, hd], values) = (heads, Values::of(i / 2 + d));
            let (seed, n) = ((i * 2 + d) as u64 + 177, lengths.iter().sum::<usize>());
            let window_name = window.map_or(String::new(), |w| format!("-w{w}"));
            let name = format!("{nh}.{nkv}.{hd}-{lengths:?}{window_name}-{}", label(dtype, values));
            let score = score_values(values, i);
            let (q, dy) = (score.fill(n * nh * hd, seed), values.fill(n * nh * hd, seed + 3000));
            let (k, v) = (score.fill(n * nkv * hd, seed + 1000), values.fill(n * nkv * hd, seed + 2000));
            let start = move |s: usize| lengths[..s].iter().sum::<usize>();
            let name = name.replace(' ', "");
            cases.push(Case::rows("attention_backward", name, seed, lengths.len(), move |dev, seqs| {
                let rows: Vec<usize> = seqs.iter().flat_map(|&s| start(s)..start(s) + lengths[s]).collect();
                let numbered = |(i, &s): (usize, &usize)| (0..lengths[s] as u32).map(move |p| (i as u32, p));
                let (seq, pos): (Vec<u32>, Vec<u32>) = seqs.iter().enumerate().flat_map(numbered).unzip();
                let base = seqs.iter().scan(0, |at, &s| {
                    *at += lengths[s];
                    Some(*at - lengths[s])
                });
                let slots = Slots::Runs { base: base.collect() };
                let mask = AttnMask { seq: &seq, pos: &pos, slots: &slots, window };
                let of = |x: &[f32], heads: usize, dtype| {
                    tensor(dev, &[rows.len(), heads, hd], &pick(x, heads * hd, &rows), dtype)
                };
                let (q, k, v) = (of(&q, nh, dtype)?, of(&k, nkv, dtype)?, of(&v, nkv, dtype)?);
                let (y, lse) = ops::attention(&q, &k, &v, &mask)?;
                let saved = AttnSaved { q: &q, k: &k, v: &v, y: &y, lse: &lse };
                let [dq, dk, dv] = ops::attention_backward(&saved, &of(&dy, nh, Dtype::F32)?, &mask)?;
                let (mut at, mut out) = (0, Vec::new());
                for &s in seqs {
                    let mut row = Vec::new();
                    for (x, width) in [(&dq, nh * hd), (&dk, nkv * hd), (&dv, nkv * hd)] {
                        row.extend_from_slice(&x.to_vec()?[at * width..(at + lengths[s]) * width]);
                    }
                    at += lengths[s];
                    out.push(row);
                }
                Ok(out)
            }));
        }
    }
    cases
}

/// The gradients of a sequence and of those that continue it.
fn shared_prefixes() -> Vec<Case> {
    /// Heads, rows of the prefix, rows of each sequence that continues it, window.
    const SCENES: [(HeadCounts, usize, &[usize], Option<usize>); 8] = [
        ([2, 1, 4], 1, &[1, 1, 1], None),
        ([4, 2, 8], 5, &[3, 1, 7], None),
        ([2, 2, 16], 64, &[1, 33], None),
        ([3, 1, 24], 63, &[2, 5], Some(9)),
        ([4, 1, 32], 65, &[64, 3], None),
        ([2, 1, 64], 33, &[31, 32, 1], Some(65)),
        ([1, 1, 80], 17, &[50], None),
        ([2, 2, 128], 3, &[66, 2], Some(1)),
    ];
    let mut cases = Vec::new();
    for (i, (heads, prefix, branches, window)) in SCENES.into_iter().enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let ([nh, nkv, hd], values) = (heads, Values::of(i / 2 + d));
            let seed = (i * 2 + d) as u64 + 277;
            let n = prefix + branches.iter().sum::<usize>();
            let window_name = window.map_or(String::new(), |w| format!("-w{w}"));
            let name = format!("{nh}.{nkv}.{hd}-{prefix}+{branches:?}{window_name}-{}", label(dtype, values));
            let score = score_values(values, i);
            let (q, dy) = (score.fill(n * nh * hd, seed), values.fill(n * nh * hd, seed + 3000));
            let (k, v) = (score.fill(n * nkv * hd, seed + 1000), values.fill(n * nkv * hd, seed + 2000));
            let name = name.replace(' ', "");
            cases.push(Case::rows("attention_backward", name, seed, 1, move |dev, _| {
                let (seq, pos, slots) = tree(prefix, branches);
                let mask = AttnMask { seq: &seq, pos: &pos, slots: &slots, window };
                let of = |x: &[f32], heads: usize, dtype| tensor(dev, &[n, heads, hd], x, dtype);
                let (q, k, v) = (of(&q, nh, dtype)?, of(&k, nkv, dtype)?, of(&v, nkv, dtype)?);
                let (y, lse) = ops::attention(&q, &k, &v, &mask)?;
                let saved = AttnSaved { q: &q, k: &k, v: &v, y: &y, lse: &lse };
                let gradients = ops::attention_backward(&saved, &of(&dy, nh, Dtype::F32)?, &mask)?;
                let mut all = Vec::new();
                for x in &gradients {
                    all.extend(x.to_vec::<f32>()?);
                }
                Ok(vec![all])
            }));
        }
    }
    cases
}
