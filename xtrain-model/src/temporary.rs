//! Names of temporary files.
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xtrain_tensor::faults::{self, Fault};

use crate::durable;

/// Between the name of an output and the number of the process that writes it. No other program uses it, so files of
/// users are not mistaken for temporary files.
const INFIX: &str = ".xtrain-tmp-";

/// The same for a directory that is being replaced.
const REPLACED: &str = ".xtrain-old-";

/// The temporary path `NAME.xtrain-tmp-PID` next to `out`. Removes what killed processes left there: the files of
/// processes that have ended, and those with the number of this process, which containers give to many.
pub fn temporary_path(out: &Path) -> PathBuf {
    for path in left_behind(out, INFIX) {
        remove(&path);
    }
    of_this_process(out, INFIX)
}

/// The lock of the names of outputs. A temporary file or directory is created, a complete one gets its name, and the error
/// of an incomplete one is handled under this lock. A thread that holds it until the process ends can therefore remove
/// what is incomplete.
pub fn lock_names() -> MutexGuard<'static, ()> {
    static NAMES: Mutex<()> = Mutex::new(());
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary file or directory of this process for `out`, also while another thread writes into it. The
/// caller holds [`lock_names`] until the process ends. Returns whether there was one.
pub fn remove_temporary(out: &Path) -> bool {
    let path = of_this_process(out, INFIX);
    let exists = || path.symlink_metadata().is_ok();
    let existed = exists();
    // another thread may create files in the directory until it is gone
    for _ in 0..1000 {
        remove(&path);
        if !exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    existed
}

/// Removes a temporary file, or a temporary directory with nothing but an exported model. Others are kept.
fn remove(path: &Path) {
    // what cannot be removed is removed by the next process
    match path.symlink_metadata().map(|found| found.file_type()) {
        Ok(kind) if kind.is_file() => drop(std::fs::remove_file(path)),
        Ok(kind) if kind.is_dir() && is_exported_model(path) => drop(std::fs::remove_dir_all(path)),
        _ => {}
    }
}

/// The path `NAME.xtrain-old-PID` of the directory that replaces `out` moves `out` to.
pub fn replaced_path(out: &Path) -> PathBuf {
    of_this_process(out, REPLACED)
}

/// Cleans up what killed processes left next to the directory `out`: a replaced directory becomes `out` again if there
/// is no `out`, and is removed otherwise; unfinished directories are removed. `ours` tells whether a directory is one
/// that the command writes; others are kept. Returns whether `out` was restored.
///
/// # Errors
/// A directory cannot be renamed or removed.
pub fn recover_directory(out: &Path, ours: fn(&Path) -> bool) -> io::Result<bool> {
    let is_ours = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_dir()) && ours(path);
    let mut restored = false;
    for replaced in left_behind(out, REPLACED).into_iter().filter(is_ours) {
        if out.symlink_metadata().is_err() {
            std::fs::rename(replaced, out)?;
            restored = true;
        } else {
            std::fs::remove_dir_all(replaced)?;
        }
    }
    left_behind(out, INFIX).into_iter().filter(is_ours).try_for_each(std::fs::remove_dir_all)?;
    Ok(restored)
}

/// The largest temporary file for `out` that a killed process left, and its length. `None`: there is none.
pub fn killed_file(out: &Path) -> Option<(PathBuf, u64)> {
    if faults::on(Fault::KilledRolloutLost) {
        return None;
    }
    let file = |path: PathBuf| {
        let found = path.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((out.with_file_name(path.file_name()?), found.len()))
    };
    left_behind(out, INFIX).into_iter().filter_map(file).max_by_key(|(_, length)| *length)
}

fn of_this_process(out: &Path, infix: &str) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_os_string();
    name.push(format!("{infix}{}", std::process::id()));
    out.with_file_name(name)
}

/// What is named like `out` with `infix` and the number of this process or of one that has ended.
fn left_behind(out: &Path, infix: &str) -> Vec<PathBuf> {
    let prefix = format!("{}{infix}", out.file_name().unwrap_or_default().to_string_lossy());
    let dir = durable::parent(out);
    let is_left = |name: &str| {
        let process = name.strip_prefix(&prefix).and_then(|number| number.parse::<u32>().ok());
        process.is_some_and(|process| process == std::process::id() || has_ended(process))
    };
    let entries = dir.read_dir().into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_left))
        .map(|entry| entry.path())
        .collect()
}

/// Whether a directory contains nothing but files of an exported model.
pub fn is_exported_model(dir: &Path) -> bool {
    let ours = |entry: &DirEntry| {
        let (name, kind) = (entry.file_name(), entry.file_type());
        let name = name.to_string_lossy();
        let (begins, ends) = (name.starts_with("model"), name.ends_with(".safetensors"));
        let weights = begins && ends || (begins || ends) && faults::on(Fault::OtherWeightsExported);
        kind.is_ok_and(|kind| kind.is_file()) && (weights || EXPORTED.contains(&&*name))
    };
    dir.read_dir().is_ok_and(|mut entries| entries.all(|entry| entry.as_ref().is_ok_and(ours)))
}

/// The files of an exported model, except its weights.
const EXPORTED: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
];

/// Whether the process with this number has ended, also if its parent has not waited for it. Only Linux reports it;
/// elsewhere, it may still run.
fn has_ended(process: u32) -> bool {
    // after the number and the name, which may contain `)`: the state
    let is_zombie = |stat: String| {
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']))
            && !faults::on(Fault::ZombieTakenAsRunning)
    };
    Path::new("/proc/self/stat").exists()
        && std::fs::read_to_string(format!("/proc/{process}/stat"))
            .map_or_else(|error| error.kind() == io::ErrorKind::NotFound, is_zombie)
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    /// Whether a process has ended before its parent waits for it, and after.
    #[cfg(target_os = "linux")]
    fn ended_before_and_after_the_wait() -> [bool; 2] {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let is_zombie = |_| {
            std::thread::sleep(Duration::from_millis(5));
            std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ")
        };
        assert!((0..1000).any(is_zombie), "the process {} runs", child.id());
        let before = has_ended(child.id());
        child.wait().unwrap();
        [before, has_ended(child.id())]
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_whose_parent_has_not_waited_has_ended() {
        assert!(!has_ended(std::process::id()));
        assert_eq!(ended_before_and_after_the_wait(), [true, true]);
    }

    #[test]
    #[cfg(all(target_os = "linux", feature = "faults"))]
    fn a_zombie_that_counts_as_running_is_found() {
        let found = faults::with(Fault::ZombieTakenAsRunning, ended_before_and_after_the_wait);
        assert_eq!(found, [false, true]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn only_temporary_files_of_this_process_and_of_ended_ones_are_removed() {
        let dir = tempdir().unwrap();
        let dir = dir.path();
        let mine = format!("a.tok{INFIX}{}", std::process::id());
        let removed = ["a.tok.xtrain-tmp-4194998", &mine];
        let kept = [
            "a.tok",
            "a.tok.tmp-20240101",
            "a.tok.tmp-4194998",
            "a.tok.xtrain-tmp-1",
            "a.tok.xtrain-tmp-x",
            "b.tok.xtrain-tmp-4194998",
        ];
        for name in removed.iter().chain(&kept) {
            std::fs::write(dir.join(name), "x").unwrap();
        }
        let models = [
            ("a.tok.xtrain-tmp-4194996", "notes.txt"),
            ("a.tok.xtrain-tmp-4194997", "model-00001-of-00002.safetensors"),
        ];
        for (model, file) in models {
            std::fs::create_dir(dir.join(model)).unwrap();
            std::fs::write(dir.join(model).join("config.json"), "x").unwrap();
            std::fs::write(dir.join(model).join(file), "x").unwrap();
        }
        std::os::unix::fs::symlink("a.tok", dir.join("a.tok.xtrain-tmp-4194995")).unwrap();
        assert_eq!(temporary_path(&dir.join("a.tok")), dir.join(&mine));
        let entries = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        let mut want = [&kept[..], &["a.tok.xtrain-tmp-4194995", "a.tok.xtrain-tmp-4194996"]].concat();
        want.sort_unstable();
        assert_eq!(names, want);
    }

    /// Whether directories with `config.json` and one other file are those of an exported model.
    fn exported<const N: usize>(files: [&str; N]) -> [bool; N] {
        files.map(|file| {
            let dir = tempdir().unwrap();
            for name in ["config.json", file] {
                std::fs::write(dir.path().join(name), "x").unwrap();
            }
            is_exported_model(dir.path())
        })
    }

    #[test]
    fn weights_of_an_exported_model_begin_with_model_and_are_safetensors() {
        let files = ["model.safetensors", "model-00001-of-00002.safetensors", "chat_template.jinja"];
        assert_eq!(exported(files), [true; 3]);
        let files = ["adapter_model.safetensors", "model.bin", "model.safetensors.bak", "notes.txt"];
        assert_eq!(exported(files), [false; 4]);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn weights_with_another_name_that_pass_for_exported_ones_are_found() {
        let files = ["adapter_model.safetensors", "model.bin"];
        assert_eq!(faults::with(Fault::OtherWeightsExported, || exported(files)), [true; 2]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_replaced_directory_comes_back_unless_its_replacement_exists() {
        let dir = tempdir().unwrap();
        let dir = dir.path();
        let out = dir.join("m");
        let old = dir.join("m.xtrain-old-4194998");
        let write = |path: &Path, text: &str| {
            std::fs::create_dir_all(path).unwrap();
            std::fs::write(path.join("config.json"), text).unwrap();
        };
        write(&old, "old");
        write(&dir.join("m.xtrain-tmp-4194998"), "new");
        write(&dir.join("m.xtrain-old-1"), "of a process that runs");
        assert!(recover_directory(&out, is_exported_model).unwrap());
        assert_eq!(std::fs::read_to_string(out.join("config.json")).unwrap(), "old");
        assert!(
            !old.exists()
                && !dir.join("m.xtrain-tmp-4194998").exists()
                && dir.join("m.xtrain-old-1").exists()
        );
        write(&old, "older");
        assert!(!recover_directory(&out, is_exported_model).unwrap());
        assert_eq!(std::fs::read_to_string(out.join("config.json")).unwrap(), "old");
        assert!(!old.exists());
        write(&old, "with another file");
        std::fs::write(old.join("notes.txt"), "mine").unwrap();
        assert!(!recover_directory(&out, is_exported_model).unwrap());
        assert!(old.exists());
    }
}
