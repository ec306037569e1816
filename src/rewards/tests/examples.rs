//! Programs in Python, those of examples/rewards, and programs that continue a completion.
use super::*;

#[test]
fn the_guide_prints_the_code_of_the_calculator() {
    let read = |path: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (program, guide) = (read("examples/rewards/calculator.py"), read("docs/guide/rewards.md"));
    let start = program.find("def reply(row):").unwrap();
    assert!(guide.contains(&program[start..]), "{}", &program[start..]);
}

#[test]
fn a_python_program_scores_256_completions_quickly() {
    let text = "import sys, json\nfor line in sys.stdin:\n  row = json.loads(line)\n  \
        print(json.dumps({'id': row['id'], 'reward': float(row['completion'].endswith('7'))}), flush=True)\n";
    let Some(command) = python(text) else { return };
    let mut reward = start(&command, 1);
    let samples = samples(256);
    let mut times = Vec::new();
    for _ in 0..9 {
        let clock = Instant::now();
        let rows = rewards(&mut reward, &samples);
        times.push(clock.elapsed());
        assert_eq!(rows.iter().filter(|row| row[0] == Some(1.0)).count(), 25);
    }
    println!("256 completions: first batch {:?}, others {:?}", times[0], &times[1..]);
    times.sort();
    assert!(times[4] < Duration::from_secs(2), "{times:?}");
}

#[test]
fn the_example_programs_score_completions() {
    let mut samples = samples(4);
    for (sample, completion) in samples.iter_mut().zip(["2", "3", "", "x\ny"]) {
        sample.completion = completion.into();
        sample.columns.insert("answer".into(), json!("2"));
    }
    let dir = format!("{}/examples/rewards", env!("CARGO_MANIFEST_DIR"));
    let score = |words: &[&str]| {
        let command = shlex::try_join(words.iter().copied()).unwrap();
        let mut reward = start(&command, 2);
        let rows = rewards(&mut reward, &samples);
        (reward.names().to_vec(), rows)
    };
    let (names, rows) = score(&["sh", &format!("{dir}/not_truncated.sh")]);
    assert_eq!(names, ["reward"]);
    assert_eq!(rows, [[Some(1.0)], [Some(0.0)], [Some(1.0)], [Some(0.0)]]);
    if python("").is_none() {
        return;
    }
    let (names, rows) = score(&["python3", &format!("{dir}/exact.py")]);
    assert_eq!(names, ["exact", "short"]);
    assert_eq!(
        rows.iter().map(|row| row[0]).collect::<Vec<_>>(),
        [Some(1.0), Some(0.0), Some(0.0), Some(0.0)]
    );
    let (trl, functions) = (format!("{dir}/trl.py"), format!("{dir}/trl_functions.py"));
    let (names, rows) = score(&["python3", &trl, &functions, "exact_match", "digits_only"]);
    assert_eq!(names, ["digits_only", "exact_match"]);
    let digits = [Some(1.0), Some(1.0), None, Some(0.0)];
    let exact = [Some(1.0), Some(0.0), Some(0.0), Some(0.0)];
    assert_eq!(rows, digits.into_iter().zip(exact).map(|(a, b)| [a, b]).collect::<Vec<_>>());
}

/// Lines arrive while other completions are generated, so the program may see them one by one.
#[test]
fn the_control_gives_completions_the_rewards_of_others() {
    if python("").is_none() {
        return;
    }
    let mut samples = samples(40);
    for (at, sample) in samples.iter_mut().enumerate() {
        sample.prompt = "1+2=".into();
        sample.completion = ["003", "004"][at % 2].into();
    }
    let program = format!("{}/examples/rewards/shuffled.py", env!("CARGO_MANIFEST_DIR"));
    let mut reward = start(&shlex::try_join(["python3", program.as_str()]).unwrap(), 1);
    let rows: Vec<_> = samples.chunks(1).flat_map(|one| rewards(&mut reward, one)).collect();
    let own = |at: usize| Some(if at.is_multiple_of(2) { 1.0 } else { 0.0 });
    let kept = rows.iter().enumerate().filter(|(at, row)| row[0] == own(*at)).count();
    assert!((8..32).contains(&kept), "{kept} of 40 completions have their own reward: {rows:?}");
}

/// The reply of `command` to a completion in the turn `number`.
#[track_caller]
fn reply_in_turn(
    command: &str,
    text: &str,
    number: usize,
    can_append: bool,
) -> Result<RewardReply, RewardError> {
    let mut sample = samples(1).remove(0);
    sample.completion = text.into();
    sample.columns.insert("answer".into(), json!("12"));
    let turn = Some(Turn { number, text, mask: &[true], can_append });
    let rows = start(command, 1).score(&[RewardInput { turn, ..input(0, &sample) }])?;
    Ok(rows[0].reply.clone())
}

#[test]
fn a_reply_continues_a_completion_unless_it_has_ended() {
    let reply = |can_append| {
        let append = "case $line in *'\"turn\":2,\"turn_text\":\"ab\",\"completion_mask\":[1],\"can_append\"'*) \
            echo \"{\\\"id\\\":$id,\\\"append\\\":\\\"x\\\"}\" ;; esac";
        reply_in_turn(&shell(append), "ab", 2, can_append)
    };
    assert_eq!(reply(true).unwrap(), RewardReply::Append("x".into()));
    let error = reply(false).unwrap_err().to_string();
    assert!(error.contains("prompt 0, completion 0: expected \"rewards\" or \"reward\""), "{error}");
    let error = reply_in_turn(&shell("echo \"{\\\"id\\\":$id,\\\"append\\\":\\\"\\\"}\""), "", 1, true);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("at least one character as \"append\", found an empty string"), "{error}");
}

#[test]
fn the_calculator_continues_a_completion_with_the_value_of_its_formula() {
    if python("").is_none() {
        return;
    }
    let command =
        shlex::try_join(["python3", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rewards/calculator.py")]);
    let command = command.unwrap();
    let reply = |text: &str, can_append| reply_in_turn(&command, text, 1, can_append).unwrap();
    let append = |text: &str| RewardReply::Append(text.into());
    let reward = |reward| RewardReply::Rewards(vec![Some(reward)]);
    assert_eq!(reply("First\ncalc: (1+2)*4", true), append("\n12\n"));
    assert_eq!(reply("calc: 2**9", true), append("\nerror\n"));
    assert_eq!(reply("calc: (1+2)*4", false), reward(0.0));
    assert_eq!(reply("12", true), reward(1.0));
    assert_eq!(reply("", true), reward(0.0));
}

#[test]
fn a_trl_function_gets_messages_for_a_conversation() {
    let text = "def f(prompts, completions, answer, **kwargs):\n  assert isinstance(kwargs['completion_ids'][0], list)\n  \
        print('printing is allowed')\n  \
        return [float(p[-1]['content'] + c[0]['content'] == a) for p, c, a in zip(prompts, completions, answer)]\n";
    if python("").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("reward.py");
    std::fs::write(&file, text).unwrap();
    let mut samples = samples(4);
    for (at, sample) in samples.iter_mut().enumerate() {
        sample.columns.insert("messages".into(), json!([{"role": "user", "content": "1+1="}]));
        sample.columns.insert("answer".into(), json!(format!("1+1=completion {}", at / 2 * 2)));
    }
    let trl = format!("{}/examples/rewards/trl.py", env!("CARGO_MANIFEST_DIR"));
    let command = shlex::try_join(["python3", &trl, file.to_str().unwrap(), "f"]).unwrap();
    let rows = rewards(&mut start(&command, 1), &samples);
    assert_eq!(rows, [[Some(1.0)], [Some(0.0)], [Some(1.0)], [Some(0.0)]]);
}
