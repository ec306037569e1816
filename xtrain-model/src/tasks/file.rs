//! A task from a JSONL file.
use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::task::{PromptSet, Task};
use crate::data::DataError;
use crate::data::jsonl::{self, fields, kind_of};

/// The prompts of a JSONL file: one `{"prompt": ..., "answer": ...}` (or `completion` for `answer`) per line. Other
/// fields, and fields that are null, are ignored. All prompts are held out: the file is an evaluation set.
#[derive(Debug, Clone)]
pub struct FileTask {
    name: String,
    prompts: Vec<String>,
    answers: HashMap<String, String>,
}

impl FileTask {
    /// Opens the task in the file `path`. The name of the task is the file name without its extension.
    ///
    /// # Errors
    /// A file that cannot be read or contains no record; a line without `prompt` and one of `answer` and
    /// `completion`; a prompt with two different answers.
    pub fn open(path: &Path) -> Result<FileTask, DataError> {
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let mut task = FileTask { name, prompts: Vec::new(), answers: HashMap::new() };
        jsonl::objects(path, |object, location| {
            let want = "\"prompt\" and \"answer\" (or \"completion\") as strings";
            let text = |name: &str| match object.get(name) {
                None | Some(Value::Null) => Ok(None),
                Some(Value::String(text)) => Ok(Some(text.clone())),
                Some(other) => Err(location.error(want, format!("{name:?}: {}", kind_of(other)))),
            };
            let fields_found = (text("prompt")?, text("answer")?, text("completion")?);
            let ((Some(prompt), Some(answer), None) | (Some(prompt), None, Some(answer))) = fields_found
            else {
                return Err(location.error(want, fields(object)));
            };
            match task.answers.get(&prompt) {
                Some(first) if *first != answer => {
                    let got = format!("{answer:?} after {first:?}");
                    return Err(location.error("one answer per prompt", got));
                }
                _ => {}
            }
            task.prompts.push(prompt.clone());
            task.answers.insert(prompt, answer);
            Ok(())
        })?;
        Ok(task)
    }
}

impl Task for FileTask {
    fn name(&self) -> &str {
        &self.name
    }

    fn prompts(&self, part: PromptSet) -> Vec<String> {
        if part == PromptSet::HeldOut { self.prompts.clone() } else { Vec::new() }
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        self.answers.get(prompt).cloned()
    }
}
