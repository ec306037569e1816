//! The directory outside the repository that holds the mutated copy and the results.
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::points::Mutant;

/// A test and what it reached without a mutant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Test {
    pub binary: PathBuf,
    pub directory: PathBuf,
    pub name: String,
    pub seconds: f64,
    pub reached: Vec<u32>,
}

/// What the tests made of a mutant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    pub key: String,
    /// The test that failed.
    pub caught: Option<String>,
    /// Tests that reach the mutant; those that ran.
    pub reaching: usize,
    pub ran: usize,
}

/// The reasons of tests/mutants/equivalent.txt, by the key of the mutant.
pub type Equivalent = HashMap<String, String>;

/// The mutants of the table that no test can catch, and those of samples.
pub const EQUIVALENT: [&str; 2] = ["equivalent.txt", "equivalent_sampled.txt"];

/// Reads a list of mutants that no test can catch.
pub fn equivalent(repository: &Path, name: &str) -> Equivalent {
    let list = fs::read_to_string(repository.join("tests/mutants").join(name)).expect(name);
    let lines = list.lines().filter_map(|line| line.split_once(" ## "));
    lines.map(|(key, reason)| (key.to_string(), reason.to_string())).collect()
}

/// A directory; the functions name its files.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// The mutated copy of the repository.
    pub fn tree(&self) -> PathBuf {
        self.0.join("tree")
    }

    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read_to_string(self.0.join(name)).ok()?;
        Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}")))
    }

    pub fn write(&self, name: &str, value: &impl Serialize) {
        let text = serde_json::to_string(value).expect("can be serialized");
        fs::write(self.0.join(name), text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    pub fn mutants(&self) -> Vec<Mutant> {
        self.read("mutants.json").expect("run `mutants build` first")
    }

    /// The outcome of each mutant, by key.
    pub fn outcomes(&self) -> BTreeMap<String, Outcome> {
        let text = fs::read_to_string(self.0.join("outcomes.jsonl")).unwrap_or_default();
        let all =
            text.lines().map(|line| serde_json::from_str::<Outcome>(line).expect("a line is an outcome"));
        all.map(|outcome| (outcome.key.clone(), outcome)).collect()
    }

    pub fn add_outcome(&self, outcome: &Outcome) {
        let path = self.0.join("outcomes.jsonl");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).expect("can be opened");
        let line = serde_json::to_string(outcome).expect("can be serialized") + "\n";
        file.write_all(line.as_bytes()).expect("can be written");
    }

    /// Forgets the recorded tests and the mutants that none has caught: the tests may have changed.
    pub fn forget(&self) {
        let _ = fs::remove_file(self.0.join("tests.json"));
        let caught: Vec<_> =
            self.outcomes().into_values().filter(|outcome| outcome.caught.is_some()).collect();
        let _ = fs::remove_file(self.0.join("outcomes.jsonl"));
        caught.iter().for_each(|outcome| self.add_outcome(outcome));
    }
}

/// Writes a file unless it has these contents already: cargo rebuilds what is newer.
pub fn write_if_changed(path: &Path, contents: &[u8]) {
    if fs::read(path).ok().as_deref() != Some(contents) {
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("can be created");
        fs::write(path, contents).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// The tests that reach each mutant.
pub fn by_mutant(tests: &[Test]) -> HashMap<u32, Vec<&Test>> {
    let mut all: HashMap<u32, Vec<&Test>> = HashMap::new();
    for test in tests {
        for &id in &test.reached {
            all.entry(id).or_default().push(test);
        }
    }
    all
}
