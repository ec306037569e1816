//! `verify`: what it compares, and which faults it finds.
use xtrain::decode::{KvKind, Request, Speculation};
use xtrain::model::comm::Communicator as _;
use xtrain::tensor::Dtype;
use xtrain::tensor::testing::simds;
#[cfg(feature = "faults")]
use xtrain::tensor::{ThreadSchedule, testing::gpus};
use xtrain::verify::{
    CacheRoom, Error, Prompts, RequestedSetting, Setting, Verdict, prompts, requests, verify, verify_part,
};

use crate::cli::{Scratch, ok};
use crate::commands::{model, parsed};
use crate::decode::qwen3;
use crate::shards::on_each;

fn verdicts() -> Vec<Verdict> {
    let model = qwen3(Dtype::F32);
    let requests = requests(&prompts(&model, 3, 4, 9), 9, 3);
    let setting = RequestedSetting { threads: 2, kv: KvKind::default(), chunk: Some(16) };
    verify(&model, &requests, &setting, &mut |_| ()).unwrap()
}

#[test]
fn verify_compares_every_row_every_token_and_every_log_probability() {
    let all = verdicts();
    for v in &all {
        assert!(v.holds(), "{v:?}");
        // 4 prompts and 3 more completions of the first one, 9 tokens each, a vocabulary of 512
        assert_eq!(v.values, v.rows * 512 + 2 * 9 * 7, "{v:?}");
        let preempts = v.setting.room == CacheRoom::OneSequence;
        assert_eq!((v.preemptions > 0, v.rows_recomputed > 0), (preempts, preempts), "{v:?}");
    }
    assert_eq!(all.iter().filter(|v| v.setting.room == CacheRoom::OneSequence).count(), 1);
    for simd in simds() {
        assert!(all.iter().any(|v| v.setting.device.simd() == Some(simd)), "no setting runs on {simd}");
    }
    let rows = |prompts: Prompts| {
        let cached = all.iter().filter(|v| v.setting.prompts == prompts && v.setting.kv != KvKind::Off);
        // with drafts, no rows of logits are compared
        let cached = cached.filter(|v| v.setting.speculation == Speculation::Off);
        let mut rows: Vec<u64> = cached.map(|v| v.rows - v.rows_recomputed).collect();
        rows.dedup();
        rows
    };
    let (own, shared) = (rows(Prompts::Own), rows(Prompts::Shared));
    assert!(own.len() == 1 && shared.len() == 1 && shared[0] < own[0], "{own:?} {shared:?}");
}

/// The verdict about drafted tokens, for two greedy rollouts: one soon repeats one token, the other rejects most drafts.
fn of_drafts() -> Verdict {
    let model = qwen3(Dtype::F32);
    let repeats = Request::greedy(&[67, 68, 69].repeat(4), 50);
    let rejects = Request { id: 1, ..Request::greedy(&[14, 22], 61) };
    let setting = RequestedSetting { threads: 1, kv: KvKind::default(), chunk: None };
    let all = verify(&model, &[repeats, rejects], &setting, &mut |_| ()).unwrap();
    all.into_iter().find(|v| v.setting.speculation != Speculation::Off).expect("a setting with drafts")
}

#[test]
fn drafted_tokens_are_verified() {
    let v = of_drafts();
    assert!(v.holds() && v.drafted > 30, "{v:?}");
    assert_eq!(v.values, 2 * (50 + 61), "{v:?}");
}

#[test]
#[cfg(feature = "faults")]
fn a_fault_of_drafted_tokens_is_found() {
    use xtrain::tensor::faults::{self, Fault};
    let v = faults::with(Fault::DraftTakenForSampled, of_drafts);
    assert!(!v.holds() && v.tokens_differing > 0, "{v:?}");
}

/// The verdicts of each of `size` processes, of which the last one has other weights if `differs`.
fn of_processes(size: usize, differs: bool) -> Vec<Result<Vec<Verdict>, Error>> {
    on_each(size, |process| {
        let mut model = qwen3(Dtype::F32);
        if differs && process.rank() + 1 == size {
            model.params.norm.value_mut().unwrap().data_mut::<f32>().unwrap()[0] += 0.125;
        }
        let requests = requests(&prompts(&model, 3, 4, 9), 9, 3);
        let setting = RequestedSetting { threads: 2, kv: KvKind::default(), chunk: Some(16) };
        verify_part(&model, &requests, &setting, &process, &mut |_| ())
    })
}

/// A process with other weights is named by all of them. Returns the number of processes.
pub(crate) fn processes() -> Result<usize, String> {
    let found = of_processes(3, true);
    let named = |end: &Result<_, Error>| matches!(end, Err(Error::ProcessesDiffer { rank: 2, id: 0 }));
    match found.iter().position(|end| !named(end)) {
        None => Ok(found.len()),
        Some(at) => Err(format!("gate verify, seed 3: process {at} of 3 does not name process 2")),
    }
}

#[test]
fn processes_divide_the_settings_and_compare_the_training_forward_pass() {
    processes().unwrap_or_else(|e| panic!("{e}"));
    // the debug text of a device has the state of its threads
    let text = |verdict: &Verdict| {
        let Verdict { setting, rows, rows_expected, rows_recomputed, preemptions, values, first, .. } =
            verdict;
        let Setting { kv, chunk, prompts, batch, room, steps_per_sync, speculation, device } = setting;
        let setting = format!("{kv} {chunk:?} {prompts:?} {batch} {room:?} {steps_per_sync} {device}");
        let setting = format!("{setting} {speculation:?}");
        format!("{setting}: {rows} {rows_expected} {rows_recomputed} {preemptions} {values} {first:?}")
    };
    let want: Vec<String> = verdicts().iter().map(text).collect();
    let found = of_processes(3, false).into_iter().map(|end| end.unwrap());
    let mut found: Vec<_> = found.map(Vec::into_iter).collect();
    let next = |i: usize| found[i % 3].next().expect("a verdict");
    let got: Vec<String> = (0..want.len()).map(next).map(|verdict| text(&verdict)).collect();
    assert_eq!(got, want);
    assert!(found.iter_mut().all(|rest| rest.next().is_none()));
}

/// A verdict holds only if every expected row was compared and nothing differs. Returns the number of verdicts.
pub(crate) fn holds() -> Result<usize, String> {
    let all = verdicts();
    for good in &all {
        // with drafts, no rows of logits are compared
        let rows = good.rows.saturating_sub(1);
        let changed = [
            ("a row fewer", Verdict { rows, rows_expected: rows + 1, ..good.clone() }),
            ("a row more", Verdict { rows: good.rows + 1, ..good.clone() }),
            ("a row that was computed again is missing", {
                Verdict { rows_recomputed: good.rows_recomputed + 1, ..good.clone() }
            }),
            ("a value that differs", Verdict { differing: 1, ..good.clone() }),
            ("a token that differs", Verdict { tokens_differing: 1, ..good.clone() }),
        ];
        if let Some((what, _)) = changed.into_iter().find(|(_, verdict)| verdict.holds()) {
            return Err(format!("gate verify, seed 3: a verdict holds with {what}"));
        }
    }
    Ok(all.len())
}

#[test]
fn a_verdict_needs_every_row_and_no_difference() {
    let n = holds().unwrap_or_else(|e| panic!("{e}"));
    println!("verify: {n} verdicts, each of them fails with a row fewer");
}

/// On a GPU, two settings run several steps ahead of the host. Only they find a fault of these steps.
#[cfg(feature = "faults")]
#[test]
fn verify_finds_a_fault_of_steps_ahead_of_the_host() {
    use xtrain::tensor::faults::{Fault, with};

    for device in gpus(&[ThreadSchedule::Forward]) {
        let model = crate::fixtures::model("models/mistral_window", Dtype::F32, &device);
        let requests = requests(&prompts(&model, 4, 2, 9), 9, 4);
        let setting = RequestedSetting { threads: 1, kv: KvKind::default(), chunk: None };
        let run = || verify(&model, &requests, &setting, &mut |_| ()).unwrap();
        for (faulty, verdicts) in [(false, run()), (true, with(Fault::StaleStepIndices, run))] {
            let ahead = verdicts.iter().filter(|v| v.setting.steps_per_sync > 1);
            assert_eq!(ahead.clone().count(), 2);
            assert!(ahead.clone().all(|v| v.passes_ahead > 0), "seed 4 on {device}: {verdicts:?}");
            for v in &verdicts {
                let finds = faulty && v.setting.steps_per_sync > 1;
                assert_eq!(v.holds(), !finds, "seed 4 on {device}, faulty {faulty}: {v:?}");
            }
        }
    }
}

#[test]
fn verify_prints_its_verdict_as_json() {
    let (scratch, m) = (Scratch::new("verify"), model());
    scratch.file("p.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt_ids\": [7, 8, 9]}\n");
    let output = crate::cli::xtrain(
        &scratch.0,
        &["verify", &m, "--prompts", "p.jsonl", "--max-new", "5", "--json", "--threads", "1"],
    );
    let got = parsed(&crate::cli::text(&output.stdout));
    assert_eq!(got["holds"], true);
    for setting in got["settings"].as_array().unwrap() {
        let count = |key: &str| setting[key].as_u64().unwrap();
        let rows = count("rows_expected") + count("rows_recomputed");
        assert!(setting["first"].is_null() && count("rows") == rows, "{setting}");
        assert!(["own", "shared"].contains(&setting["prompts"].as_str().unwrap()));
    }
    assert!(ok(&scratch.0, &["verify", "--help"]).contains("log-probability"));
}

#[cfg(feature = "faults")]
#[test]
fn verify_finds_a_planted_fault_and_reports_the_position_and_the_bits() {
    for fault in [
        xtrain::tensor::faults::Fault::DroppedCacheWrite,
        xtrain::tensor::faults::Fault::PageOffByOne,
        xtrain::tensor::faults::Fault::RngUsesFirstSequenceId,
    ] {
        let all = xtrain::tensor::faults::with(fault, verdicts);
        let bad: Vec<&Verdict> = all.iter().filter(|v| !v.holds()).collect();
        let first = bad.first().unwrap_or_else(|| panic!("{fault} was not found")).first.clone();
        let first = first.expect("a difference has a position");
        println!("verify, {fault}, seed 3: {} settings, {first}", bad.len());
        assert_ne!(first.want, first.got, "{fault}: {first}");
    }
}

#[cfg(feature = "faults")]
#[test]
fn a_difference_in_json_has_the_names_of_a_rollout_line() {
    let (scratch, m) = (Scratch::new("verify-difference"), model());
    let args = ["verify", &m, "--max-new", "5", "--json", "--threads", "1", "--fault", "dropped-cache-write"];
    let output = crate::cli::xtrain(&scratch.0, &args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let got = parsed(&crate::cli::text(&output.stdout));
    let first = got["settings"].as_array().unwrap().iter().map(|setting| &setting["first"]);
    let first = first.into_iter().find(|first| !first.is_null()).unwrap().as_object().unwrap();
    let mut names: Vec<&str> = first.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["expected", "found", "position", "sample_id", "what"]);
}
