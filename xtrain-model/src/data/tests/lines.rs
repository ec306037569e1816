//! Lines of JSONL files.
use super::jsonl::{Location, Record, records};
use super::*;

#[test]
fn only_the_first_line_may_begin_with_a_byte_order_mark() {
    let dir = Scratch::new();
    let row = "{\"text\":\"a\"}";
    let file =
        prepared(&dir, &[dir.file("in.jsonl", format!("\u{feff}{row}\n{row}"))], &Tokenizer::byte()).unwrap();
    assert_eq!(file.ids(0..file.count()).unwrap(), [97, 256, 97, 256]);
    refused("in.jsonl", format!("{row}\n\u{feff}{row}").as_bytes(), ":2: expected a JSON object");
}

#[test]
fn a_line_of_the_maximum_length_is_read_and_a_longer_one_is_refused() {
    const LIMIT: usize = 64 << 20;
    let blank = |length: usize| [&vec![b' '; length][..], b"\n[]"].concat();
    refused("longest.jsonl", &blank(LIMIT - 1), ":2: expected a JSON object, found an array");
    refused("longer.jsonl", &blank(LIMIT), ":1: expected a line of at most 64 MiB, found more");
}

#[test]
fn a_conversation_in_two_parts_has_a_list_of_messages_in_each_and_an_answer() {
    let [user, answer] =
        ["user", "assistant"].map(|role| format!("{{\"role\":\"{role}\",\"content\":\"a\"}}"));
    let check = |prompt: &str, completion: &str, want: &str| {
        let row = format!("{{\"prompt\":{prompt},\"completion\":{completion}}}");
        refused("in.jsonl", row.as_bytes(), want);
    };
    let (user, answer) = (format!("[{user}]"), format!("[{answer}]"));
    check(
        &user,
        &user,
        "expected \"completion\" with a turn of the role \"assistant\", found only the roles \"user\"",
    );
    check(
        "[]",
        &answer,
        "as [{\"role\": ..., \"content\": ...}, ...], found \"prompt\": messages: expected a list",
    );
    check(&user, "[3]", "found \"completion\": messages: expected");
    check(&user, "\"a\"", "both as lists of messages, found an array and a string");
    let rows = [
        (
            format!("{{\"prompt\":{user},\"chosen\":{answer}}}"),
            "both as lists of messages, found an array and nothing",
        ),
        (format!("{{\"text\":\"a\",\"prompt\":{user},\"completion\":{answer}}}"), "found the fields"),
    ];
    for (row, want) in &rows {
        refused("in.jsonl", row.as_bytes(), want);
    }
}

#[test]
fn a_pair_without_a_completion_is_a_document_that_ends_at_once() {
    let dir = Scratch::new();
    let pair = |prompt, completion| format!("{{\"prompt\":\"{prompt}\",\"completion\":\"{completion}\"}}\n");
    let path = dir.file("in.jsonl", pair("p", "") + &pair("q", "r"));
    let file = prepared(&dir, std::slice::from_ref(&path), &Tokenizer::byte()).unwrap();
    let memory = Tokens::from_files(&[path], &Tokenizer::byte(), Content::Conversations).unwrap();
    assert_eq!(file.ids(0..file.count()).unwrap(), [112, 256, 113, 114, 256]);
    assert_eq!(file.ids(0..file.count()).unwrap(), memory.ids(0..memory.len()).unwrap());
    assert_eq!([file.ends().unwrap(), memory.ends().unwrap()], [[2, 5]; 2]);
}

#[test]
fn fields_that_are_null_are_absent() {
    let dir = Scratch::new();
    let tokens = |name: &str, rows: [&str; 3]| {
        let file = prepared(&dir, &[dir.file(name, rows.join("\n"))], &Tokenizer::byte()).unwrap();
        let all = 0..file.count();
        (file.ids(all.clone()).unwrap(), file.target_mask(all).unwrap())
    };
    let messages = r#""messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
    let rows = [r#"{"text":"a"}"#, r#"{"prompt":"a","completion":"b"}"#, &format!("{{{messages}}}")];
    let nulls = [
        r#"{"text":"a","prompt":null,"completion":null,"messages":null}"#,
        r#"{"text":null,"prompt":"a","completion":"b","messages":null}"#,
        &format!(r#"{{"text":null,"prompt":null,"completion":null,{messages}}}"#),
    ];
    assert_eq!(tokens("nulls.jsonl", nulls), tokens("rows.jsonl", rows));
}

#[test]
fn tools_that_are_null_are_no_tools() {
    let dir = Scratch::new();
    let row = r#"{"messages":[{"role":"assistant","content":"a"}],"tools":"#;
    let path = dir.file("in.jsonl", format!("{row}null}}\n{row}[1]}}\n"));
    let mut seen = Vec::new();
    let each = |record, _: &Location| {
        let Record::Chat(conversation) = record else { panic!("a conversation") };
        seen.push(conversation.tools.is_some());
        Ok(())
    };
    records(&path, each).unwrap();
    assert_eq!(seen, [false, true]);
}
