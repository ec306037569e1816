//! The memory of `xtrain train`: the estimate of a dry run, and the peak of one process and of several.
#![cfg(target_os = "linux")]
use std::path::Path;
use std::process::Command;

use crate::cli::{Scratch, program, text};

/// A model of 10.7 M parameters.
const KEYS: &str = "model.dim=384 model.n_layers=6 model.n_heads=6 model.n_kv_heads=6 model.head_dim=64 \
    model.ffn_dim=1024 train.context=128 train.steps=2 train.eval_every=0 train.sample_every=0 data.val_fraction=0";

/// Runs a command and writes the lines of its memory to the file `peak` of its process, until it ends.
const WATCH: &str = "\"$0\" \"$@\" & p=$!; while grep VmHWM /proc/$p/status >> peak${OMPI_COMM_WORLD_RANK:-0}; \
    do sleep 0.02; done 2> errors; wait $p";

/// How often a run is repeated whose peak seems to be below the estimate. On a busy machine [`WATCH`] may read its last
/// line before the peak.
const ATTEMPTS: usize = 3;

/// The words of a run of `batch` windows and `shards` shards.
fn words(batch: usize, shards: usize, more: &[&str]) -> Vec<String> {
    let keys = format!("{KEYS} train.batch={batch} train.shards={shards}");
    let sets = keys.split_whitespace().flat_map(|key| ["--set".to_string(), key.to_string()]);
    let train = ["train", "--threads", "1", "--data", "t.txt"].map(String::from);
    train.into_iter().chain(sets).chain(more.iter().map(ToString::to_string)).collect()
}

/// The tolerated difference of an estimate, as a part of the peak. With checkpointing, the inputs that are kept lie
/// between temporary tensors of other sizes, and the allocator has cut blocks that it cannot use: 3 to 8 % of the peak.
fn tolerance(more: &[&str]) -> f64 {
    if more.contains(&"--gradient-checkpointing") { 0.08 } else { 0.05 }
}

/// The bytes of `about SIZE UNIT` in the line of the estimate.
fn estimate(shown: &str) -> f64 {
    let line = shown.lines().find_map(|line| line.strip_prefix("# memory: about ")).expect("an estimate");
    let (size, unit) = line.split_once(':').and_then(|(size, _)| size.split_once(' ')).expect("a size");
    let scales = [("kB", 1e3), ("MB", 1e6), ("GB", 1e9)];
    size.parse::<f64>().unwrap() * scales.into_iter().find(|(name, _)| *name == unit).expect("a unit").1
}

/// The last bytes of a file of [`WATCH`].
fn peak(file: &Path) -> f64 {
    let text = std::fs::read_to_string(file).unwrap();
    let last = text.lines().last().and_then(|line| line.split_whitespace().nth(1)).expect("a line");
    last.parse::<f64>().unwrap() * 1024.0
}

/// Compares the estimate of a run with the peak of each of its processes, which `launch` starts.
pub(crate) fn compared(
    processes: usize,
    [batch, shards]: [usize; 2],
    more: &[&str],
    launch: impl Fn() -> Command,
) -> Result<(), String> {
    let scratch = Scratch::new(&format!("memory-{processes}-{batch}-{shards}-{}", more.len()));
    scratch.file("t.txt", &"the cat sat on the mat and the dog sat too\n".repeat(1000));
    let start = |more: &[&str]| {
        let mut command = launch();
        let program = program();
        command.args(["sh", "-c", WATCH]).arg(program.get_program()).args(program.get_args());
        let output = command.args(words(batch, shards, more)).current_dir(&scratch.0).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = start(&[more, &["--dry-run"]].concat());
    let estimate = estimate(&shown);
    let mut peaks = vec![0.0; processes];
    for attempt in 0..ATTEMPTS {
        start(&[more, &["--run", &format!("r{attempt}")]].concat());
        for (rank, highest) in peaks.iter_mut().enumerate() {
            *highest = peak(&scratch.0.join(format!("peak{rank}"))).max(*highest);
        }
        if peaks.iter().all(|peak| estimate <= 1.05 * peak) {
            break;
        }
    }
    for (rank, peak) in peaks.into_iter().enumerate() {
        let (estimated, measured) = (estimate / 1e6, peak / 1e6);
        println!("process {rank} of {processes}: estimate {estimated:.0} MB, peak {measured:.0} MB");
        if (estimate - peak).abs() > tolerance(more) * peak {
            return Err(format!(
                "process {rank} of {processes}: estimate {estimate:.0}, peak {peak:.0} bytes: {:+.1} %",
                100.0 * (estimate / peak - 1.0)
            ));
        }
    }
    Ok(())
}

#[test]
fn the_estimate_of_a_dry_run_is_near_the_peak() {
    for (batch, more) in [(4, &[][..]), (16, &[]), (4, &["--dtype", "bf16"])] {
        compared(1, [batch, 1], more, || Command::new("env")).unwrap_or_else(|e| panic!("{more:?}: {e}"));
    }
}

#[test]
fn the_estimate_with_checkpointing_is_near_the_peak() {
    compared(1, [16, 1], &["--gradient-checkpointing"], || Command::new("env")).unwrap();
}

#[test]
pub(crate) fn an_evaluation_needs_no_more_memory_than_a_step() {
    let keys =
        ["train.micro_batch=1", "train.eval_every=1", "train.eval_tokens=1024", "data.val_fraction=0.2"];
    let keys = keys.map(|key| ["--set", key]);
    let run = || Command::new("env");
    compared(1, [4, 1], keys.as_flattened(), run).unwrap_or_else(|e| panic!("evaluated: {e}"));
}
