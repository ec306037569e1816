//! A task from a JSONL file.
use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::{Part, Task};
use crate::data::DataError;
use crate::data::jsonl::{self, fields, kind_of};

/// Questions of a JSONL file: `{"prompt": ..., "answer": ...}` (or `completion` for `answer`) on each line,
/// other fields ignored. All of them are held out: the file is what one evaluates on.
#[derive(Debug, Clone)]
pub struct FileTask {
    name: String,
    prompts: Vec<String>,
    answers: HashMap<String, String>,
}

impl FileTask {
    /// The task in the file `path`; its name is the file's, without extension.
    ///
    /// # Errors
    /// A file that cannot be read or has no record; a line without `prompt` and one of `answer` and
    /// `completion`, or whose prompt came before with another answer.
    pub fn open(path: &Path) -> Result<FileTask, DataError> {
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let mut task = FileTask { name, prompts: Vec::new(), answers: HashMap::new() };
        jsonl::objects(path, |object, place| {
            let want = "\"prompt\" and \"answer\" (or \"completion\") as strings";
            let text = |name: &str| match object.get(name) {
                None => Ok(None),
                Some(Value::String(text)) => Ok(Some(text.clone())),
                Some(other) => Err(place.error((want, format!("{name:?}: {}", kind_of(other))))),
            };
            let (prompt, answer) = match (text("prompt")?, text("answer")?, text("completion")?) {
                (Some(prompt), Some(answer), None) | (Some(prompt), None, Some(answer)) => (prompt, answer),
                _ => return Err(place.error((want, fields(object)))),
            };
            match task.answers.get(&prompt) {
                Some(first) if *first != answer => {
                    let got = format!("{answer:?} where it was {first:?} before");
                    return Err(place.error(("one answer to a prompt", got)));
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

    fn prompts(&self, part: Part) -> Vec<String> {
        if part == Part::HeldOut { self.prompts.clone() } else { Vec::new() }
    }

    fn answer(&self, prompt: &str) -> Option<String> {
        self.answers.get(prompt).cloned()
    }
}
