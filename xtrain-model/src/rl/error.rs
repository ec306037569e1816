//! The error of advantages and policy losses.

/// The result of an operation of this module.
pub type Result<T, E = RlError> = std::result::Result<T, E>;

/// Why advantages or a policy loss could not be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RlError {
    /// An invalid option.
    #[error("{field}: expected {want}, found {got}")]
    Option {
        /// The option.
        field: &'static str,
        /// The valid values.
        want: String,
        /// The value found.
        got: String,
    },
    /// A number of completions that is not a multiple of the group size.
    #[error("rewards: expected a multiple of {group} completions, found {got}")]
    Groups {
        /// The number of completions of a prompt.
        group: usize,
        /// The number of completions found.
        got: usize,
    },
    /// A completion with the wrong number of rewards.
    #[error("completion {completion}: expected {want} rewards, found {got}")]
    Functions {
        /// The index of the completion in the step.
        completion: usize,
        /// The number of reward functions.
        want: usize,
        /// The number of rewards found.
        got: usize,
    },
    /// A reward that is NaN or infinite.
    #[error(
        "completion {completion}: reward function {function}: expected a finite reward or none, found {got}"
    )]
    Reward {
        /// The index of the completion in the step.
        completion: usize,
        /// The index of the reward function.
        function: usize,
        /// The reward.
        got: f64,
    },
    /// Finite rewards whose standard deviation overflows.
    #[error("completion {completion}: reward {got:e}: expected rewards whose standard deviation is finite")]
    Deviation {
        /// The completion with the largest of these rewards.
        completion: usize,
        /// Its reward.
        got: f64,
    },
    /// A list with another length than the log-probabilities of its completion.
    #[error("completion {completion}: {field}: expected {want} values, found {got}")]
    Length {
        /// The index of the completion in the step.
        completion: usize,
        /// The list.
        field: &'static str,
        /// The number of tokens of the completion.
        want: usize,
        /// The number of values found.
        got: usize,
    },
    /// A list that the options require and the completion does not have.
    #[error(
        "completion {completion}: {field}: expected one value for each token because {option} is set, found none"
    )]
    Missing {
        /// The index of the completion in the step.
        completion: usize,
        /// The list.
        field: &'static str,
        /// The option that requires it.
        option: &'static str,
    },
    /// A value that is NaN or infinite.
    #[error("completion {completion}{}: {what}: expected a finite value, found {got}", of_token(*.token))]
    NotFinite {
        /// The index of the completion in the step.
        completion: usize,
        /// The index of the token in the completion. `None`: a value of the whole completion.
        token: Option<usize>,
        /// The quantity.
        what: &'static str,
        /// The value.
        got: f64,
    },
}

impl RlError {
    /// The error with another index for its completion: `index` of the one it has.
    #[must_use]
    pub fn map_completion(mut self, index: impl FnOnce(usize) -> usize) -> RlError {
        match &mut self {
            RlError::Option { .. } | RlError::Groups { .. } => {}
            RlError::Functions { completion, .. }
            | RlError::Reward { completion, .. }
            | RlError::Length { completion, .. }
            | RlError::Missing { completion, .. }
            | RlError::Deviation { completion, .. }
            | RlError::NotFinite { completion, .. } => *completion = index(*completion),
        }
        self
    }
}

/// ", token 3", or nothing.
fn of_token(token: Option<usize>) -> String {
    token.map_or_else(String::new, |token| format!(", token {token}"))
}
