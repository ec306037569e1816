//! Tests of steps whose forward pass succeeds and whose LM head fails.
use super::*;
use crate::rollout::options::Speculation;

/// The completions of two groups and a single sequence. The head fails once before each of the steps in `failing`.
fn completions(
    model: &Model,
    options: EngineOptions,
    failing: &[usize],
) -> crate::error::Result<Vec<Completion>> {
    let mut engine = Engine::new(model, options).unwrap();
    for (id, prompt, g) in [(1, &[1, 2, 3, 4, 5, 1, 2, 3][..], 3), (4, &[6], 2), (6, &[9, 8, 9, 8, 9], 1)] {
        engine.submit_group(request(id, prompt, 9), g).unwrap();
    }
    let mut step = 0;
    while !engine.is_idle() {
        if failing.contains(&step) {
            HEAD_FAILS.set(true);
            assert_eq!(engine.step().unwrap_err().to_string(), "head: expected memory, found none");
            HEAD_FAILS.set(false);
        }
        engine.step()?;
        step += 1;
        assert!(step < 100, "the engine does not end");
    }
    let mut finished = engine.take_finished();
    finished.sort_by_key(|c| c.id);
    Ok(finished)
}

#[test]
fn a_step_whose_head_has_failed_is_repeated() {
    let model = model();
    let sinks = KvKind::Sinks { sinks: 1, window: 4 };
    for kv in KINDS.into_iter().chain([KvKind::Off, KvKind::Int8 { page: 5 }, sinks]) {
        for speculation in [Speculation::Off, Speculation::PromptLookup] {
            let options = EngineOptions { speculation, prefill_chunk: Some(3), ..options(kv) };
            if options.check(model.config()).is_err() {
                continue;
            }
            let want = completions(&model, options, &[]).unwrap();
            for failing in [&[0][..], &[1, 2], &[3, 5, 6, 7]] {
                let got = completions(&model, options, failing).unwrap();
                assert_eq!(got, want, "{kv}, {speculation:?}, {failing:?}");
            }
        }
    }
}

#[test]
#[cfg(feature = "faults")]
fn rows_of_a_failed_pass_that_stay_are_found() {
    use xtrain_tensor::faults::{Fault, with};
    let model = model();
    for kv in KINDS {
        let found = with(Fault::FailedPassNotAbandoned, || completions(&model, options(kv), &[1]));
        assert!(found.is_err_and(|error| error.to_string().contains("position")), "{kv}");
    }
}
