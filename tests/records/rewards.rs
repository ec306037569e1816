//! The lines between xtrain and reward processes: what a process receives, what its replies become, and the errors.
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use xtrain::decode::FinishReason;
use xtrain::rewards::{ExternalOptions, ExternalReward, Reward, RewardInput, RewardRow, Turn};

use crate::{Record, list, row};

/// A program of `sh` that writes each line to standard error, sets `id` and runs `body`.
fn program(body: &str) -> String {
    let read = "while IFS= read -r line; do printf \"%s\\n\" \"$line\" >&2; id=${line#*:}; id=${id%%,*};";
    format!("sh -c '{read} {body}; done'")
}

/// A reply to the line with the number `id` that rewards it by its number.
const NUMBERED: &str = r#"echo "{\"id\":$id,\"reward\":$id.5}""#;

fn options(processes: usize) -> ExternalOptions {
    ExternalOptions { processes, time_limit: Duration::from_secs(20), ..ExternalOptions::default() }
}

/// Completion `at` of two per prompt. No two of its fields are equal.
fn input<'a>(at: usize, columns: &'a Map<String, Value>, turn: Option<Turn<'a>>) -> RewardInput<'a> {
    const REASONS: [FinishReason; 4] =
        [FinishReason::Eos, FinishReason::Length, FinishReason::Stop, FinishReason::Context];
    RewardInput {
        prompt: ["2+2=", "\"é\"\n", "", "p"][at % 4],
        completion: ["4", "", "\u{fffd}\t", "c"][at % 4],
        prompt_ids: &[7, 8, 9],
        completion_ids: &[3, 256],
        columns,
        prompt_index: at / 2,
        completion_index: at % 2,
        finish_reason: REASONS[at % 4],
        truncated: at % 4 == 1,
        turn,
    }
}

fn inputs(count: usize, columns: &Map<String, Value>) -> Vec<RewardInput<'_>> {
    (0..count).map(|at| input(at, columns, None)).collect()
}

fn replies(rows: &[RewardRow]) -> String {
    rows.iter().map(|row| format!("{}: {:?}", row.at, row.reply)).collect::<Vec<_>>().join(" | ")
}

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    lines(&mut out);
    batches(&mut out);
    valid(&mut out);
    refused(&mut out);
    commands(&mut out);
    out
}

/// What two processes receive, in the files to which their standard error is appended.
fn lines(out: &mut Record) {
    let dir = tempfile::tempdir().unwrap();
    let Value::Object(columns) = json!({"answer": [4, null], "z": {"a": 1.5}}) else { unreachable!() };
    for first_log in [0, 3, 3] {
        let options = ExternalOptions { log_dir: Some(dir.path().into()), first_log, ..options(2) };
        let mut reward = ExternalReward::start(&program(NUMBERED), &options).unwrap();
        let turn = Turn { number: 2, text: "tail", mask: &[true, false, true], can_append: first_log == 3 };
        let mut batch = inputs(4, &columns);
        batch.push(input(4, &columns, Some(turn)));
        reward.score(&batch).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    for name in names {
        out.section(name.to_string_lossy());
        fs::read_to_string(dir.path().join(&name)).unwrap().lines().for_each(|line| out.line(line));
    }
}

/// Batches with completions that were announced or discarded: the rewards are the ids.
fn batches(out: &mut Record) {
    let columns = Map::new();
    for processes in [1, 2] {
        out.section(format!("batches of {processes} processes: announced, then discarded or scored"));
        let mut reward = ExternalReward::start(&program(NUMBERED), &options(processes)).unwrap();
        for (announced, scored) in
            [(&[][..], 3), (&[1, 0], 4), (&[3, 1], 0), (&[], 2), (&[0], 0), (&[4, 2], 0), (&[1], 5)]
        {
            let all = inputs(6, &columns);
            let chosen: Vec<_> = announced.iter().map(|&at| all[at]).collect();
            reward.announce(announced, &chosen).unwrap();
            let found = match scored {
                0 => {
                    reward.discard_announced();
                    "discarded".to_string()
                }
                _ => replies(&reward.score(&all[..scored]).unwrap()),
            };
            out.line(row(list(announced), 6, found));
        }
        out.line(list(reward.names()));
    }
}

/// Replies to one completion that can be continued.
fn valid(out: &mut Record) {
    out.section("replies to a completion that can be continued, and the names of the rewards");
    let columns = Map::new();
    for fields in [
        r#""reward":1"#,
        r#""reward":-2.5e-3,"other":{"x":1}"#,
        r#""reward":null"#,
        r#""rewards":{"b":1,"a":null,"c":0.1}"#,
        r#""append":"more""#,
        r#""append":" ""#,
        r#""rewards":{"reward":3}"#,
    ] {
        let body = format!("echo \"{{\\\"id\\\":$id,{}}}\"", fields.replace('"', "\\\""));
        let mut reward = ExternalReward::start(&program(&body), &options(1)).unwrap();
        let turn = Turn { number: 1, text: "", mask: &[true], can_append: true };
        let rows = reward.score(&[input(0, &columns, Some(turn))]).unwrap();
        out.line(row(fields, 40, format!("{} {:?}", replies(&rows), reward.names())));
    }
    for padding in [(1 << 20) - 19, (1 << 20) - 18] {
        let body = format!("printf \"{{\\\"id\\\":$id,\\\"reward\\\":1}}%{padding}s\\n\" \"\"");
        let mut reward = ExternalReward::start(&program(&body), &options(1)).unwrap();
        let found = reward.score(&inputs(1, &columns)).map_or_else(
            |e| e.to_string().split(" in the line").next().unwrap_or_default().to_string(),
            |rows| replies(&rows),
        );
        let found = found.split("): ").last().unwrap_or_default();
        out.line(row(format!("a reply, then {padding} spaces"), 40, found));
    }
}

/// Replies to two completions that end with an error.
fn refused(out: &mut Record) {
    out.section("errors of two completions of one prompt, the second of which cannot be continued");
    let columns = Map::new();
    for body in [
        r#"echo "{\"id\":$id,\"reward\":\"1\"}""#,
        r#"echo "{\"id\":$id,\"reward\":true}""#,
        r#"echo "{\"id\":$id,\"reward\":NaN}""#,
        r#"echo "{\"id\":$id,\"rewards\":{\"a\":[1]}}""#,
        r#"echo "{\"id\":$id,\"rewards\":{}}""#,
        r#"echo "{\"id\":$id,\"rewards\":[1]}""#,
        r#"echo "{\"id\":$id,\"append\":null}""#,
        r#"echo "{\"id\":$id,\"append\":\"\"}""#,
        r#"echo "{\"id\":$id,\"append\":\"x\"}""#,
        r#"echo "{\"id\":$id,\"score\":1,\"a\":2}""#,
        r#"echo "{\"id\":$id,\"reward\":1,\"rewards\":{\"a\":1}}""#,
        r#"echo "{\"id\":$id,\"rewards\":{\"n$id\":1}}""#,
        r#"echo "{\"id\":0,\"reward\":1}""#,
        r#"echo "{\"id\":2,\"reward\":1}""#,
        r#"echo "{\"id\":1,\"reward\":nope}""#,
        r#"echo "{\"id\":-1,\"reward\":1}""#,
        r#"echo "{\"id\":1.0,\"reward\":1}""#,
        r#"echo "{\"reward\":1}""#,
        r#"echo "[$id]""#,
        "echo",
        "printf \"%201s\\n\" x",
        "printf \"%200s\\n\" x",
        "exit 3",
        "for n in 1 2 3 4 5 6 7 8 9 10; do echo \"note $n  \" >&2; done; exit 4",
        "printf \"%401s\\n\" y >&2; printf \"%400s\\n\" z >&2; kill -9 $$",
    ] {
        let mut reward = ExternalReward::start(&program(body), &options(1)).unwrap();
        let batch = inputs(2, &columns);
        let error = reward.score(&batch).unwrap_err().to_string();
        let after = [reward.announce(&[0], &batch[..1]).unwrap_err(), reward.score(&batch).unwrap_err()];
        assert!(
            after.iter().all(|error| error.to_string().contains("were stopped after an error")),
            "{after:?}"
        );
        let shown = error.split_once("): ").map_or(&*error, |(_, rest)| rest);
        out.line(body);
        shown.lines().for_each(|line| out.line(format!("    {line}")));
    }
    out.section("a line, and an end, between two batches");
    let reply = r#"echo "{\"id\":$id,\"reward\":1}""#;
    for after in [r#"echo "{\"id\":1,\"reward\":2}""#, "exit 5"] {
        let body = format!("{reply}; test $id = 1 && {after}");
        let mut reward = ExternalReward::start(&program(&body), &options(1)).unwrap();
        let batch = inputs(2, &columns);
        out.line(replies(&reward.score(&batch).unwrap()));
        let start = Instant::now();
        let error = loop {
            match if after == "exit 5" { reward.score(&batch).map(drop) } else { reward.announce(&[], &[]) } {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(start.elapsed() < Duration::from_secs(20), "no error after {after}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        error.split_once("): ").map_or(&*error, |(_, rest)| rest).lines().for_each(|line| out.line(line));
    }
}

fn commands(out: &mut Record) {
    out.section("commands");
    for command in ["", "  ", "a 'b", "no-such-program-of-xtrain --x"] {
        out.line(ExternalReward::start(command, &options(1)).unwrap_err().to_string());
    }
    let mut reward = ExternalReward::start(&program(NUMBERED), &options(1)).unwrap();
    for name in xtrain::rewards::RESERVED_COLUMNS {
        let columns = Map::from_iter([(name.to_string(), Value::Null)]);
        out.line(match reward.score(&inputs(1, &columns)) {
            Ok(rows) => replies(&rows),
            Err(error) => error.to_string(),
        });
        reward = ExternalReward::start(&program(NUMBERED), &options(1)).unwrap();
    }
}
