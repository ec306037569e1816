//! The built-in tasks: prompts, answers, mistakes, verdicts, generated text.
use xtrain::model::tasks::{Corpus, Mix, NAMES, PromptSet, Task, TaskCorpus, by_name, exact_match};

use crate::{Record, row};

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    for name in NAMES {
        let task = by_name(name).unwrap();
        prompts(&mut out, &*task);
        verdicts(&mut out, &*task);
        text(&mut out, &*task);
    }
    out.section("documents of the quickstart");
    for (seed, sums, sentences) in [(0, 4, 1), (0, 0, 1), (1, 1, 0), (2, 1, 1)] {
        let corpus = Corpus::new(seed, Mix { sums, sentences }).unwrap();
        for document in corpus.documents().take(5) {
            out.line(row(format!("{seed} {sums}:{sentences}"), 6, document));
        }
    }
    out.line(Corpus::new(0, Mix { sums: 0, sentences: 0 }).unwrap_err().to_string());
    matches(&mut out);
    out
}

fn prompts(out: &mut Record, task: &dyn Task) {
    for part in [PromptSet::Train, PromptSet::HeldOut] {
        let all = task.prompts(part);
        out.section(format!("{}, {part:?}: {} prompts", task.name(), all.len()));
        for prompt in all.iter().take(3).chain(all.iter().rev().take(2)) {
            let (answer, mistake) = (task.answer(prompt), task.typical_mistake(prompt));
            out.line(row(prompt, 30, format!("{answer:?} {mistake:?}")));
        }
    }
}

/// Verdicts on variants of the answer to a held-out prompt.
fn verdicts(out: &mut Record, task: &dyn Task) {
    let prompts = task.prompts(PromptSet::HeldOut);
    let prompt = &prompts[prompts.len() / 2];
    let answer = task.answer(prompt).unwrap();
    out.section(format!("{}: {prompt:?} is {answer:?}", task.name()));
    let shorter = &answer[..answer.len() - 1];
    for completion in [
        answer.clone(),
        format!("  {answer}\n\nmore"),
        format!("\n{answer}"),
        format!("{answer} more"),
        format!("{answer}{answer}"),
        format!("x\n{answer}"),
        shorter.into(),
        String::new(),
    ] {
        out.line(row(format!("{completion:?}"), 40, task.check(prompt, &completion).to_string()));
    }
    for other in ["", "1+1", "sort ", "nonsense="] {
        out.line(row(format!("prompt {other:?}"), 40, format!("{:?}", task.answer(other))));
    }
    let substitutes = ['0', 'a', '+', ' '].map(|c| task.substitutes(c));
    out.line(row("substitutes of 0, a, + and a space", 40, format!("{substitutes:?}")));
}

fn text(out: &mut Record, task: &dyn Task) {
    out.section(format!("{}: training prompts and documents", task.name()));
    for (seed, n) in [(0, 0), (0, 1), (1, 0), (u64::MAX, 5)] {
        out.line(row(
            format!("prompt {n} of seed {seed}"),
            32,
            format!("{:?}", task.training_prompt(seed, n)),
        ));
    }
    for wrong in [0.0, 0.5, 1.0] {
        let corpus = TaskCorpus::new(task, 3, wrong).unwrap();
        for n in 0..4 {
            let document = corpus.sample(n);
            let verdict = task.check(&document.prompt, &document.answer);
            assert_eq!(verdict, document.correct, "{document:?}");
            let text = format!("{} {}", document.prompt + &document.answer, document.correct);
            out.line(row(format!("document {n}, {wrong} wrong"), 32, text));
        }
    }
    out.line(TaskCorpus::new(task, 0, 1.5).unwrap_err().to_string());
}

fn matches(out: &mut Record) {
    out.section("exact matches");
    for (answer, completion) in [
        ("a", "a"),
        (" a\n", "a"),
        ("a", " a \nb"),
        ("a", "\n\na"),
        ("a\nb", "a\nb\n"),
        ("a\nb", "a\nb\nc"),
        ("", ""),
    ] {
        out.line(row(format!("{answer:?} {completion:?}"), 24, exact_match(answer, completion).to_string()));
    }
}
