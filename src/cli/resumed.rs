//! The configuration that a run resumes with: that of the run, compared with its newest checkpoint, with changes.
use super::exit::{CliError, Exit, shell_word};
use crate::config::{self, KeyDifference, Layer, Resolved, RunConfig};
use crate::model::store;
use crate::run::{RECORD, RunDir, has_checkpoint};
use crate::tensor::faults::{self, Fault};

/// The configuration of a run that is resumed.
pub(super) struct ResumedConfig {
    /// The configuration so far.
    pub(super) old: Resolved,
    /// The configuration that the run continues with.
    pub(super) new: Resolved,
}

/// The configuration of `run` with the changes of `layers`. Only keys in `may_change` can change; a name that ends with
/// a dot stands for a section.
///
/// # Errors
/// `config.toml` is invalid, or differs from what the newest checkpoint recorded in a key that no layer sets; a layer
/// changes another key.
pub(super) fn resumed(
    run: &RunDir,
    layers: &[Layer],
    may_change: &[&str],
) -> Result<ResumedConfig, CliError> {
    let recorded = match has_checkpoint(run.path()) {
        true => store::run_file(run.path(), RECORD)?,
        false => None,
    };
    let stored = Resolved::load(&[Layer::File(run.config())]).map_err(|error| match &recorded {
        Some(record) => CliError::from(error)
            .hint(format_args!("the checkpoint recorded the configuration in {}", record.path.display())),
        None => error.into(),
    })?;
    let old = match recorded.filter(|_| !faults::on(Fault::ResumeIgnoresRecord)) {
        Some(record) => {
            let stored = pending(run, &stored, &record)?.unwrap_or(stored);
            compared(run, stored, &record, layers, may_change)?
        }
        None => stored,
    };
    let new = old.changed(layers)?;
    let refused: Vec<String> =
        differing(&old.config, &new.config).into_iter().filter(|key| !can_change(key, may_change)).collect();
    if refused.is_empty() {
        return Ok(ResumedConfig { old, new });
    }
    let message = format!("--resume cannot change {}", refused.join(", "));
    if refused == ["train.shards"] {
        let shards = old.config.train.shards;
        let processes = match shards {
            1 => "a run with one shard runs in one process".to_string(),
            _ => format!("the number of processes may change, to a divisor of {shards}"),
        };
        return Err(CliError::new(Exit::Usage, message)
            .hint(format_args!("another number of shards has other bits; {processes}")));
    }
    let name = |key: &&str| match key.strip_suffix('.') {
        Some(section) => format!("[{section}]"),
        None => (*key).to_string(),
    };
    let names: Vec<String> = may_change.iter().map(name).collect();
    let (names, word) = (names.join(", "), shell_word(run.path()));
    let hint = format!(
        "only {names} can change; for other changes start a new run, from these weights with --init {word}"
    );
    Err(CliError::new(Exit::Usage, message).hint(hint))
}

/// `config.toml.new`, if the newest checkpoint recorded it and not `config.toml`: a resume that changed the
/// configuration was killed after it had saved the checkpoint.
fn pending(run: &RunDir, stored: &Resolved, record: &store::RunFile) -> Result<Option<Resolved>, CliError> {
    let path = run.pending_config();
    if !path.is_file() || is_recorded(stored, record)? {
        return Ok(None);
    }
    let Ok(pending) = Resolved::load(&[Layer::File(path.clone())]) else { return Ok(None) };
    if !is_recorded(&pending, record)? {
        return Ok(None);
    }
    eprintln!(
        "note: the last change of the configuration was interrupted; {} replaces config.toml",
        path.display()
    );
    Ok(Some(pending))
}

/// Whether a checkpoint recorded the configuration, apart from computed values.
fn is_recorded(config: &Resolved, record: &store::RunFile) -> Result<bool, CliError> {
    let place = record.path.display().to_string();
    let differences = config::differences(&place, &String::from_utf8_lossy(&record.bytes), &config.config)?;
    let computed: Vec<&str> = config.derived.keys(&config.config).collect();
    Ok(differences.iter().all(|KeyDifference { key, .. }| computed.contains(&key.as_str())))
}

/// The stored configuration with the recorded values. Fails if another value is not set by a layer.
fn compared(
    run: &RunDir,
    stored: Resolved,
    record: &store::RunFile,
    layers: &[Layer],
    may_change: &[&str],
) -> Result<Resolved, CliError> {
    let place = record.path.display().to_string();
    let differences = config::differences(&place, &String::from_utf8_lossy(&record.bytes), &stored.config)?;
    let mut set = Vec::new();
    for layer in layers {
        set.extend(layer.values()?.into_iter().map(|(key, _)| key));
    }
    // A computed value follows from the keys that it depends on.
    let computed: Vec<&str> = stored.derived.keys(&stored.config).collect();
    let unexplained: Vec<&KeyDifference> = differences
        .iter()
        .filter(|KeyDifference { key, .. }| !set.contains(key) && !computed.contains(&key.as_str()))
        .collect();
    let Some(first) = unexplained.first() else {
        return Ok(config::restored(&place, &stored, &differences)?);
    };
    let list: Vec<String> = unexplained
        .iter()
        .map(|KeyDifference { key, recorded, found }| {
            format!("`{key}` = {found}: expected {recorded}, which the checkpoint recorded")
        })
        .collect();
    let message = format!("{}: {} ({place})", run.config().display(), list.join("; "));
    let error = CliError::new(Exit::Data, message);
    Err(match can_change(&first.key, may_change) {
        true => error.hint(format_args!(
            "restore the recorded value, or change it with --resume {} --set {}={}",
            shell_word(run.path()),
            first.key,
            first.found
        )),
        false => error.hint("restore the recorded value"),
    })
}

fn can_change(key: &str, may_change: &[&str]) -> bool {
    may_change.iter().any(|may| *may == key || may.ends_with('.') && key.starts_with(may))
}

/// The keys whose values differ. A section that `old` does not have is one key.
fn differing(old: &RunConfig, new: &RunConfig) -> Vec<String> {
    if old.grpo.is_none() && new.grpo.is_some() {
        return vec!["[grpo]".to_string()];
    }
    config::differing(old, new)
}
