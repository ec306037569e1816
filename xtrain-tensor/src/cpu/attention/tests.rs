//! Checks every instruction set against the reference, bit for bit, on random cases.
mod continued;

use crate::cpu::gemm_bf16::{NO_EXPONENT, on_lattice};
use crate::ops::{AttnMask, AttnSaved, Slots, attention, attention_backward};
use crate::rng::{Purpose, draw};
use crate::testing::simds;
use crate::{Device, Dtype, Tensor};

/// Random numbers of one case.
struct CaseRng {
    case: u64,
    at: u32,
}

impl CaseRng {
    fn word(&mut self) -> u32 {
        self.at += 1;
        draw(19, self.case, self.at, Purpose::Sample)[0]
    }
    fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.word()) * n as u64) >> 32) as usize
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    /// Approximately normal.
    fn normal(&mut self) -> f32 {
        (0..4).map(|_| self.word() as f32 / u32::MAX as f32 - 0.5).sum::<f32>() * 1.7
    }
    fn shuffle<T>(&mut self, x: &mut [T]) {
        (1..x.len()).rev().for_each(|i| x.swap(i, self.below(i + 1)));
    }
    fn tensor(&mut self, shape: &[usize], kind: Kind, dtype: Dtype) -> Tensor {
        let value = |_| match kind {
            Kind::Plain => self.normal(),
            Kind::Sharp => self.normal() * 8.0,
            Kind::Ties => self.below(3) as f32 - 1.0,
            // products, sums of products or operands are tiny
            Kind::Edge => self.normal() * 0.5f32.powi(60 + self.below(8) as i32),
            Kind::Tiny => self.normal() * 0.5f32.powi(122 + self.below(10) as i32),
            Kind::Wide => self.normal() * 0.5f32.powi(self.below(150) as i32),
            Kind::Mixed => match self.below(4) {
                0 => 0.0f32.copysign(self.normal()),
                1 => f32::from_bits(self.word() & 0x807f_ffff),
                2 => self.normal() * 0.5f32.powi(self.below(130) as i32),
                _ => self.normal(),
            },
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        Tensor::new(&Device::cpu(), shape, values).unwrap().cast(dtype).unwrap()
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Sharp,
    Ties,
    Edge,
    Tiny,
    Wide,
    Mixed,
}

#[derive(Debug)]
struct Case {
    dtype: Dtype,
    kinds: [Kind; 4],
    /// [nh, nkv, hd].
    heads: [usize; 3],
    seq: Vec<u32>,
    pos: Vec<u32>,
    slots: Slots,
    n_slots: usize,
    window: Option<usize>,
}

const KINDS: [Kind; 7] =
    [Kind::Plain, Kind::Sharp, Kind::Ties, Kind::Edge, Kind::Tiny, Kind::Wide, Kind::Mixed];
const LENGTHS: [usize; 16] = [1, 2, 3, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257];

impl Case {
    /// Sequences of `lens` keys. The last `new_rows` of each are rows of the pass.
    fn new(rng: &mut CaseRng, lens: &[usize], new_rows: &[usize]) -> Case {
        let kind = rng.pick(&KINDS);
        let mut kinds = [kind; 4];
        if rng.below(2) == 0 {
            kinds = kinds.map(|_| rng.pick(&KINDS));
        }
        let longest = lens.iter().sum::<usize>();
        let hds: &[usize] = match longest {
            0..200 => &[1, 2, 4, 7, 6, 8, 10, 16, 24, 32, 64, 80, 96, 128, 256],
            _ => &[2, 5, 8, 16, 24, 32, 40],
        };
        let (hd, group) = (rng.pick(hds), rng.pick(&[1, 1, 2, 4, 8]));
        let nkv = if group * hd > 128 || longest > 300 { 1 } else { rng.pick(&[1, 2, 3]) };
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for (s, (&len, &new)) in lens.iter().zip(new_rows).enumerate() {
            rows.extend((len - new.min(len)..len).map(|pos| (s as u32, pos as u32)));
        }
        match rng.below(4) {
            0 => rng.shuffle(&mut rows),
            1 => rows.reverse(),
            _ => {}
        }
        let (slots, n_slots) = slots(rng, lens);
        let (seq, pos) = rows.into_iter().unzip();
        let window = rng.pick(&[None, None, Some(1), Some(5), Some(33), Some(64), Some(100)]);
        let dtype = rng.pick(&[Dtype::F32, Dtype::BF16]);
        Case { dtype, kinds, heads: [group * nkv, nkv, hd], seq, pos, slots, n_slots, window }
    }

    fn attn_mask(&self) -> AttnMask<'_> {
        AttnMask { seq: &self.seq, pos: &self.pos, slots: &self.slots, window: self.window }
    }

    /// Queries, keys, values, dy. Slots without a key hold NaN, which must not be read.
    fn operands(&self, rng: &mut CaseRng) -> [Tensor; 4] {
        let [nh, nkv, hd] = self.heads;
        let rows = self.seq.len();
        let mut has_key = vec![false; self.n_slots];
        for (n, &seq) in self.seq.iter().enumerate() {
            self.attn_mask().keys(n).for_each(|pos| has_key[self.slots.slot(seq, pos)] = true);
        }
        let mut pool = |kind| {
            let mut x = rng.tensor(&[self.n_slots, nkv, hd], kind, Dtype::F32);
            let slots = x.data_mut::<f32>().unwrap().chunks_exact_mut(nkv * hd);
            slots.zip(&has_key).filter(|(_, has_key)| !**has_key).for_each(|(x, _)| x.fill(f32::NAN));
            x.cast(self.dtype).unwrap()
        };
        let [k, v] = [pool(self.kinds[1]), pool(self.kinds[2])];
        let q = rng.tensor(&[rows, nh, hd], self.kinds[0], self.dtype);
        [q, k, v, rng.tensor(&[rows, nh, hd], self.kinds[3], Dtype::F32)]
    }
}

fn slots(rng: &mut CaseRng, lens: &[usize]) -> (Slots, usize) {
    if rng.below(2) == 0 {
        let mut next = 0;
        let base = |&len: &usize| {
            let at = next + rng.below(3);
            next = at + len;
            at
        };
        let base = lens.iter().map(base).collect();
        return (Slots::Runs { base }, next + 1);
    }
    let page = rng.pick(&[1, 3, 5, 16, 64, 100]);
    let mut pages: Vec<u32> =
        (0..lens.iter().map(|len| len.div_ceil(page) as u32).sum::<u32>() + 2).collect();
    rng.shuffle(&mut pages);
    let n_slots = pages.len() * page;
    let table = lens.iter().map(|len| pages.drain(..len.div_ceil(page)).collect()).collect();
    (Slots::Pages { page, table }, n_slots)
}

fn bits(x: &Tensor) -> Vec<u32> {
    let canonical = |x: &f32| if x.is_nan() { 0x7fff_ffff } else { x.to_bits() };
    x.to_f32().unwrap().data::<f32>().unwrap().iter().map(canonical).collect()
}

/// Copies the values to another device.
fn to_device(device: &Device, x: &Tensor) -> Tensor {
    let f = x.to_f32().unwrap();
    let values = f.data::<f32>().unwrap().to_vec();
    Tensor::new(device, x.shape(), values).unwrap().cast(x.dtype()).unwrap()
}

/// Computes y and L, and the three gradients if `backward`.
fn compute(device: &Device, case: &Case, operands: &[Tensor; 4], backward: bool) -> Vec<Tensor> {
    let [q, k, v, dy] = operands.each_ref().map(|x| to_device(device, x));
    let (y, lse) = attention(&q, &k, &v, &case.attn_mask()).unwrap();
    let mut all = vec![y, lse];
    if backward {
        let saved = AttnSaved { q: &q, k: &k, v: &v, y: &all[0], lse: &all[1] };
        let gradients = attention_backward(&saved, &dy, &case.attn_mask()).unwrap();
        all.extend(gradients);
    }
    all
}

/// Fills memory that results of these shapes take over from earlier tensors with NaN.
fn leave_nan(device: &Device, like: &[Tensor; 4]) {
    let nan = |x: &Tensor| {
        let mut x = Tensor::zeros(device, x.shape(), Dtype::F32).unwrap();
        x.data_mut::<f32>().unwrap().fill(f32::NAN);
        x
    };
    drop([(); 3].map(|()| like.each_ref().map(nan)));
}

fn check(case: &Case, rng: &mut CaseRng, backward: bool) {
    let operands = case.operands(rng);
    let want = compute(&Device::reference(), case, &operands, backward);
    for simd in simds() {
        let device = Device::cpu_with(1 + rng.below(3), simd);
        leave_nan(&device, &operands);
        let got = compute(&device, case, &operands, backward);
        for ((got, want), name) in got.iter().zip(&want).zip(["y", "L", "dq", "dk", "dv"]) {
            let (g, w) = (bits(got), bits(want));
            if let Some(i) = (0..w.len()).find(|&i| g[i] != w[i]) {
                let text = |bits: u32| format!("{:e} ({bits:08x})", f32::from_bits(bits));
                panic!(
                    "{simd}: {name}[{i}] is {}, want {}, in case {} {case:?}",
                    text(g[i]),
                    text(w[i]),
                    rng.case
                );
            }
        }
    }
}

#[test]
fn forward_has_the_bits_of_the_reference_over_any_slots_windows_and_rows() {
    for case in 0..120 {
        let mut rng = CaseRng { case, at: 0 };
        let n = 1 + rng.below(3);
        let lens: Vec<usize> = (0..n).map(|_| rng.pick(&LENGTHS)).collect();
        let new_rows: Vec<usize> = (0..n).map(|_| rng.pick(&[1, 2, 7, 30, 70])).collect();
        check(&Case::new(&mut rng, &lens, &new_rows), &mut rng, false);
    }
}

#[test]
fn one_row_per_sequence_has_the_bits_of_the_reference_at_any_length() {
    for case in 0..50 {
        let mut rng = CaseRng { case: 1_000 + case, at: 0 };
        let n = 1 + rng.below(4);
        let lens: Vec<usize> = (0..n).map(|_| 1 + rng.below(513)).collect();
        check(&Case::new(&mut rng, &lens, &vec![1; n]), &mut rng, false);
    }
}

/// Makes each sequence start with some pages of the previous one. Returns the number of shared pages.
fn fork(rng: &mut CaseRng, case: &mut Case) -> usize {
    let Slots::Pages { table, .. } = &mut case.slots else { return 0 };
    let mut shared = 0;
    for s in 1..table.len() {
        let max = table[s].len().min(table[s - 1].len());
        let pages = table[s - 1][..rng.below(max + 1)].to_vec();
        table[s][..pages.len()].copy_from_slice(&pages);
        shared += pages.len();
    }
    shared
}

#[test]
fn sequences_that_begin_with_the_same_pages_have_the_bits_of_the_reference() {
    let mut shared = 0;
    for number in 0..100 {
        let mut rng = CaseRng { case: 3_000 + number, at: 0 };
        let n = 2 + rng.below(5);
        let lens: Vec<usize> = (0..n).map(|_| 40 + rng.below(200)).collect();
        let new_rows: Vec<usize> = (0..n).map(|_| rng.pick(&[1, 1, 2, 5])).collect();
        let mut case = Case::new(&mut rng, &lens, &new_rows);
        shared += fork(&mut rng, &mut case);
        check(&case, &mut rng, false);
    }
    assert!(shared > 100, "only {shared} pages are shared");
}

/// Two sequences share a page, and their windows leave a gap whose slots belong to neither.
#[test]
fn sequences_that_share_a_page_do_not_read_the_slots_between_their_windows() {
    let heads = [2, 1, 32];
    let slots = Slots::Pages { page: 64, table: vec![vec![0], vec![0]] };
    for dtype in [Dtype::F32, Dtype::BF16] {
        let mut rng = CaseRng { case: 4_000, at: 0 };
        let (seq, pos, window) = (vec![0, 1], vec![20, 60], Some(5));
        let kinds = [Kind::Plain; 4];
        let case = Case { dtype, kinds, heads, seq, pos, slots: slots.clone(), n_slots: 64, window };
        check(&case, &mut rng, false);
    }
}

/// Two rows of one sequence whose windows are apart. Between them are slots without a key and a page that does not
/// exist.
fn rows_with_a_gap() -> Vec<Case> {
    let pages =
        Slots::Pages { page: 4, table: vec![(0..32).map(|i| if i == 5 { 1000 } else { i }).collect()] };
    [Slots::Runs { base: vec![0] }, pages]
        .map(|slots| Case {
            dtype: Dtype::BF16,
            kinds: [Kind::Plain; 4],
            heads: [2, 1, 32],
            seq: vec![0, 0],
            pos: vec![3, 120],
            slots,
            n_slots: 128,
            window: Some(5),
        })
        .into()
}

#[test]
fn rows_of_one_sequence_do_not_read_the_slots_between_their_windows() {
    for case in rows_with_a_gap() {
        check(&case, &mut CaseRng { case: 6_000, at: 0 }, false);
    }
}

#[cfg(feature = "faults")]
#[test]
fn a_read_between_two_windows_is_detected() {
    use crate::Simd;
    use crate::faults::{Fault, with};
    if !simds().contains(&Simd::Amx) {
        println!("{}: NOT RUN, its kernel needs AMX", Fault::GapOfWindowsRead);
        return;
    }
    let case = &rows_with_a_gap()[0];
    let operands = case.operands(&mut CaseRng { case: 6_000, at: 0 });
    let y = || bits(&compute(&Device::cpu_with(1, Simd::Amx), case, &operands, false)[0]);
    assert_ne!(with(Fault::GapOfWindowsRead, y), y());
}

#[test]
fn heads_of_a_row_that_several_threads_share_have_the_bits_of_the_reference() {
    // the first row has most of the work, so its eight kv heads are in several work items
    let slots = Slots::Runs { base: vec![0, 300] };
    let (seq, pos) = (vec![0, 1], vec![299, 40]);
    for heads in [[8, 8, 32], [14, 7, 64]] {
        let (dtype, kinds, slots) = (Dtype::BF16, [Kind::Plain; 4], slots.clone());
        let (seq, pos) = (seq.clone(), pos.clone());
        let case = Case { dtype, kinds, heads, seq, pos, slots, n_slots: 400, window: None };
        for seed in 0..3 {
            check(&case, &mut CaseRng { case: 7_000 + seed, at: 0 }, false);
        }
    }
}

/// The number of 20 cases in bf16, of 70 positions and `rows` new rows, whose outputs differ from the reference.
/// `backward`: whose gradients differ, which needs all 70 rows.
#[cfg(feature = "faults")]
fn differing(simd: crate::Simd, rows: usize, kinds: [Kind; 4], backward: bool) -> usize {
    let differs = |seed: u64| {
        let mut rng = CaseRng { case: 5_000 + seed, at: 0 };
        let mut case = Case::new(&mut rng, &[70], &[rows]);
        (case.dtype, case.kinds) = (Dtype::BF16, kinds);
        if rows == 1 && seed == 0 {
            case.heads = [3, 3, 128]; // more than the values of a pass
        }
        let operands = case.operands(&mut rng);
        let [want, got] = [Device::reference(), Device::cpu_with(1, simd)]
            .map(|device| compute(&device, &case, &operands, backward))
            .map(|outputs| outputs[if backward { 2..5 } else { 0..1 }].iter().map(bits).collect::<Vec<_>>());
        got != want
    };
    (0..20).filter(|&case| differs(case)).count()
}

#[cfg(feature = "faults")]
#[test]
fn faults_of_operands_in_pairs_are_detected() {
    use crate::Simd;
    use crate::faults::{Fault, with};
    for (fault, simd, rows, backward) in [
        (Fault::PairedSlotsExchanged, Simd::Avx512Bf16, 30, false),
        (Fault::PairedSlotsExchanged, Simd::Avx512Bf16, 70, true),
        (Fault::LastBlockNotTransposed, Simd::Avx512Bf16, 70, true),
        (Fault::PairedSlotsExchanged, Simd::Amx, 30, false),
        (Fault::PairedSlotsExchanged, Simd::Amx, 70, true),
        (Fault::LastBlockNotTransposed, Simd::Amx, 70, true),
        (Fault::LastTileRowLost, Simd::Amx, 30, false),
        (Fault::LastTileRowLost, Simd::Amx, 70, true),
        // one row: its keys are read in place
        (Fault::PairedSlotsExchanged, Simd::Amx, 1, false),
        (Fault::PairedColumnsNotRestored, Simd::Amx, 1, false),
        (Fault::KeysOfFirstTile, Simd::Amx, 1, false),
        (Fault::NextHeadsNotPaired, Simd::Amx, 1, false),
    ] {
        if !simds().contains(&simd) {
            println!("{fault}: NOT RUN, its kernel needs {simd}");
            continue;
        }
        let differing = || differing(simd, rows, [Kind::Plain; 4], backward);
        assert_eq!(differing(), 0, "{simd}, rows: {rows}, backward: {backward}");
        let found = with(fault, differing);
        println!("{fault}, {simd}, rows: {rows}, backward: {backward}: {found} of 20 cases differ");
        assert!(found > 0, "{fault} is not detected with {simd}, rows: {rows}, backward: {backward}");
    }
}

#[cfg(feature = "faults")]
#[test]
fn denormal_values_that_are_kept_are_detected() {
    use crate::Simd;
    use crate::faults::{Fault, with};
    // AMX reads denormals as zeros
    for simd in simds().into_iter().filter(|&simd| simd != Simd::Amx) {
        let differing = || differing(simd, 1, [Kind::Plain, Kind::Plain, Kind::Tiny, Kind::Plain], false);
        assert_eq!(differing(), 0, "{simd}");
        let found = with(Fault::DenormalsKept, differing);
        println!("{}, {simd}: {found} of 20 cases differ", Fault::DenormalsKept);
        assert!(found > 0, "{} is not detected with {simd}", Fault::DenormalsKept);
    }
}

#[test]
fn gradients_have_the_bits_of_the_reference_over_any_slots_windows_and_rows() {
    for case in 0..100 {
        let mut rng = CaseRng { case: 2_000 + case, at: 0 };
        let lengths = if case % 16 == 0 { &LENGTHS[..] } else { &LENGTHS[..10] };
        let lens: Vec<usize> = (0..1 + rng.below(2)).map(|_| rng.pick(lengths)).collect();
        check(&Case::new(&mut rng, &lens, &lens), &mut rng, true);
    }
}

#[test]
fn a_product_is_on_the_lattice_down_to_two_to_the_minus_126() {
    let field = |e: i32| (127 + e) as u8;
    assert!(on_lattice(field(-56), field(-56)) && on_lattice(field(14), field(-126)));
    assert!(!on_lattice(field(-57), field(-56)) && !on_lattice(field(13), field(-126)));
    assert!(on_lattice(NO_EXPONENT, field(-126)), "an operand of zeros");
}

#[test]
fn two_positions_in_one_slot_are_an_error_of_the_backward() {
    let device = Device::cpu();
    let x = Tensor::zeros(&device, &[2, 1, 2], Dtype::F32).unwrap();
    let lse = Tensor::zeros(&device, &[2, 1], Dtype::F32).unwrap();
    let slots = Slots::Runs { base: vec![1, 1] };
    let mask = AttnMask { seq: &[0, 1], pos: &[0, 0], slots: &slots, window: None };
    let saved = AttnSaved { q: &x, k: &x, v: &x, y: &x, lse: &lse };
    let error = attention_backward(&saved, &x, &mask).unwrap_err().to_string();
    assert!(error.contains("slot 1 twice, at position 0 of sequence 1"), "{error}");
}
