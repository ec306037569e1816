//! Commands on processes that `mpirun` starts: the files of one process, refusals, and what happens if one is killed.
//! Needs `mpirun` of Open MPI. All processes share the cores of this machine.
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::cli::{Scratch, program, text};
use crate::kill::{bytes, write_text};
use launched::{Launched, wait_for};
use rewards::reinforced;

mod killed;
mod launched;
mod memory;
mod rewards;

/// The program with `args` on `size` processes.
fn mpirun(dir: &Path, size: usize, args: &[&str]) -> Command {
    let (mut command, program) = (launcher(size), program());
    command.arg(program.get_program()).args(program.get_args()).args(args).current_dir(dir);
    command
}

/// `mpirun` of `size` processes, without the words of their command.
fn launcher(size: usize) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--bind-to", "none", "-n", &size.to_string()]);
    // the tests may run as root in a container
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
    ] {
        command.env(name, value);
    }
    command
}

/// The words of a small run of `steps` steps of four shards.
fn small(steps: u64, words: &str) -> Vec<String> {
    let sizes = format!(
        "model.dim=16 model.n_layers=1 model.n_heads=2 model.n_kv_heads=1 model.head_dim=8 model.ffn_dim=24 \
         train.context=12 train.batch=5 train.shards=4 train.steps={steps} train.warmup=4 train.sample_every=0 \
         train.eval_every=4 train.eval_tokens=40 {words}"
    );
    let sets = sizes.split_whitespace().flat_map(|key| ["--set".to_string(), key.to_string()]);
    ["train", "--threads", "1", "--data", "text.txt"].map(String::from).into_iter().chain(sets).collect()
}

fn words(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

#[track_caller]
fn succeeds(mut command: Command) -> Output {
    let output = command.output().expect("mpirun starts");
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    output
}

/// Runs a command that must fail. Returns its exit code and standard error.
fn fails(mut command: Command) -> (i32, String) {
    let output = command.output().expect("mpirun starts");
    assert!(!output.status.success(), "{command:?}");
    (output.status.code().expect("an exit code"), text(&output.stderr))
}

#[test]
fn a_run_of_several_processes_has_the_files_of_one_and_prints_once() {
    let scratch = Scratch::new("mpi");
    write_text(&scratch.0);
    for (dtype, sizes) in [("f32", &[2, 4][..]), ("bf16", &[4])] {
        let set = format!("train.dtype={dtype} train.save_every=3");
        let run = |name: &str| [small(6, &set), vec!["--run".into(), format!("{dtype}-{name}")]].concat();
        let (one, name) = (run("1"), format!("{dtype}-1"));
        assert!(program().args(&one).current_dir(&scratch.0).output().unwrap().status.success());
        let want = bytes(&scratch.0.join(name), 6);
        for &size in sizes {
            let name = size.to_string();
            let output = succeeds(mpirun(&scratch.0, size, &words(&run(&name))));
            assert_eq!(
                bytes(&scratch.0.join(format!("{dtype}-{name}")), 6),
                want,
                "{dtype}, {size} processes"
            );
            let errors = text(&output.stderr);
            assert_eq!(errors.matches("writing to ").count(), 1, "{errors}");
        }
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn the_gpus_of_a_run_are_connected_or_it_says_why_not() {
    let scratch = Scratch::new("mpi-gpus");
    write_text(&scratch.0);
    let run = |name: &str, device: &[&str]| {
        let device = device.iter().map(|word| (*word).to_string());
        small(4, "").into_iter().chain(device).chain(["--run".into(), name.into()]).collect::<Vec<_>>()
    };
    assert!(program().args(run("one", &[])).current_dir(&scratch.0).output().unwrap().status.success());
    let want = bytes(&scratch.0.join("one"), 4);
    let (gpu, nccl) =
        (["--device", "emulated"], |value: &str| ("XTRAIN_NCCL".to_string(), value.to_string()));
    for (name, size, variable, says) in [
        ("two", 2, None, "travel between the GPUs: emulated NCCL"),
        ("four", 4, Some(nccl("1")), "travel between the GPUs: emulated NCCL"),
        ("host", 2, Some(nccl("0")), "pass through host memory: XTRAIN_NCCL=0"),
    ] {
        let mut command = mpirun(&scratch.0, size, &words(&run(name, &gpu)));
        command.envs(variable);
        let errors = text(&succeeds(command).stderr);
        assert_eq!(errors.matches(says).count(), 1, "{name}: {errors}");
        assert!(bytes(&scratch.0.join(name), 4) == want, "{name}");
    }
    // the variable has no effect on CPUs, and nothing is said of GPUs
    let mut command = mpirun(&scratch.0, 2, &words(&run("cpus", &[])));
    command.envs([nccl("0")]);
    let errors = text(&succeeds(command).stderr);
    assert!(!errors.contains("host memory") && bytes(&scratch.0.join("cpus"), 4) == want, "{errors}");
    let mixed = run("mixed", &[]);
    let with_a_cpu = |value: Option<&str>| {
        let mut command = mpirun(&scratch.0, 1, &words(&run("mixed", &gpu)));
        command.envs(value.map(nccl)).args([":", "-n", "1"]).arg(program().get_program()).args(&mixed);
        command
    };
    let (code, errors) = fails(with_a_cpu(Some("1")));
    assert!(errors.contains("error: process 1 of 2: expected a GPU, found the CPU ("), "{errors}");
    assert!(code != 0 && !scratch.0.join("mixed").exists(), "{errors}");
    let errors = text(&succeeds(with_a_cpu(None)).stderr);
    let says = "pass through host memory: process 1 of 2: expected a GPU, found the CPU (";
    assert_eq!(errors.matches(says).count(), 1, "{errors}");
    assert!(bytes(&scratch.0.join("mixed"), 4) == want, "mixed");
}

#[test]
fn rollouts_and_evaluations_of_several_processes_are_those_of_one() {
    let scratch = Scratch::new("mpi-rollout");
    write_text(&scratch.0);
    let all = [small(4, ""), vec!["--run".into(), "run".into()]].concat();
    assert!(program().args(&all).current_dir(&scratch.0).output().unwrap().status.success());
    // with parameters of their own
    let prompt = |i: u32| {
        let (max_new, top) = (i + 2, i % 3);
        format!(
            "{{\"prompt\": \"line {i}\", \"max_new\": {max_new}, \"seed\": {i}, \"top_logprobs\": {top}}}\n"
        )
    };
    let prompts: String = (0..5).map(prompt).collect();
    fs::write(scratch.0.join("prompts.jsonl"), prompts).unwrap();
    let rollout =
        ["rollout", "run", "--prompts", "prompts.jsonl", "-n", "2", "--max-new", "5", "--threads", "1"];
    let evaluate = ["eval", "run", "--data", "text.txt", "--threads", "1"];
    let single = |args: &[&str]| text(&program().args(args).current_dir(&scratch.0).output().unwrap().stdout);
    let loss =
        |text: &str| text.lines().filter(|line| !line.contains(" s")).map(String::from).collect::<Vec<_>>();
    let (completions, losses) = (single(&rollout), loss(&single(&evaluate)));
    assert_eq!(completions.lines().count(), 10);
    // 7 processes: some have no prompt
    for size in [2, 3, 7] {
        let name = format!("{size}.jsonl");
        let _ = succeeds(mpirun(&scratch.0, size, &[&rollout[..], &["--out", &name]].concat()));
        assert_eq!(fs::read_to_string(scratch.0.join(name)).unwrap(), completions, "{size} processes");
    }
    let printed = text(&succeeds(mpirun(&scratch.0, 3, &rollout)).stdout);
    assert_eq!(printed, completions);
    assert_eq!(loss(&text(&succeeds(mpirun(&scratch.0, 2, &evaluate)).stdout)), losses);
}

#[test]
fn what_several_processes_cannot_do_is_refused_once() {
    let scratch = Scratch::new("mpi-refused");
    write_text(&scratch.0);
    let train = small(4, "");
    let (code, errors) = fails(mpirun(&scratch.0, 3, &words(&train)));
    assert!(
        errors.contains("`train.shards` = 4: expected a multiple of 3, the number of processes"),
        "{errors}"
    );
    assert_eq!((code, errors.matches("error: ").count()), (2, 1), "{errors}");
    let (code, errors) = fails(mpirun(&scratch.0, 2, &["generate", "run", "--prompt", "a"]));
    assert!(errors.contains("this command runs as one process, found 2"), "{errors}");
    assert_eq!(code, 2, "{errors}");
    let mut two = mpirun(&scratch.0, 1, &words(&train));
    two.args([":", "-n", "1"]).arg(program().get_program()).args(&train).args(["--seed", "7"]);
    let (code, errors) = fails(two);
    let want = "process 1 differs from process 0 in `train.seed`: expected 0, found 7";
    assert!(errors.contains(want), "{errors}");
    assert_eq!(code, 2, "{errors}");
    assert!(!scratch.0.join("runs").exists(), "a refused command wrote a run");
}

#[test]
fn the_hidden_part_of_the_exchange_is_measured() {
    let scratch = Scratch::new("mpi-scale");
    let sizes = ["--set", "model.dim=16", "--set", "model.n_layers=2", "--set", "train.batch=2"];
    let scale = [&["bench", "scale", "--steps", "2", "--threads", "1"][..], &sizes].concat();
    let shown = text(&succeeds(mpirun(&scratch.0, 2, &scale)).stdout);
    assert!(shown.contains("2 processes: ") && shown.contains(" ms are not hidden behind"), "{shown}");
    let json = text(&succeeds(mpirun(&scratch.0, 2, &[&scale[..], &["--json"]].concat())).stdout);
    let measured = serde_json::from_str::<serde_json::Value>(&json).unwrap()["measured"].take();
    let [exchange, exposed] = ["exchange_ms", "exposed_ms"].map(|key| measured[key]["p50"].as_f64().unwrap());
    assert!(measured["processes"] == 2 && 0.0 < exposed && exposed <= exchange, "{json}");
}

#[test]
fn processes_verify_a_part_each_and_refuse_another_command_line() {
    let scratch = Scratch::new("mpi-verify");
    write_text(&scratch.0);
    let all = [small(4, ""), vec!["--run".into(), "run".into()]].concat();
    assert!(program().args(&all).current_dir(&scratch.0).output().unwrap().status.success());
    let verify = ["verify", "run", "--max-new", "4", "--threads", "1"];
    let json = [&verify[..], &["--json"]].concat();
    let single = text(&program().args(&json).current_dir(&scratch.0).output().unwrap().stdout);
    for size in [2, 3] {
        assert_eq!(text(&succeeds(mpirun(&scratch.0, size, &json)).stdout), single, "{size} processes");
    }
    let printed = text(&succeeds(mpirun(&scratch.0, 2, &verify)).stdout);
    assert!(printed.contains(" values compared with the training forward pass, 0 differ."), "{printed}");
    assert!(printed.contains("of 2 processes have the same bits for all 9 sequences"), "{printed}");
    let (code, errors) = fails(mpirun(&scratch.0, 2, &[&verify[..], &["--prompts", "-"]].concat()));
    assert!(errors.contains("--prompts: expected a file with 2 processes, found standard input"), "{errors}");
    assert_eq!(code, 2, "{errors}");
    let mut two = mpirun(&scratch.0, 1, &verify);
    two.args([":", "-n", "1"]).arg(program().get_program()).args(verify).args(["--seed", "7"]);
    let (code, errors) = fails(two);
    assert!(errors.contains("process 1 differs from process 0 in the command line"), "{errors}");
    assert_eq!((code, errors.matches("error: ").count()), (2, 1), "{errors}");
}

/// A run whose steps after a checkpoint were lost ends there on all processes.
#[test]
fn a_resume_ends_a_run_at_the_step_that_its_processes_have_reached() {
    let scratch = Scratch::new("mpi-ended");
    write_text(&scratch.0);
    let train = [small(6, "train.save_every=2"), vec!["--run".into(), "t".into()]].concat();
    let grpo = [reinforced(&scratch.0), vec!["--run".into(), "g".into()]].concat();
    for (words, run, command) in [(train, "t", "train"), (grpo, "g", "grpo")] {
        assert!(program().args(words).current_dir(&scratch.0).output().unwrap().status.success());
        fs::remove_dir_all(scratch.0.join(run).join("checkpoints/step_000006")).unwrap();
        for (steps, size) in [("4", 2), ("4", 4)] {
            let mut resume =
                mpirun(&scratch.0, size, &[command, "--resume", run, "--steps", steps, "--threads", "1"]);
            let mut child = Launched::new(resume.stdout(Stdio::null()).stderr(Stdio::piped()));
            let status = wait_for("mpirun ends a run where it is", || child.try_wait().unwrap());
            let errors = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
            assert!(status.success(), "{command}, {size} processes: {errors}");
        }
        let config = fs::read_to_string(scratch.0.join(run).join("config.toml")).unwrap();
        assert!(config.contains("\nsteps = 4\n") && !config.contains("\nsteps = 6\n"), "{config}");
        let metrics = fs::read_to_string(scratch.0.join(run).join("metrics.jsonl")).unwrap();
        assert!(metrics.lines().last().unwrap().starts_with("{\"step\":4,"), "{metrics}");
    }
}
