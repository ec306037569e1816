//! The exit code of each library error.
use super::exit::{CliError, Exit, LibraryError, shell_word};
use super::{data_format, model_files, resumable};
use crate::decode::sampler::SampleError;
use crate::model::chat::ChatError;
use crate::model::checkpoint::CheckpointError;
use crate::model::comm;
use crate::model::data::DataError;
use crate::model::data::jsonl::{OBJECT, ONE_KIND};
use crate::model::store::StoreError;
use crate::model::tokenizer::TokenizerError;
use crate::rewards::RewardError;
use crate::{config, decode, evaluate, grpo, model, run, tensor, training, verify};

impl LibraryError for config::Error {
    fn exit(&self) -> Exit {
        match self {
            config::Error::Read { source, .. } => Exit::of_io(source.kind()),
            _ => Exit::Usage,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            config::Error::UnknownKey { key, nearest: None, .. } => {
                let all = "xtrain train --dry-run and xtrain grpo --task sums --dry-run print all keys";
                Some(config::absent(key).unwrap_or(all).to_string())
            }
            config::Error::NotText(error) => error.hint(),
            _ => None,
        }
    }
}

impl LibraryError for run::Error {
    fn exit(&self) -> Exit {
        match self {
            run::Error::Exists { .. } | run::Error::NotEmpty { .. } => Exit::Usage,
            run::Error::Missing { .. } => Exit::Missing,
            run::Error::Line { .. } | run::Error::Changed { .. } => Exit::Data,
            run::Error::Io { .. } => Exit::Io,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            run::Error::Exists { path } => {
                let (command, path) = (resumable::command(path), shell_word(path));
                Some(format!(
                    "to resume it: xtrain {command} --resume {path}; to use another directory: --run DIR"
                ))
            }
            run::Error::NotEmpty { path } => Some(match run::RunDir::is_unfinished(path) {
                true => {
                    "the start of a run was interrupted there; remove it, or use another directory: --run DIR"
                        .into()
                }
                false => "to use another directory: --run DIR".into(),
            }),
            run::Error::Line { .. } => {
                Some("if the run is resumed, its damaged lines are moved to a file of their own".to_string())
            }
            run::Error::Changed { .. } => Some("restore the original data, or start a new run".to_string()),
            _ => None,
        }
    }
}

impl LibraryError for DataError {
    fn exit(&self) -> Exit {
        match self {
            DataError::Io { source, .. } => Exit::of_io(source.kind()),
            _ => Exit::Data,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            DataError::NotText { file, byte, .. } => {
                data_format::of_not_text(file, *byte).map(ToString::to_string)
            }
            DataError::Format { file, .. } => data_format::conversion(file)
                .map(ToString::to_string)
                .or_else(|| model_files::of_pointer(file)),
            DataError::Line { file, want, got, .. } => model_files::of_pointer(file).or_else(|| {
                let hint = match *want {
                    OBJECT => data_format::of_whole_json(file),
                    ONE_KIND => data_format::of_fields(got),
                    _ => None,
                };
                hint.map(ToString::to_string)
            }),
            DataError::NoTargets { documents: 0, .. } => {
                Some("add data; unless data.val_fraction is set, a tenth of it is held out".to_string())
            }
            DataError::TooShort { .. } => Some(
                "add data, or reduce train.context; unless data.val_fraction is set, a tenth of the data is held out"
                    .to_string(),
            ),
            _ => None,
        }
    }
}

impl LibraryError for TokenizerError {
    fn exit(&self) -> Exit {
        match self {
            TokenizerError::Io { source, .. } => Exit::of_io(source.kind()),
            TokenizerError::Argument { .. } => Exit::Usage,
            _ => Exit::Data,
        }
    }

    fn hint(&self) -> Option<String> {
        model_files::of_tokenizer(self)
    }
}

impl LibraryError for RewardError {
    fn exit(&self) -> Exit {
        match self {
            RewardError::Command { .. } => Exit::Usage,
            RewardError::Start { .. } => Exit::Missing,
            _ => Exit::Data,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint =
            "no shell runs: a Python file is started by 'python3 FILE', variables and pipes need sh -c '...'";
        matches!(self, RewardError::Start { .. }).then(|| hint.to_string())
    }
}

impl LibraryError for grpo::Error {
    fn message(&self) -> String {
        match self {
            grpo::Error::Decode(error) => error.message(),
            grpo::Error::Rollout { step, error } => format!("step {step}: {}", error.message()),
            other => other.to_string(),
        }
    }

    fn exit(&self) -> Exit {
        match self {
            grpo::Error::Decode(error) | grpo::Error::Rollout { error, .. } => match error {
                decode::Error::Sample { source: SampleError::NotFinite { .. }, .. } => Exit::Diverged,
                _ => error.exit(),
            },
            grpo::Error::Model(error) => error.exit(),
            grpo::Error::Reward(error) => error.exit(),
            grpo::Error::Store(error) => error.exit(),
            grpo::Error::Run(error) => error.exit(),
            grpo::Error::Tokenizer(error) => error.exit(),
            grpo::Error::Config(error) => error.exit(),
            grpo::Error::Mismatch { .. }
            | grpo::Error::Unstable { .. }
            | grpo::Error::Verify { .. }
            | grpo::Error::TokensChanged { .. }
            | grpo::Error::WeightsChanged { .. }
            | grpo::Error::FiltersDiffer { .. } => Exit::Difference,
            grpo::Error::RewardOrder { .. } | grpo::Error::RewardCount { .. } => Exit::Bug,
            grpo::Error::RewardWeights { .. } | grpo::Error::NoPrompts | grpo::Error::NoReference { .. } => {
                Exit::Usage
            }
            _ => Exit::Data,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            grpo::Error::Decode(error) | grpo::Error::Rollout { error, .. } => error.hint(),
            grpo::Error::Model(error) => error.hint(),
            grpo::Error::Config(error) => error.hint(),
            _ => None,
        }
    }
}

impl LibraryError for ChatError {
    fn exit(&self) -> Exit {
        if let ChatError::Missing { .. } = self { Exit::Usage } else { Exit::Data }
    }
}

impl LibraryError for CheckpointError {
    fn exit(&self) -> Exit {
        match self {
            CheckpointError::Io { source, .. } => Exit::of_io(source.kind()),
            CheckpointError::Missing { .. } => Exit::Missing,
            CheckpointError::Locked { .. } => Exit::Usage,
            _ => Exit::Data,
        }
    }

    fn hint(&self) -> Option<String> {
        model_files::of_checkpoint(self)
    }
}

impl LibraryError for comm::Error {
    fn exit(&self) -> Exit {
        match self {
            comm::Error::Ended { .. } => Exit::Io,
            comm::Error::Launch(_) => Exit::Device,
            _ => Exit::Bug,
        }
    }
}

impl LibraryError for model::Error {
    fn exit(&self) -> Exit {
        match self {
            model::Error::NotFinite { .. } => Exit::Diverged,
            model::Error::Config { .. } | model::Error::Processes { .. } => Exit::Usage,
            model::Error::Communication(error) => error.exit(),
            model::Error::OffloadedLayer { .. } => Exit::Io,
            model::Error::Tensor(error) => of_tensor(error),
            _ => Exit::Data,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = "reduce the batch, the context or the model, or end other programs";
        matches!(self, model::Error::Tensor(tensor::Error::Memory { .. })).then(|| hint.to_string())
    }
}

fn of_tensor(error: &tensor::Error) -> Exit {
    match error {
        tensor::Error::Memory { .. } => Exit::Memory,
        tensor::Error::Device { .. } => Exit::Device,
        _ => Exit::Data,
    }
}

/// The options of the engine that are flags.
const FLAGS: [(&str, &str); 3] =
    [("kv", "--kv"), ("kv_resident", "--kv-resident"), ("offload_limit", "--offload-limit")];

impl LibraryError for decode::Error {
    /// The name of an option becomes that of its flag.
    fn message(&self) -> String {
        let name = |option: &str| FLAGS.iter().find(|(name, _)| *name == option).map(|(_, flag)| *flag);
        match self {
            decode::Error::Option { field, want, got } if name(field).is_some() => {
                format!("{}: expected {want}, found {got}", name(field).unwrap_or_default())
            }
            other => other.to_string(),
        }
    }

    fn exit(&self) -> Exit {
        match self {
            decode::Error::Model(error) => error.exit(),
            decode::Error::Sample { source: SampleError::Option { .. }, .. } => Exit::Usage,
            decode::Error::Sample { .. } => Exit::Data,
            _ => Exit::Usage,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            decode::Error::Model(model::Error::OffloadedLayer { .. }) => {
                "check the disk of --offload-dir, or use another one"
            }
            decode::Error::Model(error) => return error.hint(),
            decode::Error::Option { field: "kv_resident", .. } => {
                "increase --kv-resident, or use a cache of fewer positions: --max-new, or --kv-capacity of rollout"
            }
            decode::Error::Option { field: "offload_limit", .. } => {
                "increase --offload-limit or --kv-resident"
            }
            decode::Error::Option { field: "kv", want, .. } if want.starts_with("sinks and a window") => {
                "reduce --kv-window or --kv-sinks: together at most the context of the model"
            }
            _ => return None,
        };
        Some(hint.to_string())
    }
}

impl LibraryError for StoreError {
    fn exit(&self) -> Exit {
        match self {
            StoreError::Checkpoint(error) => error.exit(),
            StoreError::Tokenizer(error) => error.exit(),
            StoreError::Model(model::Error::Tensor(error)) => of_tensor(error),
            _ => Exit::Data,
        }
    }

    fn hint(&self) -> Option<String> {
        model_files::hint(self)
    }
}

impl LibraryError for evaluate::Error {
    fn exit(&self) -> Exit {
        match self {
            evaluate::Error::Data(error) => error.exit(),
            evaluate::Error::Model(error) => error.exit(),
            evaluate::Error::Communication(error) => error.exit(),
            evaluate::Error::Empty => Exit::Data,
        }
    }
}

impl LibraryError for training::Error {
    fn exit(&self) -> Exit {
        match self {
            training::Error::Data(error) => error.exit(),
            training::Error::Model(error) => error.exit(),
            training::Error::Store(error) => error.exit(),
            training::Error::Run(error) => error.exit(),
            training::Error::Evaluate(error) => error.exit(),
            training::Error::Communication(error) => error.exit(),
        }
    }

    fn hint(&self) -> Option<String> {
        if let training::Error::Model(error) = self { error.hint() } else { None }
    }
}

impl LibraryError for verify::Error {
    fn exit(&self) -> Exit {
        match self {
            verify::Error::Decode(error) => error.exit(),
            verify::Error::Model(error) => error.exit(),
            verify::Error::Communication(error) => error.exit(),
            verify::Error::ProcessesDiffer { .. } => Exit::Difference,
        }
    }
}

impl CliError {
    /// A request that the engine rejects. `place` replaces the sequence number at the start of the message.
    pub(super) fn of_request(exit: Exit, place: &str, error: &decode::Error) -> CliError {
        let text = error.to_string();
        let reason = match (error, text.split_once(": ")) {
            (decode::Error::Model(_), _) | (_, None) => text.as_str(),
            (_, Some((_number, reason))) => reason,
        };
        CliError::new(exit, format_args!("{place}: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_memory_is_another_exit_code_than_no_device() {
        let code = |error: tensor::Error| {
            let of_model = || model::Error::Tensor(error.clone());
            let (decode, grpo) = (decode::Error::Model(of_model()), grpo::Error::Model(of_model()));
            let errors: [CliError; 4] =
                [of_model().into(), decode.into(), training::Error::Model(of_model()).into(), grpo.into()];
            errors.map(|error| error.exit())
        };
        assert_eq!(code(tensor::Error::Memory { bytes: 8, on_gpu: true }), [Exit::Memory; 4]);
        let failed = tensor::Error::Device { what: "failed".to_string(), source: None };
        assert_eq!(code(failed), [Exit::Device; 4]);
    }
}
