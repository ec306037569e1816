//! Device sampling is bitwise equal to the sampler: tokens and both log-probabilities.
use super::super::error::SampleError;
use super::reference::cases;
use super::*;
use xtrain_tensor::ops::{self, SampleFailure, SampleRow, Sampled};
use xtrain_tensor::testing::available_gpus;
use xtrain_tensor::{Device, Tensor, ThreadSchedule};

/// A row of logits and how its token is sampled.
struct Row {
    logits: Vec<f32>,
    history: Vec<u32>,
    options: SampleOptions,
    address: Address,
}

impl Row {
    fn scalars(&self) -> SampleRow<'_> {
        let SampleOptions { temperature, top_k, top_p, min_p, repetition_penalty } = self.options;
        let Address { seed, id, position } = self.address;
        SampleRow {
            seed,
            id,
            position,
            temperature,
            top_k: top_k.unwrap_or(0) as u32,
            top_p: top_p.unwrap_or(1.0),
            min_p: min_p.unwrap_or(0.0),
            penalty: repetition_penalty.unwrap_or(1.0),
            seen: &self.history,
        }
    }

    /// The token and the bits of its log-probabilities, or why there is none.
    fn want(&self) -> Result<(u32, [u32; 2]), SampleFailure> {
        match sampler(self.options).pick(&self.logits, &self.history, self.address) {
            Ok(choice) => Ok((choice.token, [choice.logprob, choice.processed_logprob].map(f32::to_bits))),
            Err(SampleError::NotFinite { .. }) => Err(SampleFailure::NotFinite),
            Err(SampleError::NothingLeft) => Err(SampleFailure::NothingLeft),
            Err(SampleError::Overflow { .. }) => Err(SampleFailure::Overflow),
            Err(error) => panic!("{error}"),
        }
    }
}

/// The CPU, and the emulated GPU with two schedules if it is compiled in.
fn devices() -> Vec<Device> {
    let gpus = available_gpus(&[ThreadSchedule::Forward, ThreadSchedule::Priorities(3)]);
    std::iter::once(Device::cpu()).chain(gpus).collect()
}

/// Checks rows of one length, sampled in one call, against the sampler row by row. Returns the number of rows with a
/// token.
#[track_caller]
fn check(device: &Device, rows: &[Row]) -> usize {
    let v = rows[0].logits.len();
    let logits: Vec<f32> = rows.iter().flat_map(|row| row.logits.iter().copied()).collect();
    let logits = Tensor::new(device, &[rows.len(), v], logits).expect("logits");
    let scalars: Vec<_> = rows.iter().map(Row::scalars).collect();
    let got = ops::sample_rows(&logits, &scalars).expect("a choice");
    for (n, (got, row)) in got.iter().zip(rows).enumerate() {
        let bits = |s: Sampled| (s.token, [s.log_prob, s.processed].map(f32::to_bits));
        assert_eq!(got.map(bits), row.want(), "row {n} on {device:?}: {:?} {:?}", row.options, row.address);
    }
    got.iter().filter(|got| got.is_ok()).count()
}

#[test]
fn a_device_samples_the_same_tokens_from_every_fixture() {
    let mut rows: Vec<Row> = Vec::new();
    for (n, case) in cases().into_iter().enumerate() {
        for position in [0, 77] {
            let address = Address { seed: 5, id: n as u64 + (3 << 33), position };
            let (logits, history) = (case.row.clone(), case.history.clone());
            rows.push(Row { logits, history, options: case.options, address });
        }
    }
    rows.sort_by_key(|row| row.logits.len());
    for device in devices() {
        let sampled: usize =
            rows.chunk_by(|a, b| a.logits.len() == b.logits.len()).map(|rows| check(&device, rows)).sum();
        assert_eq!(sampled, rows.len());
    }
}

#[test]
fn a_device_samples_the_same_tokens_from_long_rows() {
    let options = [
        SampleOptions::default(),
        SampleOptions { temperature: 0.7, top_k: Some(50), ..SampleOptions::default() },
        SampleOptions { top_p: Some(0.95), ..SampleOptions::default() },
        SampleOptions::greedy(),
    ];
    let rows: Vec<Row> = options
        .into_iter()
        .enumerate()
        .map(|(n, options)| Row {
            logits: wide_row(40_037, 3.0),
            history: vec![],
            options,
            address: address(9, n as u64, 40),
        })
        .collect();
    for device in devices() {
        assert_eq!(check(&device, &rows), rows.len());
    }
}

#[test]
fn a_device_names_the_rows_without_a_token() {
    let row = |logits: &[f32], temperature| Row {
        logits: logits.to_vec(),
        history: vec![],
        options: SampleOptions { temperature, ..SampleOptions::default() },
        address: address(1, 2, 3),
    };
    let none = f32::NEG_INFINITY;
    let rows = [
        row(&[1.0, f32::NAN, 0.0], 1.0),
        row(&[1.0, 2.0, 3.0], 1.0),
        row(&[1.0, f32::INFINITY, none], 0.0),
        row(&[none; 3], 0.5),
        row(&[3e38, 1.0, none], 1e-3),
        row(&[-3e38, -1e38, none], 1e-3),
        row(&[none, none, -4.0], 0.0),
    ];
    for device in devices() {
        assert_eq!(check(&device, &rows), 2);
    }
}
