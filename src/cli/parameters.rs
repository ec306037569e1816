//! The parameters of a completion besides weights, prompt and constraint: flags, or fields of the prompt's line.
use clap::Args;
use serde_json::{Map, Value};

use super::common::{
    Sampling, StopFlag, at_least_one, at_least_zero, penalty, share, share_or_zero, temperature, token_id,
    whole,
};
use crate::decode::{Request, StopConditions};
use crate::tensor::faults::{self, Fault};

/// Flags that the line of a prompt may replace.
#[derive(Debug, Clone, PartialEq, Args)]
pub(super) struct Parameters {
    /// Maximum number of new tokens. A completion also ends when the model's context is full, except with --kv sinks.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub(super) max_new: usize,
    /// Continue after end-of-text tokens.
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// Random seed, 0 to 2^64 - 1.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole)]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) sampling: Sampling,
    #[command(flatten)]
    pub(super) stop: StopFlag,
    /// End the completion after one of these tokens, for example 198,271. The token is part of the ids and of the text.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id, help_heading = "Sampling")]
    pub(super) stop_token_ids: Vec<u32>,
    /// Also write the N most probable tokens at the position of each new token (all tokens if there are fewer), with their
    /// log-probabilities before temperature and filters.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = at_least_zero)]
    pub(super) top_logprobs: usize,
}

/// A field with a value that its flag does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InvalidField {
    pub(super) name: &'static str,
    /// What the field must be, as `expected ...`.
    pub(super) want: String,
    pub(super) found: String,
}

impl Parameters {
    /// The request for the completion `id` of `prompt`, without a constraint. `eos`: the end-of-text tokens of the
    /// model.
    pub(super) fn request(&self, eos: &[u32], id: u64, prompt: Vec<u32>) -> Request {
        let eos = if self.ignore_eos { Vec::new() } else { eos.to_vec() };
        Request {
            id,
            seed: self.seed,
            prompt,
            options: self.sampling.options(),
            max_new: self.max_new,
            stop: StopConditions { eos, tokens: self.stop_token_ids.clone() },
            constraint: None,
            top_logprobs: self.top_logprobs,
        }
    }

    /// These parameters with the values of a prompt's line, whose fields are removed from `line`. A field that is null has no
    /// value.
    ///
    /// # Errors
    /// A value that the flag of the same name does not accept.
    pub(super) fn of_line(&self, line: &mut Map<String, Value>) -> Result<Parameters, InvalidField> {
        let mut of_line = self.clone();
        let Parameters { max_new, ignore_eos, seed, sampling, stop, stop_token_ids, top_logprobs } =
            &mut of_line;
        let mut fields = Fields(line);
        fields.number("max_new", at_least_one, max_new)?;
        fields.number("seed", whole, seed)?;
        fields.number("temperature", temperature, &mut sampling.temperature)?;
        fields.number("top_k", at_least_zero, &mut sampling.top_k)?;
        fields.number("top_p", share, &mut sampling.top_p)?;
        fields.number("min_p", share_or_zero, &mut sampling.min_p)?;
        fields.number("repetition_penalty", penalty, &mut sampling.repetition_penalty)?;
        fields.number("top_logprobs", at_least_zero, top_logprobs)?;
        fields.value("ignore_eos", "expected true or false", Value::as_bool, ignore_eos)?;
        let texts = "expected a list of texts of at least one character";
        fields.value(
            "stop",
            texts,
            |value| list(value, |text| Some(text.as_str()?.to_string()).filter(|text| !text.is_empty())),
            &mut stop.stop,
        )?;
        let ids = "expected a list of token ids";
        fields.value(
            "stop_token_ids",
            ids,
            |value| list(value, |id| u32::try_from(id.as_u64()?).ok()),
            stop_token_ids,
        )?;
        Ok(if faults::on(Fault::ParametersOfLineIgnored) { self.clone() } else { of_line })
    }
}

/// Names of parameters in other programs, and the names here.
const OTHER_NAMES: [(&str, &str); 7] = [
    ("max_tokens", "max_new"),
    ("max_new_tokens", "max_new"),
    ("max_completion_tokens", "max_new"),
    ("n_predict", "max_new"),
    ("temp", "temperature"),
    ("repeat_penalty", "repetition_penalty"),
    ("stop_sequences", "stop"),
];

impl Parameters {
    /// The parameter that a field with the name `name` probably means.
    pub(super) fn nearly(name: &str) -> Option<&'static str> {
        const NAMES: [&str; 13] = [
            "max_new",
            "seed",
            "ignore_eos",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "stop",
            "stop_token_ids",
            "top_logprobs",
            "regex",
            "json_schema",
        ];
        let plain = name.to_lowercase().replace('-', "_");
        let other = OTHER_NAMES.iter().find(|(other, _)| *other == plain).map(|(_, own)| *own);
        let is_near = |own: &&str| plain == *own || own.len() > 6 && strsim::osa_distance(&plain, own) == 1;
        other.or_else(|| NAMES.into_iter().find(is_near))
    }
}

/// All elements of a list. `None`: it is no list, or `element` rejects one of them.
fn list<T>(value: &Value, element: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(element).collect()
}

/// The fields of a prompt's line.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    /// Sets `to` to the number of a field, if the line has it. `parse` is the parser of the flag.
    fn number<T>(
        &mut self,
        name: &'static str,
        parse: fn(&str) -> Result<T, String>,
        to: &mut T,
    ) -> Result<(), InvalidField> {
        match self.take(name) {
            None => Ok(()),
            Some(value) => {
                let found = value.to_string();
                *to = parse(&found).map_err(|want| InvalidField { name, want, found })?;
                Ok(())
            }
        }
    }

    /// Sets `to` to the value of a field, if the line has it.
    fn value<T>(
        &mut self,
        name: &'static str,
        want: &str,
        read: impl Fn(&Value) -> Option<T>,
        to: &mut T,
    ) -> Result<(), InvalidField> {
        match self.take(name) {
            None => Ok(()),
            Some(value) => {
                let invalid = || InvalidField { name, want: want.to_string(), found: value.to_string() };
                *to = read(&value).ok_or_else(invalid)?;
                Ok(())
            }
        }
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flags() -> Parameters {
        let sampling =
            Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 };
        let stop = StopFlag { stop: vec!["a".into()] };
        Parameters {
            max_new: 128,
            ignore_eos: false,
            seed: 3,
            sampling,
            stop,
            stop_token_ids: vec![1],
            top_logprobs: 2,
        }
    }

    fn read(line: Value) -> Result<(Parameters, Map<String, Value>), InvalidField> {
        let Value::Object(mut line) = line else { panic!("{line}") };
        Ok((flags().of_line(&mut line)?, line))
    }

    #[test]
    fn fields_of_a_line_replace_flags_and_others_stay() {
        let line = json!({"id": 7, "max_new": 9, "seed": u64::MAX, "temperature": 0.25, "top_k": 5, "top_p": 0.5, "min_p": 0.125,
            "repetition_penalty": 1.5, "ignore_eos": true, "stop": ["b", "c"], "stop_token_ids": [4, 5], "top_logprobs": 6});
        let names: Vec<String> =
            line.as_object().unwrap().keys().filter(|name| *name != "id").cloned().collect();
        let (of_line, rest) = read(line).unwrap();
        let sampling =
            Sampling { temperature: 0.25, top_k: 5, top_p: 0.5, min_p: 0.125, repetition_penalty: 1.5 };
        let (stop, stop_token_ids) = (StopFlag { stop: vec!["b".into(), "c".into()] }, vec![4, 5]);
        for name in names {
            assert_eq!(Parameters::nearly(&name.to_uppercase()), Some(&*name));
        }
        assert_eq!(
            of_line,
            Parameters {
                max_new: 9,
                ignore_eos: true,
                seed: u64::MAX,
                sampling,
                stop,
                stop_token_ids,
                top_logprobs: 6
            }
        );
        assert_eq!(Value::from(rest), json!({"id": 7}));
        let (unchanged, rest) = read(json!({"max_new": null, "stop": null, "a": null})).unwrap();
        assert_eq!((unchanged, Value::from(rest)), (flags(), json!({"a": null})));
        assert_eq!(read(json!({"stop": []})).unwrap().0.stop.stop, Vec::<String>::new());
    }

    #[test]
    fn names_that_are_nearly_those_of_parameters_are_known() {
        for (name, want) in [
            ("Temperature", Some("temperature")),
            ("temperatur", Some("temperature")),
            ("top-k", Some("top_k")),
            ("max_tokens", Some("max_new")),
            ("step", None),
            ("topic", None),
            ("id", None),
        ] {
            assert_eq!(Parameters::nearly(name), want, "{name}");
        }
    }

    #[test]
    fn values_that_a_flag_refuses_are_refused() {
        for (name, value) in [
            ("max_new", json!(0)),
            ("max_new", json!(1.5)),
            ("max_new", json!("7")),
            ("seed", json!(-1)),
            ("temperature", json!(-1)),
            ("temperature", json!(1e-40)),
            ("top_k", json!(-1)),
            ("top_logprobs", json!(-1)),
            ("top_p", json!(0)),
            ("min_p", json!(2)),
            ("repetition_penalty", json!(0)),
            ("ignore_eos", json!(1)),
            ("stop", json!("a")),
            ("stop", json!(["a", ""])),
            ("stop_token_ids", json!([-1])),
            ("stop_token_ids", json!([4294967296u64])),
            ("stop_token_ids", json!([1.0])),
        ] {
            let invalid = read(json!({ name: value })).unwrap_err();
            assert_eq!((invalid.name, invalid.found), (name, value.to_string()));
            assert!(invalid.want.starts_with("expected "), "{}", invalid.want);
        }
    }
}
