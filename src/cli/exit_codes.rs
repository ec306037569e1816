//! The exit code of each library error.

use super::exit::{CliError, Exit};
use crate::decode::sampler::SampleError;
use crate::model::chat::ChatError;
use crate::model::checkpoint::CheckpointError;
use crate::model::data::DataError;
use crate::model::store::StoreError;
use crate::model::tokenizer::TokenizerError;
use crate::rewards::RewardError;
use crate::{decode, evaluate, grpo, model, tensor, training, verify};

impl From<DataError> for CliError {
    fn from(error: DataError) -> CliError {
        let exit = match &error {
            DataError::Io { source, .. } => Exit::of_io(source.kind()),
            _ => Exit::Data,
        };
        CliError::from_source(exit, error)
    }
}

impl From<TokenizerError> for CliError {
    fn from(error: TokenizerError) -> CliError {
        let exit = match error {
            TokenizerError::Io { .. } => Exit::Io,
            TokenizerError::Argument { .. } => Exit::Usage,
            _ => Exit::Data,
        };
        CliError::from_source(exit, error)
    }
}

impl From<RewardError> for CliError {
    fn from(error: RewardError) -> CliError {
        let exit = match error {
            RewardError::Command { .. } => Exit::Usage,
            RewardError::Start { .. } => Exit::Missing,
            _ => Exit::Data,
        };
        CliError::from_source(exit, error)
    }
}

impl From<grpo::Error> for CliError {
    fn from(error: grpo::Error) -> CliError {
        match error {
            grpo::Error::Decode(error) => error.into(),
            grpo::Error::Model(error) => error.into(),
            grpo::Error::Reward(error) => error.into(),
            grpo::Error::Store(error) => error.into(),
            grpo::Error::Run(error) => error.into(),
            grpo::Error::Tokenizer(error) => error.into(),
            grpo::Error::Mismatch { .. } | grpo::Error::Unstable { .. } | grpo::Error::Verify { .. } => {
                CliError::from_source(Exit::Difference, error)
            }
            grpo::Error::RewardWeights { .. } | grpo::Error::NoPrompts => {
                CliError::from_source(Exit::Usage, error)
            }
            _ => CliError::from_source(Exit::Data, error),
        }
    }
}

impl From<ChatError> for CliError {
    fn from(error: ChatError) -> CliError {
        let exit = if let ChatError::Missing { .. } = error { Exit::Usage } else { Exit::Data };
        CliError::from_source(exit, error)
    }
}

impl From<CheckpointError> for CliError {
    fn from(error: CheckpointError) -> CliError {
        let exit = match &error {
            CheckpointError::Io { source, .. } => Exit::of_io(source.kind()),
            CheckpointError::Missing { .. } => Exit::Missing,
            CheckpointError::Locked { .. } => Exit::Usage,
            _ => Exit::Data,
        };
        CliError::from_source(exit, error)
    }
}

impl From<model::Error> for CliError {
    fn from(error: model::Error) -> CliError {
        let exit = match &error {
            model::Error::NotFinite { .. } => Exit::Diverged,
            model::Error::Config { .. } => Exit::Usage,
            model::Error::Tensor(tensor::Error::Device { .. }) => Exit::Device,
            _ => Exit::Data,
        };
        CliError::from_source(exit, error)
    }
}

impl From<decode::Error> for CliError {
    fn from(error: decode::Error) -> CliError {
        let exit = match error {
            decode::Error::Model(e) => return e.into(),
            decode::Error::Sample { source: SampleError::Option { .. }, .. } => Exit::Usage,
            decode::Error::Sample { .. } => Exit::Data,
            _ => Exit::Usage,
        };
        CliError::from_source(exit, error)
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

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> CliError {
        match error {
            StoreError::Checkpoint(e) => e.into(),
            StoreError::Tokenizer(e) => e.into(),
            StoreError::Model(e @ model::Error::Tensor(tensor::Error::Device { .. })) => e.into(),
            other => CliError::from_source(Exit::Data, other),
        }
    }
}

impl From<evaluate::Error> for CliError {
    fn from(error: evaluate::Error) -> CliError {
        match error {
            evaluate::Error::Data(e) => e.into(),
            evaluate::Error::Model(e) => e.into(),
            error => CliError::from_source(Exit::Data, error),
        }
    }
}

impl From<training::Error> for CliError {
    fn from(error: training::Error) -> CliError {
        match error {
            training::Error::Data(e) => e.into(),
            training::Error::Model(e) => e.into(),
            training::Error::Store(e) => e.into(),
            training::Error::Run(e) => e.into(),
            training::Error::Evaluate(e) => e.into(),
        }
    }
}

impl From<verify::Error> for CliError {
    fn from(error: verify::Error) -> CliError {
        match error {
            verify::Error::Decode(e) => e.into(),
            verify::Error::Model(e) => e.into(),
        }
    }
}
