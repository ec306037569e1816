//! Gate: rows whose sequences share the pages of a prompt have, in one launch of decode attention, the bits that they
//! have alone, and the launch reads each shared chunk once per group of rows.
#![cfg(xtrain_emu)]
use super::{CHUNK, compare, device};
use crate::gpu::{watch, watched};
use crate::ops::{self, AttnMask, Slots};
use crate::testing::{self, arbitrary};
use crate::{Device, Dtype, Tensor, ThreadSchedule};

const PAGE: usize = 16;

/// A batch of single rows.
struct Batch {
    /// Query heads, kv heads, head size.
    heads: [usize; 3],
    /// Leading pages that sequences share, and the positions of their rows. The pages of a group are its own.
    groups: &'static [(usize, &'static [u32])],
    window: Option<usize>,
    /// Chunks that are not read for a row in bf16, because a block of an earlier row does.
    skipped: usize,
}

const BATCHES: [Batch; 6] = [
    // one prompt of two chunks, the row at position 126 does not see the last key of the second one
    Batch { heads: [2, 1, 16], groups: &[(8, &[127, 126, 128, 200])], window: None, skipped: 3 },
    // 17 rows of two heads: a block takes 32 queries in two operands
    Batch { heads: [2, 1, 8], groups: &[(4, &[64; 17])], window: None, skipped: 15 },
    // two prompts, and a row alone between them
    Batch {
        heads: [6, 1, 8],
        groups: &[(4, &[70, 64]), (0, &[65]), (8, &[129, 130, 131])],
        window: None,
        skipped: 5,
    },
    // six pages are a chunk and a half: one chunk is shared
    Batch { heads: [6, 2, 24], groups: &[(6, &[100, 96, 97, 99, 101])], window: None, skipped: 4 },
    // a window hides the first keys of later rows: nothing is shared
    Batch { heads: [2, 2, 8], groups: &[(4, &[64, 70])], window: Some(50), skipped: 0 },
    // a window that hides no key from the first row
    Batch { heads: [2, 2, 8], groups: &[(4, &[64, 130])], window: Some(100), skipped: 0 },
];

impl Batch {
    /// `(seq, pos, slots, number of slots)`.
    fn rows(&self) -> (Vec<u32>, Vec<u32>, Slots, usize) {
        let (mut pos, mut table, mut next) = (Vec::new(), Vec::new(), 0);
        let mut pages = |n: usize| {
            next += n as u32;
            Vec::from_iter(next - n as u32..next)
        };
        for &(shared, positions) in self.groups {
            let prompt = pages(shared);
            for &at in positions {
                let own = pages((at as usize / PAGE + 1).saturating_sub(shared));
                table.push([prompt.clone(), own].concat());
                pos.push(at);
            }
        }
        let seq = (0..pos.len() as u32).collect();
        (seq, pos, Slots::Pages { page: PAGE, table }, next as usize * PAGE)
    }
}

/// Compares each batch with its rows alone, and the read bytes with the chunks of the table. Returns the number of
/// values.
pub(crate) fn over() -> Result<usize, String> {
    let mut compared = 0;
    for (case, batch) in BATCHES.iter().enumerate() {
        for dtype in [Dtype::BF16, Dtype::F32] {
            compared += batch.compare(&device(case), dtype, case)?;
        }
    }
    Ok(compared)
}

impl Batch {
    fn compare(&self, device: &Device, dtype: Dtype, case: usize) -> Result<usize, String> {
        let (seq, pos, slots, n) = self.rows();
        let [nh, nkv, hd] = self.heads;
        let tensor = |shape: [usize; 3], seed| {
            let x = arbitrary(shape.iter().product(), seed);
            Tensor::new(device, &shape, x).unwrap().cast(dtype).unwrap()
        };
        let (k, v) = (tensor([n, nkv, hd], 2), tensor([n, nkv, hd], 3));
        let q = arbitrary(seq.len() * nh * hd, 1);
        let attend = |rows: std::ops::Range<usize>| {
            let q = Tensor::new(
                device,
                &[rows.len(), nh, hd],
                q[rows.start * nh * hd..rows.end * nh * hd].to_vec(),
            );
            let q = q.unwrap().cast(dtype).unwrap();
            let (seq, pos) = (&seq[rows.clone()], &pos[rows]);
            let mask = AttnMask { seq, pos, slots: &slots, window: self.window };
            ops::decode_attention(&q, &k, &v, &mask).unwrap().to_f32().unwrap().to_vec::<f32>().unwrap()
        };
        let together = attend(0..seq.len());
        let alone: Vec<f32> = (0..seq.len()).flat_map(|row| attend(row..row + 1)).collect();
        compare(&together, &alone, &format!("shared chunks, batch {case}, {dtype}, seeds 1 to 3"))
    }
}

#[test]
fn rows_that_share_a_prompt_have_their_bits() {
    let n = over().unwrap_or_else(|e| panic!("{e}"));
    println!("decode attention with shared chunks: {n} values, 0 differing bits");
}

#[test]
#[cfg(feature = "faults")]
fn a_chunk_that_only_some_rows_see_whole_must_not_be_shared() {
    use crate::faults::{self, Fault};
    for fault in [Fault::SharedChunkPartlyVisible, Fault::SharedChunkBehindWindow] {
        println!("{fault}: {}", faults::with(fault, over).unwrap_err());
    }
}

#[test]
fn a_shared_chunk_is_read_once_for_its_rows() {
    let device = testing::checked(ThreadSchedule::Random(5));
    let Device::Gpu(gpu) = &device else { panic!("expected a GPU, found {device}") };
    for (case, batch) in BATCHES.iter().enumerate() {
        let (seq, pos, slots, n) = batch.rows();
        let [nh, nkv, hd] = batch.heads;
        let zeros = |shape: [usize; 3]| Tensor::zeros(&device, &shape, Dtype::BF16).unwrap();
        let (q, k, v) = (zeros([seq.len(), nh, hd]), zeros([n, nkv, hd]), zeros([n, nkv, hd]));
        let mask = AttnMask { seq: &seq, pos: &pos, slots: &slots, window: batch.window };
        let before = gpu.gpu_counters();
        watch(k.at(gpu, Dtype::BF16).unwrap().0, k.len() * 2);
        ops::decode_attention(&q, &k, &v, &mask).unwrap();
        let (measured, counted) = (2 * watched(), gpu.gpu_counters().since(before).kv_read);
        println!("batch {case}: {measured} bytes of keys and values read");
        assert_eq!(measured, counted, "batch {case}: bytes read and the launcher's count differ");
        let visible: usize = (0..seq.len()).map(|row| mask.keys(row).len()).sum();
        let expected = ((visible - CHUNK * batch.skipped) * 2 * nkv * hd * 2) as u64;
        assert_eq!(measured, expected, "batch {case}: bytes read");
    }
}
