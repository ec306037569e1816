//! The completions of an interrupted `xtrain rollout`, which `--resume` keeps.
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::completion_writer::{Completed, Earlier};
use super::exit::{CliError, Exit};
use super::output_path;
use crate::decode::Completion;
use crate::decode::sampler::TokenLogprob;
use crate::model::json;
use crate::model::temporary::killed_file;
use crate::rollout_file::{RolloutLine, TopTokens};
use crate::tensor::faults::{self, Fault};

const HINT: &str = "--resume continues the rollout of the same model, prompts and flags; --force without --resume starts again";

/// The lines of a command.
pub(super) struct Lines<'a> {
    /// The line of a completion.
    pub(super) format: &'a dyn Fn(&Completed) -> Vec<u8>,
    /// By prompt: the id of its first completion.
    pub(super) ids: Vec<u64>,
    /// By prompt: the number of most probable tokens for each new token.
    pub(super) top_logprobs: Vec<usize>,
    /// Completions of a prompt.
    pub(super) g: usize,
}

/// The prompts whose completions are all in the file of an interrupted command. The completions of the first one are
/// generated again and compared, because the file may be of other weights.
#[derive(Default)]
pub(super) struct KeptCompletions {
    file: PathBuf,
    /// By index of a prompt that has all its completions: these, by sample.
    groups: BTreeMap<usize, BTreeMap<usize, KeptLine>>,
    /// The completions of other prompts.
    others: Vec<Completed>,
}

struct KeptLine {
    /// Number of its line, from 1.
    number: usize,
    /// Its line. Empty if it is not compared.
    line: Vec<u8>,
    completed: Completed,
}

impl KeptCompletions {
    /// Reads the incomplete file of an interrupted command that writes `out`. A command that was killed left a temporary
    /// file, which gets the name of the incomplete one if that does not exist, or is shorter.
    ///
    /// # Errors
    /// As [`KeptCompletions::read`]; the temporary file cannot be renamed.
    pub(super) fn of_interrupted(out: &Path, lines: &Lines<'_>) -> Result<KeptCompletions, CliError> {
        let partial = output_path::partial_of(out);
        let stopped = partial.symlink_metadata().ok().map(|found| found.len());
        let killed = killed_file(&output_path::target_of(out));
        // a file of other prompts or flags replaces nothing
        let is_kept = |(file, length): &(PathBuf, u64)| match stopped {
            Some(shorter) => *length > shorter && KeptCompletions::read(file, lines).is_ok(),
            None => true,
        };
        match killed.filter(is_kept) {
            Some((killed, _)) => {
                fs::rename(&killed, &partial).map_err(|error| CliError::io(&killed, &error))?;
                eprintln!("note: continuing a rollout that was killed, from {}", killed.display());
            }
            None if stopped.is_none() => {
                eprintln!("note: {} not found: there is nothing to continue", partial.display());
            }
            None => {}
        }
        KeptCompletions::read(&partial, lines)
    }

    /// Reads the file of an interrupted command. Without a file, nothing is kept. A last line without a line break is
    /// left out. If a prompt lacks a completion, all its completions are generated again.
    ///
    /// # Errors
    /// A line that the command would not write.
    fn read(file: &Path, lines: &Lines<'_>) -> Result<KeptCompletions, CliError> {
        let bytes = match fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(KeptCompletions::default()),
            Err(error) => return Err(CliError::io(file, &error)),
        };
        let mut kept = KeptCompletions { file: file.to_path_buf(), ..KeptCompletions::default() };
        let whole = bytes.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
        for (number, line) in (1..).zip(whole) {
            kept.push(number, line, lines).map_err(|message| kept.error(number, &message))?;
        }
        let is_whole = |(_, group): &(usize, BTreeMap<usize, KeptLine>)| {
            group.len() == lines.g || faults::on(Fault::PartOfGroupKept)
        };
        let (whole, others): (BTreeMap<_, _>, BTreeMap<_, _>) = kept.groups.into_iter().partition(is_whole);
        kept.groups = whole;
        kept.others =
            others.into_values().flat_map(BTreeMap::into_values).map(|kept| kept.completed).collect();
        let uncompared = kept.groups.values_mut().skip(1).flat_map(BTreeMap::values_mut);
        uncompared.for_each(|kept| kept.line = Vec::new());
        Ok(kept)
    }

    fn push(&mut self, number: usize, line: &[u8], lines: &Lines<'_>) -> Result<(), String> {
        let parsed: RolloutLine<'_> = serde_json::from_slice(line)
            .map_err(|error| format!("expected a completion, found {}", json::found_at_column(&error)))?;
        let (group, sample) = (parsed.group, parsed.sample);
        if group >= lines.ids.len() || sample >= lines.g {
            let (prompts, g) = (lines.ids.len(), lines.g);
            return Err(format!(
                "expected a completion of {prompts} prompts with {g} each, found number {sample} of group {group}"
            ));
        }
        let id = match faults::on(Fault::KeptIdNotChecked) {
            true => parsed.sample_id,
            false => lines.ids[group].saturating_add(sample as u64),
        };
        let completed = completed(parsed, group * lines.g + sample, id)?;
        check_top(&completed.completion, lines.top_logprobs[group])?;
        let expected = (lines.format)(&completed);
        if expected != line {
            return Err(difference(&expected, line));
        }
        self.groups.entry(group).or_default().insert(sample, KeptLine { number, line: expected, completed });
        Ok(())
    }

    /// The number of completions that are kept.
    pub(super) fn len(&self) -> usize {
        self.groups.values().map(BTreeMap::len).sum()
    }

    /// Takes the completions, after those of the first prompt have been compared.
    pub(super) fn take(&mut self) -> Earlier {
        let groups = std::mem::take(&mut self.groups);
        let whole = groups.into_values().flat_map(BTreeMap::into_values).map(|kept| kept.completed);
        Earlier { whole: whole.collect(), others: std::mem::take(&mut self.others) }
    }

    /// Whether the completions of a prompt have to be generated: they are not kept, or they are compared.
    pub(super) fn is_due(&self, group: usize) -> bool {
        !self.groups.contains_key(&group) || self.is_compared(group)
    }

    /// Whether the completions of a prompt are compared.
    pub(super) fn is_compared(&self, group: usize) -> bool {
        self.groups.first_key_value().is_some_and(|(first, _)| *first == group)
    }

    /// Compares the line of a generated completion with the kept one.
    ///
    /// # Errors
    /// They differ.
    pub(super) fn compare(&self, (group, sample): (usize, usize), line: &[u8]) -> Result<(), CliError> {
        let kept = &self.groups[&group][&sample];
        if kept.line == line || faults::on(Fault::KeptCompletionsNotCompared) {
            return Ok(());
        }
        Err(self.error(kept.number, &difference(line, &kept.line)))
    }

    /// The file. `None`: there was none.
    pub(super) fn file(&self) -> Option<&Path> {
        Some(&*self.file).filter(|file| !file.as_os_str().is_empty())
    }

    /// Removes the file: the completions are in the output.
    pub(super) fn remove(&self) -> Result<(), CliError> {
        self.file().map_or(Ok(()), |file| fs::remove_file(file).map_err(|error| CliError::io(file, &error)))
    }

    fn error(&self, number: usize, message: &str) -> CliError {
        CliError::new(Exit::Data, format_args!("{}:{number}: {message}", self.file.display())).hint(HINT)
    }
}

/// Checks that the lists have `expected` most probable tokens. A list is shorter if fewer logits are above -inf.
fn check_top(completion: &Completion, expected: usize) -> Result<(), String> {
    let found = completion.top_logprobs.iter().map(Vec::len).max().unwrap_or(0);
    if found == expected || faults::on(Fault::KeptTopTokensNotChecked) {
        return Ok(());
    }
    Err(format!("field \"top_logprobs\": expected {expected} tokens in each list, found {found}"))
}

/// The most probable tokens at one position.
fn top(pairs: TopTokens) -> Vec<TokenLogprob> {
    pairs.into_iter().map(|(token, logprob)| TokenLogprob { token, logprob }).collect()
}

/// The completion of a line, as the engine would return it under `index` and `id`.
fn completed(line: RolloutLine<'_>, index: usize, id: u64) -> Result<Completed, String> {
    let completion = Completion {
        index,
        id,
        prompt_len: line.prompt_ids.len(),
        tokens: line.completion_ids.into_owned(),
        logprobs: line.logprobs.ok_or("field \"logprobs\": expected a list, found none")?.into_owned(),
        processed_logprobs: line.processed_logprobs.into_owned(),
        top_logprobs: line.top_logprobs.unwrap_or_default().into_iter().map(top).collect(),
        finish_reason: line.finish_reason,
    };
    let n = completion.tokens.len();
    let top = completion.top_logprobs.len();
    let lists = [
        ("logprobs", completion.logprobs.len()),
        ("processed_logprobs", completion.processed_logprobs.len()),
        ("top_logprobs", if top == 0 { n } else { top }),
    ];
    if let Some((name, found)) = lists.into_iter().find(|(_, found)| *found != n) {
        return Err(format!("field {name:?}: expected {n} values, one for each token, found {found}"));
    }
    Ok(Completed { completion, text: line.completion.map(|text| text.into_owned()) })
}

/// What differs between two lines: the first field, or the way in which they are written.
fn difference(expected: &[u8], found: &[u8]) -> String {
    let fields = |line| serde_json::from_slice::<Map<String, Value>>(line).unwrap_or_default();
    let [expected, found] = [fields(expected), fields(found)];
    let names = expected.keys().chain(found.keys());
    let mut differing = names.filter(|name| expected.get(*name) != found.get(*name));
    let Some(name) = differing.next() else {
        return "expected the line as it was written, found other spaces, digits or order of fields"
            .to_string();
    };
    let text = |value: Option<&Value>| value.map_or("none".to_string(), Value::to_string);
    let [expected, found] = [&expected, &found].map(|line| text(line.get(name)));
    let same = expected.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
    let [expected, found] = [expected, found].map(|text| excerpt(&text, same));
    format!("field {name:?}: expected {expected}, found {found}")
}

/// At most 60 characters around the character `at`.
fn excerpt(text: &str, at: usize) -> String {
    let first = if at < 40 { 0 } else { at - 20 };
    let shown: String = text.chars().skip(first).take(60).collect();
    let [before, after] =
        [first > 0, text.chars().nth(first + 60).is_some()].map(|is| if is { "..." } else { "" });
    format!("{before}{shown}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_behind_a_long_beginning_is_shown() {
        let line = |end: &str| format!("{{\"prompt\": \"{}{end}\"}}", "x".repeat(100)).into_bytes();
        let [a, b] = ["ab", "cd"].map(|end| format!("...{}{end}\"", "x".repeat(20)));
        let want = format!("field \"prompt\": expected {a}, found {b}");
        assert_eq!(difference(&line("ab"), &line("cd")), want);
    }
}
