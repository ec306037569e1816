//! Fields of a Hugging Face directory that no computation reads, and that a saved or exported model has again.
use serde_json::{Map, Value, json};

/// The kept ids of `config.json`.
const IDS: [&str; 2] = ["bos_token_id", "pad_token_id"];
/// The first layer with a sliding window. Without windows no program reads it.
const WINDOW_LAYERS: &str = "max_window_layers";
const EOS: &str = "eos_token_id";

/// Fields of `config.json` and `generation_config.json` that do not change any result of this library: the ids of
/// the tokens that begin and pad a text, `max_window_layers` of a model without windows, and the sampling defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeptFields {
    config: Map<String, Value>,
    generation: Map<String, Value>,
}

impl KeptFields {
    /// The kept fields of `config`, a `config.json`, and of `generation`, a `generation_config.json` or null.
    pub(crate) fn of(config: &Value, generation: &Value) -> KeptFields {
        let windows = config["use_sliding_window"] == true;
        let names = IDS.into_iter().chain((!windows).then_some(WINDOW_LAYERS));
        let numbers = names.filter(|name| config[*name].is_number());
        let config = numbers.map(|name| (name.to_string(), config[name].clone())).collect();
        let mut generation = generation.as_object().cloned().unwrap_or_default();
        generation.remove(EOS);
        KeptFields { config, generation }
    }

    /// Fields with the ids of the tokens that begin and pad a text.
    pub(crate) fn of_ids(bos: Option<usize>, pad: Option<usize>) -> KeptFields {
        let ids = IDS.into_iter().zip([bos, pad]);
        let config = ids.filter_map(|(name, id)| Some((name.to_string(), json!(id?)))).collect();
        KeptFields { config, generation: Map::new() }
    }

    /// The id of the token that begins a text. `None`: the files name none.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.config.get(IDS[0]).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok())
    }

    /// Adds the fields to a `config.json`.
    pub(crate) fn add_to(&self, config: &mut Value) {
        for (name, value) in &self.config {
            // only the families with a switch for windows have this field
            if name != WINDOW_LAYERS || config["use_sliding_window"] == false {
                config[name] = value.clone();
            }
        }
    }

    /// The `generation_config.json` with these fields and the value `eos` of `eos_token_id`.
    pub(crate) fn generation(&self, eos: Value) -> Value {
        let mut fields = self.generation.clone();
        fields.insert(EOS.into(), eos);
        Value::Object(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_sampling_defaults_are_kept_and_end_ids_are_not() {
        let config = json!({
            "bos_token_id": 1, "pad_token_id": null, "eos_token_id": 2, "use_sliding_window": false,
            "max_window_layers": 21, "hidden_size": 8,
        });
        let generation = json!({"temperature": 0.6, "do_sample": true, "eos_token_id": [2, 3]});
        let kept = KeptFields::of(&config, &generation);
        let mut written = json!({"bos_token_id": null, "use_sliding_window": false, "max_window_layers": 2});
        kept.add_to(&mut written);
        let want = json!({"bos_token_id": 1, "use_sliding_window": false, "max_window_layers": 21});
        assert_eq!(written, want);
        let want = json!({"temperature": 0.6, "do_sample": true, "eos_token_id": 2});
        assert_eq!(kept.generation(json!(2)), want);
    }

    #[test]
    fn layers_with_windows_are_those_of_the_model() {
        let windowed = json!({"use_sliding_window": true, "max_window_layers": 1});
        assert_eq!(KeptFields::of(&windowed, &Value::Null), KeptFields::default());
        let mut llama = json!({"bos_token_id": null});
        KeptFields::of(&json!({"max_window_layers": 28}), &Value::Null).add_to(&mut llama);
        assert_eq!(llama, json!({"bos_token_id": null}));
    }
}
