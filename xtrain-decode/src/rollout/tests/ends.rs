//! Tests of how a sequence ends: by a token, at a limit, or by its caller.
use std::sync::Arc;

use super::*;
use crate::constraint::{Allowed, Constraint, ConstraintState, SharedConstraint};
use crate::sampler::{SampleError, TokenMask};

#[test]
fn the_token_that_ends_a_sequence_is_part_of_the_completion() {
    let model = model();
    let long = generate_greedy_cached(&model, &[3, 1, 4], 20).unwrap();
    let end = long.tokens[6];
    let at = long.tokens.iter().position(|&t| t == end).unwrap() + 1;
    let reasons = [
        (StopConditions { eos: vec![end], tokens: vec![] }, FinishReason::Eos),
        (StopConditions { eos: vec![], tokens: vec![36, end] }, FinishReason::Stop),
        (StopConditions { eos: vec![end], tokens: vec![end] }, FinishReason::Eos),
    ];
    for (stop, reason) in reasons {
        let request = Request { stop, ..Request::greedy(&[3, 1, 4], 20) };
        let got = generate(&model, vec![request], EngineOptions::default()).unwrap().remove(0);
        assert_eq!((&got.tokens[..], got.finish_reason), (&long.tokens[..at], reason));
        assert_eq!((got.logprobs.len(), got.processed_logprobs.len()), (at, at));
    }
    assert_eq!(long.finish_reason, FinishReason::Length);
}

#[test]
fn a_sequence_ends_at_the_context_limit() {
    let model = model();
    for kv in KINDS.into_iter().chain([KvKind::Off]) {
        let all =
            generate(&model, vec![request(0, &[1; 60], 100), request(1, &[1; 63], 5)], options(kv)).unwrap();
        let got: Vec<_> = all.iter().map(|c| (c.tokens.len(), c.finish_reason)).collect();
        assert_eq!(got, [(4, FinishReason::Context), (1, FinishReason::Context)], "{kv}");
    }
}

#[test]
fn a_caller_can_stop_a_sequence() {
    use FinishReason::{Length, Stop};
    let model = model();
    let mut engine =
        Engine::new(&model, EngineOptions { max_batch: 2, ..options(KvKind::default()) }).unwrap();
    engine.submit_group(request(0, &[1, 2], 9), 4).unwrap();
    engine.step().unwrap();
    assert!(engine.stop(0) && engine.stop(3) && !engine.stop(3) && !engine.stop(9));
    let got = engine.run().unwrap();
    let ends: Vec<_> = got.iter().map(|c| (c.id, c.tokens.len(), c.finish_reason)).collect();
    assert_eq!(ends, [(0, 1, Stop), (1, 9, Length), (2, 9, Length), (3, 0, Stop)]);
    assert_eq!(engine.counters().prefill_rows, 2);
}

#[test]
fn completions_continue_when_the_one_that_computes_their_rows_is_stopped() {
    let model = model();
    for kv in KINDS {
        let mut engine = Engine::new(&model, options(kv)).unwrap();
        let greedy = Request { options: SampleOptions::greedy(), ..request(0, &[1, 2, 3], 9) };
        let want = generate_naive(&model, &greedy).unwrap();
        engine.submit_group(greedy, 4).unwrap();
        engine.step().unwrap();
        engine.step().unwrap();
        assert!(engine.stop(0), "{kv}");
        engine.step().unwrap();
        assert!(engine.stop(1), "{kv}");
        let got = engine.run().unwrap();
        let lengths: Vec<usize> = got.iter().map(|c| c.tokens.len()).collect();
        assert_eq!(lengths, [2, 3, 9, 9], "{kv}");
        assert!(got.iter().all(|c| want.tokens.starts_with(&c.tokens)), "{kv}: {got:?}, expected {want:?}");
        assert_eq!(engine.counters().layer_rows, 3 + 8, "{kv}: the rows of one completion");
    }
}

/// Allows token 5, and then neither a token nor the end of the text.
#[derive(Debug)]
struct DeadEnd;

/// Allows only the tokens `ids` next. The text may not end here.
fn only(ids: &[u32]) -> Allowed {
    let mut text = TokenMask::new(config().vocab);
    for &id in ids {
        text.allow(id);
    }
    Allowed { text, may_end: false }
}

impl Constraint for DeadEnd {
    fn start(&self) -> Result<(Box<dyn ConstraintState>, Allowed), SampleError> {
        Ok((Box::new(DeadEnd), only(&[5])))
    }
}

impl ConstraintState for DeadEnd {
    fn advance(&mut self, _: u32) -> Result<Allowed, SampleError> {
        Ok(only(&[]))
    }

    fn fork(&self) -> Box<dyn ConstraintState> {
        Box::new(DeadEnd)
    }
}

/// What a request with a dead end returns, without end-of-text tokens and with one.
fn dead_ends() -> [Result<Vec<Completion>, Error>; 2] {
    let (model, constraint) = (model(), Some(SharedConstraint(Arc::new(DeadEnd))));
    [vec![], vec![7]].map(|eos| {
        let stop = StopConditions { eos, tokens: vec![] };
        let request = Request { stop, constraint: constraint.clone(), ..request(9, &[1, 2, 3], 8) };
        generate(&model, vec![request], EngineOptions::default())
    })
}

#[test]
fn a_constraint_that_allows_no_token_and_no_end_is_an_error() {
    for ended in dead_ends() {
        let Err(Error::Sample { id: 9, position: 4, source: SampleError::NothingAllowed }) = ended else {
            panic!("{ended:?}")
        };
    }
}

#[test]
#[cfg(feature = "faults")]
fn a_dead_end_that_counts_as_complete_is_found() {
    use xtrain_tensor::faults::{self, Fault};

    let ended = faults::with(Fault::DeadEndIsComplete, dead_ends);
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
}
