//! The directory in which the commands of a transcript run, and the files in it.
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::masks::{Masks, events};
use crate::script::Step;

/// Bytes of a text file that an answer shows; of a longer one it has the digest only.
const SHOWN: usize = 4500;

/// Characters of a line that an answer shows.
const LINE: usize = 1000;

/// Directories of this repository, as the commands see them.
const LINKS: [(&str, &str); 5] = [
    ("models", "tests/data/models"),
    ("gguf", "tests/data/gguf"),
    ("tokenizers", "tests/data/tokenizers"),
    ("examples", "examples"),
    ("configs", "configs"),
];

/// The functions that a command line can use. `xtrain` is the program, with a planted fault if the test has one.
const PROLOGUE: &str = r#"xtrain() { "$XTRAIN" $XTRAIN_FLAGS "$@"; }
"#;

/// A temporary directory, removed on drop.
pub(crate) struct Directory {
    dir: TempDir,
    flags: String,
    masks: Masks,
}

/// Files by name, with what an answer has of each.
pub(crate) type Files = BTreeMap<String, Vec<String>>;

/// A file under tests/data, or under the directory `XTRAIN_TEST_DATA` if the tests run on another machine.
pub(crate) fn data(name: &str) -> PathBuf {
    let moved = std::env::var_os("XTRAIN_TEST_DATA").map(PathBuf::from);
    moved.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")).join(name)
}

impl Directory {
    /// A directory with the files of `tests/data/transcripts/input`. The program gets `flags` before its command.
    pub(crate) fn new(name: &str, flags: &str) -> Directory {
        let prefix = format!("xtrain-transcript-{name}-");
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent()).unwrap();
        let path = dir.path();
        for (link, target) in LINKS {
            let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join(target);
            symlink(target.strip_prefix("tests/data/").map_or(repository, data), path.join(link)).unwrap();
        }
        for entry in fs::read_dir(data("transcripts/input")).unwrap() {
            copy(&entry.unwrap().path(), path);
        }
        let masks = Masks::new(path);
        Directory { dir, flags: flags.into(), masks }
    }

    /// Runs a command line of `sh`; returns its exit code and what it printed.
    pub(crate) fn run(&self, line: &str) -> Vec<String> {
        let output = Command::new("sh")
            .args(["-c", &format!("{PROLOGUE}{line}")])
            .current_dir(&self.dir)
            .env_clear()
            .envs(
                std::env::vars()
                    .filter(|(name, _)| name.starts_with("XTRAIN_MUTANT") || name == "LD_LIBRARY_PATH"),
            )
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("TMPDIR", std::env::temp_dir())
            .env("LC_ALL", "C.UTF-8")
            .env("XTRAIN", program())
            .env("XTRAIN_FLAGS", &self.flags)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let code = output.status.code().map_or("a signal".to_string(), |code| code.to_string());
        let printed = |sign: &str, bytes: &[u8]| -> Vec<String> {
            let text = self.masks.printed(&String::from_utf8_lossy(bytes));
            text.lines().map(|line| cut(&format!("{sign}| {line}"))).collect()
        };
        [vec![format!("= {code}")], printed("1", &output.stdout), printed("2", &output.stderr)].concat()
    }

    /// All files.
    pub(crate) fn files(&self) -> Files {
        let mut names = Vec::new();
        list(self.dir.path(), &mut names);
        let described = names.into_iter().map(|path| {
            let name = path.strip_prefix(&self.dir).unwrap().to_string_lossy().into_owned();
            let described = self.describe(&name, &fs::read(&path).unwrap());
            (name, described)
        });
        described.collect()
    }

    /// The size and the digest of a file, and the lines of a short text.
    fn describe(&self, name: &str, bytes: &[u8]) -> Vec<String> {
        let text = String::from_utf8(bytes.to_vec()).ok().map(|text| self.masks.file(name, &text));
        let is_shown = [".json", ".jsonl", ".csv"].iter().any(|end| name.ends_with(end));
        let is_shown = is_shown && !name.ends_with("manifest.json");
        let shown = text.as_ref().filter(|text| is_shown && text.len() <= SHOWN);
        let bytes = match &text {
            _ if name.contains("tfevents") => events(bytes),
            Some(text) => text.clone().into_bytes(),
            None => self.masks.bytes(name, bytes),
        };
        let size = bytes.len();
        let digest: String = Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let lines = shown.into_iter().flat_map(|text| text.lines()).map(|line| cut(&format!("  | {line}")));
        [format!("{size} {digest}")].into_iter().chain(lines).collect()
    }
}

/// What changed between two lists of files. A text that an earlier answer shows is not repeated.
pub(crate) fn changes(before: &Files, after: &Files, earlier: &[Step]) -> Vec<String> {
    let mut lines = Vec::new();
    let removed = before.keys().filter(|name| !after.contains_key(*name));
    lines.extend(removed.map(|name| format!("- {name}")));
    for (name, described) in after {
        let sign = match before.get(name) {
            Some(same) if same == described => continue,
            Some(_) => '~',
            None => '+',
        };
        let is_known = |line: &String| line.starts_with(['+', '~']) && line.ends_with(&described[0]);
        let here = lines.iter().any(is_known);
        let is_repeated = here || earlier.iter().flat_map(|step| &step.answer).any(is_known);
        lines.push(format!("{sign} {name} {}", described[0]));
        lines.extend(described[1..].iter().filter(|_| !is_repeated).cloned());
    }
    lines
}

/// Free KiB that a directory in memory must have, for all transcripts at the same time.
const ROOM: u64 = 512 << 10;

/// The directory of temporary files; `/dev/shm` where it has room, because most of the time of a transcript on a disk is
/// that of syncing small files.
fn parent() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let output = Command::new("df").args(["-Pk", "/dev/shm"]).output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let free = text.lines().last().and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    let is_memory = text.contains("tmpfs") && free.is_some_and(|free| free >= ROOM);
    if is_memory { memory.to_path_buf() } else { std::env::temp_dir() }
}

/// The path of the program: `XTRAIN_BIN`, or the one that cargo built for this test.
fn program() -> PathBuf {
    let named = std::env::var_os("XTRAIN_BIN").map(PathBuf::from);
    named.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_xtrain")))
}

/// A line without what is behind its first [`LINE`] characters, but with a digest of it.
fn cut(line: &str) -> String {
    if line.chars().count() <= LINE {
        return line.trim_end().to_string();
    }
    let start: String = line.chars().take(LINE).collect();
    let digest: String = Sha256::digest(line).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{start} ... {digest}")
}

/// Copies a file or a directory into `dir`.
fn copy(from: &Path, dir: &Path) {
    let to = dir.join(from.file_name().unwrap());
    if from.is_dir() {
        fs::create_dir(&to).unwrap();
        fs::read_dir(from).unwrap().for_each(|entry| copy(&entry.unwrap().path(), &to));
    } else {
        fs::copy(from, to).unwrap();
    }
}

/// The files below `dir`. Links are not followed.
fn list(dir: &Path, names: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => list(&entry.path(), names),
            kind if kind.is_file() => names.push(entry.path()),
            _ => {}
        }
    }
}
