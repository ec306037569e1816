//! The memory of `xtrain grpo`: the estimate of a dry run, the peak with a reference model, and no growth.
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use xtrain::tensor::testing::times;

use crate::cli::{Scratch, text, xtrain};

/// A base model of a few steps, and completions whose lengths and rewards vary little. The second step holds all that a
/// later one does: the moments of the optimizer exist since the first. One case runs a third step.
const CONFIG: &str = "\
[model]
dim = 128
n_layers = 2
n_heads = 4
ffn_dim = 352
[train]
context = 64
batch = 4
steps = 4
eval_every = 0
sample_every = 0
[data]
val_fraction = 0
[grpo]
steps = 2
prompts_per_step = 16
num_generations = 16
max_completion_length = 8
eval_every = 0
verify_every = 0
save_every = 1000
# a reward for each id
score_duplicates = true
";

/// Rewards that differ within a group: those of the id.
const REWARD: &str = "sh -c 'while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; \
    echo \"{\\\"id\\\":$id,\\\"reward\\\":$((id % 7))}\"; done'";

/// A run in a directory of its own.
struct Memory {
    /// Bytes of the estimate.
    estimate: f64,
    /// Peak resident bytes.
    peak: f64,
    /// Resident bytes after each step.
    resident: Vec<f64>,
}

/// The bytes of `about SIZE UNIT` in the line of the estimate.
fn estimate(shown: &str) -> f64 {
    let line = shown.lines().find_map(|line| line.strip_prefix("# memory: about ")).unwrap();
    let (size, unit) = line.split_once(':').unwrap().0.split_once(' ').unwrap();
    let scale =
        [("kB", 1e3), ("MB", 1e6), ("GB", 1e9)].into_iter().find(|(name, _)| *name == unit).unwrap().1;
    size.parse::<f64>().unwrap() * scale
}

fn measure(name: &str, keys: &[&str]) -> Memory {
    measure_by(name, keys, xtrain)
}

/// Runs a command that must succeed; returns its standard output.
fn done(dir: &Path, args: &[&str], start: impl Fn(&Path, &[&str]) -> Output) -> String {
    let output = start(dir, args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// `start` runs the command in a directory.
fn measure_by(name: &str, keys: &[&str], start: impl Fn(&Path, &[&str]) -> Output) -> Memory {
    let scratch = Scratch::new(&format!("memory-{name}"));
    scratch.file("c.toml", CONFIG);
    let mut args = vec!["grpo", "-c", "c.toml", "--task", "sums", "--threads", "1", "--reward", REWARD];
    keys.iter().for_each(|key| args.extend(["--set", key]));
    measure_run(name, &scratch.0, &args, start)
}

/// `args`: the command and its flags.
fn measure_run(name: &str, dir: &Path, args: &[&str], start: impl Fn(&Path, &[&str]) -> Output) -> Memory {
    let estimate = estimate(&done(dir, &[args, &["--dry-run"]].concat(), &start));
    done(dir, &[args, &["--run", "r"]].concat(), &start);
    let timings = std::fs::read_to_string(dir.join("r/timings.jsonl")).unwrap();
    let lines: Vec<Value> = timings.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let resident = lines.iter().map(|line| line["resident_bytes"].as_f64().unwrap()).collect();
    let peak = lines.last().unwrap()["peak_resident_bytes"].as_f64().unwrap();
    println!("{name}: estimate {:.0} MB, peak {:.0} MB", estimate / 1e6, peak / 1e6);
    Memory { estimate, peak, resident }
}

#[track_caller]
fn check_estimate(name: &str, keys: &[&str]) -> Memory {
    let memory = measure(name, keys);
    check_near(name, &memory);
    memory
}

#[track_caller]
fn check_near(name: &str, &Memory { estimate, peak, .. }: &Memory) {
    // 10 %, and what is not in the model: the program and the files it reads, counted as 25 MB, and the blocks of 2 MiB
    // and more that the allocator has cut but not used.
    let tolerance = 0.1 * peak + 15e6;
    assert!((estimate - peak).abs() <= tolerance, "{name}: estimate {estimate:.0}, peak {peak:.0} bytes");
}

/// A model of 5 M parameters.
const LARGE: [&str; 4] = ["model.dim=384", "model.ffn_dim=1024", "model.n_layers=3", "model.head_dim=64"];
/// A KV cache of 268 MB.
const CACHE: [&str; 3] = ["model.head_dim=128", "model.n_heads=8", "model.n_layers=2"];

#[test]
fn the_estimate_of_a_dry_run_is_near_the_peak() {
    check_estimate("sums", &["grpo.steps=3"]);
    check_estimate("bf16", &["train.dtype=bf16"]);
    check_estimate("base", &["train.batch=32"]);
    check_estimate("cache", &CACHE);
    check_estimate("activations", &["model.ffn_dim=8192", "grpo.micro_batch=256"]);
}

/// Long prompts in parts of 2 and 1 completions. Preallocation with parts of 2 needed a fifth more memory than the
/// estimate, because the first update could not reuse it.
#[test]
pub(crate) fn the_estimate_is_near_the_peak_if_parts_do_not_divide_groups() {
    let scratch = Scratch::new("memory-parts");
    scratch.file("c.toml", &CONFIG.replace("context = 64", "context = 512"));
    scratch.file("t.txt", &"abc def ".repeat(400));
    let prompt = |n: usize| format!("{{\"prompt\": \"{}\"}}\n", format!("prompt {n:02} ").repeat(45));
    scratch.file("p.jsonl", &(0..24).map(prompt).collect::<String>());
    let model = ["--set", "model.n_layers=4", "--set", "train.batch=1"];
    let train =
        ["train", "-c", "c.toml", "--data", "t.txt", "--steps", "1", "--run", "base", "--threads", "1"];
    done(&scratch.0, &[&train[..], &model].concat(), xtrain);
    let keys = [
        "grpo.prompts_per_step=6",
        "grpo.num_generations=3",
        "grpo.prompt_sharing=2",
        "grpo.max_completion_length=2",
    ]
    .map(|key| ["--set", key]);
    let grpo = [
        "grpo",
        "-c",
        "c.toml",
        "--init",
        "base",
        "--prompts",
        "p.jsonl",
        "--threads",
        "1",
        "--reward",
        REWARD,
    ];
    let args = [&grpo[..], keys.as_flattened()].concat();
    check_near("parts", &measure_run("parts", &scratch.0, &args, xtrain));
}

#[test]
fn a_bf16_reference_model_adds_at_most_a_third_to_the_peak() {
    let small = ["grpo.prompts_per_step=2", "grpo.num_generations=4"];
    let keys = [&LARGE[..], &small].concat();
    let without = check_estimate("without", &keys);
    for (dtype, limit) in [("f32", 1.6), ("bf16", 1.35)] {
        let key = format!("grpo.ref_dtype={dtype}");
        let with = check_estimate(
            &format!("reference-{dtype}"),
            &[&keys[..], &["grpo.beta=0.05", key.as_str()]].concat(),
        );
        assert!(with.peak <= limit * without.peak, "{dtype}: {} and {} bytes", with.peak, without.peak);
    }
}

/// Compares the estimates with the peaks of the first of two processes, which `start` runs.
#[cfg(feature = "mpi")]
pub(crate) fn of_two(start: impl Fn(&Path, &[&str]) -> Output) -> Result<(), String> {
    let small = ["train.shards=2", "grpo.prompts_per_step=2", "grpo.num_generations=4"];
    // The slices that are exchanged are 9 % of the first peak; half of that tells whether they are counted. The KV cache
    // of the other process is half of the second peak.
    for (name, keys, tolerance) in [
        ("exchange", [&LARGE[..], &small].concat(), 0.05),
        ("cache", [&CACHE[..], &["train.shards=2"]].concat(), 0.1),
    ] {
        let Memory { estimate, peak, .. } = measure_by(&format!("{name}-of-two"), &keys, &start);
        if (estimate - peak).abs() > tolerance * peak {
            let difference = 100.0 * (estimate / peak - 1.0);
            return Err(format!("{name}: estimate {estimate:.0}, peak {peak:.0} bytes: {difference:+.1} %"));
        }
    }
    Ok(())
}

#[test]
pub(crate) fn resident_memory_does_not_grow_from_step_to_step() {
    let steps = times(30, 100);
    let key = format!("grpo.steps={steps}");
    let Memory { resident, .. } = measure("steps", &["grpo.num_generations=8", &key]);
    let (before, after) = (resident[9], resident[resident.len() - 1]);
    // A size class that is first used after step 10 adds a huge page of 2 MiB; a copy of the weights in each step adds
    // 35 MB to 20 steps.
    assert!(after <= before + 3e6, "step 10: {before}, step {steps}: {after} bytes");
}
