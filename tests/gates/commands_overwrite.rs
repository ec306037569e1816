//! Output files of commands: an existing file is not replaced. Files of killed processes are removed.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

#[cfg(target_os = "linux")]
use crate::cli::in_terminal;
use crate::cli::{Scratch, program, refused, text, xtrain};
use crate::commands::{done, model, parsed, tiny_run};

const LINE: &str = "the cat sat on the mat and the dog sat too\n";

#[test]
pub(crate) fn no_command_replaces_a_file_without_force() {
    let (scratch, m) = (Scratch::new("overwrite"), model());
    let dir = &scratch.0;
    scratch.file("t.txt", &LINE.repeat(20));
    scratch.file("runs/a/metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":1}\n");
    scratch.file("p.jsonl", "{\"prompt_ids\": [1, 2, 3]}\n");
    for (args, out) in [
        (&["prepare", "t.txt", "--out", "o.tok"][..], "o.tok"),
        (&["tokenizer", "train", "t.txt", "--vocab", "280"], "tokenizer.json"),
        (&["logits", &m, "--tokens", "1,2", "--out", "l.safetensors"], "l.safetensors"),
        (&["plot", "runs/a", "--out", "p.svg"], "p.svg"),
        (&["rollout", &m, "--prompts", "p.jsonl", "--max-new", "2", "--out", "r.jsonl"], "r.jsonl"),
    ] {
        done(dir, args);
        let before = fs::read(dir.join(out)).unwrap();
        scratch.file(out, "mine\n");
        refused(dir, args, 2, &[out, "already exists", "--force"]);
        assert!(fs::read(dir.join(out)).unwrap() == b"mine\n", "{args:?}");
        done(dir, &[args, &["--force"]].concat());
        assert!(fs::read(dir.join(out)).unwrap() == before, "{args:?}");
    }
}

#[test]
fn the_completions_of_an_interrupted_rollout_are_not_replaced_without_force() {
    let (scratch, m) = (Scratch::new("partial"), model());
    scratch.file("p.jsonl", "{\"prompt_ids\": [1, 2, 3]}\n");
    scratch.file("c.jsonl.partial", "mine\n");
    let args = ["rollout", &m, "--prompts", "p.jsonl", "--max-new", "2", "--out", "c.jsonl"];
    refused(&scratch.0, &args, 2, &["c.jsonl.partial: already exists", "--force"]);
    assert!(!scratch.0.join("c.jsonl").exists());
    done(&scratch.0, &[&args[..], &["--force"]].concat());
    assert_eq!(fs::read_to_string(scratch.0.join("c.jsonl.partial")).unwrap(), "mine\n");
}

#[test]
#[cfg(target_os = "linux")]
pub(crate) fn a_signal_removes_the_unfinished_token_file() {
    let scratch = Scratch::new("unfinished");
    assert!(Command::new("mkfifo").arg(scratch.0.join("pipe")).status().unwrap().success());
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let mut command = program();
        command.args(["prepare", "pipe", "--out", "t.tok"]).current_dir(&scratch.0);
        let child = in_terminal(&mut command).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // returns when the command reads the pipe, which has no end yet
        let pipe = fs::File::options().write(true).open(scratch.0.join("pipe")).unwrap();
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 2, "the pipe and a temporary file");
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        drop(pipe);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "{signal}: a temporary file is left");
        assert!(errors.contains("stopped by a signal; t.tok was not written"), "{errors}");
    }
}

/// Names and bytes of the files of a directory. `None`: there is none.
#[cfg(target_os = "linux")]
fn files_of(dir: &Path) -> Option<BTreeMap<String, Vec<u8>>> {
    let file =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    Some(fs::read_dir(dir).ok()?.flatten().map(file).collect())
}

/// At each instant, a signal leaves the directory of an export complete, absent or as it was, and nothing beside it.
#[test]
#[cfg(target_os = "linux")]
pub(crate) fn a_signal_to_an_export_leaves_no_part_of_it() {
    let (scratch, m) = (Scratch::new("export-signal"), model());
    let export = ["export", &m, "out/m", "--max-shard-size", "8KB"];
    fs::create_dir(scratch.0.join("out")).unwrap();
    let (out, since) = (scratch.0.join("out/m"), Instant::now());
    done(&scratch.0, &export);
    let (whole, time) = (files_of(&out), since.elapsed());
    fs::remove_dir_all(&out).unwrap();
    let mut ends = BTreeSet::new();
    for at in 0..40 {
        let replaces = at % 2 == 1;
        if replaces {
            done(&scratch.0, &["export", &m, "out/m", "--type", "f16"]);
        }
        let before = files_of(&out);
        let mut command = program();
        command.args([&export[..], &["--force"]].concat()).current_dir(&scratch.0);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(time * at / 40);
        let signal = if at % 4 < 2 { "-TERM" } else { "-INT" };
        // the command may have ended
        let _ = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
        let output = child.wait_with_output().unwrap();
        let (code, errors, after) = (output.status.code(), text(&output.stderr), files_of(&out));
        let stopped = Some(if signal == "-TERM" { 143 } else { 130 });
        // before its handler is installed, the signal ends the process
        assert!([None, Some(0), stopped].contains(&code), "instant {at}: {code:?}: {errors}");
        assert!(
            after == whole || (after == before && code != Some(0)),
            "instant {at}: {code:?}: a part is left: {errors}"
        );
        assert_eq!(
            fs::read_dir(scratch.0.join("out")).unwrap().count(),
            usize::from(after.is_some()),
            "instant {at}: {errors}"
        );
        ends.insert(code);
        if out.exists() {
            fs::remove_dir_all(&out).unwrap();
        }
    }
    assert!(ends.contains(&Some(143)) || ends.contains(&Some(130)), "no signal arrived in time: {ends:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn open_files_are_written_and_pipes_are_not_replaced() {
    let (scratch, m) = (Scratch::new("open"), model());
    scratch.file("p.jsonl", "{\"prompt_ids\": [1, 2, 3]}\n");
    for (out, shell) in [("/dev/stdout", ">> f"), ("/dev/fd/1", ">> f"), ("/dev/fd/7", "7>> f")] {
        scratch.file("f", "first\n");
        let script = format!("exec \"$0\" \"$@\" {shell}");
        let args = ["rollout", &m, "--prompts", "p.jsonl", "--max-new", "2", "--out", out];
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).arg(program().get_program()).args(args).current_dir(&scratch.0);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let lines = fs::read_to_string(scratch.0.join("f")).unwrap();
        assert!(lines.starts_with("first\n{") && lines.lines().count() == 2, "{out}: {lines}");
    }
    scratch.file("t.txt", &LINE.repeat(20));
    let pipe = scratch.0.join("o.tok");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let prepare = ["prepare", "t.txt", "--out", "o.tok"];
    refused(&scratch.0, &prepare, 2, &["--out: expected the path of a file, found o.tok"]);
    refused(&scratch.0, &[&prepare[..], &["--force"]].concat(), 2, &["expected the path of a file"]);
    assert!(!pipe.is_file());
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_import_can_be_repeated_and_its_files_are_removed() {
    let scratch = Scratch::new("import");
    let dir = scratch.0.join("r/checkpoints/step_000000.tmp-4194998");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("model.safetensors"), "half").unwrap();
    scratch.file("r/lock", "");
    scratch.file("o.gguf.xtrain-tmp-4194998", "half");
    done(&scratch.0, &["import", &model(), "r"]);
    assert!(scratch.0.join("r/checkpoints/step_000000/manifest.json").is_file() && !dir.exists());
    refused(&scratch.0, &["import", &model(), "r"], 2, &["r: already exists"]);
    done(&scratch.0, &["export", "r", "o.gguf"]);
    assert!(!scratch.0.join("o.gguf.xtrain-tmp-4194998").exists());
}

#[test]
pub(crate) fn the_directory_of_an_import_that_runs_is_not_removed() {
    let scratch = Scratch::new("import-locked");
    scratch.file("r/checkpoints/step_000000.tmp-4194998/model.safetensors", "half");
    let held = fs::File::create(scratch.0.join("r/lock")).unwrap();
    held.lock().unwrap();
    refused(&scratch.0, &["import", &model(), "r"], 2, &["r/lock is held by another process"]);
    assert!(scratch.0.join("r/checkpoints/step_000000.tmp-4194998/model.safetensors").is_file());
}

#[test]
pub(crate) fn an_evaluation_names_its_checkpoint_and_is_strict_on_request() {
    let scratch = Scratch::new("strict");
    scratch.file("t.txt", &LINE.repeat(20));
    let sets = ["train.steps=2", "train.save_every=1", "train.keep=3"];
    done(&scratch.0, &tiny_run("r", "t.txt", &sets));
    let eval = |model: &'static str| ["eval", model, "--data", "t.txt", "--json"];
    let whole = parsed(&done(&scratch.0, &eval("r")));
    assert_eq!(whole["checkpoint"], "r/checkpoints/step_000002");
    assert!(whole.get("refused").is_none(), "{whole}");
    let weights = scratch.0.join("r/checkpoints/step_000002/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).unwrap();
    let output = xtrain(&scratch.0, &eval("r"));
    let errors = text(&output.stderr);
    assert!(errors.contains("warning: using the older checkpoint r/checkpoints/step_000001"), "{errors}");
    let older = parsed(&text(&output.stdout));
    assert_eq!(older["checkpoint"], "r/checkpoints/step_000001");
    assert_eq!(older["refused"][0], "r/checkpoints/step_000002");
    let strict = xtrain(&scratch.0, &[&eval("r")[..], &["--strict"]].concat());
    let errors = text(&strict.stderr);
    assert_eq!(strict.status.code(), Some(65), "{errors}");
    assert!(errors.contains("r/checkpoints/step_000002: the checkpoint is damaged"), "{errors}");
    refused(&scratch.0, &eval("r/checkpoints/step_000002"), 65, &["step_000002/model.safetensors"]);
}

#[test]
fn inspect_names_the_checkpoint_that_it_describes_and_is_strict_on_request() {
    let scratch = Scratch::new("inspected");
    let dir = &scratch.0;
    scratch.file("t.txt", &LINE.repeat(20));
    done(dir, &tiny_run("r", "t.txt", &["train.steps=2", "train.save_every=1", "train.keep=3"]));
    let [newest, older] = ["r/checkpoints/step_000002", "r/checkpoints/step_000001"];
    assert_eq!(parsed(&done(dir, &["inspect", "r", "--json"]))["checkpoint"], newest);
    let check = |args: &[&str]| {
        let output = xtrain(dir, &[args, &["--json"]].concat());
        let (errors, report) = (text(&output.stderr), parsed(&text(&output.stdout)));
        assert!(
            errors.contains(&format!("warning: using the older checkpoint {older}")),
            "{args:?}: {errors}"
        );
        assert_eq!(
            (&report["checkpoint"], &report["refused"][0]),
            (&older.into(), &newest.into()),
            "{args:?}"
        );
        let strict = [args, &["--strict"]].concat();
        refused(dir, &strict, 65, &[&format!("{newest}: the checkpoint is damaged"), "without --strict"]);
    };
    let flip = |file: &str| {
        let path = dir.join(newest).join(file);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    // only --verify reads the weights
    flip("model.safetensors");
    assert_eq!(parsed(&done(dir, &["inspect", "r", "--json"]))["checkpoint"], newest);
    check(&["inspect", "r", "--verify"]);
    flip("config.json");
    check(&["inspect", "r"]);
    check(&["inspect", "r", "--verify"]);
}

#[test]
#[cfg(unix)]
pub(crate) fn an_output_that_cannot_be_written_is_named_by_its_path() {
    let scratch = Scratch::new("full");
    fs::create_dir(scratch.0.join("sub")).unwrap();
    scratch.file("long.txt", &LINE.repeat(3000));
    let m = model();
    for (args, named) in [
        (["export", &m, "sub/o.gguf"], "cannot write sub/o.gguf: "),
        (["export", &m, "sub/hf"], "cannot write sub/hf/model.safetensors: "),
        (["prepare", "long.txt", "--out=sub/o.tok"], "sub/o.tok: cannot write: "),
        (["import", &m, "sub/run"], "cannot write sub/run/checkpoints/step_000000.tmp-"),
    ] {
        // Writing beyond 50 KiB fails.
        let script = "ulimit -f 100 && exec \"$0\" \"$@\"";
        let (mut shell, export) = (std::process::Command::new("sh"), program());
        shell.args(["-c", script]).arg(export.get_program()).args(export.get_args()).args(args);
        let output = shell.current_dir(&scratch.0).output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{errors}");
        assert!(errors.contains(named), "{errors}");
        assert_eq!(fs::read_dir(scratch.0.join("sub")).unwrap().count(), 0, "{args:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_run_on_a_full_disk_resumes_from_its_last_checkpoint() {
    let scratch = Scratch::new("full-run");
    scratch.file("t.txt", &LINE.repeat(20));
    let keys = [
        "train.steps=400",
        "train.stats_every=1",
        "train.save_every=50",
        "train.eval_every=0",
        "data.val_fraction=0",
    ];
    done(&scratch.0, &tiny_run("whole", "t.txt", &keys));
    // 75 or 150 KiB: metrics.jsonl is the only file that grows
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -f 150 && exec \"$0\" \"$@\""]).arg(program().get_program());
    let output = shell.args(tiny_run("r", "t.txt", &keys)).current_dir(&scratch.0).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{errors}");
    assert!(errors.contains("error: r/metrics.jsonl: "), "{errors}");
    let last = crate::commands_early::names(&scratch.0.join("r/checkpoints")).pop().unwrap();
    let hint = format!("hint: to resume from r/checkpoints/{last}: xtrain train --resume r");
    assert_eq!(errors.lines().last(), Some(hint.as_str()), "{errors}");
    let session = parsed(&fs::read_to_string(scratch.0.join("r/logs/session.json")).unwrap());
    assert_eq!(session["end"]["outcome"], "failed", "{session}");
    done(&scratch.0, &["train", "--resume", "r"]);
    for file in ["metrics.jsonl", "checkpoints/step_000400/manifest.json"] {
        let [whole, resumed] = ["whole", "r"].map(|run| fs::read(scratch.0.join(run).join(file)).unwrap());
        assert!(whole == resumed, "{file}");
    }
}

/// The lines of `sub/c.jsonl.partial` after a rollout whose files have at most `blocks` blocks of 512 or 1024 bytes.
#[cfg(unix)]
fn rollout_on_a_full_disk(scratch: &Scratch, blocks: usize, max_new: &str) -> usize {
    let script = format!("ulimit -f {blocks} && exec \"$0\" \"$@\"");
    let mut shell = std::process::Command::new("sh");
    let rollout = program();
    shell.args(["-c", &script]).arg(rollout.get_program()).args(rollout.get_args());
    shell.args([
        "rollout",
        &model(),
        "--prompts",
        "p.jsonl",
        "-n",
        "4",
        "--max-new",
        max_new,
        "--ignore-eos",
    ]);
    let output = shell.args(["--out", "sub/c.jsonl"]).current_dir(&scratch.0).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{errors}");
    assert_eq!(crate::commands_early::names(&scratch.0.join("sub")), ["c.jsonl.partial"], "{errors}");
    let lines = fs::read_to_string(scratch.0.join("sub/c.jsonl.partial")).unwrap();
    let count = lines.lines().map(parsed).count();
    let kept = if count == 1 { "1 line is in ".into() } else { format!("{count} lines are in ") };
    assert!(lines.ends_with('\n') && errors.contains(&kept), "{errors}");
    fs::remove_file(scratch.0.join("sub/c.jsonl.partial")).unwrap();
    count
}

#[cfg(unix)]
#[test]
pub(crate) fn a_rollout_on_a_full_disk_keeps_its_lines() {
    let scratch = Scratch::new("full-rollout");
    fs::create_dir(scratch.0.join("sub")).unwrap();
    scratch.file("p.jsonl", &"{\"prompt\": \"1+1=\"}\n".repeat(40));
    let few = rollout_on_a_full_disk(&scratch, 20, "30");
    let more = rollout_on_a_full_disk(&scratch, 40, "30");
    assert!(few > 4 && more > few && more < 160, "{few} and {more} of 160 lines");
    // all lines are in a buffer, which cannot be written at the end
    scratch.file("p.jsonl", "{\"prompt\": \"1+1=\"}\n");
    let buffered = rollout_on_a_full_disk(&scratch, 1, "2");
    assert!((1..4).contains(&buffered), "{buffered} of 4 lines");
}

#[test]
pub(crate) fn an_export_replaces_a_model_and_an_import_an_imported_run_with_force_only() {
    let (scratch, m) = (Scratch::new("replaced"), model());
    let dir = &scratch.0;
    for (args, out, file) in [
        (&["export", "-m", &m, "hf", "--type", "bf16"][..], "hf", "config.json"),
        (&["export", &m, "m.gguf", "--type", "q8_0"], "m.gguf", ""),
        (&["import", "--model", &m, "run"], "run", "checkpoints/step_000000/manifest.json"),
    ] {
        done(dir, args);
        let path = dir.join(out).join(file);
        let written = fs::read(if file.is_empty() { dir.join(out) } else { path.clone() }).unwrap();
        refused(dir, args, 2, &[out, "already exists", "--force"]);
        let path = if file.is_empty() { dir.join(out) } else { path };
        fs::write(&path, "damaged").unwrap();
        done(dir, &[args, &["--force"]].concat());
        assert_eq!(fs::read(&path).unwrap(), written, "{args:?}");
    }
    let names = || {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["hf", "m.gguf", "run"], "a temporary file is left");
    // Other files are not replaced.
    scratch.file("hf/notes.txt", "mine");
    refused(dir, &["export", &m, "hf", "--force"], 2, &["hf", "Hugging Face model without other files"]);
    scratch.file("run/config.toml", "mine");
    refused(dir, &["import", &m, "run", "--force"], 2, &["run", "a run of xtrain import"]);
    refused(dir, &["export", &m, "hf", "--format", "gguf", "--force"], 2, &["hf", "found a directory"]);
    refused(dir, &["export", "only-one"], 2, &["<MODEL|--model <MODEL>>"]);
}

#[test]
#[cfg(target_os = "linux")]
pub(crate) fn a_killed_replacement_is_undone_by_the_next_command() {
    let (scratch, m) = (Scratch::new("undone"), model());
    let dir = &scratch.0;
    for (args, out, ours) in [
        (["export", &*m, "hf"], "hf", "config.json"),
        (["import", &*m, "run"], "run", "checkpoints/step_000000/manifest.json"),
    ] {
        done(dir, &args);
        let before = fs::read(dir.join(out).join(ours)).unwrap();
        // The state after a kill between the two renames of --force.
        fs::rename(dir.join(out), dir.join(format!("{out}.xtrain-old-4194998"))).unwrap();
        let unfinished = dir.join(format!("{out}.xtrain-tmp-4194998"));
        fs::create_dir(&unfinished).unwrap();
        let output = xtrain(dir, &args);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "expected that it already exists: {output:?}");
        let note = format!("note: {out}: restored; a command that replaced it was killed");
        assert!(errors.contains(&note) && errors.contains("already exists"), "{errors}");
        assert_eq!(fs::read(dir.join(out).join(ours)).unwrap(), before);
        // After the second rename, the old directory is left.
        let old = dir.join(format!("{out}.xtrain-old-4194997"));
        fs::create_dir(&old).unwrap();
        done(dir, &[&args[..], &["--force"]].concat());
        assert!(!old.exists() && !unfinished.exists());
        assert_eq!(fs::read(dir.join(out).join(ours)).unwrap(), before);
    }
}
