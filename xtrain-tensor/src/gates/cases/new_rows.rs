//! Cases of rows that enter the pools of keys and values and attend, one kernel on a GPU.
use super::DTYPES;
use super::attention::score_values;
use crate::gates::Rows;
use crate::gates::case::{Case, join, split, tensor};
use crate::gates::scene::{HeadCounts, Layout, Pool};
use crate::gates::values::{Values, label};
use crate::ops::{self, AttnMask, QkNorm, RopeArgs, Slots, UnrotatedHeads};
use crate::{Device, Dtype, Result, RopeTable};

/// New rows whose queries, keys and values enter the pools and attend: each row, the outputs, and both pools.
struct NewRows {
    heads: HeadCounts,
    dtype: Dtype,
    window: Option<usize>,
    pool: Pool,
    at: Vec<(u32, u32)>,
    /// Queries, keys and values before QK-norm and RoPE.
    new: [Vec<f32>; 3],
    /// Gains of queries and keys. `None`: no norm.
    gains: Option<[Vec<f32>; 2]>,
    /// Keys and values of all positions. Those of the new rows are to be overwritten.
    pools: [Vec<f32>; 2],
}

/// Slots that no position has are NaN in a scene; in a result, any NaN would equal any other.
fn without_poison(pool: Rows) -> Rows {
    let value = |x: f32| if x.is_nan() { 0.0 } else { x };
    pool.into_iter().map(|row| row.into_iter().map(value).collect()).collect()
}

impl NewRows {
    fn run(&self, dev: &Device) -> Result<Rows> {
        let [nh, nkv, hd] = self.heads;
        let (seq, pos): (Vec<u32>, Vec<u32>) = self.at.iter().copied().unzip();
        let slots: Vec<u32> =
            self.at.iter().map(|&(s, p)| self.pool.slots.slot(s, p as usize) as u32).collect();
        let of = |x: &[f32], rows: usize, heads: usize| tensor(dev, &[rows, heads, hd], x, self.dtype);
        let [q, k, v] = [(0, nh), (1, nkv), (2, nkv)].map(|(i, heads)| of(&self.new[i], seq.len(), heads));
        let [k_pool, v_pool] = self.pools.each_ref().map(|x| of(x, self.pool.n_slots, nkv));
        let (mut k_pool, mut v_pool, table) = (k_pool?, v_pool?, RopeTable::new(1e4, hd, 700)?);
        let gain = |i: usize| {
            let gain = self.gains.as_ref().map(|gains| tensor(dev, &[hd], &gains[i], Dtype::F32));
            gain.transpose()
        };
        let (q_gain, k_gain) = (gain(0)?, gain(1)?);
        let norms = q_gain.as_ref().zip(k_gain.as_ref());
        let new = UnrotatedHeads {
            q: &q?,
            k: &k?,
            v: &v?,
            norms: norms.map(|(q_gain, k_gain)| QkNorm { q_gain, k_gain, eps: 1e-6 }),
            rope: RopeArgs { table: &table, positions: &pos },
            slots: &slots,
        };
        let rotated = ops::write_heads(&new, &mut k_pool, &mut v_pool)?;
        let mask = AttnMask { seq: &seq, pos: &pos, slots: &self.pool.slots, window: self.window };
        let (y, lse) = ops::attention(&rotated, &k_pool, &v_pool, &mask)?;
        let pools = join(without_poison(split(&k_pool, 1)?), without_poison(split(&v_pool, 1)?));
        Ok(join(join(split(&y, 1)?, split(&lse, 1)?), pools))
    }
}

pub(crate) fn append_attention() -> Vec<Case> {
    /// Heads, lengths of the sequences, window, pages of 16 that all sequences share, new rows of each sequence, in
    /// descending order.
    type Scene = (HeadCounts, &'static [usize], Option<usize>, usize, usize);
    const SCENES: [Scene; 18] = [
        ([1, 1, 8], &[1], None, 0, 1),
        ([4, 2, 64], &[130, 1, 64], None, 0, 1),
        ([3, 3, 24], &[65, 128, 129], Some(64), 0, 1),
        ([6, 2, 16], &[257, 3], Some(7), 0, 1),
        ([8, 4, 128], &[97], None, 0, 1),
        ([20, 1, 32], &[70, 66], None, 0, 1),
        ([2, 1, 256], &[65], None, 0, 1),
        ([5, 1, 40], &[63, 192, 2], Some(65), 0, 1),
        ([2, 2, 72], &[511], None, 0, 1),
        // a prompt of two chunks: blocks take queries of several rows
        ([6, 1, 16], &[140, 129, 193, 150, 131, 133, 199], None, 8, 1),
        // the new position of a sequence is in a page that another one sees
        ([2, 1, 16], &[70, 64, 100], None, 4, 1),
        // rows that see each other's new keys
        ([2, 1, 8], &[66, 3], None, 0, 2),
        ([4, 2, 16], &[130], Some(100), 0, 4),
        ([2, 2, 32], &[1, 64], None, 0, 1),
        // heads whose rotation is loaded early: without QK-norm, and rows of a shared chunk at other positions
        ([3, 1, 64], &[70], None, 0, 1),
        ([3, 1, 64], &[140, 129, 193], None, 8, 1),
        ([2, 1, 128], &[140, 129, 150], None, 8, 1),
        ([2, 1, 128], &[70], None, 0, 1),
    ];
    let mut cases = Vec::new();
    for (i, (heads, lengths, window, shared, per_sequence)) in SCENES.into_iter().enumerate() {
        let layout = if shared > 0 { Layout::Pages(16) } else { Layout::ALL[i % Layout::ALL.len()] };
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            let ([nh, nkv, hd], values) = (heads, Values::of(i / 2 + d));
            let seed = (i * 2 + d) as u64 + 1851;
            let name = format!(
                "{nh}.{nkv}.{hd}-{lengths:?}-{window:?}-{shared}-{per_sequence}-{layout:?}-{}",
                label(dtype, values)
            );
            let last = |len: usize| (0..per_sequence.min(len)).map(move |back| (len - 1 - back) as u32);
            let at: Vec<(u32, u32)> =
                (0u32..).zip(lengths).flat_map(|(s, &len)| last(len).map(move |p| (s, p))).collect();
            let mut pool = Pool::new(layout, lengths, seed);
            let score = score_values(values, i);
            let total: usize = lengths.iter().sum();
            let pools = [(score, 1000), (values, 2000)].map(|(values, own)| {
                pool.place(lengths, nkv * hd, &values.fill(total * nkv * hd, seed + own))
            });
            if let Slots::Pages { table, .. } = &mut pool.slots {
                let prompt = table[0][..shared].to_vec();
                table.iter_mut().for_each(|pages| pages[..shared].copy_from_slice(&prompt));
            }
            let new = [(score, nh, 3000), (score, nkv, 4000), (values, nkv, 5000)]
                .map(|(values, heads, own)| values.fill(at.len() * heads * hd, seed + own));
            let gains = (i % 3 != 2).then(|| [6000, 7000].map(|own| Values::Plain.fill(hd, seed + own)));
            let rows = NewRows { heads, dtype, window, pool, at, new, gains, pools };
            cases.push(Case::rows("append_attention", name.replace(' ', ""), seed, 1, move |dev, _| {
                rows.run(dev)
            }));
        }
    }
    cases
}
