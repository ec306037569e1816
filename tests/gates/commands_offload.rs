//! `--kv-resident`: caches whose layers are offloaded.
use crate::cli::{Scratch, ok, refused};
use crate::commands::parsed;
use crate::fixtures::path;

#[test]
fn completions_over_offloaded_layers_are_those_of_a_cache_that_fits() {
    let scratch = Scratch::new("layers");
    // three layers, with one key and value head of 32 values
    let m = path("models/qwen3_untied_hd").display().to_string();
    let generate =
        ["generate", &m, "--tokens", "9,8,7,9,8,7,9,8", "--max-new", "20", "--ignore-eos", "--json"];
    // a page of 64 positions, and two checksums of eight bytes for each layer
    let least = 2 * 64 * (2 * 32 * 4) + 3 * 16;
    let resident = least.to_string();
    let layers = ["--kv-resident", &resident, "--offload-dir", "."];
    let want = parsed(&ok(&scratch.0, &generate));
    for more in [&[][..], &["--speculate", "lookup"], &["--kv", "contiguous"], &["--page-size", "16"]] {
        let got = parsed(&ok(&scratch.0, &[&generate[..], &layers, more].concat()));
        for field in ["completion_ids", "logprob_bits", "finish_reason"] {
            assert_eq!(got[field], want[field], "{more:?}: {field}");
        }
    }
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0, "the file has no name");
    let less = (least - 1).to_string();
    let needs = format!("found {less} bytes; with 64 positions they take {least}");
    for (flags, code, parts) in [
        (
            &["--kv-resident", &less, "--offload-dir", "."][..],
            2,
            ["--kv-resident: expected room for two layers", &needs, "hint: increase --kv-resident"],
        ),
        (
            &["--kv-resident", &resident, "--offload-dir", ".", "--offload-limit", "1KiB"],
            2,
            ["--offload-limit:", "found 1024 bytes; 3 layers of 64 positions take 49152", "hint: increase"],
        ),
        (
            &["--kv-resident", &resident],
            2,
            ["--kv-resident on the CPU requires --offload-dir", "host", "hint"],
        ),
        (&["--kv-resident", &resident, "--offload-dir", "none"], 66, ["--offload-dir none", "", ""]),
        (&["--offload-dir", "."], 2, ["--offload-dir .: nothing is offloaded", "hint: add", "--kv-resident"]),
        (
            &["--kv-resident", &resident, "--offload-dir", ".", "--kv", "growing"],
            2,
            ["--kv-resident requires --kv contiguous, paged or int8", "found --kv growing", "remove one"],
        ),
    ] {
        refused(&scratch.0, &[&generate[..], flags].concat(), code, &parts);
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn layers_of_a_gpu_are_offloaded_to_host_memory() {
    let scratch = Scratch::new("layers-gpu");
    let m = path("models/qwen3_untied_hd").display().to_string();
    let generate = ["generate", &m, "--tokens", "9,8,7,9", "--max-new", "6", "--ignore-eos", "--json"];
    let least = (2 * 64 * (2 * 32 * 4) + 3 * 16).to_string();
    let off = ["--device", "emulated", "--kv-resident", &least];
    let [want, got] = [&["--device", "emulated"][..], &off]
        .map(|more| parsed(&ok(&scratch.0, &[&generate[..], more].concat()))["completion_ids"].clone());
    assert_eq!(got, want);
    let limited = [&generate[..], &off, &["--offload-limit", "1KiB"]].concat();
    refused(
        &scratch.0,
        &limited,
        2,
        &["--offload-limit:", "found 1024 bytes; 3 layers of 64 positions take 49152"],
    );
}
