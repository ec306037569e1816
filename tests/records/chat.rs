//! Conversations rendered with the built-in template and with those of `tests/data/tokenizers`, and the parts that an
//! assistant said.
use std::path::Path;

use xtrain::model::chat::{ChatError, ChatTemplate, Json, Message, Options};
use xtrain::model::tokenizer::Tokenizer;

use crate::Record;

const CONVERSATIONS: [&str; 7] = [
    r#"[{"role": "user", "content": "Hi"}]"#,
    r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]"#,
    r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "b"}]"#,
    r#"[{"role": "assistant", "content": " first \n"}, {"role": "assistant", "content": ""}]"#,
    r#"[{"role": "tool", "content": "{\"x\": 1}"}, {"role": "user", "content": "\u00e9<b>&\"'"}]"#,
    r#"[{"role": "user", "content": ["part"]}]"#,
    r#"[{"role": "user"}]"#,
];

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    one(&mut out, "built-in", &Tokenizer::byte());
    for name in ["qwen_bpe", "llama3_bpe"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers").join(name);
        one(&mut out, name, &Tokenizer::load(&path.join("tokenizer.json")).unwrap());
    }
    out.section("refused messages");
    for text in ["[]", "{}", "[1]", r#"[{"content": "a"}]"#, r#"[{"role": 1}]"#] {
        out.line(format!("{text}  {}", Message::list(&Json::parse(text).unwrap()).unwrap_err()));
    }
    out
}

fn one(out: &mut Record, name: &str, tokenizer: &Tokenizer) {
    let options = Options::of(tokenizer);
    let template = ChatTemplate::of(tokenizer, None, &options).unwrap();
    for (number, conversation) in CONVERSATIONS.iter().enumerate() {
        out.section(format!("{name}, conversation {number}: text, with a generation prompt, assistant"));
        let messages = Message::list(&Json::parse(conversation).unwrap()).unwrap();
        for add_generation_prompt in [false, true] {
            let options = Options { add_generation_prompt, ..options.clone() };
            match template.render(&messages, &options) {
                Ok(rendered) => out.line(format!("{:?}", rendered.text)),
                Err(error) => out.line(without_directory(&error)),
            }
        }
        match template.assistant(&messages, &options) {
            Ok(found) => out.line(format!("{found:?}")),
            Err(error) => out.line(without_directory(&error)),
        }
    }
}

/// The message without the directory of this repository.
fn without_directory(error: &ChatError) -> String {
    error.to_string().replace(concat!(env!("CARGO_MANIFEST_DIR"), "/"), "")
}
