//! Records: what library functions return for a spread of inputs, compared with `tests/data/records/*.txt`, line by line.
//! `XTRAIN_BLESS=1` writes the files again. A difference is a change of behavior that the diff of the file shows; a
//! record says what the code did, not what is right, so a test compares with an independent definition where there is a
//! short one.
#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;

mod advantages;
mod caches;
mod chat;
mod checkpoints;
mod configs;
mod data;
#[cfg(feature = "faults")]
mod faults;
mod gguf_bytes;
mod grpo;
mod headers;
mod launches;
mod policies;
mod rewards;
mod sampler;
mod scheduler;
mod schedules;
mod stops;
mod tasks;
mod tokens;
mod training;
mod vocabularies;

/// Lines that a failing test prints.
const SHOWN: usize = 10;

/// Lines of a record.
#[derive(Default)]
struct Record(String);

impl Record {
    /// A heading, after an empty line.
    fn section(&mut self, title: impl AsRef<str>) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        self.0 += &format!("{gap}# {}\n", title.as_ref());
    }

    fn line(&mut self, text: impl AsRef<str>) {
        self.0 += text.as_ref().trim_end();
        self.0.push('\n');
    }
}

/// A name in a column, and values.
fn row(name: impl AsRef<str>, width: usize, values: impl AsRef<str>) -> String {
    format!("{:<width$}  {}", name.as_ref(), values.as_ref())
}

/// Values with a space between them.
fn list<T: Debug>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(" ")
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/records").join(name)
}

/// The lines that differ, with their numbers.
fn differences(committed: &str, found: &str) -> Vec<String> {
    let (mut committed, mut found) = (committed.lines(), found.lines());
    let mut lines = Vec::new();
    for number in 1.. {
        match (committed.next(), found.next()) {
            (None, None) => break,
            (want, got) if want == got => {}
            (want, got) => {
                let shown = |line: Option<&str>| line.unwrap_or("(no line)").to_string();
                lines.push(format!("line {number}\n  < {}\n  > {}", shown(want), shown(got)));
            }
        }
    }
    lines
}

fn check(name: &str, record: fn() -> Record) {
    let Record(found) = record();
    assert!(!found.is_empty(), "{name}: no lines");
    if std::env::var_os("XTRAIN_BLESS").is_some() {
        return fs::write(file(name), found).unwrap();
    }
    let differences = differences(&fs::read_to_string(file(name)).unwrap_or_default(), &found);
    assert!(
        differences.is_empty(),
        "tests/data/records/{name}: {} lines differ. If the change is intended, run XTRAIN_BLESS=1 cargo test --workspace \
         --features faults --test records and read the diff of the file.\n{}",
        differences.len(),
        differences[..differences.len().min(SHOWN)].join("\n")
    );
}

macro_rules! records {
    ($($module:ident: $file:literal,)*) => {
        $(#[test]
        fn $module() {
            check($file, $module::record);
        })*

        const RECORDS: &[(&str, fn() -> Record)] = &[$(($file, $module::record)),*];
    };
}

records! {
    advantages: "advantages.txt",
    caches: "caches.txt",
    chat: "chat.txt",
    checkpoints: "checkpoints.txt",
    configs: "configs.txt",
    data: "data.txt",
    grpo: "grpo.txt",
    headers: "headers.txt",
    launches: "launches.txt",
    policies: "policies.txt",
    rewards: "rewards.txt",
    sampler: "sampler.txt",
    scheduler: "scheduler.txt",
    schedules: "schedules.txt",
    stops: "stops.txt",
    tasks: "tasks.txt",
    tokens: "tokens.txt",
    training: "training.txt",
    vocabularies: "vocabularies.txt",
}

#[test]
fn every_record_is_compared() {
    let entries = fs::read_dir(file("")).unwrap();
    let mut found: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    found.sort_unstable();
    let mut listed: Vec<&str> = RECORDS.iter().map(|(name, _)| *name).collect();
    listed.sort_unstable();
    assert_eq!(found, listed);
}
