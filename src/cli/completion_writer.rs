//! Writes completions in the order of the prompts, of one process or of several.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::CliError;
use super::atomic_file::AtomicFile;
use super::out;
use crate::decode::Completion;
use crate::model::comm::Communicator;
use crate::tensor::faults::{self, Fault};

/// A completion and its text.
pub(super) struct Completed {
    pub(super) completion: Completion,
    /// `None`: the model has no tokenizer.
    pub(super) text: Option<String>,
}

/// The completions of an interrupted command.
#[derive(Default)]
pub(super) struct Earlier {
    /// Those of prompts that have all.
    pub(super) whole: Vec<Completed>,
    /// Those of other prompts, which are generated again.
    pub(super) others: Vec<Completed>,
}

/// Where completions are written.
pub(super) enum Output {
    File(AtomicFile),
    Standard,
    /// Of several processes: the lines of this one, and the file of the first one, which writes those of all.
    Memory(Vec<u8>, Option<AtomicFile>),
}

/// Writes completions in the order of the prompts.
pub(super) struct CompletionWriter<'a> {
    output: Output,
    format: &'a dyn Fn(&Completed) -> Vec<u8>,
    /// Completions that wait for an earlier one.
    out_of_order: BTreeMap<usize, Completed>,
    written: usize,
    /// Completions that an interrupted command has written to the incomplete file.
    kept: usize,
    /// Those of them that are generated again.
    again: BTreeMap<usize, Completed>,
}

impl Output {
    /// Creates the file `path`; `None`: standard output. Of several processes, only the first one has it.
    pub(super) fn open(path: Option<&Path>, comm: &dyn Communicator) -> Result<Output, CliError> {
        let file = path.filter(|_| comm.rank() == 0).map(AtomicFile::create).transpose()?;
        Ok(match file {
            file if comm.size() > 1 => Output::Memory(Vec::new(), file),
            Some(file) => Output::File(file),
            None => Output::Standard,
        })
    }
}

impl<'a> CompletionWriter<'a> {
    /// Writes the lines of `format` to `output`.
    pub(super) fn new(output: Output, format: &'a dyn Fn(&Completed) -> Vec<u8>) -> CompletionWriter<'a> {
        let (out_of_order, again) = (BTreeMap::new(), BTreeMap::new());
        CompletionWriter { output, format, out_of_order, written: 0, kept: 0, again }
    }

    /// The line of a completion.
    pub(super) fn line(&self, done: &Completed) -> Vec<u8> {
        (self.format)(done)
    }

    /// Writes the completions of an interrupted command. Those of `others` are generated again. They are written only if
    /// this command ends before that. If a write fails, the incomplete file of the interrupted command is not replaced.
    pub(super) fn keep(&mut self, Earlier { whole, others }: Earlier) -> Result<(), CliError> {
        self.kept = whole.len() + others.len();
        if let Output::File(file) = &mut self.output {
            file.keep_older_partial(self.kept > 0);
        }
        self.again = others.into_iter().map(|done| (done.completion.index, done)).collect();
        whole.into_iter().try_for_each(|done| self.push(done))
    }

    /// Writes the completion, and those that waited for it, or keeps it until the earlier ones are written.
    pub(super) fn push(&mut self, done: Completed) -> Result<(), CliError> {
        self.again.remove(&done.completion.index);
        self.out_of_order.insert(done.completion.index, done);
        while let Some(next) = self.out_of_order.remove(&self.written) {
            self.write(&next)?;
        }
        Ok(())
    }

    fn write(&mut self, done: &Completed) -> Result<(), CliError> {
        let line = self.line(done);
        match &mut self.output {
            Output::File(file) => file.write(&line)?,
            Output::Standard => out::print(line)?,
            Output::Memory(lines, _) => lines.extend(line),
        }
        self.written += 1;
        Ok(())
    }

    /// Moves the file with all completions to its final name. Of several processes, the first one writes the lines of
    /// all to its file, or to standard output, and the others wait for it.
    pub(super) fn finish(self, comm: &dyn Communicator) -> Result<(), CliError> {
        let (lines, file) = match self.output {
            Output::File(file) => return file.finish_lines(),
            Output::Standard => return Ok(()),
            Output::Memory(lines, file) => (lines, file),
        };
        let mut messages = vec![Vec::new(); comm.size()];
        messages[0] = lines;
        let mut all = comm.all_to_all(messages)?;
        if faults::on(Fault::PromptsOfOneProcessLost) {
            all.pop();
        }
        match file {
            Some(mut file) => {
                let written = all.iter().try_for_each(|lines| file.write(lines));
                if let Err(error) = written {
                    return Err(file.keep_lines(error));
                }
                file.finish_lines()?;
            }
            None if comm.rank() == 0 => out::print(all.concat())?,
            None => {}
        }
        // a process that ends with an error ends the others
        Ok(comm.barrier()?)
    }

    /// Writes the completions that still wait for an earlier one. Keeps an incomplete file next to the final name
    /// unless it is empty.
    pub(super) fn keep_partial(mut self) -> Result<Kept, CliError> {
        let mut rest = std::mem::take(&mut self.out_of_order);
        if faults::on(Fault::OutOfOrderCompletionsLost) {
            rest.clear();
        }
        if !faults::on(Fault::IncompletePromptsLost) {
            rest.append(&mut self.again);
        }
        for done in rest.into_values() {
            // what was written before is kept
            if self.write(&done).is_err() {
                break;
            }
        }
        let completions = self.written;
        match self.output {
            // it may lack completions that the older file has
            Output::File(file) if self.kept > 0 && file.has_failed() => {
                Ok(Kept { completions: self.kept, partial: Some(file.partial()) })
            }
            Output::File(file) if completions > 0 => {
                Ok(Kept { completions, partial: Some(file.keep_partial()?) })
            }
            Output::File(_) | Output::Standard => Ok(Kept { completions, partial: None }),
            // nothing was written
            Output::Memory(..) => Ok(Kept { completions: 0, partial: None }),
        }
    }
}

/// What an interrupted command keeps.
pub(super) struct Kept {
    pub(super) completions: usize,
    /// The file. `None`: standard output.
    pub(super) partial: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::FinishReason;
    use crate::model::comm::{SingleProcess, ThreadProcess};

    /// The file that three processes write together. Each has a line with its number.
    fn written() -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        let (fault, file) = (faults::current(), &path);
        std::thread::scope(|scope| {
            for process in ThreadProcess::group(3) {
                scope.spawn(move || {
                    let mut output = Output::open(Some(file), &process).unwrap();
                    let Output::Memory(lines, _) = &mut output else { panic!("of several processes") };
                    lines.extend(format!("{}\n", process.rank()).into_bytes());
                    let writer = CompletionWriter::new(output, &|_| Vec::new());
                    fault.enter(|| writer.finish(&process).unwrap());
                });
            }
        });
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_first_process_writes_the_lines_of_all_in_order() {
        assert_eq!(written(), "0\n1\n2\n");
    }

    fn completed(index: usize, id: u64) -> Completed {
        let completion = Completion {
            index,
            id,
            prompt_len: 1,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            processed_logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            finish_reason: FinishReason::Length,
        };
        Completed { completion, text: None }
    }

    /// The lines that remain of completions 3, 0, 5 and 1, in this order, after those of an interrupted command.
    fn kept(earlier: Earlier) -> (usize, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        let format =
            |done: &Completed| format!("{}:{}\n", done.completion.index, done.completion.id).into_bytes();
        let mut writer = CompletionWriter::new(Output::open(Some(&path), &SingleProcess).unwrap(), &format);
        writer.keep(earlier).unwrap();
        [3, 0, 5, 1].into_iter().for_each(|index| writer.push(completed(index, 9)).unwrap());
        let Kept { completions, partial } = writer.keep_partial().unwrap();
        (completions, std::fs::read_to_string(partial.unwrap()).unwrap())
    }

    #[test]
    fn completions_that_finished_before_earlier_ones_are_kept() {
        assert_eq!(kept(Earlier::default()), (4, "0:9\n1:9\n3:9\n5:9\n".into()));
    }

    /// Completion 3 was generated again, 4 was not.
    fn kept_of_two() -> (usize, String) {
        kept(Earlier { whole: vec![completed(2, 0)], others: vec![completed(4, 0), completed(3, 0)] })
    }

    #[test]
    fn completions_of_an_interrupted_command_are_kept() {
        assert_eq!(kept_of_two(), (6, "0:9\n1:9\n2:0\n3:9\n4:0\n5:9\n".into()));
    }

    #[test]
    #[cfg(feature = "faults")]
    fn completions_of_an_interrupted_command_that_are_lost_are_found() {
        let kept = faults::with(Fault::IncompletePromptsLost, kept_of_two);
        assert_eq!(kept, (5, "0:9\n1:9\n2:0\n3:9\n5:9\n".into()));
    }

    #[test]
    #[cfg(feature = "faults")]
    fn completions_that_are_lost_are_found() {
        let kept = faults::with(Fault::OutOfOrderCompletionsLost, || kept(Earlier::default()));
        assert_eq!(kept, (2, "0:9\n1:9\n".into()));
    }

    #[test]
    #[cfg(feature = "faults")]
    fn lines_that_are_lost_are_found() {
        assert_ne!(faults::with(Fault::PromptsOfOneProcessLost, written), "0\n1\n2\n");
    }
}
