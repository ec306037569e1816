//! Conversations as tokens with supervised assistant turns.
use super::*;

#[test]
fn conversations_are_held_out_whole() {
    let ends = [4, 9, 11, 20, 21];
    let of = |share| Split::of_documents(&ends, share).map(|s| (s.train, s.validation));
    assert_eq!(of(0.1).unwrap(), (0..20, 20..21));
    assert_eq!(of(0.5).unwrap(), (0..9, 9..21));
    assert_eq!(of(0.0).unwrap(), (0..21, 21..21));
    assert_eq!(Split::of_documents(&[], 0.5).unwrap().train, 0..0);
    assert!(of(1.0).is_err());
}

/// The byte tokenizer with another chat template, or with a list of named ones.
fn with_template(template: impl Into<serde_json::Value>) -> Tokenizer {
    let config = serde_json::json!({ "eos_token": "<|endoftext|>", "chat_template": template.into() });
    let json = Tokenizer::byte().files()[0].1.to_vec();
    Tokenizer::from_parts(json, Some(config.to_string().into_bytes()), Path::new("tokenizer.json")).unwrap()
}

/// The tokens of a file as text, with `.` for the end-of-text token. Targets are in capitals and `!`.
fn shown(file: &TokenFile) -> String {
    let tokens = 0..file.count();
    let (ids, mask) = (file.ids(tokens.clone()).unwrap(), file.target_mask(tokens).unwrap());
    let shown = |(id, is_target): (u32, bool)| match (id, is_target) {
        (256, false) => '.',
        (256, true) => '!',
        (id, false) => id as u8 as char,
        (id, true) => (id as u8 as char).to_ascii_uppercase(),
    };
    ids.into_iter().zip(mask).map(shown).collect()
}

/// A conversation in two parts with this template. The prompt has an answer, too.
fn two_parts(template: &str) -> String {
    let dir = Scratch::new();
    let row = r#"{"prompt":[{"role":"user","content":"2"},{"role":"assistant","content":"ab"},"#.to_string()
        + r#"{"role":"user","content":"3"}],"completion":[{"role":"assistant","content":"c"},"#
        + r#"{"role":"user","content":"4"},{"role":"assistant","content":"d"}]}"#;
    let path = dir.file("in.jsonl", row);
    shown(&prepared(&dir, &[path], &with_template(template)).unwrap())
}

/// With blocks that mark the targets, and with turns. The second one omits earlier answers from the text of the prompt,
/// which therefore cannot be a target.
const TEMPLATES: [(&str, &str); 3] = [
    (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}\
         {% else %}{{ m.content }}{% endif %}{{ eos_token }}{% endfor %}{{ messages | length }}",
        "2.ab.3.C!4.D!6",
    ),
    (
        "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ eos_token }}{% endfor %}",
        "u2.aab.u3.AC!u4.AD!",
    ),
    (
        "{% for m in messages %}{% if m.role != 'assistant' or loop.index > 3 or messages | length < 3 %}\
         {{ m.content }}{% endif %}{% endfor %}",
        "23C4D!",
    ),
];

#[test]
fn the_targets_of_a_conversation_in_two_parts_are_in_the_completion() {
    for (template, want) in TEMPLATES {
        assert_eq!(two_parts(template), want, "{template}");
    }
}

#[test]
#[cfg(feature = "faults")]
fn answers_of_a_prompt_that_are_trained_are_found() {
    use xtrain_tensor::faults::{self, Fault};

    let found = faults::with(Fault::AnswersOfPromptTrained, || two_parts(TEMPLATES[0].0));
    assert_eq!(found, "2.AB!3.C!4.D!6");
}

/// A conversation with an answer of weight 0 and one of weight 1, and the line of an answer of weight 0 at the end.
fn weighted(template: &str) -> String {
    let dir = Scratch::new();
    let row = r#"{"messages":[{"role":"user","content":"2"},{"role":"assistant","content":"ab","weight":0},"#
        .to_string()
        + r#"{"role":"user","content":"3"},{"role":"assistant","content":"c","weight":1}]}"#;
    let last = row.replace("weight\":0", "weight\":1.0").replace("\"weight\":1}", "\"weight\":0}");
    let path = dir.file("in.jsonl", format!("{row}\n{last}\n"));
    shown(&prepared(&dir, &[path], &with_template(template)).unwrap())
}

#[test]
fn answers_of_weight_0_are_no_targets() {
    let wanted = ["2.ab.3.C!42.AB!3.c.4", "u2.aab.u3.AC!u2.AAB!u3.ac."];
    for ((template, _), want) in TEMPLATES.iter().zip(wanted) {
        assert_eq!(weighted(template), want, "{template}");
    }
    #[cfg(feature = "faults")]
    {
        use xtrain_tensor::faults::{self, Fault};
        let found = faults::with(Fault::WeightsOfTurnsIgnored, || weighted(TEMPLATES[1].0));
        assert_eq!(found, "u2.AAB!u3.AC!u2.AAB!u3.AC!");
    }
}

/// The targets of an answer of weight 0, a question and an answer, if only the last message has a block, or if one block
/// has all messages.
#[test]
fn a_turn_of_weight_0_whose_blocks_move_is_refused() {
    let last = "{% for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}\
                {% endif %}{% endfor %}";
    let shared = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}";
    for template in [last, shared] {
        let targets = || {
            let dir = Scratch::new();
            let row = r#"{"messages":[{"role":"assistant","content":"ab","weight":0},"#.to_string()
                + r#"{"role":"user","content":"c"},{"role":"assistant","content":"d"}]}"#;
            let path = dir.file("in.jsonl", row);
            prepared(&dir, &[path], &with_template(template)).map(|file| shown(&file))
        };
        let error = targets().unwrap_err().to_string();
        let want = ":1: expected messages that the tokenizer's chat template accepts";
        assert!(error.contains(want), "{template}: {error}");
        #[cfg(feature = "faults")]
        {
            use xtrain_tensor::faults::{self, Fault};
            let found = faults::with(Fault::BlocksOfTurnsCounted, targets).map_err(|error| error.to_string());
            assert!(!found.is_err_and(|error| error.contains(want)), "{template}");
        }
    }
}

#[test]
fn tools_may_be_text() {
    let tokens = |tools: &str| {
        let dir = Scratch::new();
        let row = r#"{"messages":[{"role":"assistant","content":"b"}],"tools":"#;
        let path = dir.file("in.jsonl", format!("{row}{tools}}}\n"));
        let template =
            "{% if tools %}{{ tools[0].name }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
        prepared(&dir, &[path], &with_template(template)).map(|file| shown(&file))
    };
    for (tools, want) in [
        (r#"[{"name": "f"}]"#, "fB!"),
        (r#""[{\"name\": \"f\"}]""#, "fB!"),
        (r#""""#, "B!"),
        (r#""null""#, "B!"),
        ("null", "B!"),
    ] {
        assert_eq!(tokens(tools).unwrap(), want, "{tools}");
    }
    for (tools, got) in [(r#""f""#, "a string that is not JSON"), (r#""{}""#, "a string with an object")] {
        let error = tokens(tools).unwrap_err().to_string();
        let want =
            format!(r#":1: expected "tools" as a list, or as a string with the JSON of one, found {got}"#);
        assert!(error.ends_with(&want), "{error}");
    }
    #[cfg(feature = "faults")]
    {
        use xtrain_tensor::faults::{self, Fault};
        let found = faults::with(Fault::ToolsStayText, || tokens(r#""[{\"name\": \"f\"}]""#));
        assert_ne!(found.ok().as_deref(), Some("fB!"));
    }
}

#[test]
fn the_targets_are_assistant_turns_with_the_token_that_ends_them() {
    let dir = Scratch::new();
    let row = r#"{"messages":[{"role":"user","content":"2"},{"role":"assistant","content":"ab"},"#
        .to_string()
        + r#"{"role":"user","content":"3"},{"role":"assistant","content":"c"}]}"#;
    let path = dir.file("in.jsonl", format!("{row}\n{{\"prompt\":\"p\",\"completion\":\"q\"}}\n"));
    let turns = |body: &str| format!("{{% for m in messages %}}{body}{{% endfor %}}");
    let generation =
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}";
    // `.` and `!` are the end-of-text token; capitals and `!` are targets
    for (template, want) in [
        (None, "user\n2.assistant\nAB!user\n3.assistant\nC!"),
        (Some(turns("{{ m.role[0] }}{{ m.content }}{{ eos_token }}")), "u2.AAB!u3.AC!"),
        (
            Some(turns(&format!("{generation}{{{{ m.content }}}}{{% endif %}}{{{{ eos_token }}}}"))),
            "2.AB!3.C!",
        ),
        (
            Some(turns(&format!("{generation}{{{{ m.content }}}}{{% endif %}}{{{{ eos_token * 2 }}}}"))),
            "2..AB!.3..C!.",
        ),
        (Some(turns("{{ m.content }}")), "2AB3C!"),
        (Some(turns("{{ m.content }}{% if m.role == 'user' %}{{ eos_token }}{% endif %}")), "2.AB3.C!"),
        (Some(turns(&format!("{generation}{{{{ m.content }}}}{{% endif %}};"))), "2;AB;3;C;!"),
    ] {
        let tokenizer = template.map_or_else(Tokenizer::byte, with_template);
        let file = prepared(&dir, std::slice::from_ref(&path), &tokenizer).unwrap();
        assert_eq!(shown(&file), format!("{want}pQ!"));
        assert_eq!(file.ends().unwrap(), [want.len() as u64, file.count()], "{want}");
        let memory = Tokens::from_files(std::slice::from_ref(&path), &tokenizer, Content::Conversations);
        assert_eq!(
            memory.unwrap().target_mask(0..file.count()).unwrap(),
            file.target_mask(0..file.count()).unwrap()
        );
    }
}

#[test]
#[cfg(feature = "faults")]
fn targets_after_the_end_of_a_turn_are_found() {
    use xtrain_tensor::faults::{self, Fault};
    use xtrain_tensor::testing::failure;

    let test = the_targets_are_assistant_turns_with_the_token_that_ends_them;
    let found = faults::with(Fault::RepeatedEndTokensTrained, || failure(test)).unwrap();
    assert!(found.contains("2..AB!!3..C!!pQ!"), "{found}");
}

#[test]
fn a_conversation_with_tools_has_the_template_for_tools() {
    let dir = Scratch::new();
    let named = [("default", "-"), ("tool_use", "{{ tools[0] }}")].map(|(name, before)| {
        let template = format!("{before}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}");
        serde_json::json!({ "name": name, "template": template })
    });
    let tokenizer = with_template(named.to_vec());
    let row = r#"{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]"#;
    let path =
        dir.file("in.jsonl", format!("{row}}}\n{row},\"tools\":[1]}}\n{row}}}\n{row},\"tools\":[2]}}\n"));
    let file = prepared(&dir, &[path], &tokenizer).unwrap();
    let text = tokenizer.decode(&file.ids(0..file.count()).unwrap());
    assert_eq!(text.split("<|endoftext|>").collect::<Vec<_>>(), ["-ua", "1ua", "-ua", "2ua", ""]);
}

#[test]
fn a_third_party_chat_template_ends_a_turn_with_its_own_token() {
    let (dir, tokenizer) = (Scratch::new(), fixture_tokenizer());
    let row = r#"{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]}"#;
    let file = prepared(&dir, &[dir.file("in.jsonl", row)], &tokenizer).unwrap();
    let (ids, mask) = (file.ids(0..file.count()).unwrap(), file.target_mask(0..file.count()).unwrap());
    let targets: Vec<u32> = ids.iter().zip(&mask).filter(|(_, target)| **target).map(|(&id, _)| id).collect();
    assert_eq!(tokenizer.decode(&targets), "Hello<|im_end|>\n");
    assert_eq!(file.ends().unwrap(), [file.count()]);
    assert!(tokenizer.decode(&ids).ends_with("<|im_start|>assistant\nHello<|im_end|>\n"), "{ids:?}");
}

#[test]
fn records_without_an_answer_are_not_conversations() {
    let dir = Scratch::new();
    let check = |name: &str, bytes: &str, want: &str| {
        let path = dir.file(name, bytes);
        let error = Tokens::from_files(&[path], &Tokenizer::byte(), Content::Conversations).unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
    };
    check("a.txt", "text", "a.txt: kind of data: expected JSONL with \"messages\", or");
    let rows = "{\"prompt\":\"\",\"completion\":\"a\"}\n{\"text\":\"a\"}";
    check(
        "b.jsonl",
        rows,
        "b.jsonl:2: expected \"messages\", or \"prompt\" and \"completion\", found \"text\"",
    );
}
