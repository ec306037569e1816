//! Commands on two processes, which are threads here: they write the files of one process, and end with one error if
//! they were started with different things.
use std::ffi::OsString;
use std::fs;
use std::sync::Arc;

use tempfile::{TempDir, tempdir};

use super::{CliError, parse, run};
use crate::model::comm::{Communicator, SingleProcess, ThreadProcess};
use crate::tensor::faults;

struct Scratch(TempDir);

impl Scratch {
    fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

fn command(line: &str, comm: &Arc<dyn Communicator>) -> Result<(), CliError> {
    let words = ["xtrain"].into_iter().chain(line.split_whitespace()).map(OsString::from);
    run(&parse(words)?.expect("a command").command, comm)
}

/// Runs one command line on each of two processes. Returns the message of each error.
fn on_two(lines: [&str; 2]) -> [Option<String>; 2] {
    let fault = faults::current();
    std::thread::scope(|scope| {
        let start = |(process, line): (ThreadProcess, &'_ str)| {
            let line = line.to_string();
            scope.spawn(move || {
                let comm: Arc<dyn Communicator> = Arc::new(process);
                fault.enter(|| command(&line, &comm)).err().map(|error| error.message().to_string())
            })
        };
        let threads: Vec<_> = ThreadProcess::group(2).into_iter().zip(lines).map(start).collect();
        let mut ends = threads.into_iter().map(|thread| thread.join().expect("no process panics"));
        std::array::from_fn(|_| ends.next().expect("two processes"))
    })
}

const SIZES: &str = "--threads 1 --set model.dim=16 --set model.n_layers=1 --set model.n_heads=2 --set train.context=8 \
                     --set train.batch=2 --set train.sample_every=0 --set train.shards=2";

fn train(data: &str, run: &str, more: &str) -> String {
    format!("train --data {data} --run {run} {SIZES} --set train.steps=2 {more}")
}

#[test]
fn processes_that_differ_end_with_what_differs() {
    let scratch = Scratch(tempdir().unwrap());
    let [a, b] = ["the cat sat on the mat", "the dog sat on the cat!"].map(|text| text.repeat(20));
    let [a, b] = [scratch.file("a.txt", &a), scratch.file("b.txt", &b)];
    let [one, two, new] = ["one", "two", "new"].map(|name| scratch.path(name));
    for (run, seed) in [(&one, 0), (&two, 1)] {
        let line = train(&a, run, &format!("--seed {seed}"));
        assert_eq!(on_two([&line, &line]), [None, None]);
    }
    let prompts = ["ab", "ba"]
        .map(|text| scratch.file(&format!("{text}.jsonl"), &format!("{{\"prompt\": \"{text}\"}}\n")));
    let [split, joined] = [["a", "bc"], ["ab", "c"]].map(|texts| {
        let lines = texts.map(|text| format!("{{\"prompt\": \"{text}\"}}\n"));
        scratch.file(&format!("{}.jsonl", texts.join("-")), &lines.concat())
    });
    let resume = |run: &str| format!("train --resume {run} --set train.steps=3 --threads 1");
    let out = |prompts: &str| {
        format!(
            "rollout {one} --prompts {prompts} --max-new 2 --out {} --threads 1",
            scratch.path("out.jsonl")
        )
    };
    let eval = |data: &str| format!("eval {one} --data {data} --threads 1");
    let verify =
        |run: &str, prompts: &str| format!("verify {run} --prompts {prompts} --max-new 2 --threads 1");
    let grpo = |steps: u64| format!("grpo --task sums --run {new} {SIZES} --set grpo.steps={steps}");
    let cases: [([String; 2], &str); 10] = [
        ([train(&a, &new, "--seed 0"), train(&a, &new, "--seed 1")], "in `train.seed`: expected 0, found 1"),
        ([train(&a, &new, ""), train(&b, &new, "")], "in the training data: expected sha256:"),
        ([resume(&one), resume(&two)], "in `train.seed`: expected 0, found 1"),
        ([eval(&a), eval(&b)], "in the number of tokens: expected 441, found 461"),
        ([out(&prompts[0]), out(&prompts[1])], "in the prompts: expected "),
        ([verify(&one, &prompts[0]), verify(&two, &prompts[0])], "in the model: expected "),
        ([verify(&one, &prompts[0]), verify(&one, &prompts[1])], "in the prompts: expected crc32c:"),
        ([verify(&one, &split), verify(&one, &joined)], "in the prompts: expected crc32c:"),
        ([grpo(3), grpo(4)], "in `grpo.steps`: expected 3, found 4"),
        ([0, 1].map(|_| format!("generate {one} --prompt a")), "this command runs as one process, found 2"),
    ];
    for (lines, part) in cases {
        let found = on_two([&lines[0], &lines[1]]);
        for message in &found {
            assert!(message.as_ref().is_some_and(|message| message.contains(part)), "{lines:?}: {found:?}");
        }
        assert!(!fs::exists(&new).unwrap(), "{lines:?}");
    }
}

/// Two processes on `device` write the files that one process writes on the CPU.
fn write_the_files_of_one(device: &str) {
    let scratch = Scratch(tempdir().unwrap());
    let data = scratch.file("a.txt", &"the cat sat on the mat".repeat(20));
    let [one, two] = ["one", "two"].map(|name| scratch.path(name));
    let single: Arc<dyn Communicator> = Arc::new(SingleProcess);
    let lines = |run: &str, device: &str| {
        let begin = train(&data, run, &format!("--device {device}"));
        [begin, format!("train --resume {run} --set train.steps=5 --threads 1 --device {device}")]
    };
    for line in lines(&one, "cpu") {
        command(&line, &single).unwrap();
    }
    for line in lines(&two, device) {
        assert_eq!(on_two([&line, &line]), [None, None]);
    }
    for file in [
        "metrics.jsonl",
        "checkpoints/step_000005/model.safetensors",
        "checkpoints/step_000005/manifest.json",
    ] {
        let [want, found] = [&one, &two].map(|run| fs::read(format!("{run}/{file}")).unwrap());
        assert!(want == found, "{file} differs");
    }
}

#[test]
fn two_processes_write_the_files_of_one() {
    write_the_files_of_one("cpu");
}

#[test]
#[cfg(xtrain_emu)]
fn two_processes_with_a_gpu_each_write_the_files_of_one_on_the_cpu() {
    write_the_files_of_one("emulated");
}

const TEXTS: [&str; 4] = ["a", "bc", "the", "mat"];

/// Compares the completions of `texts` that two processes write with those of one. Returns the number of lines.
fn rollouts(texts: &[&str]) -> Result<usize, String> {
    let scratch = Scratch(tempdir().unwrap());
    let data = scratch.file("a.txt", &"the cat sat on the mat".repeat(20));
    let run = scratch.path("run");
    let single: Arc<dyn Communicator> = Arc::new(SingleProcess);
    command(&train(&data, &run, ""), &single).unwrap();
    let lines: String = texts.iter().map(|text| format!("{{\"prompt\": \"{text}\"}}\n")).collect();
    let prompts = scratch.file("prompts.jsonl", &lines);
    let rollout = |out: &str| {
        format!("rollout {run} --prompts {prompts} -n 2 --max-new 3 --out {} --threads 1", scratch.path(out))
    };
    command(&rollout("one.jsonl"), &single).unwrap();
    assert_eq!(on_two([&rollout("two.jsonl"), &rollout("two.jsonl")]), [None, None]);
    let [want, found] =
        ["one.jsonl", "two.jsonl"].map(|name| fs::read_to_string(scratch.path(name)).unwrap());
    for (at, (want, found)) in want.lines().zip(found.lines()).enumerate() {
        if want != found {
            return Err(format!("line {at}: {found} instead of {want}"));
        }
    }
    assert_eq!(want.len(), found.len(), "lines");
    let resumed = rollout("new.jsonl") + " --resume";
    let refused = "--resume: expected one process, found 2";
    assert_eq!(on_two([&resumed, &resumed]), [Some(refused.to_string()), Some(refused.to_string())]);
    Ok(want.lines().count())
}

#[test]
fn two_processes_write_the_completions_of_one() {
    assert_eq!(rollouts(&TEXTS), Ok(8));
    assert_eq!(rollouts(&TEXTS[..1]), Ok(2), "the second process has no prompt");
}

#[test]
#[cfg(feature = "faults")]
fn prompts_that_each_process_numbers_are_found() {
    assert!(
        faults::with(faults::Fault::PromptsNumberedByProcess, || rollouts(&TEXTS))
            .is_err_and(|e| e.starts_with("line 4"))
    );
}
