//! Names of temporary files.
use std::path::{Path, PathBuf};

/// The temporary path `NAME.tmp-PID` next to `out`. Removes those of processes that have ended: a killed process leaves
/// its file behind.
pub fn temporary_path(out: &Path) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy().into_owned();
    remove_stale(out, &format!("{name}.tmp-"));
    out.with_file_name(format!("{name}.tmp-{}", std::process::id()))
}

/// Removes the files next to `out` with the name `prefix` and the number of a process that has ended. Files that cannot
/// be removed stay.
fn remove_stale(out: &Path, prefix: &str) {
    let dir = out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for file in dir.read_dir().into_iter().flatten().flatten() {
        let name = file.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if process.is_some_and(has_ended) {
            let path = file.path();
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
    }
}

/// Whether the process with this number has ended. Only Linux reports it; elsewhere, it may still run.
fn has_ended(process: u32) -> bool {
    Path::new("/proc/self/stat").exists() && !Path::new(&format!("/proc/{process}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn files_of_processes_that_have_ended_are_removed() {
        let dir = std::env::temp_dir().join(format!("xtrain-temporary-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a.tok.tmp-4194999")).unwrap();
        let live = format!("a.tok.tmp-{}", std::process::id());
        for name in
            ["a.tok.tmp-4194998", "a.tok", "b.tok.tmp-4194998", "a.tok.tmp-x", live.as_str(), "a.tok.tmp-1"]
        {
            std::fs::write(dir.join(name), "x").unwrap();
        }
        assert_eq!(temporary_path(&dir.join("a.tok")), dir.join(&live));
        let entries = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        let mut want = vec!["a.tok", "a.tok.tmp-1", live.as_str(), "a.tok.tmp-x", "b.tok.tmp-4194998"];
        want.sort_unstable();
        assert_eq!(names, want);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
