//! Whether the processes of a command would compute the same: each compares its build, configuration, data and
//! weights with those of the first one.
use super::exit::{CliError, Exit};
use crate::build_info::COMMIT;
use crate::config::{self, RunConfig};
use crate::model::Trainer;
use crate::model::comm::Communicator;
use crate::rollout_file::policy_digest;
use crate::run::DataRecord;
use crate::tensor::faults::{self, Fault};

/// Keys whose values may differ between processes: the places of files, whose content is compared, and the directory of
/// reward programs, which only the first process starts.
const PLACES: [&str; 7] = [
    "data.files",
    "data.val_files",
    "data.tokenizer",
    "train.init",
    "grpo.prompts",
    "grpo.eval_prompts",
    "grpo.reward_dir",
];

/// Checks that several processes can divide a run.
///
/// # Errors
/// Their number does not divide the shards of a step.
pub(super) fn require_division(config: &RunConfig, comm: &dyn Communicator) -> Result<(), CliError> {
    let (shards, size) = (config.train.shards, comm.size());
    if !shards.is_multiple_of(size) {
        let message =
            format_args!("`train.shards` = {shards}: expected a multiple of {size}, the number of processes");
        let hint =
            format!("a new run may set it: --set train.shards={size}; a run keeps its number of shards");
        return Err(CliError::new(Exit::Usage, message).hint(hint));
    }
    Ok(())
}

/// Names and values that must be equal in all processes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Identity(Vec<(String, String)>);

impl Identity {
    /// That of this build.
    pub(super) fn of_build() -> Identity {
        Identity(vec![("the build".into(), format!("{} (commit {COMMIT})", env!("CARGO_PKG_VERSION")))])
    }

    /// That of the command line.
    pub(super) fn of_command() -> Identity {
        let args: Vec<String> =
            std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        Identity::of_build().and("the command line", args.join(" "))
    }

    /// Adds a name and a value.
    pub(super) fn and(mut self, name: &str, value: impl ToString) -> Identity {
        self.0.push((name.into(), value.to_string()));
        self
    }

    /// That of a training run before its next step.
    ///
    /// # Errors
    /// The weights cannot be read.
    pub(super) fn of_run(
        config: &RunConfig,
        data: &DataRecord,
        trainer: &Trainer,
    ) -> Result<Identity, CliError> {
        Identity::of_config(config).and_data(data).and_trainer(trainer)
    }

    /// That of a configuration.
    pub(super) fn of_config(config: &RunConfig) -> Identity {
        let values = config::flat(config).into_iter().filter(|(key, _)| !PLACES.contains(&key.as_str()));
        values.fold(Identity::of_build(), |all, (key, value)| all.and(&format!("`{key}`"), value))
    }

    /// That of a run of reinforcement learning before its next step, whose configuration was compared before, with its
    /// digest of its reference model.
    ///
    /// # Errors
    /// The weights cannot be read.
    pub(super) fn of_grpo(
        data: &DataRecord,
        trainer: &Trainer,
        reference: Option<String>,
    ) -> Result<Identity, CliError> {
        let all = Identity::of_build().and_data(data).and_trainer(trainer)?;
        Ok(reference.into_iter().fold(all, |all, digest| all.and("the reference model", digest)))
    }

    fn and_data(self, data: &DataRecord) -> Identity {
        let training = data.files.iter().chain([&data.tokenizer]);
        let all = training.fold(self, |all, file| all.and("the training data", &file.digest));
        let all = data.tokenization.iter().fold(all, |all, found| all.and("the tokenizer", &found.digest));
        data.val_files.iter().fold(all, |all, file| all.and("the validation data", &file.digest))
    }

    fn and_trainer(self, trainer: &Trainer) -> Result<Identity, CliError> {
        Ok(self.and("the step", trainer.step_number()).and("the weights", policy_digest(&trainer.model)?))
    }

    /// Compares the processes of `comm`. All of them return the same result.
    ///
    /// # Errors
    /// The first difference of the first process that differs from process 0.
    pub(super) fn require_equal(&self, comm: &dyn Communicator) -> Result<(), CliError> {
        if comm.size() == 1 {
            return Ok(());
        }
        let message = serde_json::to_vec(&self.0).expect("a list of strings is JSON");
        let all = comm.all_gather(&message)?;
        let read = |message: &Vec<u8>| serde_json::from_slice::<Vec<(String, String)>>(message);
        let Some(Ok(want)) = all.first().map(read) else { return Err(unreadable(0)) };
        for (rank, message) in all.iter().enumerate() {
            let found = read(message).map_err(|_| unreadable(rank))?;
            if found == want || faults::on(Fault::ProcessesNotCompared) {
                continue;
            }
            let (name, want, found) = want
                .iter()
                .zip(&found)
                .find(|(want, found)| want != found)
                .map_or(("the number of values", "", ""), |((name, want), (_, found))| (name, want, found));
            let message =
                format!("process {rank} differs from process 0 in {name}: expected {want}, found {found}");
            return Err(CliError::new(Exit::Usage, message)
                .hint("start all processes with one build, one command line and the same files"));
        }
        Ok(())
    }
}

fn unreadable(rank: usize) -> CliError {
    CliError::new(Exit::Usage, format!("process {rank} runs another version of xtrain"))
        .hint("start all processes with one build")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::comm::ThreadProcess;

    /// The errors of three processes, of which the last has `found`.
    pub(super) fn errors(found: &Identity) -> Vec<Option<String>> {
        let fault = faults::current();
        std::thread::scope(|scope| {
            let start = |process: ThreadProcess| {
                scope.spawn(move || {
                    let want = Identity::of_build().and("`train.seed`", 1);
                    let own = if process.rank() == 2 { found } else { &want };
                    fault.enter(|| own.require_equal(&process)).err().map(|error| error.message().to_string())
                })
            };
            let threads: Vec<_> = ThreadProcess::group(3).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn processes_may_start_in_different_directories() {
        let of = |dir: &str, seed: u64| {
            let keys =
                ["grpo.task=sums".into(), format!("grpo.reward_dir={dir}"), format!("train.seed={seed}")];
            Identity::of_config(&RunConfig::load(&keys.map(config::Layer::Set)).unwrap())
        };
        assert_eq!(of("/a", 1), of("/b", 1));
        assert_ne!(of("/a", 1), of("/a", 2));
    }

    #[test]
    fn the_process_that_differs_is_named_in_all_of_them() {
        let (one, two) =
            (Identity::of_build().and("`train.seed`", 1), Identity::of_build().and("`train.seed`", 2));
        assert_eq!(errors(&one), [None, None, None]);
        let want = "process 2 differs from process 0 in `train.seed`: expected 1, found 2";
        assert_eq!(errors(&two), vec![Some(want.to_string()); 3]);
        let other = Identity(vec![("the build".into(), "0.0.1 (commit none)".into())]);
        let found = errors(&other).remove(2).unwrap();
        assert!(found.starts_with("process 2 differs from process 0 in the build: expected "), "{found}");
    }

    #[test]
    fn processes_with_other_reference_models_are_refused() {
        use crate::model::{Config, Model, OptimConfig, Schedule};
        use crate::tensor::{Device, Dtype};
        let model = Model::init(&Config::tiny(), Dtype::F32, &Device::cpu(), 1).unwrap();
        let trainer = Trainer::new(model, OptimConfig::default(), Schedule::constant(1e-3)).unwrap();
        let tokenizer = crate::model::tokenizer::Tokenizer::byte();
        let data = DataRecord::of_files(std::iter::empty::<&String>(), "byte", &tokenizer).unwrap();
        let identity = |digest: &str| Identity::of_grpo(&data, &trainer, Some(digest.into())).unwrap();
        let [Identity(one), Identity(two)] = ["one", "two"].map(identity);
        let differ = |(one, two): &(&(String, String), &(String, String))| one != two;
        let names: Vec<&str> =
            one.iter().zip(&two).filter(differ).map(|((name, _), _)| name.as_str()).collect();
        assert_eq!(names, ["the reference model"]);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn a_comparison_that_is_skipped_reports_no_difference() {
        let two = Identity::of_build().and("`train.seed`", 2);
        let found = faults::with(Fault::ProcessesNotCompared, || errors(&two));
        assert_eq!(found, [None, None, None]);
    }
}
