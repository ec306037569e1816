//! Greedy sampling, ties, errors and log-probabilities.
use super::super::error::SampleError;
use super::*;
use xtrain_tensor::softmax::lse_row;
use xtrain_tensor::testing::{arbitrary, ugly, val};

/// With equal largest logits, greedy, top-k 1 and a small top-p must take the lowest index. Returns the first that
/// does not.
fn ties_give_the_lowest_index() -> Result<(), String> {
    let cases = [vec![1.0, 3.0, 3.0, 2.0, 3.0], vec![0.0, -0.0, 0.0], vec![-7.5; 300]];
    let one = |options| SampleOptions { top_k: Some(1), ..options };
    for row in cases {
        let want = row.iter().position(|&x| x == row.iter().copied().fold(f32::MIN, f32::max));
        for options in [SampleOptions::greedy(), one(SampleOptions::greedy()), one(SampleOptions::default())]
        {
            let choice = sampler(options).pick(&row, &[], address(1, 2, 3)).map_err(|e| e.to_string())?;
            if Some(choice.token as usize) != want {
                return Err(format!("{options:?} took token {} of {row:?}", choice.token));
            }
        }
        let options = SampleOptions { top_p: Some(1e-6), ..SampleOptions::default() };
        let choice = sampler(options).pick(&row, &[], address(1, 2, 3)).map_err(|e| e.to_string())?;
        if Some(choice.token as usize) != want {
            return Err(format!("{options:?} took token {} of {row:?}", choice.token));
        }
    }
    Ok(())
}

#[test]
fn of_equal_largest_logits_the_lowest_index_is_taken() {
    assert_eq!(ties_give_the_lowest_index(), Ok(()));
}

#[cfg(feature = "faults")]
#[test]
fn taking_the_last_of_equal_maxima_is_caught() {
    let caught = xtrain_tensor::faults::with(
        xtrain_tensor::faults::Fault::GreedyTieTakesLast,
        ties_give_the_lowest_index,
    );
    assert!(caught.expect_err("the fault is planted").contains("took token 4 of [1.0, 3.0, 3.0"));
}

#[test]
fn filters_at_their_limits_keep_the_largest_logit() {
    let free = SampleOptions::default();
    for options in [
        SampleOptions { min_p: Some(1.0), ..free },
        SampleOptions { top_p: Some(f32::MIN_POSITIVE), ..free },
        SampleOptions { top_k: Some(1), top_p: Some(1.0), min_p: Some(0.0), ..free },
    ] {
        for position in 0..20 {
            let choice = sampler(options).pick(&[1.0, 3.0, 2.5], &[], address(1, 2, position)).unwrap();
            assert_eq!(choice.token, 1, "{options:?}");
        }
    }
}

#[test]
fn filters_that_keep_everything_are_none() {
    let free = SampleOptions { temperature: 0.7, ..SampleOptions::default() };
    assert_eq!(SampleOptions::filtered(0.7, 0, 1.0, 0.0), free);
    let filtered = SampleOptions { top_k: Some(1), top_p: Some(0.9), min_p: Some(0.1), ..free };
    assert_eq!(SampleOptions::filtered(0.7, 1, 0.9, 0.1), filtered);
}

#[test]
fn temperature_1e_minus_6_equals_greedy() {
    let (mut cold, mut greedy) = (
        sampler(SampleOptions { temperature: 1e-6, ..SampleOptions::default() }),
        sampler(SampleOptions::greedy()),
    );
    for seed in 0..500 {
        let row = arbitrary(97, seed);
        let token = |s: &mut Sampler| s.pick(&row, &[], address(seed, 1, 2)).map(|choice| choice.token);
        let mut sorted = row.clone();
        sorted.sort_by(f32::total_cmp);
        if sorted[96] - sorted[95] > 1e-4 {
            assert_eq!(token(&mut cold), token(&mut greedy), "row of seed {seed}");
        }
    }
}

#[test]
fn a_row_without_a_token_is_an_error() {
    let pick = |options, row: &[f32]| sampler(options).pick(row, &[], address(0, 0, 0));
    for options in [SampleOptions::default(), SampleOptions::greedy()] {
        let error = pick(options, &[0.0, f32::NAN, 1.0]).expect_err("a NaN");
        assert_eq!(
            error.to_string(),
            "sampler: logit of token 1: expected a finite value or -inf, found NaN"
        );
        let error = pick(options, &[0.0, 1.0, f32::INFINITY]).expect_err("+inf");
        assert_eq!(error, SampleError::NotFinite { token: 2, got: f32::INFINITY });
        assert_eq!(pick(options, &[f32::NEG_INFINITY; 9]), Err(SampleError::NothingLeft));
        assert_eq!(pick(options, &[]), Err(SampleError::Vocab { got: 0 }));
        let long = vec![0.0; Sampler::MAX_VOCAB + 1];
        assert_eq!(pick(options, &long), Err(SampleError::Vocab { got: long.len() }));
    }
    let cold = SampleOptions { temperature: 1e-30, ..SampleOptions::default() };
    assert_eq!(pick(cold, &[1e10, 0.0]), Err(SampleError::Overflow { got: f32::INFINITY }));
    let error = sampler(cold).pick(&[0.0; 4], &[1, 4], address(0, 0, 0)).expect_err("an id past the row");
    assert_eq!(error, SampleError::History { at: 1, got: 4, vocab: 4 });
}

#[test]
fn an_option_outside_its_range_is_named() {
    let default = SampleOptions::default();
    let cases = [
        (
            SampleOptions { temperature: -1.0, ..default },
            "temperature: expected 0, or a finite number >= 1e-30, found -1.0",
        ),
        (
            SampleOptions { temperature: f32::NAN, ..default },
            "temperature: expected 0, or a finite number >= 1e-30, found NaN",
        ),
        (SampleOptions { top_k: Some(0), ..default }, "top_k: expected at least 1, found 0"),
        (SampleOptions { top_p: Some(0.0), ..default }, "top_p: expected a number in (0, 1], found 0"),
        (SampleOptions { top_p: Some(1.5), ..default }, "top_p: expected a number in (0, 1], found 1.5"),
        (SampleOptions { min_p: Some(-0.1), ..default }, "min_p: expected a number in [0, 1], found -0.1"),
        (
            SampleOptions { repetition_penalty: Some(0.0), ..default },
            "repetition_penalty: expected a finite number > 0, found 0",
        ),
    ];
    for (options, want) in cases {
        assert_eq!(Sampler::new(options).expect_err(want).to_string(), want);
    }
}

#[test]
fn the_largest_vocabulary_and_extreme_values_are_sampled() {
    let row = vec![0.25; Sampler::MAX_VOCAB];
    let mut flat = sampler(SampleOptions::default());
    assert_eq!(flat.distribution(&row, &[]).map(|d| d.total()), Ok(1 << 63));
    assert_eq!(flat.distribution(&row, &[]).map(|d| d.token(u64::MAX)), Ok((1 << 19) - 1));
    for seed in 0..50 {
        let row = ugly(131, seed);
        let choice = flat.pick(&row, &[], address(seed, 0, 0)).expect("a choice");
        assert!(choice.logprob <= 0.0 && choice.logprob == choice.processed_logprob);
    }
}

#[test]
fn log_probabilities_are_of_the_given_and_of_the_processed_logits() {
    let row: Vec<f32> = (0..300).map(|i| 4.0 * val(i)).collect();
    let options = SampleOptions {
        temperature: 0.8,
        top_k: Some(20),
        top_p: Some(0.9),
        min_p: None,
        repetition_penalty: Some(1.3),
    };
    let history = [3, 7, 3, 3];
    let mut sampler = sampler(options);
    let choice = sampler.pick(&row, &history, address(5, 6, 7)).expect("a choice");
    let y = choice.token as usize;
    assert_eq!(choice.logprob.to_bits(), (row[y] - lse_row(&row)).to_bits());
    let z = sampler.distribution(&row, &history).expect("a distribution").logits().to_vec();
    assert_eq!(choice.processed_logprob.to_bits(), (z[y] - lse_row(&z)).to_bits());
    assert!(choice.processed_logprob > choice.logprob);
    let greedy = Sampler::new(SampleOptions { temperature: 0.0, ..options });
    let choice = greedy.expect("options").pick(&row, &history, address(5, 6, 7)).expect("a choice");
    assert_eq!(choice.processed_logprob.to_bits(), 0);
}

#[test]
fn a_choice_depends_only_on_its_arguments() {
    let options =
        SampleOptions { top_k: Some(40), top_p: Some(0.95), min_p: Some(0.01), ..SampleOptions::default() };
    let mut used = sampler(options);
    for position in 0..300 {
        let row = wide_row(64 + (position as usize * 37) % 500, 3.0);
        let fresh = sampler(options).pick(&row, &[], address(9, 1, position));
        assert_eq!(used.pick(&row, &[], address(9, 1, position)), fresh);
    }
}

#[test]
fn nothing_is_allocated_after_the_first_row() {
    let options = SampleOptions { top_k: Some(40), top_p: Some(0.95), ..SampleOptions::default() };
    let mut sampler = sampler(options);
    let row = wide_row(500, 2.0);
    sampler.pick(&row, &[], address(0, 0, 0)).expect("a choice");
    let before = sampler.buffers();
    for position in 1..100 {
        sampler.pick(&row[..500 - position as usize], &[], address(0, 0, position)).expect("a choice");
    }
    assert_eq!(sampler.buffers(), before);
}
