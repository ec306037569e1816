//! Paths of output files: which may be written, and how.
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::common::Force;
use super::exit::{CliError, Exit};
use crate::run::RunDir;
use crate::tensor::faults::{self, Fault};

/// Checks that a command may write its output file: its directory exists, and the file does not exist or `--force`
/// replaces it. Pipes, devices and open files such as `/dev/stdout` are written, not replaced. Refuses paths of
/// directories, and `-`, which would be a file of that name: commands for which it is standard output do not call this
/// function for it.
pub(super) fn check_absent(path: &Path, force: Force) -> Result<(), CliError> {
    if path.as_os_str() == "-" {
        return Err(CliError::new(Exit::Usage, "expected the path of an output file, found -")
            .hint("./- is a file of this name"));
    }
    if names_directory(path) {
        let found = if path.is_dir() { "the directory " } else { "" };
        let message =
            format_args!("expected the path of an output file, found {found}\"{}\"", path.display());
        return Err(CliError::new(Exit::Usage, message).hint("add the name of a file"));
    }
    check_parent(path)?;
    if !path.is_file() || is_open_file(path) || faults::on(Fault::OverwriteWithoutForce) {
        return Ok(());
    }
    if force.force {
        return check_is_no_file_of_a_run(path);
    }
    let message = format_args!("{}: already exists", path.display());
    Err(CliError::new(Exit::Usage, message).hint("choose another path, or replace it with --force"))
}

/// Checks that the directory of an output file exists.
fn check_parent(path: &Path) -> Result<(), CliError> {
    let target = target_of(path);
    let Some(parent) = target.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    let refused = |exit, what: &str, hint: &str| {
        let message = format_args!("{}: {}: {what}", path.display(), parent.display());
        Err(CliError::new(exit, message).hint(hint))
    };
    match fs::metadata(parent) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => refused(Exit::Usage, "expected a directory, found a file", "choose another path"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            refused(Exit::Missing, "directory not found", "create the directory, or choose another path")
        }
        Err(error) => Err(CliError::io(parent, &error)),
    }
}

/// Checks that an output file is not one of the files that the command reads, which `--force` would replace, nor a file of
/// a model directory that it reads.
pub(super) fn check_is_no_input<'a>(
    path: &Path,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), CliError> {
    let Ok(file) = fs::canonicalize(path) else { return Ok(()) };
    let is_read = |input: &PathBuf| {
        let Ok(input) = fs::canonicalize(input) else { return false };
        let is_of_model = || {
            let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            input.join("config.json").is_file()
                && file.parent() == Some(&input)
                && ["json", "safetensors", "model", "jinja", "gguf"].contains(&ending)
        };
        input == file || is_of_model()
    };
    if is_open_file(path) || !file.is_file() || !inputs.into_iter().any(is_read) {
        return Ok(());
    }
    if faults::on(Fault::InputReplacedByOutput) {
        return Ok(());
    }
    let message = format_args!("{}: expected a file other than the input", path.display());
    Err(CliError::new(Exit::Usage, message).hint("choose another path for the output"))
}

/// Checks that no run wrote a file: its configuration, logs, rollouts and checkpoints are not replaced.
fn check_is_no_file_of_a_run(path: &Path) -> Result<(), CliError> {
    let Ok(file) = fs::canonicalize(path) else { return Ok(()) };
    match RunDir::owner(&file) {
        Some(run) if !faults::on(Fault::FileOfRunReplaced) => {
            let (path, run) = (path.display(), run.display());
            let message = format_args!("{path}: expected a file that is not part of the run {run}");
            Err(CliError::new(Exit::Usage, message).hint("choose another path"))
        }
        _ => Ok(()),
    }
}

/// Whether a path is that of a directory, or can only become one: it ends with a separator, `.` or `..`.
fn names_directory(path: &Path) -> bool {
    let text = path.as_os_str().to_string_lossy();
    let last = text.rsplit(std::path::is_separator).next().unwrap_or_default();
    (["", ".", ".."].contains(&last) && !faults::on(Fault::DirectoryAsOutputFile)) || path.is_dir()
}

/// Checks that a command which keeps an incomplete output file as `NAME.partial` may write it: it does not exist, or
/// `--force` replaces it.
pub(super) fn check_partial_absent(path: &Path, force: Force) -> Result<(), CliError> {
    let partial = partial_of(path);
    if force.force || partial.symlink_metadata().is_err() {
        return Ok(());
    }
    let message = format_args!("{}: already exists", partial.display());
    let hint =
        "it holds results of an interrupted command: continue it with --resume, or replace it with --force";
    Err(CliError::new(Exit::Usage, message).hint(hint))
}

/// The path of the incomplete file of a command that writes `path`.
pub(super) fn partial_of(path: &Path) -> PathBuf {
    partial_path(&target_of(path))
}

/// The path of an incomplete output file.
pub(super) fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    path.with_file_name(name)
}

/// The path that is written: links are followed, also to a file that does not exist, but not those to open files.
pub(super) fn target_of(path: &Path) -> PathBuf {
    /// The number of links after which Linux refuses a path.
    const MAX_LINKS: usize = 40;
    let mut target = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        if is_open_file(&target) || faults::on(Fault::LinkToNewFileReplaced) && !target.exists() {
            break;
        }
        if let Ok(target) = fs::canonicalize(&target) {
            return target;
        }
        let Ok(link) = fs::read_link(&target) else { return target };
        target = target.parent().unwrap_or(Path::new("")).join(link);
    }
    path.to_path_buf()
}

/// Whether `path` names a pipe, a device or an open file. Commands write into it, and have no incomplete file.
pub(super) fn is_written_directly(path: &Path) -> bool {
    let target = target_of(path);
    is_open_file(path) || (target.exists() && !target.is_file())
}

/// Whether the path names an open file of this process. The file behind it may be a regular one.
fn is_open_file(path: &Path) -> bool {
    let directories = [Path::new("/dev/fd"), Path::new("/proc/self/fd")];
    [STDOUT, STDERR].contains(&path.to_str().unwrap_or_default())
        || path.parent().is_some_and(|parent| directories.contains(&parent))
}

const STDOUT: &str = "/dev/stdout";
const STDERR: &str = "/dev/stderr";

/// Opens a pipe, a device or an open file for writing. A regular file behind it keeps its content.
pub(super) fn open_directly(path: &Path) -> std::io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        // A duplicate shares its position with what this process prints.
        let number = path.file_name().filter(|_| is_open_file(path)).unwrap_or_default();
        if number == "stdout" || number == "1" {
            return Ok(std::io::stdout().as_fd().try_clone_to_owned()?.into());
        }
        if number == "stderr" || number == "2" {
            return Ok(std::io::stderr().as_fd().try_clone_to_owned()?.into());
        }
    }
    File::options().append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths of directories that are accepted for output files.
    fn accepted() -> Vec<&'static str> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "old").unwrap();
        let force = Force { force: true };
        check_absent(&dir.path().join("a"), force).unwrap();
        check_absent(&dir.path().join("new"), Force { force: false }).unwrap();
        let mut accepted = Vec::new();
        for name in ["a/", "a/.", "new/", "new/.", "..", "", "."] {
            match check_absent(&dir.path().join(name), force) {
                Ok(()) => accepted.push(name),
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("expected the path of an output file, found "), "{name}: {error}");
                }
            }
        }
        accepted
    }

    #[test]
    fn the_directory_of_an_output_file_has_to_exist() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "").unwrap();
        for (name, want, exit) in [
            ("gone/a", "directory not found", Exit::Missing),
            ("file/a", "expected a directory, found a file", Exit::Usage),
        ] {
            let error = check_absent(&path(name), Force { force: true }).unwrap_err();
            let (parent, text) = (path(name), error.to_string());
            let parent = parent.parent().unwrap().display();
            assert!(text.contains(&format!("{}: {parent}: {want}", path(name).display())), "{text}");
            assert_eq!(error.exit(), exit);
        }
    }

    /// What is written through a link to a file that does not exist, relative to the directory of the link.
    #[cfg(all(unix, feature = "faults"))]
    fn target_of_new_link() -> PathBuf {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        std::os::unix::fs::symlink("in/later", dir.path().join("link")).unwrap();
        target_of(&dir.path().join("link")).strip_prefix(dir.path()).unwrap().to_path_buf()
    }

    #[test]
    #[cfg(all(unix, feature = "faults"))]
    fn a_link_that_is_replaced_is_found() {
        assert_eq!(target_of_new_link(), Path::new("in/later"));
        assert_eq!(faults::with(Fault::LinkToNewFileReplaced, target_of_new_link), Path::new("link"));
    }

    #[test]
    #[cfg(unix)]
    fn a_link_to_a_file_that_does_not_exist_names_this_file() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("in")).unwrap();
        symlink("in/later", path("link")).unwrap();
        symlink("link", path("second")).unwrap();
        symlink(path("loop"), path("loop")).unwrap();
        symlink("gone/later", path("nowhere")).unwrap();
        for name in ["link", "second"] {
            assert_eq!(target_of(&path(name)), path("in/later"));
            check_absent(&path(name), Force { force: false }).unwrap();
        }
        assert_eq!(target_of(&path("loop")), path("loop"));
        let error = check_absent(&path("nowhere"), Force { force: false }).unwrap_err().to_string();
        assert!(error.contains("gone: directory not found"), "{error}");
    }

    #[test]
    fn paths_of_directories_are_refused() {
        assert_eq!(accepted(), Vec::<&str>::new());
    }

    /// Whether files that a command reads or a run needs are accepted for output, with `--force`.
    fn accepted_files() -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        fs::create_dir_all(run.join("checkpoints/step_000001")).unwrap();
        fs::create_dir_all(run.join("rollouts")).unwrap();
        fs::create_dir_all(run.join("logs")).unwrap();
        fs::create_dir_all(run.join("best/checkpoints/step_000001")).unwrap();
        let needed = [
            "config.toml",
            "config.toml.new",
            "data.json",
            "metrics.jsonl",
            "samples.jsonl",
            "timings.jsonl",
            "checkpoints/step_000001/model.safetensors",
            "best/checkpoints/step_000001/manifest.json",
            "logs/session.json",
            "rollouts/step_000001.jsonl",
        ];
        let others =
            ["loss.svg", "notes.txt", "rollouts/mine.jsonl", "logs/mine.txt", "checkpoints/notes.txt"];
        for name in needed.iter().chain(&others) {
            fs::write(run.join(name), "a").unwrap();
        }
        let force = Force { force: true };
        for name in others.iter().chain(&["new.jsonl"]) {
            check_absent(&run.join(name), force).unwrap();
        }
        let input = run.join("notes.txt");
        check_is_no_input(&run.join("loss.svg"), [&input]).unwrap();
        let mut accepted: Vec<String> = needed
            .iter()
            .filter(|name| check_absent(&run.join(name), force).is_ok())
            .map(ToString::to_string)
            .collect();
        if check_is_no_input(&run.join("rollouts/../notes.txt"), [&run.join("loss.svg"), &input]).is_ok() {
            accepted.push("the input".into());
        }
        accepted
    }

    #[test]
    fn files_that_are_read_or_needed_by_a_run_are_refused() {
        assert_eq!(accepted_files(), Vec::<String>::new());
    }

    #[test]
    #[cfg(feature = "faults")]
    fn accepted_files_of_runs_and_inputs_are_found() {
        assert_eq!(faults::with(Fault::InputReplacedByOutput, accepted_files), ["the input"]);
        assert_eq!(faults::with(Fault::FileOfRunReplaced, accepted_files).len(), 10);
    }

    #[test]
    #[cfg(feature = "faults")]
    fn accepted_paths_of_new_directories_are_found() {
        let accepted = faults::with(Fault::DirectoryAsOutputFile, accepted);
        assert!(accepted.contains(&"new/") && accepted.contains(&"new/."), "{accepted:?}");
    }
}
