//! The flags --save-prefix and --prefix: keys and values of a prompt in a file, with the results of computed ones.
use std::fs;

use serde_json::Value;

use crate::cli::{Scratch, ok, refused, text, xtrain};
use crate::commands::{done, model, parsed};
use crate::commands_tokenize::with_input;
use crate::fixtures::path;

/// Token ids of the fixture's vocabulary.
fn ids(n: usize, step: usize) -> String {
    (0..n).map(|t| (step * t % 500).to_string()).collect::<Vec<_>>().join(",")
}

fn without_times(mut line: Value) -> Value {
    let object = line.as_object_mut().unwrap();
    object.remove("timings");
    object.remove("cached_tokens");
    line
}

#[test]
fn a_prefix_that_cannot_be_saved_loses_no_output() {
    let (scratch, m) = (Scratch::new("prefix-unsaved"), model());
    let generate = ["generate", &m, "--prompt", "abc", "--max-new", "5", "--temperature", "0", "--json"];
    let want = parsed(&ok(&scratch.0, &generate));
    // a name that leaves no room for the ending of the temporary file
    let name = "a".repeat(255);
    let got = xtrain(&scratch.0, &[&generate[..], &["--save-prefix", &name]].concat());
    assert_eq!(got.status.code(), Some(74), "{got:?}");
    assert_eq!(parsed(&text(&got.stdout))["completion_ids"], want["completion_ids"]);
}

#[test]
fn a_prefix_that_is_lost_because_nobody_reads_the_output_is_an_error() {
    let (scratch, m) = (Scratch::new("prefix-pipe"), model());
    scratch.file("hi.txt", "hi\n");
    for args in [
        &["generate", &m, "--prompt", "abc", "--json"][..],
        &["generate", &m, "--prompt", "abc"],
        &["chat", "--model", &m],
    ] {
        let mut command = crate::cli::program();
        command.current_dir(&scratch.0).args(args).args(["--max-new", "5", "--save-prefix", "a.prefix"]);
        command.stdin(std::fs::File::open(scratch.0.join("hi.txt")).unwrap());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{args:?}: {errors}");
        assert!(errors.contains("--save-prefix a.prefix: not written"), "{args:?}: {errors}");
    }
}

#[test]
fn a_saved_prompt_is_not_computed_again_and_gives_the_same_completions() {
    let (scratch, m) = (Scratch::new("prefix"), model());
    let (short, long) = (ids(150, 7), format!("{},3,4,5", ids(150, 7)));
    let args = ["generate", &m, "--tokens", &short, "--max-new", "3", "--save-prefix", "a.prefix"];
    let saved = text(&xtrain(&scratch.0, &args).stderr);
    assert!(saved.contains("[saved the keys and values of 150 prompt tokens: a.prefix]"), "{saved}");
    for (page, cached) in [("64", 128), ("16", 144)] {
        let args = ["generate", &m, "--tokens", &long, "--max-new", "20", "--page-size", page];
        let want = parsed(&ok(&scratch.0, &[&args[..], &["--json"]].concat()));
        assert_eq!(want.get("cached_tokens"), None);
        let args = [&args[..], &["--prefix", "a.prefix"]].concat();
        let got = parsed(&ok(&scratch.0, &[&args[..], &["--json"]].concat()));
        assert_eq!(got["cached_tokens"].as_u64(), Some(cached));
        assert_eq!(without_times(got), without_times(want));
        let said = text(&xtrain(&scratch.0, &args).stderr);
        assert!(said.contains(&format!("[{cached} of 153 prompt tokens from a.prefix]")), "{said}");
    }
    for (prompt, said) in [
        (
            ids(100, 7),
            "64 of 100 prompt tokens from a.prefix; the prompt has only the first 100 of the 150 tokens",
        ),
        (
            ids(100, 3),
            "0 of 100 prompt tokens from a.prefix; the prompt has only the first 1 of the 150 tokens",
        ),
        (
            ids(20, 7),
            "0 of 20 prompt tokens from a.prefix; the prompt has only the first 20 of the 150 tokens of the file; only \
             whole pages are reused: see --page-size",
        ),
        ("9,8".into(), "0 of 2 prompt tokens from a.prefix; the prompt does not begin with the 150 tokens"),
    ] {
        let args = ["generate", &m, "--tokens", &prompt, "--max-new", "2", "--prefix", "a.prefix"];
        let errors = text(&xtrain(&scratch.0, &args).stderr);
        assert!(errors.contains(said), "{said}: {errors}");
    }
}

#[test]
fn rollouts_and_conversations_start_from_a_file() {
    let (scratch, m) = (Scratch::new("prefix-rollout"), model());
    let begins = ids(130, 7);
    done(&scratch.0, &["generate", &m, "--tokens", &begins, "--max-new", "1", "--save-prefix", "a.prefix"]);
    let line = |more: &str| format!("{{\"prompt_ids\": [{begins},{more}]}}\n");
    let part = format!("{{\"prompt_ids\": [{},2,3]}}\n", ids(70, 7));
    let prompts = [line("1"), line("2, 3"), "{\"prompt_ids\": [9]}\n".into(), part].concat();
    let args = ["rollout", &m, "-n", "2", "--max-new", "5"];
    let want = with_input(&scratch.0, &args, prompts.as_bytes());
    let got = with_input(&scratch.0, &[&args[..], &["--prefix", "a.prefix"]].concat(), prompts.as_bytes());
    assert_eq!(text(&got.stdout), text(&want.stdout));
    let said = text(&got.stderr);
    assert!(said.contains("a.prefix: 2 of 4 prompts begin with its 130 tokens, 1 with a part"), "{said}");
    assert!(said.contains("320 tokens reused, 16 prompt tokens computed"), "{said}");

    let system = "Be brief. ".repeat(14);
    let args = ["chat", "--model", &m, "--system", &system, "--json", "--max-new", "4"];
    let talk = |flags: &[&str]| with_input(&scratch.0, &[&args[..], flags].concat(), b"Hi\nAnd?\n");
    let want = talk(&["--save-prefix", "chat.prefix"]);
    assert!(text(&want.stderr).contains("[saved the keys and values of"), "{want:?}");
    let got = talk(&["--prefix", "chat.prefix"]);
    let lines = |output: &std::process::Output| text(&output.stdout).lines().map(parsed).collect::<Vec<_>>();
    let (want, said) = (lines(&want), text(&got.stderr));
    let got = lines(&got);
    assert!(got[0]["cached_tokens"].as_u64() >= Some(64) && want[0]["cached_tokens"] == 0, "{got:?}");
    assert!(said.contains("prompt tokens from chat.prefix]"), "{said}");
    assert_eq!(got.len(), 2);
    for (got, want) in got.into_iter().zip(want) {
        assert_eq!(without_times(got), without_times(want));
    }
}

#[test]
fn a_file_that_does_not_fit_the_model_is_refused_by_name() {
    let (scratch, m) = (Scratch::new("prefix-refused"), model());
    let prompt = ids(70, 7);
    let args = ["generate", &m, "--tokens", &prompt, "--max-new", "1"];
    done(&scratch.0, &[&args[..], &["--save-prefix", "a.prefix"]].concat());
    let with = |flags: &[&'static str]| [&args[..], flags].concat();
    refused(&scratch.0, &with(&["--save-prefix", "a.prefix"]), 2, &["a.prefix: already exists", "--force"]);
    done(&scratch.0, &with(&["--save-prefix", "a.prefix", "--force"]));
    let input = &["a.prefix: expected a file other than the input"][..];
    refused(&scratch.0, &with(&["--prefix", "a.prefix", "--save-prefix", "./a.prefix", "--force"]), 2, input);
    scratch.file("t.jinja", "{{ messages[0].content }}");
    let chat = ["chat", "--model", &m, "--template", "t.jinja", "--save-prefix", "t.jinja", "--force"];
    refused(&scratch.0, &chat, 2, &["t.jinja: expected a file other than the input"]);
    refused(&scratch.0, &with(&["--prefix", "none.prefix"]), 66, &["none.prefix not found"]);
    refused(
        &scratch.0,
        &with(&["--prefix", "a.prefix", "--kv", "growing"]),
        2,
        &["--prefix requires --kv paged, found --kv growing"],
    );
    refused(
        &scratch.0,
        &with(&["--prefix", "a.prefix", "--dtype", "bf16"]),
        65,
        &["a.prefix: dtype: expected bf16"],
    );
    refused(
        &scratch.0,
        &with(&["--save-prefix", "b.prefix", "--kv", "off"]),
        2,
        &["--save-prefix", "--kv off"],
    );
    let other = path("models/qwen3_untied_hd").display().to_string();
    let args = ["generate", &other, "--tokens", "1", "--max-new", "1", "--prefix", "a.prefix"];
    refused(&scratch.0, &args, 65, &["a.prefix: "]);
    let file = scratch.0.join("a.prefix");
    let bytes = fs::read(&file).unwrap();
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for (damaged, part) in [
        (&flipped[..], "tensor layers.1.values: expected crc32c"),
        (&bytes[..bytes.len() - 1], "data of all tensors together: expected"),
        (b"{}", "length prefix of the header"),
    ] {
        fs::write(&file, damaged).unwrap();
        refused(&scratch.0, &with(&["--prefix", "a.prefix"]), 65, &[part]);
    }
}

#[test]
fn offloaded_completions_are_those_without_preemption() {
    let (scratch, m) = (Scratch::new("preempt"), model());
    let prompts: String = (1..6).map(|step| format!("{{\"prompt_ids\": [{}]}}\n", ids(60, step))).collect();
    let args = ["rollout", &m, "--max-new", "60", "--ignore-eos", "--page-size", "8"];
    let run = |flags: &[&str]| with_input(&scratch.0, &[&args[..], flags].concat(), prompts.as_bytes());
    let want = run(&[]);
    for flags in [
        &["--preempt", "recompute"][..],
        &["--preempt", "offload"],
        &["--preempt", "offload", "--offload-dir", "."],
        &["--preempt", "offload", "--offload-limit", "1KiB"],
        &["--preempt", "auto"],
    ] {
        let got = run(&[&["--kv-capacity", "240", "--watermark", "0"], flags].concat());
        let said = text(&got.stderr);
        assert_eq!(text(&got.stdout), text(&want.stdout), "{flags:?}: {said}");
        assert!(said.contains(" preemptions"), "{flags:?}: {said}");
        let moved = said.contains(" tokens offloaded, ") && !said.contains(", 0 tokens");
        let may_move = flags[1] == "offload" && !flags.contains(&"1KiB");
        assert!(moved == may_move || flags[1] == "auto", "{said}");
    }
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0, "the file has no name");
    let lost = ["rollout", &m, "--offload-dir", "."];
    refused(&scratch.0, &[&lost[..], &["--prompts", "none.jsonl"]].concat(), 66, &["none.jsonl"]);
    scratch.file("p.jsonl", &prompts);
    let lost = [&lost[..], &["--prompts", "p.jsonl"]].concat();
    refused(&scratch.0, &lost, 2, &["--offload-dir .: nothing is offloaded", "--preempt offload"]);
    let limit = ["rollout", &m, "--prompts", "p.jsonl", "--offload-limit", "1MB"];
    refused(&scratch.0, &limit, 2, &["--offload-limit: nothing is offloaded", "--preempt offload"]);
    let none =
        [&lost[..2], &["--prompts", "p.jsonl", "--preempt", "offload", "--offload-dir", "none"]].concat();
    refused(&scratch.0, &none, 66, &["--offload-dir none"]);
}

#[test]
#[cfg(unix)]
fn completions_whose_offload_file_is_full_are_computed_again() {
    let (scratch, m) = (Scratch::new("preempt-full"), model());
    let prompts: String = (1..6).map(|step| format!("{{\"prompt_ids\": [{}]}}\n", ids(60, step))).collect();
    scratch.file("p.jsonl", &prompts);
    let args = ["rollout", &m, "--prompts", "p.jsonl", "--max-new", "60", "--ignore-eos", "--page-size", "8"];
    let want = done(&scratch.0, &args);
    // A file cannot grow beyond a few KiB. Standard output and standard error are pipes.
    let script = "ulimit -f 4 && exec \"$0\" \"$@\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).arg(crate::cli::program_path()).args(args);
    shell.args(["--kv-capacity", "240", "--watermark", "0", "--preempt", "offload", "--offload-dir", "."]);
    let output = shell.current_dir(&scratch.0).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(text(&output.stdout), want, "{errors}");
    for part in [
        "0 tokens offloaded, 0 restored",
        "warning: the offload file failed (File too large",
        "computed again",
    ] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
}

/// Products in bf16 have other bits on a tensor core than on the CPU, products in f32 have the same.
#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_bf16_prefix_of_the_cpu_is_refused_on_a_gpu() {
    let (scratch, m) = (Scratch::new("prefix-products"), model());
    for dtype in ["f32", "bf16"] {
        let generate = ["generate", &m, "--tokens", &ids(20, 7), "--max-new", "2", "--dtype", dtype];
        let file = format!("{dtype}.prefix");
        done(&scratch.0, &[&generate[..], &["--save-prefix", &file]].concat());
        let on_gpu = [&generate[..], &["--device", "emulated", "--prefix", &file]].concat();
        if dtype == "f32" {
            done(&scratch.0, &on_gpu);
        } else {
            let parts = ["bf16.prefix: products: expected Hopper, as the model has, found CPU"];
            refused(&scratch.0, &on_gpu, 65, &parts);
        }
    }
}
