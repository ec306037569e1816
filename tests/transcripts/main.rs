//! Transcripts: what the program prints, returns and writes for the command lines of `tests/data/transcripts/*.txt`, each
//! file in a directory of its own, from top to bottom. A difference that no mask hides fails. `XTRAIN_BLESS=1` writes the
//! answers again. A line that begins with `$ ` is a command line of `sh`, one with `#` a comment; the rest are answers.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
use std::fs;

mod coverage;
mod directory;
#[cfg(feature = "faults")]
mod faults;
mod masks;
mod script;

use directory::Directory;
use script::Step;

/// Commands whose differences a failing test prints.
const SHOWN: usize = 5;

/// A transcript as it is committed and as it was found.
struct Transcript {
    committed: Vec<Step>,
    found: Vec<Step>,
}

impl Transcript {
    /// Runs the commands of a file. The program gets `flags` before its command.
    fn run(name: &str, flags: &str) -> Transcript {
        let file = directory::data("transcripts").join(name);
        let committed = script::parse(&fs::read_to_string(file).unwrap());
        let directory = Directory::new(name, flags);
        let mut files = directory.files();
        let mut found = Vec::new();
        for step in &committed {
            let printed = directory.run(&step.command);
            let after = directory.files();
            let answer = [printed, directory::changes(&files, &after, &found)].concat();
            files = after;
            found.push(Step { answer, ..step.clone() });
        }
        Transcript { committed, found }
    }

    /// The commands whose answers differ, with the first lines that do.
    fn differences(&self) -> Vec<String> {
        let pairs = self.committed.iter().zip(&self.found);
        pairs.filter_map(|(committed, found)| script::difference(committed, found)).collect()
    }
}

fn check(name: &str) {
    let transcript = Transcript::run(name, "");
    assert!(!transcript.committed.is_empty(), "{name}: no commands");
    if std::env::var_os("XTRAIN_BLESS").is_some() {
        fs::write(directory::data("transcripts").join(name), script::render(&transcript.found)).unwrap();
        return;
    }
    let differences = transcript.differences();
    let shown = differences.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(
        differences.is_empty(),
        "{name}: the answers of {} of {} commands differ. If the change is intended, run XTRAIN_BLESS=1 cargo test --test \
         transcripts and read the diff of the file.\n\n{shown}",
        differences.len(),
        transcript.committed.len()
    );
}

macro_rules! transcripts {
    ($($test:ident: $file:literal,)*) => {
        $(#[test]
        fn $test() {
            check($file);
        })*

        const NAMES: &[&str] = &[$($file),*];
    };
}

transcripts! {
    verification: "checks.txt",
    data: "data.txt",
    formats: "formats.txt",
    completions: "generate.txt",
    rewards: "grpo.txt",
    rollouts: "rollout.txt",
    resume: "resume.txt",
    tokens: "tokenize.txt",
    training: "train.txt",
    views: "views.txt",
}

#[test]
fn every_transcript_is_compared() {
    let entries = fs::read_dir(directory::data("transcripts")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|name| name.ends_with(".txt")).collect();
    found.sort_unstable();
    let mut listed = NAMES.to_vec();
    listed.sort_unstable();
    assert_eq!(found, listed);
}
