//! Mutation testing of the workspace: which changes of a source does no test notice?
//!
//! One build contains all mutants; an environment variable selects one at run time. Each mutant is run with the tests
//! that reach it, fastest first, until one fails.
mod build;
mod instrument;
mod points;
mod process;
mod record;
mod run;
mod sample;
mod scratch;
mod table;
mod values;

use std::path::{Path, PathBuf};

use sample::{Sample, Selection};
use scratch::Scratch;

/// The files and directories of which all mutants run.
const MODULES: [&str; 10] = [
    "xtrain-decode/src/cache/",
    "xtrain-decode/src/rollout/",
    "xtrain-decode/src/sampler/",
    "xtrain-model/src/chat/",
    "xtrain-model/src/checkpoint/",
    "xtrain-model/src/data/",
    "xtrain-model/src/gguf/",
    "xtrain-model/src/optim.rs",
    "xtrain-model/src/schedule.rs",
    "xtrain-tensor/src/ops/",
];

/// The files and directories of which a sample of the mutants runs, with more operators.
const SAMPLED: [&str; 26] = [
    "xtrain-comm/src/",
    "xtrain-decode/src/",
    "xtrain-model/src/",
    "xtrain-tensor/src/cpu/attention/",
    "xtrain-tensor/src/cpu/embedding.rs",
    "xtrain-tensor/src/cpu/loss",
    "xtrain-tensor/src/cpu/optim.rs",
    "xtrain-tensor/src/cpu/pack.rs",
    "xtrain-tensor/src/cpu/rope.rs",
    "xtrain-tensor/src/cpu/softmax.rs",
    "xtrain-tensor/src/device/",
    "xtrain-tensor/src/gpu/",
    "src/cli/",
    "src/config/",
    "src/evaluate.rs",
    "src/grammar/",
    "src/grpo/",
    "src/memory.rs",
    "src/memory_limit.rs",
    "src/reference.rs",
    "src/report/",
    "src/rewards/",
    "src/rollout_file.rs",
    "src/run/",
    "src/training",
    "src/verify/",
];

const USAGE: &str = "usage: mutants build|record|run|table SCRATCH [PREFIX [NAME]]
       mutants sample SCRATCH COUNT SEED [PREFIX COUNT]...
  sample  like build, with COUNT mutants of all kinds that SEED draws from more files, and then with COUNT more of
          the files that begin with each PREFIX; give it a directory of its own
  build   copies the repository to SCRATCH/tree, writes the mutants into the copy and compiles its tests
  record  runs each test of a crate directory that begins with PREFIX, if its name contains NAME, once and records
          which mutants it reaches
  run     runs the mutants of files that begin with PREFIX, unless they were caught or are listed in equivalent.txt
  table   writes docs/mutants.md";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let repository =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository");
    let [prefix, name] = [2, 3].map(|at| arguments.get(at).map_or("", String::as_str));
    let (Some(stage), Some(directory)) = (arguments.first(), arguments.get(1)) else { exit_with_usage() };
    std::fs::create_dir_all(directory).expect("the scratch directory can be created");
    let scratch = Scratch(PathBuf::from(directory).canonicalize().expect("the scratch directory"));
    let all = Selection { modules: &MODULES, sample: None };
    let sampled = |sample| Selection { modules: &SAMPLED, sample: Some(sample) };
    match stage.as_str() {
        "build" => build::build(&repository, &scratch, &all),
        "sample" => match sample(&arguments[2..]) {
            Some(sample) => build::build(&repository, &scratch, &sampled(sample)),
            None => exit_with_usage(),
        },
        "record" => record::record(&scratch, prefix, name),
        "run" => {
            let lists = scratch::EQUIVALENT.map(|name| scratch::equivalent(&repository, name));
            run::run(&scratch, prefix, &lists.into_iter().flatten().collect());
        }
        "table" => {
            table::write(
                &repository,
                &scratch,
                [&all, &sampled(Sample { count: 0, seed: 0, more: Vec::new() })],
            );
        }
        _ => exit_with_usage(),
    }
}

fn sample(arguments: &[String]) -> Option<Sample<'_>> {
    let [count, seed, more @ ..] = arguments else { return None };
    let more = more.chunks(2).map(|pair| Some((pair[0].as_str(), pair.get(1)?.parse().ok()?)));
    Some(Sample { count: count.parse().ok()?, seed: seed.parse().ok()?, more: more.collect::<Option<_>>()? })
}

fn exit_with_usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(2);
}
