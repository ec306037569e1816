//! The flags `--regex` and `--json-schema`.
use std::path::{Path, PathBuf};

use clap::Args;

use super::exit::{CliError, Exit};
use super::input_file::read_text;
use super::loaded::Loaded;
use crate::decode::constraint::SharedConstraint;
use crate::grammar::{GrammarError, Grammars, Language};

const NO_TOKENIZER: &str = "a text can only be matched with the tokenizer of the model";

/// What the text of a completion has to match.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Constrained output")]
pub(super) struct ConstraintFlags {
    /// Generate only text that RE matches as a whole. Syntax of the Rust crate regex, without look-around. The completion
    /// ends when nothing can follow, or with an end-of-text token where RE matches. With finish_reason length the text
    /// is the beginning of a match.
    #[arg(long, value_name = "RE", conflicts_with = "json_schema")]
    pub(super) regex: Option<String>,
    /// Generate only JSON that is valid under SCHEMA: a file, or the schema itself, which begins with {. Properties are
    /// in the order of the schema.
    #[arg(long, value_name = "SCHEMA")]
    pub(super) json_schema: Option<String>,
}

impl ConstraintFlags {
    /// The language of the flags. `None`: neither flag is given.
    ///
    /// # Errors
    /// A schema that cannot be read or is not JSON.
    pub(super) fn language(&self) -> Result<Option<Language>, CliError> {
        match (&self.regex, &self.json_schema) {
            (_, Some(schema)) => read_schema(schema, "--json-schema").map(Some),
            (regex, None) => Ok(regex.clone().map(Language::Regex)),
        }
    }

    /// The constraint of the flags. `None`: neither flag is given.
    ///
    /// # Errors
    /// As [`ConstraintFlags::language`]; a language that cannot be compiled; a model without a tokenizer.
    pub(super) fn compile(&self, loaded: &Loaded) -> Result<Option<SharedConstraint>, CliError> {
        let Some(language) = self.language()? else { return Ok(None) };
        let mut compiler = Compiler::new(loaded);
        compiler.constraint(&language, self.name()).map(Some)
    }

    /// Whether a flag is given.
    pub(super) fn is_given(&self) -> bool {
        self.regex.is_some() || self.json_schema.is_some()
    }

    /// The file of the schema. `None`: there is no schema, or it is given as text.
    pub(super) fn schema_file(&self) -> Option<PathBuf> {
        self.json_schema.as_deref().filter(|schema| !is_inline(schema)).map(PathBuf::from)
    }

    /// The name of the flag that is given.
    pub(super) fn name(&self) -> &'static str {
        if self.regex.is_some() { "--regex" } else { "--json-schema" }
    }
}

/// Compiles the languages of a command. Reads the tokenizer when the first one is compiled.
pub(super) struct Compiler<'a> {
    loaded: &'a Loaded,
    grammars: Option<Grammars>,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(loaded: &'a Loaded) -> Compiler<'a> {
        Compiler { loaded, grammars: None }
    }

    /// The constraint of `language`. Errors name `place`: a flag, or a file and a line.
    ///
    /// # Errors
    /// A language that cannot be compiled; a model without a tokenizer.
    pub(super) fn constraint(
        &mut self,
        language: &Language,
        place: &str,
    ) -> Result<SharedConstraint, CliError> {
        let grammars = match &mut self.grammars {
            Some(grammars) => grammars,
            none => {
                let tokenizer = self.loaded.require_tokenizer(place, NO_TOKENIZER)?;
                let grammars = Grammars::new(tokenizer, self.loaded.model.config().vocab);
                none.insert(grammars.map_err(|error| refused(place, &error))?)
            }
        };
        grammars.constraint(language).map_err(|error| refused(place, &error))
    }
}

/// Whether a schema is the text itself, not the path of a file.
fn is_inline(schema: &str) -> bool {
    schema.trim_start().starts_with('{')
}

/// The language of a schema: the schema itself, which begins with {, or a file. Errors name `place` or the file.
///
/// # Errors
/// A schema that cannot be read or is not JSON.
pub(super) fn read_schema(schema: &str, place: &str) -> Result<Language, CliError> {
    if is_inline(schema) {
        return Language::json_schema(schema).map_err(|error| refused(place, &error));
    }
    let path = Path::new(schema);
    let text = read_text(path)?;
    Language::json_schema(&text).map_err(|error| refused(&path.display().to_string(), &error))
}

pub(super) fn refused(place: &str, error: &GrammarError) -> CliError {
    let exit = if place.starts_with("--") || place.starts_with("grpo.") { Exit::Usage } else { Exit::Data };
    CliError::new(exit, format_args!("{place}: {error}"))
}
