//! The numbers of `xtrain bench --json` are those of its samples.
use serde_json::Value;

use crate::cli::{Scratch, ok};
use crate::commands::{model, parsed};

const SMALL: [&str; 6] = ["--set", "model.dim=16", "--set", "model.n_layers=1", "--threads", "1"];

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("expected a number, found {value}"))
}

/// A number of each element of a list.
#[track_caller]
fn numbers(list: &Value, of: impl Fn(&Value) -> f64) -> Vec<f64> {
    list.as_array().unwrap_or_else(|| panic!("expected a list, found {list}")).iter().map(of).collect()
}

/// The median; of an even number of samples, the mean of the middle two.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let n = samples.len();
    (samples[(n - 1) / 2] + samples[n / 2]) / 2.0
}

#[track_caller]
fn assert_close(found: &Value, want: f64) {
    let difference = (number(found) - want).abs();
    assert!(difference <= 1e-9 * (1.0 + want.abs()), "found {found}, expected {want}");
}

/// The sum of a number of each pass.
fn sum(passes: &Value, key: &str) -> f64 {
    numbers(passes, |pass| number(&pass[key])).iter().sum()
}

/// Checks the medians of rollouts against the passes of its samples.
#[track_caller]
fn assert_medians(report: &Value) {
    let median_of = |of: &dyn Fn(&Value) -> f64| median(numbers(&report["samples"], of));
    let first = median_of(&|sample| sum(&sample["prefill"], "ms"));
    assert_close(&report["time_to_first_token_ms"], first);
    let rate = median_of(&|sample| sum(&sample["decode"], "tokens") / sum(&sample["decode"], "ms") * 1e3);
    assert_close(&report["decode_tokens_per_second"], rate);
}

#[test]
fn the_decode_benchmark_summarizes_its_passes() {
    let (scratch, m) = (Scratch::new("bench-decode"), model());
    let decode = ["bench", "decode", "--model", &m, "--batch", "2", "--prompt-len", "20", "--max-new", "6"];
    let got =
        parsed(&ok(&scratch.0, &[&decode[..], &["--repeats", "2", "--json", "--threads", "1"]].concat()));
    assert_medians(&got);
    // least squares over five passes
    let slope = |sample: &Value| {
        let ms = numbers(&sample["decode"], |pass| number(&pass["ms"]));
        (2.0 * (ms[4] - ms[0]) + (ms[3] - ms[1])) / 10.0 * 1e3
    };
    assert_close(&got["slope_us_per_token"], median(numbers(&got["samples"], slope)));
    for (name, passes) in [("prefill", 2), ("decode", 10)] {
        let samples = got["samples"].as_array().unwrap().iter();
        let ms: Vec<f64> =
            samples.flat_map(|sample| numbers(&sample[name], |pass| number(&pass["ms"]))).collect();
        assert_eq!(ms.len(), passes, "{name}");
        let spread = &got["per_forward_ms"][name];
        assert_eq!(spread["n"].as_u64(), Some(passes as u64), "{name}");
        assert_close(&spread["min"], ms.iter().copied().fold(f64::INFINITY, f64::min));
        assert_close(&spread["max"], ms.iter().copied().fold(0.0, f64::max));
        assert_close(&spread["mean"], ms.iter().sum::<f64>() / ms.len() as f64);
        assert_close(&spread["p50"], median(ms));
    }
    // a page of 64 positions for each sequence
    assert_eq!(got["cache_bytes"].as_u64(), Some(2 * 64 * 512));
}

#[test]
fn the_benchmark_of_caches_has_their_bytes() {
    let scratch = Scratch::new("bench-kv");
    let kv = ["bench", "kv", "--repeats", "1", "--prompt-len", "16", "--json"];
    let got = parsed(&ok(&scratch.0, &[&kv[..], &SMALL].concat()));
    let cells = got["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 12);
    for cell in cells {
        assert_medians(cell);
        let sample = &cell["samples"][0];
        assert_close(&cell["total_ms"], sum(&sample["prefill"], "ms") + sum(&sample["decode"], "ms"));
        let n = cell["n"].as_u64().unwrap();
        assert_eq!(sum(&sample["decode"], "tokens"), (n - 1) as f64, "{}", cell["kv"]);
        // keys and values of one layer of 16 values
        let (positions, bytes) = (16 + n, 2 * 16 * 4);
        let want = match cell["kv"].as_str().unwrap() {
            "off" => 0,
            "contiguous" => positions * bytes,
            "paged:64" => positions.next_multiple_of(64) * bytes,
            // between two steps; in the last one, the sequence leaves the cache
            "growing" => (positions - 2) * bytes,
            other => panic!("{other}"),
        };
        assert_eq!(cell["cache_bytes"].as_u64(), Some(want), "{} at {n}", cell["kv"]);
    }
}

#[test]
fn the_benchmarks_of_steps_and_products_summarize_their_samples() {
    let scratch = Scratch::new("bench-steps");
    let train = ["bench", "train", "--steps", "3", "--set", "train.batch=2", "--set", "train.context=32"];
    let got = parsed(&ok(&scratch.0, &[&train[..], &["--json"], &SMALL].concat()));
    assert_eq!((got["batch"].as_u64(), got["context"].as_u64()), (Some(2), Some(32)));
    let ms = numbers(&got["samples_ms"], number);
    assert_eq!(ms.len(), 3);
    assert_close(&got["tokens_per_second"], 2.0 * 32.0 / median(ms.clone()) * 1e3);
    assert_close(&got["ms_per_step"]["p50"], median(ms));

    let linear = ["bench", "linear", "--rows", "1,3", "--repeats", "2", "--copies", "3", "--json"];
    let got = parsed(&ok(&scratch.0, &[&linear[..], &SMALL].concat()));
    let products = got["products"].as_array().unwrap();
    assert_eq!(products.len(), 12);
    for product in products {
        let us = median(numbers(&product["samples_us"], number));
        assert_close(&product["us"]["p50"], us);
        let size: f64 = ["rows", "outputs", "inputs"].iter().map(|key| number(&product[key])).product();
        assert_close(&product["operations_per_second"], 2e6 * size / us);
    }
}
