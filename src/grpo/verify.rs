//! The comparison of a group with the training forward pass over the whole vocabulary.
use std::ops::Range;

use super::batch::Batch;
use super::{Error, Grpo, GrpoObserver, GrpoPhase, crossed};
use crate::decode::{EngineOptions, Request, StopConditions};
use crate::model::shard_samples;
use crate::tensor::faults::{self, Fault};
use crate::verify::{RequestedSetting, verify};

/// Completions of the group that is compared over the whole vocabulary.
const VERIFIED: usize = 4;

impl Grpo<'_> {
    /// Regenerates completions of the first group of this process in a batch with several caches and batch sizes, and
    /// compares them with the training forward pass over the whole vocabulary.
    pub(super) fn verify(&self, batch: &Batch, observer: &mut dyn GrpoObserver) -> Result<(), Error> {
        let last = batch.step - 1 + self.section.steps_per_batch() as u64;
        if !crossed(self.section.verify_every, batch.step - 1, last) {
            return Ok(());
        }
        observer.enter(GrpoPhase::Verify)?;
        let comm = &self.processes.comm;
        let own = shard_samples(batch.groups.len(), comm.size(), comm.rank());
        let Some(group) = batch.groups[own].first() else { return Ok(()) };
        let requests: Vec<Request> = group
            .samples
            .iter()
            .take(VERIFIED)
            .flat_map(|sample| sample.turns().into_iter().map(move |turn| (sample, turn)))
            .map(|(sample, turn)| Request {
                id: sample.id,
                seed: self.rollout.seed,
                prompt: [&group.prompt.ids[..], &sample.tokens[..turn.start]].concat(),
                options: self.rollout.sampling,
                max_new: self.verified_tokens(turn),
                stop: StopConditions { eos: self.tokenizer.eos_ids().to_vec(), tokens: Vec::new() },
                constraint: self.rollout.constraint.as_ref().map(|constraint| constraint.shared.clone()),
                top_logprobs: 0,
            })
            .collect();
        let EngineOptions { kv, prefill_chunk: chunk, .. } = self.rollout.engine;
        let requested = RequestedSetting { threads: self.trainer.model.device().threads(), kv, chunk };
        let verdicts = verify(&self.trainer.model, &requests, &requested, &mut |_| ())?;
        let values: u64 = verdicts.iter().map(|verdict| verdict.values).sum();
        match verdicts.iter().find(|verdict| !verdict.holds()) {
            Some(bad) => Err(Error::Verify {
                step: batch.step,
                first: bad.first.as_ref().map_or("missing rows".to_string(), ToString::to_string),
            }),
            None => {
                let step = batch.step;
                observer.note(&format!(
                    "step {step}: {values} values of a group compared with training, 0 differ"
                ));
                Ok(())
            }
        }
    }

    /// Maximum number of tokens that are regenerated for a turn. The compared engines know no stop texts.
    fn verified_tokens(&self, turn: Range<usize>) -> usize {
        let stops = !self.rollout.stop_texts.is_empty() && !faults::on(Fault::VerifyIgnoresStopTexts);
        if stops { turn.len() } else { self.rollout.max_new - turn.start }
    }
}
