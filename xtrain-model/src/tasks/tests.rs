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
    let path = std::env::temp_dir().join(format!("xtrain-task-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let task = FileTask::open(&path);
    std::fs::remove_file(path).unwrap();
    task
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
fn a_bad_task_file_is_refused_by_line() {
    for (name, text, want) in [
        ("empty.jsonl", "", "found the end of the file"),
        ("half.jsonl", "{\"prompt\": \"a\"}", "line 1: expected \"prompt\" and \"answer\""),
        ("both.jsonl", "{\"prompt\":\"a\",\"answer\":\"b\",\"completion\":\"c\"}", "line 1"),
        ("type.jsonl", "{\"prompt\":\"a\",\"answer\":5}", "\"answer\": a number"),
        (
            "twice.jsonl",
            "{\"prompt\":\"a\",\"answer\":\"1\"}\n{\"prompt\":\"a\",\"answer\":\"2\"}",
            "line 2: expected one",
        ),
    ] {
        let error = opened(name, text).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(want), "{error}");
    }
}
