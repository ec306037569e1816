//! The command line as a process: exit codes, one line per error, standard output and standard error.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[cfg(feature = "faults")]
use xtrain::tensor::faults;

/// A temporary directory of its own, removed on drop: a gate and the test of its fault may run at the same time.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let dir = tempfile::Builder::new().prefix(&format!("xtrain-{name}-")).tempdir();
        Scratch(dir.unwrap().keep())
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The path of the program: `XTRAIN_BIN`, or a file next to the test binary or one directory above it, where cargo
/// puts it.
pub(crate) fn program_path() -> PathBuf {
    let name = format!("xtrain{}", std::env::consts::EXE_SUFFIX);
    let tests = std::env::current_exe().unwrap();
    let built = || tests.ancestors().skip(1).take(2).map(|dir| dir.join(&name)).find(|path| path.is_file());
    let named = std::env::var_os("XTRAIN_BIN").map(PathBuf::from).or_else(built);
    named.unwrap_or_else(|| panic!("no {name} next to {}", tests.display()))
}

/// A command that runs the program, with the planted fault of this thread, if there is one.
pub(crate) fn program() -> Command {
    let program = Command::new(program_path());
    #[cfg(feature = "faults")]
    let program = match faults::Fault::ALL.iter().find(|fault| faults::on(**fault)) {
        Some(fault) => {
            let mut program = program;
            program.args(["--fault", &fault.to_string()]);
            program
        }
        None => program,
    };
    program
}

/// Gives the command the default effect of SIGHUP, also if `nohup` started the tests.
#[cfg(unix)]
pub(crate) fn in_terminal(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.map_or(1, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
    if ignored & 1 == 0 {
        return command; // without `pre_exec`, the process is not forked
    }
    let restore = || {
        // SAFETY: a call that is allowed between fork and exec.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(restore) }
}

pub(crate) fn xtrain(dir: &Path, args: &[&str]) -> Output {
    program().args(args).current_dir(dir).output().unwrap()
}

/// Changes the last bit of a file.
pub(crate) fn flip_last_bit(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file, bytes).unwrap();
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a command that must succeed and print nothing on standard error. Returns its standard output.
#[track_caller]
pub(crate) fn ok(dir: &Path, args: &[&str]) -> String {
    let output = xtrain(dir, args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    assert_eq!(text(&output.stderr), "", "{args:?}");
    text(&output.stdout)
}

/// Runs a command that must fail with the exit code `code`, nothing on standard output, one line of error that
/// contains `parts`, and at most one line of hint.
#[track_caller]
pub(crate) fn refused(dir: &Path, args: &[&str], code: i32, parts: &[&str]) {
    let output = xtrain(dir, args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {errors}");
    assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    let lines: Vec<&str> = errors.lines().collect();
    assert!(lines[0].starts_with("error: ") && lines.len() <= 2, "{args:?}: {errors}");
    assert!(lines.get(1).is_none_or(|line| line.starts_with("hint: ")), "{args:?}: {errors}");
    for part in parts {
        assert!(errors.contains(part), "{args:?} lacks {part:?}: {errors}");
    }
}

#[test]
fn help_lists_commands_and_exit_codes() {
    let scratch = Scratch::new("help");
    let help = ok(&scratch.0, &["--help"]);
    for word in
        ["quickstart", "prepare", "tokenizer", "train", "eval", "generate", "rollout", "verify", "bench"]
    {
        assert!(help.contains(word), "{word}");
    }
    for code in [0, 1, 2, 65, 66, 69, 70, 71, 74, 75, 130, 143] {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(&format!("{code}  "))),
            "{code}: {help}"
        );
    }
    for command in [&["train"][..], &["bench", "kv"], &["tokenizer", "train"], &["generate"]] {
        let help = ok(&scratch.0, &[command, &["--help"]].concat());
        assert!(
            help.contains("Example") && help.contains(&format!("xtrain {}", command.join(" "))),
            "{help}"
        );
    }
}

#[test]
fn the_version_names_commit_and_devices() {
    let scratch = Scratch::new("version");
    let line = ok(&scratch.0, &["--version"]);
    let start = format!("xtrain {} (commit {}; devices: cpu [", env!("CARGO_PKG_VERSION"), xtrain::COMMIT);
    assert!(line.starts_with(&start) && line.lines().count() == 1, "{line}");
    let hex = xtrain::COMMIT.len() >= 12 && xtrain::COMMIT.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(hex || xtrain::COMMIT == "unknown", "{line}");
}

#[test]
fn a_wrong_command_line_exits_with_2_and_one_line() {
    let scratch = Scratch::new("usage");
    for (args, parts) in [
        (&["trian"][..], &["'trian'", "'train'"][..]),
        (&["train", "--cofnig", "x"], &["'--cofnig'", "'--config'"]),
        (&["train", "--resume", "a", "--init", "b"], &["'--resume <RUN>'", "'--init <MODEL>'"]),
        (&["train", "--threads", "0"], &["'--threads <N>'"]),
        (&["train", "--dtype", "f16"], &["'f16'", "f32, bf16"]),
        (&["train", "--device", "tpu"], &["'tpu'", "cpu, cpu:SIMD, cuda"]),
        (&["generate", "m"], &["--prompt <TEXT>|--tokens <IDS>"]),
        (&["generate", "m", "--tokens", "1,x"], &["'x'"]),
        (
            &["generate", "m", "--prompt", "a", "--temperature", "nan"],
            &["--temperature", "a number of at least 1e-30"],
        ),
        (&["generate", "m", "--prompt", "a", "--top-p", "0"], &["--top-p"]),
        (&["rollout", "m", "-n", "0"], &["-n", "G"]),
        (&["plot"], &["<RUN>"]),
        (&["completions", "cmd"], &["'cmd'", "bash"]),
    ] {
        refused(&scratch.0, args, 2, parts);
    }
    for args in [&[][..], &["bench"], &["tokenizer"]] {
        let output = xtrain(&scratch.0, args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("Usage: xtrain"), "{output:?}");
    }
}

#[test]
fn a_wrong_configuration_exits_with_2_and_names_file_line_and_key() {
    let scratch = Scratch::new("config");
    scratch.file("a.toml", "[train]\nsteps = 5\nbacth = 3\n");
    scratch.file("b.toml", "[train]\nsteps = 'five'\n");
    scratch.file("c.toml", "[train\n");
    let run = |more: &[&'static str]| [&["train", "--dry-run"][..], more].concat();
    refused(&scratch.0, &run(&["-c", "a.toml"]), 2, &["a.toml:3: ", "`train.bacth`", "`train.batch`"]);
    refused(&scratch.0, &run(&["-c", "b.toml"]), 2, &["b.toml:2: ", "`train.steps`", "whole number", "five"]);
    refused(&scratch.0, &run(&["-c", "c.toml"]), 2, &["c.toml:1: "]);
    refused(&scratch.0, &run(&["--set", "lr=1"]), 2, &["--set lr=1", "`train.learning_rate`"]);
    refused(&scratch.0, &run(&["--set", "model.n_heads=3"]), 2, &["`model.dim`", "model.n_heads = 3"]);
    refused(&scratch.0, &run(&["-c", "none.toml"]), 66, &["none.toml"]);
    refused(&scratch.0, &run(&["-c", "."]), 74, &["."]);
}

#[test]
fn a_missing_device_exits_with_69() {
    let scratch = Scratch::new("device");
    let Err(missing) = xtrain::tensor::enumerate_gpus().driver else { return };
    for device in ["cuda", "cuda:1"] {
        let parts = [missing.as_str(), "driver 580", "xtrain doctor"];
        refused(&scratch.0, &["train", "--device", device], 69, &parts);
        refused(&scratch.0, &["bench", "kv", "--device", device], 69, &parts);
        // the model is created by a second process, whose error is passed on
        refused(&scratch.0, &["bench", "load", "--device", device], 69, &parts);
    }
}

#[test]
fn doctor_lists_what_is_available_and_why_the_rest_is_missing() {
    let scratch = Scratch::new("doctor");
    let survey = xtrain::tensor::enumerate_gpus();
    let report: serde_json::Value = serde_json::from_str(&ok(&scratch.0, &["doctor", "--json"])).unwrap();
    assert_eq!(report["cuda_driver"].as_str(), survey.driver.as_deref().ok());
    assert_eq!(report["emulator"], survey.has_emulator);
    assert!(report["cores"].as_u64().unwrap() > 0);
    let lines = ok(&scratch.0, &["doctor"]);
    for why in report["missing"].as_array().unwrap() {
        assert!(lines.contains(&format!("missing      {}\n", why.as_str().unwrap())), "{lines}");
    }
    for name in ["xtrain ", "cpu ", "cuda driver ", "gpu kernels ", "emulator "] {
        assert!(lines.lines().any(|line| line.starts_with(name)), "{name}: {lines}");
    }
}

#[test]
fn a_dry_run_prints_the_resolved_configuration() {
    let scratch = Scratch::new("dry");
    scratch.file("a.toml", "[train]\nsteps = 7\n[model]\npreset = 'tiny-1m'\n");
    scratch.file("x.txt", "text");
    let args = [
        "train",
        "--dry-run",
        "-c",
        "a.toml",
        "--set",
        "model.n_layers=3",
        "--data",
        "x.txt",
        "--dtype",
        "bf16",
    ];
    let first = ok(&scratch.0, &args);
    for line in ["steps = 7", "n_layers = 3", "files = [\"x.txt\"]", "dtype = \"bf16\"", "# parameters: "] {
        assert!(first.lines().any(|got| got.starts_with(line)), "{line}: {first}");
    }
    scratch.file("b.toml", &first);
    assert_eq!(ok(&scratch.0, &["train", "--dry-run", "-c", "b.toml"]), first);
    assert!(!scratch.0.join("runs").exists());
}

#[test]
fn plot_accepts_a_run_by_path_and_by_name() {
    let scratch = Scratch::new("plot");
    let lines: String = (1..=300)
        .map(|step| {
            let loss = 1.0 + 3.0 / f64::from(step);
            let val = if step % 100 == 0 { format!(",\"val_loss\":{}", loss + 0.25) } else { String::new() };
            format!("{{\"step\":{step},\"loss\":{loss}{val}}}\n")
        })
        .collect();
    scratch.file("runs/a/metrics.jsonl", &lines);
    let shown = ok(&scratch.0, &["plot", "runs/a"]);
    assert!(
        shown.starts_with("a\n") && shown.contains("loss 1.010") && shown.contains("val_loss 1.260"),
        "{shown}"
    );
    let svg = fs::read_to_string(scratch.0.join("runs/a/loss.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<circle").count(), 3);
    let shown = ok(
        &scratch.0,
        &["plot", "a", "--ascii", "--log-x", "--log-y", "--keys", "val_loss", "--out", "v.svg"],
    );
    assert!(shown.is_ascii() && shown.contains("val_loss"), "{shown}");
    assert!(scratch.0.join("v.svg").exists());
    // Another plot does not replace the plot of the losses; the same one does.
    for _ in 0..2 {
        ok(&scratch.0, &["plot", "a", "--keys", "val_loss"]);
    }
    assert_eq!(fs::read_to_string(scratch.0.join("runs/a/loss.svg")).unwrap(), svg);
    assert!(scratch.0.join("runs/a/plot-val_loss.svg").exists());
}

#[test]
pub(crate) fn plot_compares_runs_within_the_width() {
    let scratch = Scratch::new("plots");
    let lines = |offset: f64| -> String {
        (1..=300).map(|n| format!("{{\"step\":{n},\"loss\":{}}}\n", offset + 3.0 / f64::from(n))).collect()
    };
    scratch.file("a/metrics.jsonl", &lines(1.0));
    scratch.file("other/a/metrics.jsonl", &lines(2.0));
    scratch.file("g/metrics.jsonl", "{\"step\":1,\"reward\":1}\n");
    let shown = ok(&scratch.0, &["plot", "a", "other/a", "--width", "40", "--ascii"]);
    assert!(shown.lines().all(|line| line.len() <= 40), "{shown}");
    for part in ["a and other/a", "* a: loss 1.010 (mean of 7)", "o other/a: loss 2.010 (mean of 7)"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("wrote") && !scratch.0.join("a/loss.svg").exists(), "{shown}");
    ok(&scratch.0, &["plot", "a", "other/a", "--out", "ab.svg"]);
    let svg = fs::read_to_string(scratch.0.join("ab.svg")).unwrap();
    assert!(svg.contains("other/a: loss") && svg.contains(">a: loss"), "{svg}");
    refused(&scratch.0, &["plot", "a", "g"], 2, &["g/metrics.jsonl: ", "`loss`", "reward"]);
    refused(&scratch.0, &["plot", "a", "g", "--csv", "-"], 2, &["--csv", "found 2"]);
}

#[test]
fn plot_writes_the_metrics_as_csv() {
    let scratch = Scratch::new("csv");
    let lines = [
        "{\"step\":1,\"loss\":2.5,\"rewards/a,b/mean\":1}",
        "{\"step\":2,\"loss\":1e-7,\"val_loss\":2.0}",
        "{\"step\":3,\"loss\":null}",
    ];
    scratch.file("a/metrics.jsonl", &(lines.join("\n") + "\n"));
    let want = "step,loss,\"rewards/a,b/mean\",val_loss\n1,2.5,1,\n2,0.0000001,,2\n";
    assert_eq!(ok(&scratch.0, &["plot", "a", "--csv", "-"]), want);
    assert_eq!(ok(&scratch.0, &["plot", "a", "--csv", "m.csv"]), "wrote m.csv\n");
    scratch.file("-", "");
    assert_eq!(ok(&scratch.0, &["plot", "a", "--csv", "-"]), want);
    refused(&scratch.0, &["report", "a", "--out", "-"], 2, &["output file, found -", "./-"]);
    assert_eq!(fs::read_to_string(scratch.0.join("m.csv")).unwrap(), want);
    refused(&scratch.0, &["plot", "a", "--csv", "m.csv", "--log-y"], 2, &["--csv", "--log-y"]);
}

#[test]
fn plot_refuses_what_it_cannot_read() {
    let scratch = Scratch::new("noplot");
    scratch.file("bad/metrics.jsonl", "nonsense\n");
    scratch.file("none/metrics.jsonl", "{\"step\":1,\"accuracy\":2}\n");
    scratch.file("empty/metrics.jsonl", "");
    fs::create_dir_all(scratch.0.join("bare")).unwrap();
    refused(&scratch.0, &["plot", "gone"], 66, &["gone"]);
    refused(&scratch.0, &["plot", "bare"], 66, &["metrics.jsonl"]);
    refused(&scratch.0, &["plot", "bad"], 65, &["metrics.jsonl:1: "]);
    refused(&scratch.0, &["plot", "empty"], 65, &["metrics.jsonl"]);
    refused(&scratch.0, &["plot", "none"], 65, &["`loss`", "accuracy"]);
    refused(&scratch.0, &["plot", "none", "--keys", "accurcy"], 2, &["`accurcy`", "`accuracy`"]);
    refused(
        &scratch.0,
        &["plot", "none", "--keys", "accuracy", "--out", "no/such.svg"],
        66,
        &["no/such.svg"],
    );
}

#[test]
fn a_repeated_flag_overrides_the_earlier_one() {
    let scratch = Scratch::new("repeated");
    let shown = |args: &[&str]| ok(&scratch.0, &[&["train", "--dry-run"], args].concat());
    let once = shown(&["--steps", "7", "--seed", "2"]);
    assert_eq!(shown(&["--steps", "5", "--seed", "1", "--steps", "7", "--seed=2"]), once);
    assert_eq!(shown(&["--set", "train.steps=5", "--set", "train.steps=7", "--seed", "2"]), once);
}

#[test]
fn completions_exist_for_every_shell() {
    let scratch = Scratch::new("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ok(&scratch.0, &["completions", shell]);
        assert!(script.contains("xtrain") && script.contains("quickstart"), "{shell}");
    }
}

#[test]
fn quickstart_refuses_an_initial_model_because_it_would_not_use_it() {
    let scratch = Scratch::new("quickstart-init");
    let args = ["quickstart", "--run", "q", "--set", "train.init=model"];
    refused(&scratch.0, &args, 2, &["`train.init` = ", "quickstart trains from random weights"]);
    assert!(!scratch.0.join("q").exists());
}

#[test]
pub(crate) fn a_count_above_the_largest_integer_of_a_configuration_is_refused() {
    let scratch = Scratch::new("counts");
    scratch.file("t.txt", &"the cat sat on the mat\n".repeat(40));
    for count in ["9223372036854775808", "18446744073709551615"] {
        let train = ["train", "--data", "t.txt", "--dry-run"];
        for (flag, key) in [("--steps", "train.steps"), ("--batch", "train.batch")] {
            refused(&scratch.0, &[&train[..], &[flag, count]].concat(), 2, &[key]);
        }
        let grpo = ["grpo", "--task", "sums", "--dry-run", "--steps", count];
        refused(&scratch.0, &grpo, 2, &["grpo.steps"]);
    }
}

#[test]
#[cfg(unix)]
fn a_closed_pipe_is_not_an_error() {
    let scratch = Scratch::new("pipe");
    let script = format!("('{}' completions zsh; echo $? >&2) | true", program_path().display());
    let output = Command::new("sh").args(["-c", &script]).current_dir(&scratch.0).output().unwrap();
    assert_eq!(text(&output.stderr), "0\n");
}

#[test]
fn a_command_without_a_reader_of_its_messages_goes_on() {
    let scratch = Scratch::new("no-reader");
    scratch.file("t.txt", &"the cat sat on the mat\n".repeat(40));
    let train = crate::commands::tiny_run("r", "t.txt", &["train.steps=2"]);
    for (args, code) in [(&["bench"][..], 2), (&["generate", "gone", "--prompt", "a"], 66), (&train, 0)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program();
        command.args(args).current_dir(&scratch.0).stdin(std::process::Stdio::null()).stderr(writer);
        assert_eq!(command.status().unwrap().code(), Some(code), "{args:?}");
    }
    assert!(scratch.0.join("r/checkpoints/step_000002").is_dir());
}

#[test]
#[cfg(target_os = "linux")]
fn the_script_for_bash_completes_configuration_keys() {
    let scratch = Scratch::new("completion");
    scratch.file("xtrain.bash", &ok(&scratch.0, &["completions", "bash"]));
    let completed = |words: &str, last: usize| {
        let script = format!(
            "compopt() {{ echo options: $*; }}; source ./xtrain.bash; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _xtrain xtrain \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last} - 1]}}\"; echo ${{COMPREPLY[@]}}"
        );
        let output = Command::new("bash").args(["-c", &script]).current_dir(&scratch.0).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    };
    let no_space = "options: -o nospace\n";
    assert_eq!(
        completed("xtrain train --set train.st", 3),
        format!("{no_space}train.stats_every= train.steps=\n")
    );
    assert_eq!(completed("xtrain grpo --set grpo.temp", 3), format!("{no_space}grpo.temperature=\n"));
    assert_eq!(completed("xtrain train --objective s", 3), "sft\n");
}
