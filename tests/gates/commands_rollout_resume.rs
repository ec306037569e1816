//! `xtrain rollout --resume`: the file of the uninterrupted command, from any part of its lines.
use std::fs;
use std::path::Path;

use crate::cli::{Scratch, refused, text, xtrain};
use crate::commands::{done, model};

const FLAGS: [&str; 10] =
    ["--prompts", "p.jsonl", "-n", "3", "--max-new", "30", "--stop", "e", "--out", "c.jsonl"];

fn args<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["rollout", model][..], &FLAGS, more].concat()
}

/// Runs the whole command, and returns its lines.
fn whole(scratch: &Scratch) -> Vec<String> {
    scratch.file(
        "p.jsonl",
        "{\"prompt\": \"ab\", \"priority\": 0}\n{\"prompt_ids\": [1, 2, 3], \"priority\": 5}\n\
         {\"prompt\": \"1+1=\", \"regex\": \"[0-9]{1,3}\"}\n{\"prompt\": \"x\", \"answer\": [3]}\n",
    );
    done(&scratch.0, &args(&model(), &["--max-batch-size", "2"]));
    let path = scratch.0.join("c.jsonl");
    let lines = fs::read_to_string(&path).unwrap();
    fs::remove_file(path).unwrap();
    let lines: Vec<String> = lines.split_inclusive('\n').map(str::to_string).collect();
    assert_eq!(lines.len(), 12);
    let stopped = lines.iter().filter(|line| line.contains("\"finish_reason\":\"stop\"")).count();
    assert!((2..=10).contains(&stopped), "{stopped} of 12 completions end at the stop text");
    lines
}

/// The completions of a prompt that lacks one, and a last line that is not complete, are generated again.
#[test]
pub(crate) fn a_resumed_rollout_writes_the_file_of_an_uninterrupted_one() {
    let scratch = Scratch::new("resumed-rollout");
    let lines = whole(&scratch);
    let torn = &lines[11][..40];
    for (kept, file) in [
        (0, Vec::new()),
        // those of prompts 1 and 3, and two of prompt 2
        (6, vec![&*lines[9], &lines[3], &lines[4], &lines[5], &lines[10], &lines[11], &lines[6], &lines[8]]),
        (9, [&lines.iter().take(9).map(String::as_str).collect::<Vec<_>>()[..], &[torn]].concat()),
        (12, lines.iter().map(String::as_str).collect()),
        (0, vec![&*lines[0], &lines[2]]),
    ] {
        let partial = scratch.file("c.jsonl.partial", &file.concat());
        let output = xtrain(&scratch.0, &args(&model(), &["--resume", "--max-batch-size", "5"]));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert_eq!(errors.contains(&format!("kept {kept} of 12 completions")), kept > 0, "{errors}");
        assert!(errors.contains("rollout: 12/12 in "), "{errors}");
        let written = fs::read_to_string(scratch.0.join("c.jsonl")).unwrap();
        assert_eq!(written, lines.concat(), "{kept} kept");
        assert!(!partial.exists());
        fs::remove_file(scratch.0.join("c.jsonl")).unwrap();
    }
}

/// A killed rollout leaves its completions in a temporary file with the number of its process.
#[test]
#[cfg(target_os = "linux")]
pub(crate) fn the_completions_of_a_killed_rollout_are_kept() {
    let scratch = Scratch::new("killed-rollout");
    let lines = whole(&scratch);
    // Linux has at most 2^22 processes
    let [longer, shorter] = ["c.jsonl.xtrain-tmp-4194998", "c.jsonl.xtrain-tmp-4194997"];
    scratch.file(longer, &[&lines[..7].concat(), &lines[7][..40]].concat());
    scratch.file(shorter, &lines[0]);
    let resumed = || {
        let output = xtrain(&scratch.0, &args(&model(), &["--resume"]));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert_eq!(fs::read_to_string(scratch.0.join("c.jsonl")).unwrap(), lines.concat());
        fs::remove_file(scratch.0.join("c.jsonl")).unwrap();
        let left = fs::read_dir(&scratch.0).unwrap().flatten();
        let left: Vec<_> = left.filter(|file| file.file_name().to_string_lossy().starts_with("c.")).collect();
        assert!(left.is_empty(), "{left:?}");
        errors
    };
    let errors = resumed();
    let note = "note: continuing a rollout that was killed, from ";
    assert!(errors.contains(&format!("{note}{longer}\n")), "{errors}");
    assert!(errors.contains("kept 6 of 12 completions"), "{errors}");
    let errors = resumed();
    assert!(errors.contains("c.jsonl.partial not found: there is nothing to continue"), "{errors}");
    // a resumed rollout was killed: the file with more is continued, unless it is of another command
    let other = lines.concat().replace("\"seed\":", "\"seed\":1");
    for (killed, kept, is_killed) in
        [(lines[..9].concat(), 9, true), (lines[..3].concat(), 6, false), (other, 6, false)]
    {
        scratch.file("c.jsonl.partial", &lines[..6].concat());
        scratch.file(longer, &killed);
        let errors = resumed();
        assert!(errors.contains(&format!("kept {kept} of 12 completions")), "{errors}");
        assert_eq!(errors.contains(note), is_killed, "{errors}");
    }
}

/// A copy of the model with other weights.
fn other_weights(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for entry in fs::read_dir(model()).unwrap().flatten() {
        fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    let file = dir.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len();
    // the last two KB in the order of the values reversed
    let values: Vec<[u8; 4]> = bytes[end - 2048..].as_chunks().0.to_vec();
    let reversed: Vec<u8> = values.iter().rev().flatten().copied().collect();
    bytes[end - 2048..].copy_from_slice(&reversed);
    fs::write(file, bytes).unwrap();
}

#[test]
pub(crate) fn a_rollout_of_other_weights_is_not_resumed() {
    let scratch = Scratch::new("resumed-weights");
    let lines = whole(&scratch);
    let partial = scratch.file("c.jsonl.partial", &lines[3..9].concat());
    other_weights(&scratch.0.join("other"));
    let output = xtrain(&scratch.0, &args("other", &["--resume"]));
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(65), "{errors}");
    let error = errors.lines().find(|line| line.starts_with("error: ")).unwrap();
    let names =
        ["c.jsonl.partial:", ": field \"", ": expected ", ", found "].map(|part| error.contains(part));
    assert_eq!(names, [true; 4], "{error}");
    let after = fs::read_to_string(partial).unwrap();
    assert!(after == lines[3..9].concat(), "c.jsonl.partial has other lines: {after}");
    assert!(!scratch.0.join("c.jsonl").exists());
}

#[test]
fn a_rollout_of_other_flags_or_prompts_is_not_resumed() {
    let scratch = Scratch::new("resumed-flags");
    let (lines, m) = (whole(&scratch), model());
    scratch.file("c.jsonl.partial", &lines[..6].concat());
    for (more, parts) in [
        (&["--seed", "4"][..], &["c.jsonl.partial:1: field \"seed\": expected 4, found 0"][..]),
        (&["--temperature", "0.5"], &["field \"temperature\": expected 0.5, found 1.0"]),
        (&["--dtype", "bf16"], &["field \"dtype\": expected \"bf16\", found \"f32\""]),
        (&["--stop", "!"], &["field \"stop\": expected [\"e\",\"!\"], found [\"e\"]"]),
        (&["-n", "2"], &["c.jsonl.partial:3: ", "4 prompts with 2 each, found number 2 of group 0"]),
    ] {
        refused(&scratch.0, &args(&m, &[more, &["--resume"]].concat()), 65, parts);
    }
    scratch.file("other.jsonl", "{\"prompt\": \"cd\"}\n");
    let other = ["--prompts", "other.jsonl", "--resume"];
    refused(&scratch.0, &args(&m, &other), 65, &["field \"prompt\": expected \"cd\", found \"ab\""]);
    for (line, found) in [("no\n", "expected a completion"), ("{}\n", "expected a completion")] {
        scratch.file("c.jsonl.partial", &[&lines[0], line].concat());
        refused(&scratch.0, &args(&m, &["--resume"]), 65, &["c.jsonl.partial:2: ", found]);
    }
    scratch.file("c.jsonl.partial", &lines[0].replace(",\"sample\"", ", \"sample\""));
    refused(&scratch.0, &args(&m, &["--resume"]), 65, &["as it was written"]);
    refused(&scratch.0, &["rollout", &m, "--prompts", "p.jsonl", "--resume"], 2, &["--resume", "--out FILE"]);
    #[cfg(unix)]
    refused(
        &scratch.0,
        &args(&m, &["--out", "/dev/null", "--resume"]),
        2,
        &["--resume", "a regular file", "null"],
    );
    scratch.file("c.jsonl.partial", &lines[0].replacen("\"logprobs\":[", "\"logprobs\":[0,", 1));
    refused(
        &scratch.0,
        &args(&m, &["--resume"]),
        65,
        &["field \"logprobs\": expected ", " values, one for each"],
    );
    scratch.file("c.jsonl", "complete\n");
    refused(&scratch.0, &args(&m, &["--resume"]), 2, &["c.jsonl: already exists", "--force"]);
    scratch.file("c.jsonl.partial", &lines[..6].concat());
    done(&scratch.0, &args(&m, &["--resume", "--force"]));
    assert_eq!(fs::read_to_string(scratch.0.join("c.jsonl")).unwrap(), lines.concat());
}

/// The first completion of each prompt, for a command with one completion per prompt, or with four.
#[test]
pub(crate) fn completions_of_other_ids_are_not_kept() {
    let scratch = Scratch::new("resumed-ids");
    let lines = whole(&scratch);
    scratch.file("c.jsonl.partial", &[&*lines[0], &lines[3]].concat());
    for (n, expected) in [("1", "1"), ("4", "4")] {
        let found = format!("c.jsonl.partial:2: field \"sample_id\": expected {expected}, found 3");
        refused(&scratch.0, &args(&model(), &["-n", n, "--resume"]), 65, &[&found]);
    }
}

/// Twelve lines do not fit the buffer; the three of the first prompt do, and it cannot be written at the end.
#[cfg(unix)]
#[test]
pub(crate) fn a_full_disk_leaves_the_kept_completions() {
    let scratch = Scratch::new("resumed-full");
    let lines = whole(&scratch);
    let prompts = fs::read_to_string(scratch.0.join("p.jsonl")).unwrap();
    let first = prompts.lines().next().unwrap();
    for (prompts, kept, hint) in [
        (prompts.as_str(), lines.concat(), "12 of 12 completions are in "),
        (first, lines[..3].concat(), "c.jsonl.partial is unchanged"),
        (first, lines[..2].concat(), "c.jsonl.partial is unchanged"),
    ] {
        scratch.file("p.jsonl", prompts);
        let partial = scratch.file("c.jsonl.partial", &kept);
        let mut shell = std::process::Command::new("sh");
        let rollout = crate::cli::program();
        shell.args(["-c", "ulimit -f 1 && exec \"$0\" \"$@\""]);
        shell.arg(rollout.get_program()).args(rollout.get_args());
        shell.args(args(&model(), &["--resume"])).current_dir(&scratch.0);
        let output = shell.output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{errors}");
        let is_unchanged = fs::read_to_string(&partial).is_ok_and(|found| found == kept);
        assert!(is_unchanged, "c.jsonl.partial was replaced: {errors}");
        assert!(errors.contains(hint), "{errors}");
        assert_eq!(crate::commands_early::names(&scratch.0), ["c.jsonl.partial", "p.jsonl"], "{errors}");
    }
}
