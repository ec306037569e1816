//! Sampling from more logits than one pass of a block's threads over the chunks covers.
use crate::ops::{self, SampleRow, Sampled};
use crate::testing::{arbitrary, emulated};
use crate::{Device, Tensor, ThreadSchedule};

/// A thread of a block adds four chunks of 128 logits: 131,072 in all. Two chunks more.
const VOCAB: usize = 131_072 + 129;

/// Compares the tokens of a large vocabulary with those of the CPU. The last tokens have most of the weight.
pub(crate) fn large_vocabulary() -> Result<usize, String> {
    const SEED: u64 = 1701;
    let failed = |e: String| format!("sample_rows of {VOCAB} logits, seed {SEED}: {e}");
    let mut x = arbitrary(VOCAB, SEED);
    x[131_072..].iter_mut().for_each(|x| *x += 16.0);
    let token = |device: &Device, position: u32| -> crate::Result<Sampled> {
        let row = SampleRow { seed: SEED, id: 3, position, temperature: 1.0, ..SampleRow::GREEDY };
        let logits = Tensor::new(device, &[1, VOCAB], x.clone())?;
        Ok(ops::sample_rows(&logits, &[row])?.remove(0).expect("the logits are finite"))
    };
    let gpu = emulated(ThreadSchedule::Forward);
    for position in 0..3 {
        let of = |device: &Device| token(device, position).map_err(|e| failed(e.to_string()));
        let (want, got) = (of(&Device::cpu())?, of(&gpu)?);
        if want.token != got.token || want.log_prob.to_bits() != got.log_prob.to_bits() {
            return Err(failed(format!("position {position}: {got:?} instead of {want:?}")));
        }
    }
    Ok(3)
}

#[test]
fn the_last_tokens_of_a_large_vocabulary_are_sampled() {
    large_vocabulary().unwrap_or_else(|e| panic!("{e}"));
}
