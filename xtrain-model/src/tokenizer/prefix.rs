//! The space that a tokenizer adds to the beginning of a text, and pipelines without it.
use serde_json::{Value, json};

/// The normalizer and the pre-tokenizer of a `tokenizer.json` without the steps that add a space to the beginning of a
/// text. `None`: they have no such step.
pub(super) fn removed(normalizer: &Value, pre_tokenizer: &Value) -> Option<(Value, Value)> {
    let without = (without_prepend(normalizer), without_prefix(pre_tokenizer));
    (without.0 != *normalizer || without.1 != *pre_tokenizer).then_some(without)
}

fn without_prepend(normalizer: &Value) -> Value {
    match normalizer["type"].as_str() {
        Some("Prepend") => Value::Null,
        Some("Sequence") => {
            let steps = normalizer["normalizers"].as_array().into_iter().flatten();
            let steps = steps.map(without_prepend).filter(|step| !step.is_null());
            json!({"type": "Sequence", "normalizers": steps.collect::<Vec<_>>()})
        }
        _ => normalizer.clone(),
    }
}

fn without_prefix(pre_tokenizer: &Value) -> Value {
    match pre_tokenizer["type"].as_str() {
        Some("Metaspace") => {
            let mut step = pre_tokenizer.clone();
            step.as_object_mut().map(|fields| fields.remove("add_prefix_space"));
            step["prepend_scheme"] = json!("never");
            step
        }
        Some("ByteLevel") if pre_tokenizer["add_prefix_space"] == true => {
            let mut step = pre_tokenizer.clone();
            step["add_prefix_space"] = json!(false);
            step
        }
        Some("Sequence") => {
            let steps = pre_tokenizer["pretokenizers"].as_array().into_iter().flatten();
            json!({"type": "Sequence", "pretokenizers": steps.map(without_prefix).collect::<Vec<_>>()})
        }
        _ => pre_tokenizer.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_prepend_are_removed_and_others_are_kept() {
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let sequence = |steps: &[&Value]| json!({"type": "Sequence", "normalizers": steps});
        let (normalizer, _) = removed(&sequence(&[&prepend, &replace]), &Value::Null).unwrap();
        assert_eq!(normalizer, sequence(&[&replace]));
        assert_eq!(removed(&replace, &json!({"type": "ByteLevel", "add_prefix_space": false})), None);
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true});
        let never = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"});
        assert_eq!(removed(&Value::Null, &metaspace), Some((Value::Null, never.clone())));
        assert_eq!(removed(&Value::Null, &never), None);
        let byte_level =
            |space: bool| json!({"type": "ByteLevel", "add_prefix_space": space, "use_regex": true});
        assert_eq!(removed(&Value::Null, &byte_level(true)), Some((Value::Null, byte_level(false))));
    }
}
