//! Tests of tasks against their contracts.
use std::collections::HashSet;

use super::*;
use crate::data::DataError;
use crate::tokenizer::Tokenizer;

const MIX: Mix = Mix { sums: 3, sentences: 1 };

#[test]
fn a_tenth_of_the_pairs_is_held_out_and_no_pair_is_in_both_parts() {
    let sums = Sums::default();
    let (train, held_out) = (sums.pairs(PromptSet::Train), sums.pairs(PromptSet::HeldOut));
    assert_eq!(train.len() + held_out.len(), 10_000);
    assert!((990..=1010).contains(&held_out.len()), "{}", held_out.len());
    let held_out: HashSet<_> = held_out.into_iter().collect();
    assert!(train.iter().all(|&(a, b)| !held_out.contains(&(a, b)) && !held_out.contains(&(b, a))));
}

#[test]
fn the_held_out_pairs_do_not_depend_on_the_digits_of_the_answer() {
    let held_out = Sums::default().pairs(PromptSet::HeldOut);
    for digit in 0..10 {
        let ones = held_out.iter().filter(|(a, b)| (a + b) % 10 == digit).count();
        let tens = held_out.iter().filter(|(a, b)| (a + b) / 10 % 10 == digit).count();
        assert!((60..=140).contains(&ones) && (60..=140).contains(&tens), "{digit}: {ones}, {tens}");
    }
    assert!((400..600).contains(&held_out.iter().filter(|(a, b)| a + b >= 100).count()));
}

#[test]
fn a_sum_has_one_answer_and_it_is_checked_exactly() {
    let sums = Sums::default();
    assert_eq!(Sums::document(7, 5), "07+05=012");
    assert_eq!(Sums::document(99, 99), "99+99=198");
    for right in ["082", "082\n", "082\n11+11=022"] {
        assert!(sums.check("37+45=", right), "{right:?}");
    }
    for wrong in ["", "82", "0820", "083", "08", "+082", "0 82", "\u{fffd}"] {
        assert!(!sums.check("37+45=", wrong), "{wrong:?}");
    }
    for prompt in ["", "=", "+=", "37+45", "7+5=", "+1+45=", "é7+45=", "100+45=", "37+45= "] {
        assert_eq!(sums.answer(prompt), None, "{prompt:?}");
    }
    for prompt in sums.prompts(PromptSet::HeldOut) {
        assert!(sums.check(&prompt, &sums.answer(&prompt).unwrap()));
    }
}

#[test]
fn a_held_out_pair_never_occurs_in_the_corpus() {
    let sums = Sums::default();
    let prompts: HashSet<String> = sums.prompts(PromptSet::HeldOut).into_iter().collect();
    let mut seen = HashSet::new();
    for document in Corpus::new(0, MIX).unwrap().documents().take(60_000) {
        if let Some((question, answer)) = document.split_once('=') {
            let prompt = format!("{question}=");
            assert!(!prompts.contains(&prompt), "{document}");
            assert!(sums.check(&prompt, answer), "{document}");
            seen.insert(prompt);
        }
    }
    assert!(seen.len() > 8_800, "only {} training pairs occur", seen.len());
}

#[test]
fn a_document_is_a_function_of_seed_and_number() {
    let (one, other) = (Corpus::new(1, MIX).unwrap(), Corpus::new(2, MIX).unwrap());
    let all: Vec<String> = one.documents().take(100).collect();
    assert_eq!(one.document(57), all[57]);
    assert_ne!(other.documents().take(100).collect::<Vec<_>>(), all);
    let sums = one.documents().take(4000).filter(|d| d.contains('=')).count();
    assert!((2800..3200).contains(&sums), "{sums}");
    assert!(Corpus::new(1, Mix { sums: 0, sentences: 0 }).is_err());
}

#[test]
fn sentences_agree_in_number_and_article() {
    let corpus = Corpus::new(3, Mix { sums: 0, sentences: 1 }).unwrap();
    let mut distinct = HashSet::new();
    for text in corpus.documents().take(5000) {
        assert!(text.is_ascii() && text.ends_with('.') && text.starts_with(|c: char| c.is_ascii_uppercase()));
        assert!(text.len() < 90, "{text}");
        let words: Vec<String> = text.trim_end_matches('.').split(' ').map(str::to_lowercase).collect();
        for pair in words.windows(2) {
            let vowel = pair[1].starts_with(['a', 'e', 'i', 'o', 'u']) || pair[1] == "honest";
            assert!((pair[0] != "a" || !vowel) && (pair[0] != "an" || vowel), "{text}");
        }
        let verbs =
            words.iter().filter(|w| ["see", "sees", "feed", "feeds", "carries", "carry"].contains(&&w[..]));
        for verb in verbs {
            let many = ["two", "some"].contains(&&words[0][..]);
            let one = ["a", "an", "every"].contains(&&words[0][..]);
            assert!(if verb.ends_with('s') { !many } else { !one }, "{text}");
        }
        distinct.insert(text);
    }
    assert!(distinct.len() > 4900);
}

#[test]
fn corpus_tokens_are_complete_documents_with_separators() {
    let corpus = Corpus::new(5, MIX).unwrap();
    let tokens = corpus.tokens(&Tokenizer::byte(), 1000).unwrap();
    assert!((1000..1100).contains(&tokens.len()));
    let text = Tokenizer::byte().decode(&tokens.ids(0..tokens.len()).unwrap());
    let documents: Vec<&str> = text.strip_suffix("<|endoftext|>").unwrap().split("<|endoftext|>").collect();
    assert_eq!(documents, corpus.documents().take(documents.len()).collect::<Vec<_>>());
}

fn opened(name: &str, text: &str) -> Result<FileTask, DataError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    FileTask::open(&path)
}

#[test]
fn a_task_file_keeps_the_order_of_its_prompts() {
    let lines = "{\"prompt\": \"b\", \"answer\": \"2 \", \"id\": 1}\n\n{\"prompt\": \"a\", \"completion\": \"x\\ny\"}\n";
    let task = opened("good.jsonl", lines).unwrap();
    assert!(task.name().ends_with("good"));
    assert_eq!(
        (task.prompts(PromptSet::HeldOut), task.prompts(PromptSet::Train)),
        (vec!["b".into(), "a".into()], vec![])
    );
    assert!(task.check("b", " 2\nmore") && !task.check("b", "2 2") && !task.check("c", "2"));
    assert!(task.check("a", "x\ny\n") && !task.check("a", "x"));
}

#[test]
fn null_fields_of_a_task_file_are_absent() {
    let lines = "{\"prompt\": \"a\", \"answer\": \"1\", \"completion\": null}\n\
                 {\"prompt\": \"b\", \"answer\": null, \"completion\": \"2\"}\n";
    let task = opened("null.jsonl", lines).unwrap();
    assert!(task.check("a", "1") && task.check("b", "2"));
    let error = opened("null.jsonl", "{\"prompt\": \"a\", \"answer\": null}").unwrap_err().to_string();
    assert!(error.ends_with("as strings, found the field \"prompt\""), "{error}");
}

#[test]
fn a_bad_task_file_is_refused_by_line() {
    for (name, text, want) in [
        ("empty.jsonl", "", "expected at least one line with a JSON object, found none"),
        ("half.jsonl", "{\"prompt\": \"a\"}", ":1: expected \"prompt\" and \"answer\""),
        ("both.jsonl", "{\"prompt\":\"a\",\"answer\":\"b\",\"completion\":\"c\"}", ":1: expected"),
        ("type.jsonl", "{\"prompt\":\"a\",\"answer\":5}", "\"answer\": a number"),
        (
            "twice.jsonl",
            "{\"prompt\":\"a\",\"answer\":\"1\"}\n{\"prompt\":\"a\",\"answer\":\"2\"}",
            ":2: expected one",
        ),
    ] {
        let error = opened(name, text).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(want), "{error}");
    }
}

/// Training prompts to draw in tests of the built-in tasks.
const DRAWS: u64 = 20_000;

fn built_in() -> impl Iterator<Item = Box<dyn Task + Send + Sync>> {
    NAMES.into_iter().map(|name| by_name(name).unwrap())
}

#[test]
fn the_registry_has_every_task_under_its_name() {
    for (name, task) in NAMES.into_iter().zip(built_in()) {
        assert_eq!(task.name(), name);
    }
    assert!(by_name("").is_none() && by_name("Sums").is_none());
}

#[test]
fn a_held_out_prompt_is_never_a_training_prompt() {
    for task in built_in() {
        let (train, held_out) = (task.prompts(PromptSet::Train), task.prompts(PromptSet::HeldOut));
        assert!((400..1200).contains(&held_out.len()), "{}: {}", task.name(), held_out.len());
        let train: HashSet<String> = train.into_iter().collect();
        let held_out: HashSet<String> = held_out.into_iter().collect();
        assert!(train.is_disjoint(&held_out), "{}", task.name());
        for n in 0..DRAWS {
            let prompt = task.training_prompt(3, n).unwrap();
            assert!(train.contains(&prompt) && !held_out.contains(&prompt), "{prompt}");
        }
    }
}

#[test]
fn equivalent_prompts_are_held_out_together() {
    let answers = |part| -> HashSet<String> {
        let task = Sorting::default();
        task.prompts(part).iter().map(|prompt| task.answer(prompt).unwrap()).collect()
    };
    assert!(answers(PromptSet::Train).is_disjoint(&answers(PromptSet::HeldOut)));
    assert!((150..250).contains(&answers(PromptSet::HeldOut).len()));

    let task = Reversing::default();
    let train: HashSet<String> = task.prompts(PromptSet::Train).into_iter().collect();
    for prompt in task.prompts(PromptSet::HeldOut) {
        assert!(!train.contains(&format!("reverse {}=", task.answer(&prompt).unwrap())), "{prompt}");
    }

    let task = Countdown::default();
    let sorted = |part| -> HashSet<String> {
        let sort = |prompt: String| {
            let mut numbers = prompt[..5].split(' ').collect::<Vec<_>>();
            numbers.sort_unstable();
            format!("{} {}", numbers.join(" "), &prompt[6..])
        };
        task.prompts(part).into_iter().map(sort).collect()
    };
    assert!(sorted(PromptSet::Train).is_disjoint(&sorted(PromptSet::HeldOut)));
}

#[test]
fn a_training_prompt_is_a_function_of_seed_and_number() {
    for task in built_in() {
        let prompts = |seed| (0..50).map(|n| task.training_prompt(seed, n).unwrap()).collect::<Vec<_>>();
        assert_eq!(prompts(1), prompts(1));
        assert_ne!(prompts(1), prompts(2));
        assert!(prompts(1).iter().collect::<HashSet<_>>().len() > 45, "{}", task.name());
        assert!(prompts(1).iter().all(|p| p.is_ascii() && p.len() < 24), "{}", task.name());
    }
}

#[test]
fn a_built_in_task_accepts_its_answers_and_nothing_else() {
    for task in built_in() {
        let name = task.name();
        for prompt in
            task.prompts(PromptSet::HeldOut).into_iter().chain(task.prompts(PromptSet::Train)).step_by(97)
        {
            let answer = task.answer(&prompt).unwrap();
            assert!(task.check(&prompt, &answer), "{prompt}{answer}");
            assert!(task.check(&prompt, &format!(" {answer}\nmore")), "{prompt}{answer}");
            let wrong = [
                String::new(),
                format!("{answer}{answer}"),
                format!("{answer} {answer}"),
                format!("{prompt}{answer}"),
                format!("x{answer}"),
                format!("{answer}\u{301}"),
                answer[1..].to_string(),
                format!("\"{answer}\""),
                "\u{0}".into(),
            ];
            for wrong in wrong {
                assert!(!task.check(&prompt, &wrong), "{name}: {prompt}{wrong:?}");
            }
            assert!(!task.check(&format!("{prompt} "), &answer) && !task.check("", &answer), "{name}");
        }
    }
}

#[test]
fn the_answers_of_the_small_tasks_are_known() {
    for (name, prompt, answer) in [
        ("sorting", "sort 31425=", "12345"),
        ("sorting", "sort 90099=", "00999"),
        ("reversing", "reverse abcd=", "dcba"),
        ("counting", "count ababcccaa=", "423"),
        ("counting", "count bbbbbbbbb=", "090"),
        ("countdown", "3 7 5 22=", "3*5+7"),
        ("countdown", "1 1 8 10=", "1+1+8"),
    ] {
        assert_eq!(by_name(name).unwrap().answer(prompt).as_deref(), Some(answer));
    }
    for (name, prompt) in [
        ("sorting", "sort 3142="),
        ("sorting", "sort 3142é="),
        ("sorting", "sort 31425"),
        ("reversing", "reverse abck="),
        ("reversing", "reverse abcé="),
        ("counting", "count dbabcccaa="),
        ("counting", "count ababccca="),
        ("counting", "count  babcccaa="),
        ("countdown", "3 7 5 9="),
        ("countdown", "0 7 5 12="),
        ("countdown", "3 7 5 22 ="),
        ("countdown", "3  7 5 22="),
        ("countdown", "+3 7 5 22="),
        ("countdown", "1 1 1 99="),
    ] {
        assert_eq!(by_name(name).unwrap().answer(prompt), None, "{prompt}");
    }
}

#[test]
fn countdown_accepts_every_correct_formula() {
    let task = Countdown::default();
    let every_order = ["3*5+7", "5*3+7", "7+3*5", "7+5*3"];
    for right in every_order.into_iter().chain(["(3*5)+7", "((7))+(5*3)", " 7 + 3 * 5 ", "7+5*3\n3+3"]) {
        assert!(task.check("3 7 5 22=", right), "{right}");
    }
    for right in ["6/2*4", "4/2*6", "6/(2/4)", "6*4/2", "(6*4)/2"] {
        assert!(task.check("2 4 6 12=", right), "{right}");
    }
    assert!(task.check("8 3 3 72=", "8*3*3"));
    for wrong in [
        "22",
        "3+7+5",
        "3*7+5",
        "15+7",
        "3*5+7+0",
        "3*5+7=22",
        "3*5",
        "3*5+7*1",
        "35-7-5",
        "3*5+7;",
        "3*5+07-0",
        "x",
        "7-(-3*5)",
        "5/(1/3)+7",
        "=3*5+7",
        "7+3*5)",
        "7+(3*5",
    ] {
        assert!(!task.check("3 7 5 22=", wrong), "{wrong}");
    }
}

#[test]
fn hostile_completions_are_wrong() {
    let hostile = [
        "(".repeat(1 << 20),
        "(".repeat(60) + &")".repeat(60),
        "9".repeat(1 << 20),
        "1/0".into(),
        "3/(5-5)+7".into(),
        "999999*999999*999999*999999".into(),
        " ".repeat(1 << 20),
        "\n".repeat(1 << 20),
        "🦀".repeat(1 << 18),
        "\u{0}\u{fffd}\u{202e}".into(),
        "3*5+7".repeat(1 << 17),
        format!("{}3*5+7{}", "(".repeat(100), ")".repeat(100)),
    ];
    let start = std::time::Instant::now();
    for task in built_in() {
        let prompt = task.training_prompt(0, 0).unwrap();
        for completion in &hostile {
            let start: String = completion.chars().take(20).collect();
            assert!(!task.check(&prompt, completion), "{}: {prompt}{start:?}", task.name());
        }
    }
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}

#[test]
fn a_task_corpus_has_the_requested_share_of_wrong_answers() {
    for task in built_in() {
        let prompts: HashSet<String> = task.prompts(PromptSet::Train).into_iter().collect();
        for wrong in [0.0, 0.3, 0.75, 1.0] {
            let corpus = TaskCorpus::new(&*task, 5, wrong).unwrap();
            let (mut count, mut mistakes, mut may_be_mistakes) = (0, 0, 0);
            for n in 0..4000 {
                let document = corpus.sample(n);
                let correct = task.check(&document.prompt, &document.answer);
                assert_eq!(correct, document.correct, "{document:?}");
                assert!(prompts.contains(&document.prompt), "{document:?}");
                let right = task.answer(&document.prompt).unwrap();
                assert_eq!(document.answer.len(), right.len(), "{document:?}");
                assert_eq!(corpus.document(n), document.prompt.clone() + &document.answer);
                count += usize::from(!correct);
                let mistake = task.typical_mistake(&document.prompt);
                if let Some(mistake) = mistake.filter(|m| !correct && !task.check(&document.prompt, m)) {
                    may_be_mistakes += 1;
                    mistakes += usize::from(document.answer == mistake);
                }
            }
            let share = count as f64 / 4000.0;
            assert!(
                (share - wrong).abs() < 0.03 && (share == wrong || wrong % 1.0 > 0.0),
                "{wrong}: {share}"
            );
            // half of them, and those of the other kinds that equal it by chance
            let share = mistakes as f64 / f64::from(may_be_mistakes.max(1));
            assert!(may_be_mistakes == 0 || (0.44..0.62).contains(&share), "{}: {share}", task.name());
        }
    }
}

#[test]
fn a_document_of_a_task_corpus_is_a_function_of_seed_and_number() {
    let task = Countdown::default();
    let corpus = |seed, wrong| TaskCorpus::new(&task, seed, wrong).unwrap();
    let all: Vec<String> = corpus(1, 0.5).documents().take(100).collect();
    assert_eq!(corpus(1, 0.5).document(57), all[57]);
    assert_ne!(corpus(2, 0.5).documents().take(100).collect::<Vec<_>>(), all);
    // the share does not change the prompts
    assert!((0..100).all(|n| corpus(1, 0.9).sample(n).prompt == corpus(1, 0.0).sample(n).prompt));
}

#[test]
fn task_corpus_tokens_are_complete_documents_with_separators() {
    let task = Sums::default();
    let corpus = TaskCorpus::new(&task, 5, 0.5).unwrap();
    let tokens = corpus.tokens(&Tokenizer::byte(), 1000).unwrap();
    assert!((1000..1020).contains(&tokens.len()));
    let text = Tokenizer::byte().decode(&tokens.ids(0..tokens.len()).unwrap());
    let documents: Vec<&str> = text.strip_suffix("<|endoftext|>").unwrap().split("<|endoftext|>").collect();
    assert_eq!(documents, corpus.documents().take(documents.len()).collect::<Vec<_>>());
}

#[test]
fn a_task_corpus_refuses_a_share_outside_0_to_1_and_a_task_without_training_prompts() {
    let task = Sums::default();
    for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(TaskCorpus::new(&task, 0, wrong).is_err(), "{wrong}");
    }
    let file = opened("eval.jsonl", "{\"prompt\": \"a\", \"answer\": \"1\"}").unwrap();
    let error = TaskCorpus::new(&file, 0, 0.0).unwrap_err().to_string();
    assert!(error.contains("a task with training prompts"), "{error}");
}
