//! The requests of the prompts of `xtrain rollout`.
use super::args::RolloutArgs;
use crate::cli::constraint::Compiler;
use crate::cli::loaded::Loaded;
use crate::cli::prompts::Prompt;
use crate::cli::{CliError, Exit};
use crate::decode::{Engine, Request};
use crate::grammar::Language;

/// A request and its priority among the waiting ones.
pub(super) struct Prioritized {
    pub(super) request: Request,
    pub(super) priority: i32,
    /// Index of the prompt among those that were not skipped.
    pub(super) group: usize,
    /// The stop texts of the prompt's line. `None`: those of the flags.
    pub(super) stop: Option<Vec<String>>,
}

/// Submits `g` completions of each request.
pub(super) fn submit(engine: &mut Engine<'_>, requests: Vec<Prioritized>, g: usize) -> Result<(), CliError> {
    for Prioritized { request, priority, .. } in requests {
        engine.submit_prioritized(request, g, priority)?;
    }
    Ok(())
}

/// One request per prompt with its priority, each checked against the model. The flags constrain the prompts whose line
/// does not.
pub(super) fn requests(
    args: &RolloutArgs,
    loaded: &Loaded,
    prompts: &mut [Prompt],
) -> Result<Vec<Prioritized>, CliError> {
    let flags = &args.generation.constraint;
    let (language, mut compiler) = (flags.language()?, Compiler::new(loaded));
    let limits = args.generation.cache.engine().kv.limits(loaded.model.config());
    let request = |(group, prompt): (usize, &mut Prompt)| {
        let id = (prompt.index as u64).saturating_mul(args.n.get() as u64);
        let request =
            prompt.parameters(&args.generation.parameters).request(&loaded.eos, id, prompt.ids.clone());
        let place = if prompt.language.is_some() { &prompt.place } else { flags.name() };
        let language = prompt.language.as_ref().or(language.as_ref());
        let constraint = language.map(|language| compiler.constraint(language, place));
        let request = Request { constraint: constraint.transpose()?, ..request };
        prompt.language = language.cloned();
        let request = prompt.checked(request, &limits)?;
        let vocab = loaded.model.config().vocab;
        if let Some(found) = request.stop.tokens.iter().find(|&&id| id as usize >= vocab) {
            let want = format!("field \"stop_token_ids\": expected token ids below {vocab}, found {found}");
            return Err(CliError::new(Exit::Data, format_args!("{}: {want}", prompt.place)));
        }
        let of_flags = &args.generation.parameters.stop;
        let of_line = prompt.parameters.as_ref().map(|parameters| &parameters.stop);
        let stop = of_line.filter(|stop| *stop != of_flags).map(|stop| stop.stop.clone());
        if stop.as_ref().is_some_and(|stop| !stop.is_empty()) {
            let place = format!("{}: field \"stop\"", prompt.place);
            loaded.require_tokenizer(&place, "remove the field; \"max_new\" limits the length")?;
        }
        Ok(Prioritized { request, priority: prompt.priority, group, stop })
    };
    prompts.iter_mut().enumerate().map(request).collect()
}

/// A checksum of all prompts, their constraints, their parameters and their columns. `language` is that of the flags.
pub(super) fn digest(prompts: &[Prompt], language: Option<&Language>) -> String {
    let of = |prompt: &Prompt| {
        let parameters = prompt.parameters.as_ref().map(|parameters| format!("{parameters:?}"));
        let values = (&prompt.ids, prompt.language.as_ref().or(language), parameters, &prompt.columns);
        serde_json::to_vec(&values).expect("ids and JSON values are JSON")
    };
    let crc = prompts.iter().fold(0, |crc, prompt| crc32c::crc32c_append(crc, &of(prompt)));
    format!("crc32c:{crc:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::prompts;
    use crate::decode::EngineOptions;
    use crate::model::{Config, Model};
    #[cfg(feature = "faults")]
    use crate::tensor::faults::{self, Fault};
    use crate::tensor::{Device, Dtype};

    /// The ids of three completions in the order in which one slot completes them.
    fn order(priorities: [i32; 3]) -> Vec<u64> {
        let sizes = Config { vocab: 8, dim: 4, ffn_dim: 4, n_heads: 1, n_kv_heads: 1, ..Config::default() };
        let rest = Config { head_dim: 4, rope_theta: 1e4, norm_eps: 1e-6, n_layers: 1, ..sizes };
        let cfg = Config { max_positions: 16, ..rest };
        let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 1).unwrap();
        let options = EngineOptions { max_batch: 1, ..EngineOptions::default() };
        let mut engine = Engine::new(&model, options).unwrap();
        let line = |priority: i32| format!("{{\"prompt_ids\": [1, 2], \"priority\": {priority}}}\n");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, priorities.map(line).concat()).unwrap();
        let prompts = prompts::read(file.path(), None).unwrap();
        let request = |(id, prompt): (u64, Prompt)| Prioritized {
            request: Request { id, ..Request::greedy(&prompt.ids, 2) },
            priority: prompt.priority,
            group: 0,
            stop: None,
        };
        submit(&mut engine, (0..).zip(prompts).map(request).collect(), 1).unwrap();
        let mut order = Vec::new();
        while !engine.is_idle() {
            engine.step().unwrap();
            order.extend(engine.take_finished().iter().map(|done| done.id));
        }
        order
    }

    #[test]
    fn prompts_of_a_higher_priority_run_first() {
        assert_eq!(order([0, 0, 0]), [0, 1, 2]);
        assert_eq!(order([-1, 0, 3]), [2, 1, 0]);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn an_ignored_priority_is_found() {
        assert_eq!(faults::with(Fault::PriorityColumnIgnored, || order([-1, 0, 3])), [0, 1, 2]);
    }
}
