//! Gate: a row attends to exactly the positions that its mask allows.
use super::scene::{Layout, Pool};
use super::values::{Values, label};
use super::{Counts, Difference, Rows, devices, name};
use crate::ops::{self, AttnMask};
use crate::{Device, Dtype, Result, Tensor};

const GATE: &str = "mask";

/// Lengths of the sequences and sliding window.
const SCENES: [(&[usize], Option<usize>); 7] = [
    (&[1, 2, 5], None),
    (&[33, 66], None),
    (&[66], Some(1)),
    (&[40, 31], Some(7)),
    (&[130], Some(64)),
    (&[130], Some(65)),
    (&[129], None),
];

/// Checks every row of every scene. The value of each position is a different unit vector, so that the output shows
/// which positions were read.
fn gate() -> Result<Counts, Difference> {
    let mut counts = Counts::default();
    for (i, (lengths, window)) in SCENES.into_iter().enumerate() {
        for (layout, dtype) in Layout::ALL.into_iter().zip([Dtype::F32, Dtype::BF16].into_iter().cycle()) {
            let seed = i as u64 + 1301;
            for device in devices(&[1]) {
                let kind = label(dtype, Values::Plain);
                let case = format!("attention/{lengths:?}-{window:?}-{layout:?}-{kind} on {}", name(&device));
                let differ = |row: usize, got: String, want: String| {
                    Err(Difference { gate: GATE, case: case.clone(), seed, row, got, want })
                };
                let scene = Scene { lengths, window, layout, dtype, seed };
                let (at, weights) = match attended(&device, scene) {
                    Ok(attended) => attended,
                    Err(error) => return differ(0, error.to_string(), "a result".into()),
                };
                for (row, (&(seq, t), weights)) in at.iter().zip(&weights).enumerate() {
                    let first = window.map_or(0, |w| (t + 1).saturating_sub(w));
                    for (pos, &weight) in weights[..lengths[seq]].iter().enumerate() {
                        let (got, want) = (weight > 0.0, (first..=t).contains(&pos));
                        if got != want {
                            let text = |attends: bool| format!("position {t} attends to {pos}: {attends}");
                            return differ(row, text(got), text(want));
                        }
                        counts.values += 1;
                    }
                }
                counts.cases += 1;
            }
        }
    }
    Ok(counts)
}

/// Sequences whose keys are in a pool.
#[derive(Clone, Copy)]
struct Scene<'a> {
    lengths: &'a [usize],
    window: Option<usize>,
    layout: Layout,
    dtype: Dtype,
    seed: u64,
}

/// Sequence and position of each row, and the attention weight of each position of its sequence. The head is as wide
/// as the longest sequence.
fn attended(device: &Device, scene: Scene<'_>) -> Result<(Vec<(usize, usize)>, Rows)> {
    let Scene { lengths, window, layout, dtype, seed } = scene;
    const HD: usize = 130;
    let pool = Pool::new(layout, lengths, seed);
    let at: Vec<(usize, usize)> =
        lengths.iter().enumerate().flat_map(|(s, &n)| (0..n).map(move |t| (s, t))).collect();
    let mut directions = vec![0f32; at.len() * HD];
    at.iter().enumerate().for_each(|(row, &(_, t))| directions[row * HD + t] = 1.0);
    let (seq, pos): (Vec<u32>, Vec<u32>) = at.iter().map(|&(s, t)| (s as u32, t as u32)).unzip();
    let mask = AttnMask { seq: &seq, pos: &pos, slots: &pool.slots, window };
    let of = |n: usize, x: Vec<f32>| Tensor::new(device, &[n, 1, HD], x)?.cast(dtype);
    let q = of(at.len(), Values::Plain.fill(at.len() * HD, seed))?;
    let keys = Values::Plain.fill(at.len() * HD, seed + 1);
    let k = of(pool.n_slots, pool.place(lengths, HD, &keys))?;
    let v = of(pool.n_slots, pool.place(lengths, HD, &directions))?;
    let (y, _) = ops::attention(&q, &k, &v, &mask)?;
    Ok((at.clone(), super::case::split(&y, at.len())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_attends_to_its_own_past_and_nothing_else() {
        let counts = gate().unwrap_or_else(|difference| panic!("{difference}"));
        println!("gate {GATE}: {counts}");
        assert!(counts.cases >= 90, "{counts:?}");
    }

    #[cfg(feature = "faults")]
    #[test]
    fn a_mask_off_by_one_is_found() {
        let seen = crate::faults::with(crate::faults::Fault::MaskOffByOne, gate).expect_err("a fault");
        assert_eq!((seen.gate, seen.row), (GATE, 2), "{seen}");
        assert!(seen.case.starts_with("attention/[1, 2, 5]"), "{seen}");
        gate().expect("the fault is off");
    }
}
