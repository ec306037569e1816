//! Token sampling: greedy, or by integer weights after repetition penalty, temperature, top-k, top-p and min-p. The
//! random number has an address (docs/numerics.md, section 7).
use super::checks::{check_index, misfit, refuse};
use crate::dispatch::backend;
use crate::error::{Error, Result};
use crate::operands::{Outcome, SampleRow};
use crate::tensor::Tensor;

/// The largest vocabulary: sums of integer weights stay below 2^64.
const MAX_VOCAB: usize = 1 << 19;

/// Samples a token for each row of `logits [N, V]`, f32. A token is a function of its row, options and address only.
///
/// Order: weights are integers, whose sums do not depend on order; log-probabilities use chunks of 128 and *sum32*.
/// On a CPU this is the reference implementation. The decoder has its own CPU sampler, which keeps sorted rows and
/// buffers.
///
/// # Errors
/// [`Error::Shape`] unless there is an entry of `rows` for each row and `V` in `1..=2^19`,
/// [`Error::Index`] for a seen id that is not below `V`, [`Error::Argument`] for an option
/// outside its range.
pub fn sample_rows(logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<Vec<Outcome>> {
    check_rows("sample_rows", logits, rows)?;
    backend(logits.device()).sample_rows(logits, rows)
}

pub(super) fn check_rows(op: &'static str, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
    let (&[_, v], true) = (logits.shape(), logits.shape().first() == Some(&rows.len())) else {
        return Err(misfit(op, "logits [N, V], N rows", &[logits]));
    };
    refuse(!(1..=MAX_VOCAB).contains(&v), op, "1 to 524288 logits per row", &[logits])?;
    rows.iter().try_for_each(|row| check(op, row, v))
}

fn check(op: &'static str, row: &SampleRow<'_>, v: usize) -> Result<()> {
    let SampleRow { temperature, top_p, min_p, penalty, seen, .. } = *row;
    check_index(op, "seen id", v, seen)?;
    let require = |holds: bool, want, got: f32| {
        if holds { Ok(()) } else { Err(Error::Argument { op, want, got: got.to_string() }) }
    };
    require(temperature.is_finite() && temperature >= 0.0, "a finite temperature >= 0", temperature)?;
    require(top_p > 0.0 && top_p <= 1.0, "top_p in (0, 1]", top_p)?;
    require((0.0..=1.0).contains(&min_p), "min_p in [0, 1]", min_p)?;
    require(penalty.is_finite() && penalty > 0.0, "a finite penalty > 0", penalty)
}

#[cfg(test)]
impl SampleRow<'_> {
    pub(crate) const GREEDY: SampleRow<'static> = SampleRow {
        seed: 0,
        id: 0,
        position: 0,
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        penalty: 1.0,
        seen: &[],
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn options_outside_their_range_are_refused_by_name() {
        let logits = Tensor::new(&Device::cpu(), &[1, 2], vec![1f32, 2.0]).unwrap();
        let row = SampleRow { temperature: 1.0, ..SampleRow::GREEDY };
        assert!(sample_rows(&logits, &[row]).is_ok());
        let bad = [
            (
                SampleRow { temperature: -1.0, ..row },
                "sample_rows: expected a finite temperature >= 0, found -1",
            ),
            (SampleRow { top_p: 0.0, ..row }, "sample_rows: expected top_p in (0, 1], found 0"),
            (SampleRow { min_p: f32::NAN, ..row }, "sample_rows: expected min_p in [0, 1], found NaN"),
            (SampleRow { penalty: 0.0, ..row }, "sample_rows: expected a finite penalty > 0, found 0"),
            (SampleRow { seen: &[1, 2], ..row }, "sample_rows: seen id 2 at index 1 is not below 2"),
        ];
        for (row, want) in bad {
            assert_eq!(sample_rows(&logits, &[row]).unwrap_err().to_string(), want);
        }
        assert!(matches!(sample_rows(&logits, &[]), Err(Error::Shape { .. })));
    }
}
