//! Rewards with real processes.
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;

use super::*;
use crate::decode::FinishReason;
use crate::model::tasks::by_name;

mod examples;
mod long_line;
mod two_processes;

/// A completion with its prompt and columns.
struct Sample {
    prompt: String,
    completion: String,
    columns: Map<String, Value>,
}

/// `count` samples in groups of 2.
fn samples(count: usize) -> Vec<Sample> {
    let sample = |at: usize| Sample {
        prompt: format!("prompt {}", at / 2),
        completion: format!("completion {at}"),
        columns: Map::new(),
    };
    (0..count).map(sample).collect()
}

fn inputs(samples: &[Sample]) -> Vec<RewardInput<'_>> {
    samples.iter().enumerate().map(|(at, sample)| input(at, sample)).collect()
}

fn input(at: usize, sample: &Sample) -> RewardInput<'_> {
    RewardInput {
        prompt: &sample.prompt,
        completion: &sample.completion,
        prompt_ids: &[1, 2],
        completion_ids: &[3],
        columns: &sample.columns,
        prompt_index: at / 2,
        completion_index: at % 2,
        finish_reason: if at.is_multiple_of(2) { FinishReason::Eos } else { FinishReason::Length },
        truncated: !at.is_multiple_of(2),
        turn: None,
    }
}

fn options(processes: usize) -> ExternalOptions {
    ExternalOptions { processes, time_limit: Duration::from_secs(20), ..ExternalOptions::default() }
}

/// A shell program that sets `id` for each line of standard input and runs `body`.
fn shell(body: &str) -> String {
    let read = "while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; ";
    shlex::try_join(["sh", "-c", &format!("{read}{body}; done")]).unwrap()
}

fn start(command: &str, processes: usize) -> ExternalReward {
    ExternalReward::start(command, &options(processes)).unwrap()
}

/// The error of scoring `count` completions with a shell program.
#[track_caller]
fn error_of(body: &str, count: usize, limit: Duration) -> String {
    let options = ExternalOptions { time_limit: limit, ..options(1) };
    let mut reward = ExternalReward::start(&shell(body), &options).unwrap();
    let samples = samples(count);
    let error = reward.score(&inputs(&samples)).unwrap_err();
    assert!(matches!(reward.score(&inputs(&samples)), Err(RewardError::Stopped { .. })));
    error.to_string()
}

/// The rewards of `samples`, row by row. Every row names its completion.
#[track_caller]
fn rewards(reward: &mut dyn Reward, samples: &[Sample]) -> Vec<Vec<Option<f64>>> {
    let inputs = inputs(samples);
    let rows = reward.score(&inputs).unwrap();
    assert!(rows.iter().map(|row| row.at).eq(inputs.iter().map(|input| input.location())));
    let rewards = |row: RewardRow| match row.reply {
        RewardReply::Rewards(rewards) => rewards,
        RewardReply::Append(text) => panic!("{text:?} instead of rewards"),
    };
    rows.into_iter().map(rewards).collect()
}

#[track_caller]
fn refuses(body: &str, want: &[&str]) {
    let error = error_of(body, 4, Duration::from_secs(20));
    for part in want {
        assert!(error.contains(part), "{body}\nexpected {part:?} in\n{error}");
    }
}

/// The command of a Python program. `None`: there is no Python, which is printed.
fn python(text: &str) -> Option<String> {
    if std::process::Command::new("python3").arg("-c").arg("").status().is_ok_and(|status| status.success()) {
        return Some(shlex::try_join(["python3", "-c", text]).unwrap());
    }
    assert!(
        std::env::var_os("XTRAIN_REQUIRE_PYTHON").is_none(),
        "XTRAIN_REQUIRE_PYTHON is set, and python3 does not run"
    );
    println!("skipped: python3 is not installed");
    None
}

#[test]
fn a_task_rewards_correct_completions_with_1() {
    let mut reward = TaskReward::new(by_name("sums").unwrap());
    assert_eq!(reward.names(), ["sums"]);
    let mut samples = samples(3);
    for (sample, completion) in samples.iter_mut().zip(["082", "083", "082\n1"]) {
        (sample.prompt, sample.completion) = ("37+45=".into(), completion.into());
    }
    let rows = rewards(&mut reward, &samples);
    assert_eq!(rows, [[Some(1.0)], [Some(0.0)], [Some(1.0)]]);
}

#[test]
fn every_completion_gets_its_own_reward() {
    let samples = samples(37);
    for processes in [1, 2, 5] {
        let mut reward = start(&shell("echo \"{\\\"id\\\":$id,\\\"reward\\\":$id}\""), processes);
        assert!(reward.names().is_empty());
        for batch in 0..3u32 {
            let rows = rewards(&mut reward, &samples);
            let want: Vec<_> = (0..37).map(|at| vec![Some(f64::from(37 * batch + at))]).collect();
            assert_eq!(rows, want, "{processes} processes");
        }
        assert_eq!(reward.names(), ["reward"]);
        assert!(reward.score(&[]).unwrap().is_empty());
    }
}

#[test]
fn announced_completions_are_scored_once_and_have_the_same_ids() {
    let samples = samples(37);
    for processes in [1, 2, 5] {
        let mut reward = start(&shell("echo \"{\\\"id\\\":$id,\\\"reward\\\":$id}\""), processes);
        for batch in 0..3u32 {
            // two announcements, not in order, and nine completions that are not announced
            let places: Vec<usize> = (0..37).map(|i| (17 * i + 5) % 37).take(28).collect();
            for part in places.chunks(15) {
                let all: Vec<RewardInput<'_>> = part.iter().map(|&at| input(at, &samples[at])).collect();
                reward.announce(part, &all).unwrap();
            }
            let want: Vec<_> = (0..37).map(|at| vec![Some(f64::from(37 * batch + at))]).collect();
            assert_eq!(rewards(&mut reward, &samples), want, "{processes} processes");
        }
    }
}

#[test]
fn replies_to_discarded_completions_are_ignored() {
    let samples = samples(6);
    let mut reward = start(&shell("echo \"{\\\"id\\\":$id,\\\"reward\\\":$id}\""), 1);
    reward.announce(&[1, 3], &[input(1, &samples[1]), input(3, &samples[3])]).unwrap();
    reward.discard_announced();
    let want: Vec<_> = (4..10).map(|id| vec![Some(f64::from(id))]).collect();
    assert_eq!(rewards(&mut reward, &samples), want, "ids 0 to 3 are not used again");
}

#[test]
fn an_announced_completion_is_scored_before_the_batch() {
    let path = NamedTempFile::new().unwrap().into_temp_path();
    let body = format!("echo $id > {}; echo \"{{\\\"id\\\":$id,\\\"reward\\\":1}}\"", path.display());
    let (mut reward, samples) = (start(&shell(&body), 1), samples(2));
    reward.announce(&[1], &[input(1, &samples[1])]).unwrap();
    let start = Instant::now();
    while std::fs::read_to_string(&path).ok().as_deref() != Some("1\n") {
        assert!(start.elapsed() < Duration::from_secs(20), "the program received no line");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(rewards(&mut reward, &samples), [[Some(1.0)], [Some(1.0)]]);
}

#[test]
fn a_batch_may_be_smaller_than_the_number_of_processes() {
    let mut reward = start(&shell("echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\""), 3);
    let samples = samples(1);
    assert_eq!(rewards(&mut reward, &samples), [[Some(1.0)]]);
}

#[test]
fn all_turns_of_a_completion_go_to_one_process() {
    // The reward is the process id.
    let mut reward = start(&shell("echo \"{\\\"id\\\":$id,\\\"reward\\\":$$}\""), 3);
    let samples = samples(12);
    let first = rewards(&mut reward, &samples);
    let of = |process: &Vec<Option<f64>>| first.iter().filter(|other| *other == process).count();
    assert!(first.iter().all(|process| of(process) == 4), "{first:?}");
    let all = inputs(&samples);
    let continued = [1, 2, 5, 6, 7, 11];
    let rows = reward.score(&continued.map(|at| all[at])).unwrap();
    for (row, at) in rows.into_iter().zip(continued) {
        assert_eq!(row.reply, RewardReply::Rewards(first[at].clone()), "completion {at}");
    }
}

#[test]
fn replies_may_come_in_any_order_with_several_names_and_null() {
    let body = "all=\"$id $all\"; n=$((n+1)); if [ $n = 6 ]; then for i in $all; do \
        echo \"{\\\"rewards\\\":{\\\"b\\\":null,\\\"a\\\":$i.5},\\\"id\\\":$i}\"; done; fi";
    let mut reward = start(&shell(body), 1);
    let samples = samples(6);
    let rows = rewards(&mut reward, &samples);
    assert_eq!(rows, (0..6).map(|at| vec![Some(f64::from(at) + 0.5), None]).collect::<Vec<_>>());
    assert_eq!(reward.names(), ["a", "b"]);
}

#[test]
fn a_program_receives_the_fields_and_columns_of_a_completion() {
    let text = "import sys, json\nfor line in sys.stdin:\n  row = json.loads(line); want = json.loads(row['want'])\n  \
        got = {k: row[k] for k in want}\n  \
        print(json.dumps({'id': row['id'], 'reward': float(got == want)}), flush=True)\n  \
        if got != want: print(got, file=sys.stderr, flush=True)\n";
    let Some(command) = python(text) else { return };
    let mut samples = samples(2);
    let texts = ["line\nbreak\r\n\t\"quoted\" \\ \u{0}\u{7f}", "é 🦀 \u{2028}\u{202e} 日本語"];
    for (at, (sample, text)) in samples.iter_mut().zip(texts).enumerate() {
        sample.completion = text.into();
        sample.prompt = format!("{text}?");
        let want = json!({
            "prompt": format!("{text}?"), "completion": text, "prompt_ids": [1, 2], "completion_ids": [3],
            "prompt_index": 0, "completion_index": at, "answer": {"x": [1.5, null, "ü"]},
            "finish_reason": if at == 0 { "eos" } else { "length" }, "truncated": at == 1,
        });
        sample.columns.insert("answer".into(), json!({"x": [1.5, null, "ü"]}));
        sample.columns.insert("want".into(), want.to_string().into());
    }
    let rows = rewards(&mut start(&command, 1), &samples);
    assert_eq!(rows, [[Some(1.0)], [Some(1.0)]]);
}

#[test]
fn full_pipes_do_not_stop_the_exchange() {
    // every line and every reply exceeds the 64 KiB of a pipe; the program answers while it reads
    let pad = "x".repeat(100_000);
    let mut samples = samples(12);
    for sample in &mut samples {
        sample.completion.clone_from(&pad);
    }
    let body = "echo \"{\\\"id\\\":$id,\\\"reward\\\":1,\\\"copy\\\":$line}\"";
    let mut reward = start(&shell(body), 2);
    assert_eq!(rewards(&mut reward, &samples), vec![vec![Some(1.0)]; 12]);
    // standard error, too
    let Some(command) = python(
        "import sys, json\nfor line in sys.stdin:\n  sys.stderr.write('e' * 100000 + '\\n')\n  \
         print(json.dumps({'id': json.loads(line)['id'], 'reward': 2}), flush=True)\n",
    ) else {
        return;
    };
    assert_eq!(rewards(&mut start(&command, 1), &samples), vec![vec![Some(2.0)]; 12]);
}

#[test]
fn a_program_that_hangs_is_stopped_at_the_time_limit() {
    let clock = Instant::now();
    let body = "[ $id = 2 ] && { echo stuck >&2; sleep 60; }; echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"";
    let error = error_of(body, 4, Duration::from_millis(700));
    assert!(clock.elapsed() < Duration::from_secs(10), "{:?}", clock.elapsed());
    for part in ["process 0", "prompt 1, completion 0", "0.7 s", "2 completions", ":\nstuck"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// The rewards of a batch that takes longer than its limit of 1.9 s, although each reply comes within the limit.
fn score_slowly() -> Result<Vec<RewardRow>, RewardError> {
    let body = "sleep 0.3; echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"";
    let options = ExternalOptions { time_limit: Duration::from_millis(1900), ..options(1) };
    let mut reward = ExternalReward::start(&shell(body), &options).unwrap();
    reward.score(&inputs(&samples(8)))
}

#[test]
fn the_time_limit_is_that_of_a_batch() {
    let error = score_slowly().unwrap_err().to_string();
    assert!(error.contains("1.9 s"), "{error}");
}

#[test]
#[cfg(feature = "faults")]
fn a_time_limit_for_each_reply_is_found() {
    use crate::tensor::faults::{self, Fault};

    assert_eq!(faults::with(Fault::TimeLimitPerReply, score_slowly).unwrap().len(), 8);
}

#[test]
fn a_program_that_reads_nothing_is_stopped_at_the_time_limit() {
    let options = ExternalOptions { time_limit: Duration::from_millis(300), ..options(1) };
    let mut reward = ExternalReward::start("sleep 60", &options).unwrap();
    let mut samples = samples(2);
    samples[0].completion = "x".repeat(1 << 20);
    let error = reward.score(&inputs(&samples)).unwrap_err().to_string();
    assert!(error.contains("prompt 0, completion 0") && error.contains("0.3 s"), "{error}");
}

#[test]
fn a_program_that_dies_is_reported_with_its_status_and_last_words() {
    let body =
        "[ $id = 3 ] && { echo 'no such table' >&2; exit 7; }; echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"";
    refuses(body, &["prompt 1, completion 1", "exit status: 7", "(1 completion without", ":\nno such table"]);
    refuses(
        "kill -9 $$",
        &["prompt 0, completion 0", "signal: 9", "4 completions", "nothing to standard error"],
    );
    // too little: replies to the first only, then ends without an error
    let body = "echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"; exit 0";
    refuses(body, &["prompt 0, completion 1", "exit status: 0", "3 completions"]);
}

#[test]
fn a_process_that_ended_between_batches_is_reported_in_the_next() {
    let body = "echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"; [ $id = 3 ] && exit 5";
    let mut reward = start(&shell(body), 1);
    let samples = samples(4);
    assert!(reward.score(&inputs(&samples)).is_ok());
    let error = reward.score(&inputs(&samples)).unwrap_err().to_string();
    assert!(error.contains("prompt 0, completion 0") && error.contains("exit status: 5"), "{error}");
}

#[test]
fn an_invalid_line_is_reported_with_its_completion() {
    refuses("echo loading", &["waiting for prompt 0, completion 0", "text that is not JSON", "\"loading\""]);
    refuses("echo", &["waiting for prompt 0, completion 0", "an empty line"]);
    refuses(
        "echo \"{\\\"id\\\":$id,\\\"reward\\\":NaN}\"",
        &["prompt 0, completion 0", "NaN or Infinity", "id"],
    );
    refuses(
        "echo \"{\\\"id\\\":$id,\\\"reward\\\":\\\"1\\\"}\"",
        &["a number or null as \"reward\"", "a string"],
    );
    refuses(
        "echo \"{\\\"id\\\":$id}\"",
        &["prompt 0, completion 0", "one of \"rewards\"", "the fields \"id\""],
    );
    refuses("echo \"{\\\"reward\\\":1}\"", &["waiting for prompt 0, completion 0", "no \"id\""]);
    refuses("echo \"{\\\"id\\\":\\\"0\\\",\\\"reward\\\":1}\"", &["a whole number", "\"0\""]);
    refuses("echo \"{\\\"id\\\":$((id+7)),\\\"reward\\\":1}\"", &["sent to this process", "found 7"]);
    refuses(
        "echo \"{\\\"id\\\":$id,\\\"append\\\":\\\"x\\\"}\"",
        &["prompt 0, completion 0", "that cannot be continued", "grpo.max_turns"],
    );
    let names = "echo \"{\\\"id\\\":$id,\\\"rewards\\\":{\\\"n$((id/3))\\\":1}}\"";
    refuses(names, &["prompt 1, completion 1", "the rewards \"n0\" of the first reply", "found \"n1\""]);
    let twice = "echo \"{\\\"id\\\":$((id/2)),\\\"reward\\\":1}\"";
    refuses(twice, &["prompt 0, completion 0", "one reply per completion", "a second reply"]);
}

#[test]
fn too_much_output_is_an_error() {
    let reply = "{\"id\":%d,\"reward\":1}";
    let body = format!("[ $id = 3 ] && end='\\ndone'; printf '{reply}%b\\n' $id \"$end\"");
    let mut reward = start(&shell(&body), 1);
    let samples = samples(4);
    // the surplus line arrives before or after the last reply was processed
    let error = reward.score(&inputs(&samples)).and_then(|_| {
        std::thread::sleep(Duration::from_millis(200));
        reward.score(&inputs(&samples))
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("when no reply was due") && error.contains("\"done\""), "{error}");

    let long = "head -c 1200000 /dev/zero | tr '\\0' 'x'; echo";
    refuses(long, &["at most 1048576 bytes", "waiting for prompt 0, completion 0", "xxx"]);
    let endless = "while :; do echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"; done";
    refuses(endless, &["prompt 0, completion 0", "a second reply"]);
}

#[test]
fn a_late_reply_is_not_taken_for_one_of_the_next_batch() {
    // replies to completion 3 a second time, together with the first reply of the next batch
    let body = "[ $id = 4 ] && echo '{\"id\":3,\"reward\":9}'; echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"";
    let mut reward = start(&shell(body), 1);
    let samples = samples(4);
    assert!(reward.score(&inputs(&samples)).is_ok());
    let error = reward.score(&inputs(&samples)).unwrap_err().to_string();
    assert!(error.contains("3, which is of an earlier batch"), "{error}");
}

#[test]
fn a_process_cannot_answer_for_another() {
    let body = "[ $id = 2 ] && echo '{\"id\":0,\"reward\":9}'; [ $id = 0 ] && sleep 1; \
        echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\"";
    let mut reward = start(&shell(body), 2);
    let samples = samples(4);
    let error = reward.score(&inputs(&samples)).unwrap_err().to_string();
    assert!(error.contains("process 1") && error.contains("sent to this process, found 0"), "{error}");
}

#[test]
fn a_column_with_a_reserved_name_is_refused() {
    let mut samples = samples(2);
    samples[1].columns.insert("id".into(), json!(5));
    let error = start("cat", 1).score(&inputs(&samples)).unwrap_err().to_string();
    assert!(error.contains("prompt 0, completion 1: column \"id\""), "{error}");
}

#[test]
fn a_command_line_is_split_as_in_a_shell_without_running_one() {
    let error = |command: &str| ExternalReward::start(command, &options(1)).unwrap_err().to_string();
    assert!(error("sh -c 'x").contains("quotation mark"), "{}", error("sh -c 'x"));
    assert!(error("  ").ends_with("expected a program and its arguments, found no words"), "{}", error("  "));
    assert!(error("no-such-program-here --flag").contains("cannot start \"no-such-program-here\""));
    // a redirection is an argument, so `echo` prints it
    let samples = samples(1);
    let refused = start("echo $HOME > x", 1).score(&inputs(&samples)).unwrap_err().to_string();
    assert!(refused.contains("\"$HOME > x\""), "{refused}");
}

#[test]
fn closing_lets_a_program_finish_and_kills_one_that_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let finish = dir.path().join("finished");
    let program = format!(
        "cat > /dev/null; yes '' | head -n 5000 >&2; echo bye >&2; echo x > {}",
        shlex::try_quote(finish.to_str().unwrap()).unwrap()
    );
    let options = ExternalOptions { log_dir: Some(dir.path().into()), ..options(2) };
    let command = shlex::try_join(["sh", "-c", &program]).unwrap();
    drop(ExternalReward::start(&command, &options).unwrap());
    assert!(finish.exists());
    let logs = [0, 1].map(|n| std::fs::read_to_string(dir.path().join(format!("reward-{n}.log"))).unwrap());
    let want = format!("{}bye\n", "\n".repeat(5_000));
    assert!(logs.iter().all(|log| *log == want), "{:?} of {} bytes", logs.map(|log| log.len()), want.len());

    let clock = Instant::now();
    drop(start("sleep 60", 3));
    let time = clock.elapsed();
    assert!((Duration::from_millis(1900)..Duration::from_secs(8)).contains(&time), "{time:?}");
}

/// A program that starts `sleep`, writes both process ids to a file and continues with `end` leaves no process behind.
#[track_caller]
fn all_are_killed(end: &str) {
    let file = NamedTempFile::new().unwrap().into_temp_path();
    let path = shlex::try_quote(file.to_str().unwrap()).unwrap().into_owned();
    let body = format!("sleep 60 > /dev/null 2>&1 & echo $$ $! >> {path}; {end}");
    let mut reward = start(&shell(&body), 2);
    let samples = samples(4);
    let clock = Instant::now();
    assert!(reward.score(&inputs(&samples)).is_err());
    let ids = std::fs::read_to_string(&file).unwrap();
    let ids: Vec<&str> = ids.split_whitespace().collect();
    assert!(!ids.is_empty());
    for id in ids {
        // a killed child whose parent died is a zombie until the system's first process collects it
        let state = || std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let gone = || state().rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z"));
        while cfg!(target_os = "linux") && !gone() {
            assert!(clock.elapsed() < Duration::from_secs(10), "{end}: process {id} runs: {}", state());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn all_processes_are_killed_after_an_error() {
    all_are_killed("[ $id -lt 2 ] && echo garbage; wait");
    all_are_killed("exit 3");
}
