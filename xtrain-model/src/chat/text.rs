//! What templates do with text: Python's methods, and the filters that a number could make endless.
use std::slice::from_ref;

use minijinja::value::{Kwargs, Rest, Value, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::pycompat;

use super::guard::given_up;

/// The widest indent, field or precision.
const WIDEST: usize = 9999;

/// `value.name(args)` for what the engine has no method for: those of Python's strings and dictionaries.
///
/// # Errors
/// A method that is not known; arguments of another kind.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if given_up() {
        return Err(Error::new(ErrorKind::InvalidOperation, "nobody waits for it"));
    }
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    let parts = |(before, part, after): (&str, &str, &str)| Value::from_iter([before, part, after]);
    match name {
        "format" => narrow(text, args)?,
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            return Ok(Value::from(rest.unwrap_or(text)));
        }
        "partition" | "rpartition" => {
            let (part,): (&str,) = from_args(args)?;
            if part.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let first = name == "partition";
            let cut = if first { text.split_once(part) } else { text.rsplit_once(part) };
            return Ok(parts(match cut {
                Some((before, after)) => (before, part, after),
                None if first => (text, "", ""),
                None => ("", "", text),
            }));
        }
        _ => {}
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// The engine's own filters, which the bounded ones call.
const UNBOUNDED: [&str; 2] = ["unbounded_indent", "unbounded_format"];

/// Puts the methods and filters of this file into an engine.
pub(super) fn install(engine: &mut Environment<'static>) {
    engine.set_unknown_method_callback(method);
    engine.add_filter(UNBOUNDED[0], filters::indent);
    engine.add_filter(UNBOUNDED[1], filters::format);
    engine.add_filter(
        "indent",
        |state: &mut State<'_, '_>, text: &Value, args: Rest<Value>, named: Kwargs| {
            let width = named.peek::<Option<Value>>("width")?;
            if args.iter().chain(&width).any(is_wide) {
                return Err(too_wide());
            }
            state.apply_filter(UNBOUNDED[0], &[from_ref(text), &args[..], &[named.into()]].concat())
        },
    );
    engine.add_filter(
        "format",
        |state: &mut State<'_, '_>, text: &Value, args: Rest<Value>, named: Kwargs| {
            let given = named.args().map(|name| named.peek(name)).collect::<Result<Vec<Value>, Error>>()?;
            narrow(text.as_str().unwrap_or_default(), &[&args[..], &given[..]].concat())?;
            let named = if given.is_empty() { vec![] } else { vec![named.into()] };
            state.apply_filter(UNBOUNDED[1], &[from_ref(text), &args[..], &named[..]].concat())
        },
    );
}

/// Refuses a format with a number above [`WIDEST`], in it or given to it.
fn narrow(format: &str, args: &[Value]) -> Result<(), Error> {
    let numbers = format.split(|c: char| !c.is_ascii_digit());
    let wide = numbers
        .filter(|digits| !digits.is_empty())
        .any(|digits| digits.parse::<usize>().map_or(true, |number| number > WIDEST));
    // a width may be given beside the text: %*d, {:{}}
    let given = (format.contains('*') || format.contains(":{")) && args.iter().any(is_wide);
    if wide || given { Err(too_wide()) } else { Ok(()) }
}

fn is_wide(number: &Value) -> bool {
    number.as_i64().is_some_and(|n| n > WIDEST as i64)
}

fn too_wide() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a width of more than {WIDEST}"))
}
