//! Log-probabilities of chosen tokens, and the entropy of their distributions.
use super::shapes;
use crate::cpu::lanes::dispatch;
use crate::cpu::softmax;
use crate::{Device, Error, Result, Tensor, gpu, reference};

/// What a row of logits says of one token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LogProb {
    /// `log sum exp z`.
    pub lse: f32,
    /// `z_y - lse`.
    pub log_prob: f32,
    /// `-sum p log p`.
    pub entropy: f32,
}

/// The log-probability of `target[n]` under row `n` of `logits [N, V]` (f32), and the row's entropy.
///
/// Order: `lse` and entropy over chunks of 128 logits, each *sum32* (docs/numerics.md, section 3).
///
/// # Errors
/// [`Error::Shape`] unless there is a target for each row, [`Error::Index`] for one outside the
/// vocabulary.
pub fn log_prob(logits: &Tensor, target: &[u32]) -> Result<Vec<LogProb>> {
    let &[n, v] = logits.shape() else {
        return Err(Error::Shape { op: "log_prob", want: "logits [N, V]", got: shapes(&[logits]) });
    };
    if n != target.len() {
        let got = vec![vec![n, v], vec![target.len()]];
        return Err(Error::Shape { op: "log_prob", want: "a target for each row", got });
    }
    if let Some(at) = target.iter().position(|&t| t as usize >= v) {
        let got = u64::from(target[at]);
        return Err(Error::Index { op: "log_prob", what: "target", at, got, bound: v as u64 });
    }
    if let Device::Gpu(gpu) = logits.device() {
        return gpu::log_prob(gpu, logits, target);
    }
    let (z, device) = (logits.data::<f32>()?, logits.device());
    let mut values = vec![LogProb::default(); n];
    let row =
        |n: usize, parts: &mut Vec<[f32; 2]>| of_row(device, &z[n * v..][..v], target[n] as usize, parts);
    let per_part = (GRAIN / v.max(1)).max(1);
    let work = |i: usize, values: &mut [LogProb]| {
        let mut parts = Vec::new();
        values.iter_mut().enumerate().for_each(|(j, x)| *x = row(i * per_part + j, &mut parts));
    };
    match device.fast() {
        Some(cpu) => cpu.pool.parts(&mut values, per_part, work),
        None => work(0, &mut values),
    }
    Ok(values)
}

/// Logits that one thread takes at a time.
pub(crate) const GRAIN: usize = 8192;

/// The values of one row `z`; `parts` is scratch.
pub(crate) fn of_row(device: &Device, z: &[f32], target: usize, parts: &mut Vec<[f32; 2]>) -> LogProb {
    match device.fast() {
        Some(cpu) => {
            let lse = dispatch(cpu.simd, softmax::Lse { z, parts });
            let entropy = dispatch(cpu.simd, softmax::Entropy { z, lse });
            LogProb { lse, log_prob: z[target] - lse, entropy }
        }
        None => {
            let r = reference::log_prob(z, target);
            LogProb { lse: r.lse, log_prob: r.log_prob, entropy: r.entropy }
        }
    }
}
