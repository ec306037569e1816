//! Gates that compare two ways to compute the same values: a rotation at a position and in a sequence, decode
//! attention and full attention, a concatenation on the device and on the host.
use super::case::{Case, Run, pick, split, tensor};
use super::scene::{HeadCounts, Layout, Pool};
use super::values::{CaseRng, Values, label};
use super::{Comparison, Counts, Difference, Rows, devices, name};
use crate::ops::{self, AttnMask, RopeArgs, Slots};
use crate::{Device, Dtype, Result, RopeTable, Simd, Tensor};

/// Runs `case` on every instruction set and compares it with `want`, which computes the same values another way.
fn gate(
    gate: &'static str,
    case: &Case,
    counts: &mut Counts,
    want: impl Fn(&Device) -> Result<Rows>,
) -> Result<(), Difference> {
    let Run::Rows(n, got) = &case.run else { return Ok(()) };
    let three = Device::cpu_with(3, Simd::detect());
    for device in devices(&[1]).into_iter().chain([three]) {
        let case_name = format!("{case} on {}", name(&device));
        let check = Comparison { gate, case: case_name, seed: case.seed };
        let want = want(&device).map_err(|error| check.failed(&error))?;
        counts.values += check.same(got(&device, &(0..*n).collect::<Vec<_>>()), &want)?;
    }
    counts.cases += 1;
    Ok(())
}

/// A sequence of `t` rows with `h` heads of size `hd`.
#[derive(Clone, Copy)]
struct Rotation {
    t: usize,
    h: usize,
    hd: usize,
    theta: f64,
    dtype: Dtype,
}

/// Compares single rows, rotated at the positions `at`, with the rows of the full sequence.
fn rope_at(rotation: Rotation, at: &[usize], counts: &mut Counts) -> Result<(), Difference> {
    let Rotation { t, h, hd, theta, dtype } = rotation;
    let seed = (t + hd) as u64;
    let x = Values::Ugly.fill(t * h * hd, seed);
    let (rows, one) = (at.to_vec(), x.clone());
    let case_name = format!("{t}x{h}x{hd}-{theta:e}-{dtype}");
    let case = Case::rows("rope_at", case_name, seed, at.len(), move |device, _| {
        let row = |&p: &usize| {
            let x = tensor(device, &[1, h, hd], &one[p * h * hd..][..h * hd], dtype)?;
            Ok(split(&ops::rope_at(&x, theta, p as u32)?, 1)?.remove(0))
        };
        rows.iter().map(row).collect()
    });
    gate("rope_at", &case, counts, |device| {
        let full = ops::rope(&tensor(device, &[t, h, hd], &x, dtype)?, theta)?.to_f32()?;
        let rows = pick(full.data()?, h * hd, at);
        Ok(rows.chunks_exact(h * hd).map(<[f32]>::to_vec).collect())
    })
}

/// A sequence of `t` positions whose keys are cached in `layout`.
#[derive(Clone, Copy)]
struct Decode {
    heads: HeadCounts,
    t: usize,
    window: Option<usize>,
    layout: Layout,
    dtype: Dtype,
}

/// Compares one query over cached keys, for each length 1..=`t`, with the rows of full attention. At the `literal`
/// lengths, a full attention over that many rows has the same last row.
fn decode(decode: Decode, literal: &[usize], counts: &mut Counts) -> Result<(), Difference> {
    let Decode { heads: [nh, nkv, hd], t, window, layout, dtype } = decode;
    let seed = (t + hd) as u64;
    let q = Values::Plain.fill(t * nh * hd, seed);
    let [k, v] = [Values::Plain, Values::Ugly].map(|values| values.fill(t * nkv * hd, seed + 1));
    let positions: Vec<u32> = (0..t as u32).collect();
    let full = |device: &Device, len: usize| -> Result<Rows> {
        let slots = Slots::Runs { base: vec![0] };
        let mask = AttnMask { seq: &vec![0; len], pos: &positions[..len], slots: &slots, window };
        let of = |x: &[f32], heads: usize| tensor(device, &[len, heads, hd], &x[..len * heads * hd], dtype);
        split(&ops::attention(&of(&q, nh)?, &of(&k, nkv)?, &of(&v, nkv)?, &mask)?.0, len)
    };
    let pool = Pool::new(layout, &[t], seed);
    let (pk, pv) = (pool.place(&[t], nkv * hd, &k), pool.place(&[t], nkv * hd, &v));
    let queries = q.clone();
    let case_name = format!("{nh}.{nkv}.{hd}-{t}-{window:?}-{layout:?}-{}", label(dtype, Values::Ugly));
    let case = Case::rows("decode_attention", case_name, seed, t, move |device, rows| {
        let kv = |x: &[f32]| tensor(device, &[pool.n_slots, nkv, hd], x, dtype);
        let (k, v) = (kv(&pk)?, kv(&pv)?);
        let step = |&p: &usize| {
            let q = tensor(device, &[1, nh, hd], &queries[p * nh * hd..][..nh * hd], dtype)?;
            let mask = AttnMask { seq: &[0], pos: &[p as u32], slots: &pool.slots, window };
            Ok(split(&ops::decode_attention(&q, &k, &v, &mask)?, 1)?.remove(0))
        };
        rows.iter().map(step).collect()
    });
    let widest = Device::cpu_with(3, Simd::detect());
    let failed = |error| Comparison { gate: "decode_attention", case: case.to_string(), seed }.failed(&error);
    let rows = full(&widest, t).map_err(failed)?;
    for &len in literal {
        let name = format!("full attention over {len} of {case} on {}", name(&widest));
        let check = Comparison { gate: "decode_attention", case: name, seed };
        counts.values += check.same(full(&widest, len), &rows[..len])?;
    }
    gate("decode_attention", &case, counts, |device| full(device, t))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn ok(result: Result<(), Difference>) {
        result.unwrap_or_else(|difference| panic!("{difference}"));
    }

    #[test]
    fn rope_at_matches_full_rope_row() {
        let mut counts = Counts::default();
        let mut rng = CaseRng::new(5);
        let end = (1 << 20) + 1;
        let mut at: Vec<usize> = (0..=20).flat_map(|b| [(1 << b) - 1, 1 << b]).collect();
        at.extend((0..60).map(|_| rng.below(end)));
        let long = Rotation { t: end, h: 1, hd: 2, theta: 1e6, dtype: Dtype::F32 };
        ok(rope_at(long, &at, &mut counts));
        let all: Vec<usize> = (0..130).collect();
        for (h, hd, theta) in [(3, 6, 1e4), (2, 64, 1e6), (1, 256, 5e5), (5, 10, 1e4)] {
            for dtype in [Dtype::F32, Dtype::BF16] {
                ok(rope_at(Rotation { t: 130, h, hd, theta, dtype }, &all, &mut counts));
            }
        }
        println!("gate rope_at: {counts}");
        assert_eq!(counts.cases, 9);
    }

    #[test]
    fn rope_pos_and_a_long_table_have_the_bits_of_rope_at() {
        let x = Tensor::new(&Device::cpu(), &[4, 2, 6], Values::Ugly.fill(48, 3)).unwrap();
        let pos = [1 << 20, 0, 77_777, 300];
        let table = RopeTable::new(1e4, 6, RopeTable::MAX_POSITIONS).unwrap();
        let by_table =
            split(&ops::rope_rows(&x, RopeArgs { table: &table, positions: &pos }, Dtype::F32).unwrap(), 4)
                .unwrap();
        let by_pos = split(&ops::rope_pos(&x, &pos, 1e4).unwrap(), 4).unwrap();
        assert_eq!(by_table, by_pos);
    }

    #[test]
    fn decode_attention_matches_full_attention_last_row() {
        let mut counts = Counts::default();
        let long = [([2, 1, 4], Layout::Pages(16)), ([1, 1, 8], Layout::Runs)];
        for (heads, layout) in long {
            let literal = [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512];
            for dtype in [Dtype::F32, Dtype::BF16] {
                ok(decode(Decode { heads, t: 513, window: None, layout, dtype }, &literal, &mut counts));
            }
        }
        for (i, layout) in Layout::ALL.into_iter().enumerate() {
            let heads = [[4, 2, 6], [3, 1, 10], [6, 3, 16]][i % 3];
            let window = [None, Some(7), Some(64), Some(65)][i % 4];
            for dtype in [Dtype::F32, Dtype::BF16] {
                ok(decode(Decode { heads, t: 130, window, layout, dtype }, &[1, 64, 65], &mut counts));
            }
        }
        println!("gate decode_attention: {counts}");
        assert_eq!(counts.cases, 18);
    }

    #[test]
    fn cat_seq_equals_the_host_concatenation() {
        let mut rng = CaseRng::new(9);
        for device in devices(&[1, 3]) {
            for _ in 0..40 {
                let (t, u) = (rng.below(70), rng.below(70));
                let rest = [&[][..], &[5], &[2, 3], &[1, 33], &[4, 2, 6]][rng.below(5)];
                let width = rest.iter().product::<usize>();
                let mut both = Values::Ugly.fill((t + u) * width, rng.below(1000) as u64);
                both.iter_mut().step_by(97).for_each(|x| *x = f32::from_bits(0xffc0_1234));
                let (a, b) = both.split_at(t * width);
                let of =
                    |n: usize, x: &[f32]| Tensor::new(&device, &[&[n], rest].concat(), x.to_vec()).unwrap();
                let y = ops::cat_seq(&of(t, a), &of(u, b)).unwrap();
                assert_eq!(y.shape(), [&[t + u], rest].concat());
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    bits(y.data().unwrap()),
                    bits(&both),
                    "{t} + {u} of {rest:?} on {}",
                    name(&device)
                );
            }
        }
    }

    #[test]
    fn cat_seq_of_bf16_equals_the_host_concatenation() {
        for device in devices(&[1, 3]) {
            for (t, u) in [(0, 3), (5, 0), (1, 1), (33, 2)] {
                let values: Vec<half::bf16> = (0..(t + u) * 6)
                    .map(|i| half::bf16::from_bits((i as u16).wrapping_mul(0x9e37) | 0x8000))
                    .collect();
                let of = |x: &[half::bf16]| Tensor::new(&device, &[x.len() / 6, 2, 3], x.to_vec()).unwrap();
                let (a, b) = values.split_at(t * 6);
                let y = ops::cat_seq(&of(a), &of(b)).unwrap();
                let bits = |x: &[half::bf16]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&y.to_vec().unwrap()), bits(&values), "{t} + {u} on {}", name(&device));
            }
            let odd = Tensor::zeros(&device, &[2, 3], Dtype::BF16).unwrap();
            assert!(ops::cat_seq(&odd, &odd).is_err());
        }
    }
}
