//! Names of temporary files.
use std::fs::DirEntry;
use std::path::{Path, PathBuf};

/// Between the name of an output and the number of the process that writes it. No other program uses it, so files of
/// users are not mistaken for temporary files.
const INFIX: &str = ".xtrain-tmp-";

/// The temporary path `NAME.xtrain-tmp-PID` next to `out`. Removes what killed processes left there: the files of
/// processes that have ended, and those with the number of this process, which containers give to many.
pub fn temporary_path(out: &Path) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy().into_owned();
    remove_stale(out, &format!("{name}{INFIX}"));
    out.with_file_name(format!("{name}{INFIX}{}", std::process::id()))
}

/// Removes the files and exported models next to `out` with the name `prefix` and the number of this process or of one
/// that has ended. What cannot be removed stays.
fn remove_stale(out: &Path, prefix: &str) {
    let dir = out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for file in dir.read_dir().into_iter().flatten().flatten() {
        let name = file.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if process.is_some_and(|process| process == std::process::id() || has_ended(process)) {
            let path = file.path();
            match file.file_type() {
                Ok(kind) if kind.is_file() => drop(std::fs::remove_file(path)),
                Ok(kind) if kind.is_dir() && is_exported_model(&path) => {
                    drop(std::fs::remove_dir_all(path));
                }
                _ => {}
            }
        }
    }
}

/// Whether a directory contains nothing but files of an exported model.
pub fn is_exported_model(dir: &Path) -> bool {
    let ours = |entry: &DirEntry| {
        let (name, kind) = (entry.file_name(), entry.file_type());
        let name = name.to_string_lossy();
        let weights = name.starts_with("model") && name.ends_with(".safetensors");
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

/// Whether the process with this number has ended. Only Linux reports it; elsewhere, it may still run.
fn has_ended(process: u32) -> bool {
    Path::new("/proc/self/stat").exists() && !Path::new(&format!("/proc/{process}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn only_temporary_files_of_this_process_and_of_ended_ones_are_removed() {
        let dir = std::env::temp_dir().join(format!("xtrain-temporary-{}", std::process::id()));
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
        std::fs::create_dir_all(&dir).unwrap();
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
        std::fs::remove_dir_all(dir).unwrap();
    }
}
