//! `grpo.regex` and `grpo.json_schema`.
use serde_json::Value;

use crate::cli::constraint::{read_schema, refused};
use crate::cli::exit::CliError;
use crate::config::GrpoSection;
use crate::grammar::{Grammars, Language};
use crate::grpo::constraint::RolloutConstraint;
use crate::model::tokenizer::Tokenizer;

/// What the completions have to match. `None`: any text.
///
/// # Errors
/// A schema that cannot be read; a regular expression that is malformed.
pub(super) fn language(section: &GrpoSection) -> Result<Option<Language>, CliError> {
    let language = match (&*section.regex, &*section.json_schema) {
        ("", "") => return Ok(None),
        (regex, "") => Language::Regex(regex.to_string()),
        (_, schema) => read_schema(schema, place(section))?,
    };
    language.check().map_err(|error| refused(place(section), &error))?;
    Ok(Some(language))
}

/// Checks the language, and replaces the file of a schema by its content: the run does not read the file again.
///
/// # Errors
/// As [`language`].
pub(super) fn store_schema(section: &mut GrpoSection) -> Result<(), CliError> {
    if let Some(Language::JsonSchema(schema)) = language(section)? {
        // what is stored begins with {
        section.json_schema = match schema {
            Value::Bool(true) => "{}".into(),
            Value::Bool(false) => "{\"not\":{}}".into(),
            schema => schema.to_string(),
        };
    }
    Ok(())
}

/// The constraint of the rollouts, for a model with a vocabulary of `vocab` tokens.
///
/// # Errors
/// As [`language`]; a language that cannot be compiled.
pub(super) fn compile(
    section: &GrpoSection,
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<Option<RolloutConstraint>, CliError> {
    let Some(language) = language(section)? else { return Ok(None) };
    let shared = Grammars::new(tokenizer, vocab).and_then(|mut grammars| grammars.constraint(&language));
    let shared = shared.map_err(|error| refused(place(section), &error))?;
    Ok(Some(RolloutConstraint { language, shared }))
}

fn place(section: &GrpoSection) -> &'static str {
    if section.regex.is_empty() { "grpo.json_schema" } else { "grpo.regex" }
}
